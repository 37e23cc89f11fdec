//! The compiled BPF programs, embedded in the binary.

use std::borrow::Cow;

use aya::include_bytes_aligned;
use memchr::memmem;

use super::mechanism::Mechanism;

/// The ELF object with every BPF program and map; empty if lj-trace was built without its BPF programs.
///
/// Aligned, because aya parses ELF structures in place.
pub static BPF_OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lj-trace-probe.o"));

/// Why this lj-trace has no usable BPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBpfPrograms {
    /// lj-trace was built without them, as a plain `cargo build` does.
    #[error("this lj-trace was built without its BPF programs: build it with `cargo xtask build`")]
    NotBuilt,
}

/// The compiled BPF programs.
///
/// # Errors
/// [`NoBpfPrograms`] if this binary has none.
pub fn object() -> Result<&'static [u8], NoBpfPrograms> {
    if BPF_OBJECT.is_empty() { Err(NoBpfPrograms::NotBuilt) } else { Ok(BPF_OBJECT) }
}

/// The same object, with its probes declared as `mechanism` needs them. aya reads the mechanism from the names of the
/// sections, which are in the string table and in that of BTF.
///
/// # Errors
/// As [`object()`].
pub fn object_for(mechanism: Mechanism) -> Result<Cow<'static, [u8]>, NoBpfPrograms> {
    const SUFFIX: &[u8] = b".multi\0";
    let object = object()?;
    if mechanism == Mechanism::Multi {
        return Ok(Cow::Borrowed(object));
    }
    let mut renamed = object.to_vec();
    for place in memmem::find_iter(object, SUFFIX) {
        if object[..place].ends_with(b"uprobe") || object[..place].ends_with(b"uretprobe") {
            renamed[place..place + SUFFIX.len()].fill(0);
        }
    }
    Ok(Cow::Owned(renamed))
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
            Err(error) => assert!(error == NoBpfPrograms::NotBuilt && error.to_string().contains("cargo xtask build")),
        }
    }

    #[test]
    fn there_is_nothing_in_it_that_only_a_benchmark_has() {
        let Ok(object) = object() else { return };
        let parsed = aya_obj::Object::parse(object).unwrap();
        let has = |name: &str| parsed.programs.contains_key(name);
        assert!(has("allocator_session") && !["empty_called", "recording_session"].into_iter().any(has));
    }

    #[test]
    fn probes_are_declared_as_the_mechanism_needs_them() {
        let of = |mechanism| {
            let object = object_for(mechanism).ok()?;
            let parsed = aya_obj::Object::parse(&object).unwrap();
            let section = |name: &str| format!("{:?}", parsed.programs[name].section);
            Some(["allocator_called", "allocator_returned", "sample_cpu"].map(section))
        };
        let (Some(multi), Some(classic)) = (of(Mechanism::Multi), of(Mechanism::Classic)) else { return };
        assert!(multi[0].contains("multi: true") && multi[1].contains("multi: true"), "{multi:?}");
        assert!(classic[0].contains("multi: false") && classic[1].contains("multi: false"), "{classic:?}");
        assert_eq!(multi[2], classic[2]);
    }
}
