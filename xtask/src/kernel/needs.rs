//! The programs that emulated machines need: they are installed only on request.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::machine::Processor;
use crate::{apt, paths};

/// Commands, with their packages.
const COMMANDS: [(&str, &str); 2] = [("cpio", "cpio"), ("xz", "xz-utils")];

/// A shell that needs no shared libraries.
pub const BUSYBOX: &str = "/bin/busybox";

/// Where distributions install virtiofsd, which shares folders with a machine.
const VIRTIOFSD: [&str; 3] = ["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/virtiofsd"];

/// The path of virtiofsd.
pub fn virtiofsd() -> Result<&'static Path> {
    let found = VIRTIOFSD.iter().map(Path::new).find(|path| path.is_file());
    found.context("there is no virtiofsd: install the package virtiofsd, or QEMU's own (qemu-system-common)")
}

/// Installs what is missing.
pub fn install(processor: Processor) -> Result<()> {
    let emulator = match processor {
        Processor::X86_64 => (processor.qemu(), "qemu-system-x86"),
        Processor::Aarch64 | Processor::Aarch64Signing => (processor.qemu(), "qemu-system-arm"),
    };
    let commands = COMMANDS.iter().chain([&emulator]).filter(|(command, _)| paths::find_command(command).is_none());
    let mut missing: Vec<String> = commands.map(|(_, package)| (*package).to_owned()).collect();
    // Busybox may be installed, but linked dynamically, and without some of the commands.
    if !Path::new(BUSYBOX).is_file() {
        missing.push("busybox-static".to_owned());
    }
    if virtiofsd().is_err() {
        // Newer releases have virtiofsd in a package of its own, older ones in QEMU's.
        let own = apt::candidate("virtiofsd").map(|_| "virtiofsd".to_owned());
        missing.extend(own.or_else(|| Some("qemu-system-common".to_owned())));
    }
    if missing.is_empty() {
        return Ok(());
    }
    if !apt::is_here() {
        bail!(
            "a machine to run another kernel in needs {}, with their counterparts here: install them",
            missing.join(", ")
        );
    }
    apt::install(&missing)?;
    virtiofsd().map(drop)
}
