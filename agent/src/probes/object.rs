//! The compiled BPF programs, carried inside the binary.

use aya::include_bytes_aligned;

/// The ELF object with every BPF program and map; empty if lj-trace was built without its BPF programs.
///
/// Aligned, since aya parses ELF structures in place.
pub static BPF_OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lj-trace-probe.o"));

/// This lj-trace has no BPF programs inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this lj-trace was built without its BPF programs: build it with `cargo xtask build`")]
pub struct NoBpfPrograms;

/// The compiled BPF programs.
///
/// # Errors
/// [`NoBpfPrograms`] if this binary was built without them, as a plain `cargo build` does.
pub fn object() -> Result<&'static [u8], NoBpfPrograms> {
    if BPF_OBJECT.is_empty() { Err(NoBpfPrograms) } else { Ok(BPF_OBJECT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_an_aligned_elf_file_or_none_at_all() {
        match object() {
            Ok(object) => {
                assert!(object.starts_with(b"\x7fELF"));
                assert_eq!(object.as_ptr().align_offset(align_of::<u64>()), 0);
            }
            Err(error) => assert!(error.to_string().contains("cargo xtask build")),
        }
    }
}
