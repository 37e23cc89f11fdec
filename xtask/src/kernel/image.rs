//! The kernel: a file, or one of Debian's packages.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{apt, paths};

/// A kernel and its modules.
#[derive(Debug)]
pub struct Image {
    /// The file that boots.
    pub vmlinuz: PathBuf,
    /// The folder of its modules, if there is one.
    pub modules: Option<PathBuf>,
}

impl Image {
    /// Finds the kernel for a path or a version. A Debian kernel is downloaded if it is not here yet.
    pub fn find(kernel: &str) -> Result<Self> {
        if Path::new(kernel).is_file() {
            return Self::of_file(&std::fs::canonicalize(kernel)?);
        }
        if kernel.contains('/') || !kernel.starts_with(|c: char| c.is_ascii_digit()) {
            bail!("there is no file {kernel}; versions are such as 6.1 or 6.12");
        }
        let folder = paths::cache().join("kernels").join(kernel);
        if !folder.is_dir() {
            let package = package_of(kernel)?;
            eprintln!("downloading {package}");
            std::fs::create_dir_all(folder.parent().unwrap_or(&folder))?;
            apt::unpack(&package, &folder)?;
        }
        let boot = folder.join("boot");
        let mut files = boot.read_dir().with_context(|| format!("no {}", boot.display()))?.flatten();
        let vmlinuz = files.find(|file| file.file_name().to_string_lossy().starts_with("vmlinuz-"));
        Self::of_file(&vmlinuz.with_context(|| format!("no vmlinuz in {}", boot.display()))?.path())
    }

    /// The kernel in this file, `.../boot/vmlinuz-RELEASE`, with the modules beside it.
    fn of_file(vmlinuz: &Path) -> Result<Self> {
        let name = vmlinuz.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let release = name.strip_prefix("vmlinuz-").unwrap_or(&name);
        let root = vmlinuz.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        let folders = ["lib/modules", "usr/lib/modules"].map(|folder| root.join(folder).join(release));
        Ok(Self { vmlinuz: vmlinuz.to_owned(), modules: folders.into_iter().find(|folder| folder.is_dir()) })
    }

    /// The file of a module; [`None`] if it is built into the kernel.
    pub fn module(&self, path: &str) -> Option<PathBuf> {
        let base = self.modules.as_ref()?.join("kernel").join(path);
        let with = |ending: &str| PathBuf::from(format!("{}{ending}", base.display()));
        [".ko", ".ko.xz", ".ko.zst"].map(with).into_iter().find(|file| file.is_file())
    }
}

/// The newest package with a kernel of this version for virtual machines.
fn package_of(version: &str) -> Result<String> {
    let found = newest(&apt::names("linux-image-.*-cloud-amd64$"), version);
    found.with_context(|| format!("apt has no linux-image-{version}*-cloud-amd64: give the path of a vmlinuz"))
}

/// The package of this version with the highest numbers.
fn newest(packages: &[String], version: &str) -> Option<String> {
    let numbers = |name: &str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    let wanted = numbers(version);
    let of_version = |name: &&String| name.ends_with("-cloud-amd64") && numbers(name).starts_with(&wanted);
    // The metapackage of a series contains nothing: its name has only the numbers of the series, and `amd64`.
    let is_real = |name: &&String| numbers(name).len() > 3;
    packages.iter().filter(of_version).filter(is_real).max_by_key(|name| numbers(name)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_package_of_a_version_is_found() {
        let packages = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64-unsigned",
            "linux-image-6.12-cloud-amd64",
            "linux-image-6.12.115+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-cloud-amd64",
        ]
        .map(str::to_owned);
        assert_eq!(newest(&packages, "6.1").as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(newest(&packages, "6.12").as_deref(), Some("linux-image-6.12.117+deb12-cloud-amd64"));
        assert_eq!(newest(&packages, "6.12.115").as_deref(), Some("linux-image-6.12.115+deb12-cloud-amd64"));
        assert_eq!(newest(&packages, "5.10"), None);
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        assert!(Image::find("no/such/file").unwrap_err().to_string().contains("no file"));
        assert!(Image::find("latest").is_err());
    }
}
