//! The kind of machine that a binary is for, as each kind of package names it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::aarch64::USER_EMULATOR;

/// A kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// arm64.
    Aarch64,
}

impl Machine {
    /// The machine that an ELF file is for.
    ///
    /// # Errors
    /// It cannot be read, or is for none of these machines.
    pub fn of(binary: &Path) -> Result<Self> {
        let mut head = [0; 20];
        let read = File::open(binary).and_then(|mut file| file.read_exact(&mut head));
        read.with_context(|| format!("cannot read {}", binary.display()))?;
        // e_machine (elf.h): EM_X86_64 and EM_AARCH64.
        match (&head[..4], u16::from_le_bytes([head[18], head[19]])) {
            (b"\x7fELF", 62) => Ok(Self::X86_64),
            (b"\x7fELF", 183) => Ok(Self::Aarch64),
            _ => bail!("{} is no program for x86-64 or arm64", binary.display()),
        }
    }

    /// The name that Rust, the kernel and RPM packages have for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name in Debian, in Go and in container images.
    pub const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    fn is_this(self) -> bool {
        std::env::consts::ARCH == self.name()
    }

    /// A command that runs a binary for this machine, emulated if need be.
    pub fn run(self, binary: &Path) -> Command {
        if self.is_this() {
            return Command::new(binary);
        }
        let mut command = Command::new(match self {
            Self::X86_64 => "qemu-x86_64-static",
            Self::Aarch64 => USER_EMULATOR,
        });
        command.arg(binary);
        command
    }

    /// The command `objcopy` for its files.
    pub fn objcopy(self) -> Command {
        Command::new(if self.is_this() { "objcopy".to_owned() } else { format!("{}-linux-gnu-objcopy", self.name()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_names_its_machine() {
        let own = Machine::of(Path::new("/proc/self/exe")).unwrap();
        assert!(own.is_this());
        assert_eq!(own.run(Path::new("/bin/x")).get_program(), "/bin/x");
        let other = if own == Machine::X86_64 { Machine::Aarch64 } else { Machine::X86_64 };
        assert_eq!(other.run(Path::new("/bin/x")).get_args().collect::<Vec<_>>(), ["/bin/x"]);
        assert!(Machine::of(Path::new("/proc/self/cmdline")).is_err());
    }
}
