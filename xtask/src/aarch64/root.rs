//! A Debian for arm64, unpacked into a folder: its programs, which QEMU runs, and a kernel. Nothing is installed: an
//! apt with its own configuration, which leaves this system's alone, fetches the packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::paths;
use crate::run::{output, run};

/// The Debian release that has all of the programs.
const RELEASE: &str = "bookworm";
/// Its packages.
const MIRROR: &str = "http://deb.debian.org/debian";
/// Its security updates.
const SECURITY: &str = "http://deb.debian.org/debian-security";
/// The keys that sign both.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The packages in the root, besides their dependencies: programs with LuaJIT, and what the tests' script and programs
/// run.
const PACKAGES: [&str; 19] = [
    "luajit",
    "nginx",
    "libnginx-mod-http-lua",
    "busybox-static",
    "bash",
    "dash",
    "coreutils",
    "grep",
    "sed",
    "mount",
    "base-files",
    "libc-bin",
    "findutils",
    "mawk",
    "debianutils",
    "util-linux",
    "procps",
    "hostname",
    "iproute2",
];

/// Programs that exclude others, by their names among the tests: each is in a folder of its own.
const APART: [(&str, &[&str]); 1] = [("luajit2", &["luajit2", "libluajit2-5.1-2"])];

/// The packages of the root that the tests expect in a folder of their own.
const IN_ROOT: [&str; 3] = ["nginx", "libnginx-mod-http-lua", "libnginx-mod-http-ndk"];

/// The folder with programs for the tests, relative to the folder of this module.
const PROGRAMS: &str = "root/lj-trace/programs";

/// The kernel package: it has the drivers for shared folders built in.
const KERNEL: &str = "linux-image-6\\.12.*-cloud-arm64$";

/// The folder for everything.
fn folder() -> PathBuf {
    paths::cache().join("aarch64")
}

/// The unpacked system.
pub struct Root {
    /// The root.
    pub root: PathBuf,
    /// The kernel.
    pub vmlinuz: PathBuf,
    /// The path of the clone's `target` folder inside the machine: the programs are there.
    pub target: &'static str,
}

impl Root {
    /// The unpacked system. Fetches what is missing.
    ///
    /// # Errors
    /// Something cannot be fetched.
    pub fn find() -> Result<Self> {
        let folder = folder();
        let done = folder.join("complete");
        if !done.is_file() {
            fetch(&folder)?;
            fs::write(&done, "")?;
        }
        // Each time, because an earlier fetch may lack some.
        for name in IN_ROOT {
            let place = folder.join(PROGRAMS).join(name);
            if place.symlink_metadata().is_err() {
                symlink("/", &place).with_context(|| format!("cannot make {}", place.display()))?;
            }
        }
        let boot = folder.join("kernel/boot");
        let mut files = boot.read_dir().with_context(|| format!("no {}", boot.display()))?.flatten();
        let vmlinuz = files.find(|file| file.file_name().to_string_lossy().starts_with("vmlinuz-"));
        let vmlinuz = vmlinuz.with_context(|| format!("no vmlinuz in {}", boot.display()))?.path();
        Ok(Self { root: folder.join("root"), vmlinuz, target: "/lj-trace" })
    }

    /// Creates the mount point for a folder of this machine, at the same path inside the root.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn make_place_for(&self, folder: &Path) -> Result<()> {
        let place = self.root.join(folder.strip_prefix("/")?);
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))
    }
}

fn fetch(folder: &Path) -> Result<()> {
    if !Path::new(KEYRING).is_file() {
        bail!("there is no {KEYRING}: install the package debian-archive-keyring");
    }
    let apt = Apt::set_up(&folder.join("apt"))?;
    eprintln!("fetching a Debian for arm64 into {}", folder.display());
    apt.update()?;
    // One after another: asked for all at once, apt cannot decide between some alternatives.
    PACKAGES.iter().try_for_each(|package| apt.download_with_dependencies(package))?;
    let root = folder.join("root");
    apt.unpack(&root)?;
    // No package's script has run, so these files are missing.
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    let shell = root.join("bin/sh");
    if shell.symlink_metadata().is_err() {
        symlink("dash", shell)?;
    }
    let programs = folder.join(PROGRAMS);
    for (name, packages) in APART {
        packages.iter().try_for_each(|package| apt.download(package))?;
        apt.unpack(&programs.join(name))?;
    }
    let kernels = apt.names(KERNEL);
    let kernel = kernels.last().with_context(|| format!("Debian has no {KERNEL}"))?;
    apt.download(kernel)?;
    apt.unpack(&folder.join("kernel"))
}

/// An apt for arm64 that sees no installed packages.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn set_up(folder: &Path) -> Result<Self> {
        for inside in ["lists/partial", "cache/archives/partial", "etc"] {
            fs::create_dir_all(folder.join(inside))?;
        }
        fs::write(folder.join("status"), "")?;
        let source = |mirror: &str, suite: &str| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        let sources = [
            source(MIRROR, RELEASE),
            source(MIRROR, &format!("{RELEASE}-backports")),
            source(SECURITY, &format!("{RELEASE}-security")),
        ];
        fs::write(folder.join("etc/sources.list"), sources.concat())?;
        let at = folder.display();
        let settings = format!(
            "APT::Architecture \"arm64\";\nAPT::Architectures {{ \"arm64\"; }};\nAPT::Sandbox::User \"root\";\n\
             APT::Install-Recommends \"false\";\nDir::State \"{at}\";\nDir::State::status \"{at}/status\";\n\
             Dir::Cache \"{at}/cache\";\nDir::Etc::sourcelist \"{at}/etc/sources.list\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\nDir::Etc::preferences \"/dev/null\";\n\
             Dir::Etc::preferencesparts \"/dev/null\";\n"
        );
        fs::write(folder.join("apt.conf"), settings)?;
        Ok(Self { folder: folder.to_owned() })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("DEBIAN_FRONTEND", "noninteractive");
        command.current_dir(self.archives()).env("LC_ALL", "C");
        command
    }

    fn archives(&self) -> PathBuf {
        self.folder.join("cache/archives")
    }

    fn update(&self) -> Result<()> {
        run(self.command("apt-get").args(["--quiet", "--quiet", "update"]))
    }

    fn download_with_dependencies(&self, package: &str) -> Result<()> {
        run(self.command("apt-get").args(["--quiet", "--quiet", "--yes", "--download-only", "install", package]))
    }

    fn download(&self, package: &str) -> Result<()> {
        run(self.command("apt-get").args(["--quiet", "--quiet", "download", package]))
    }

    /// The names of matching packages, lowest version first.
    fn names(&self, pattern: &str) -> Vec<String> {
        let found = output(self.command("apt-cache").args(["search", "--names-only", pattern])).unwrap_or_default();
        let mut names: Vec<_> = found.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        names.sort_by_key(|name| numbers(name));
        names
    }

    /// Unpacks the downloads.
    fn unpack(&self, into: &Path) -> Result<()> {
        fs::create_dir_all(into)?;
        for entry in self.archives().read_dir()?.flatten() {
            let file = entry.path();
            if file.extension().is_some_and(|ending| ending == "deb") {
                run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(into))?;
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }
}

/// The numbers in a name, by which to compare versions.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_an_order() {
        assert!(numbers("linux-image-6.12.9+deb12-cloud-arm64") < numbers("linux-image-6.12.117+deb12-cloud-arm64"));
    }

    #[test]
    fn apt_has_settings_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let apt = Apt::set_up(folder.path()).unwrap();
        let settings = fs::read_to_string(apt.folder.join("apt.conf")).unwrap();
        assert!(settings.lines().all(|line| line.ends_with(';')), "{settings}");
        assert_eq!(fs::read_to_string(apt.folder.join("etc/sources.list")).unwrap().lines().count(), 3);
    }
}
