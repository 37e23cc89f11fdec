//! A disk that is soon full.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// A file system in memory, on a folder of its own.
#[derive(Debug)]
pub struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// With room for so many KiB.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn new(kilobytes: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "lj-trace-test"]).arg(folder.path());
        let status = mount.status().context("cannot run mount")?;
        ensure!(status.success(), "cannot mount a tmpfs: {status}");
        Ok(Self { folder })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whoever still has a file open there keeps it, but the folder can be removed.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}
