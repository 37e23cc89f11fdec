//! Packages of Debian for arm64, fetched by an apt with its own configuration: nothing is installed, and this system's
//! apt is left alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::run::{output, run};

/// The Debian release that has all of the programs.
const RELEASE: &str = "bookworm";
/// The release after it.
const NEXT_RELEASE: &str = "trixie";
/// Its packages.
const MIRROR: &str = "http://deb.debian.org/debian";
/// Its security updates.
const SECURITY: &str = "http://deb.debian.org/debian-security";
/// The keys that sign both.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An apt for arm64 that sees no installed packages.
pub struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Sets it up in a folder.
    pub fn set_up(folder: &Path) -> Result<Self> {
        if !Path::new(KEYRING).is_file() {
            bail!("there is no {KEYRING}: install the package debian-archive-keyring");
        }
        for inside in ["lists/partial", "cache/archives/partial", "etc"] {
            fs::create_dir_all(folder.join(inside))?;
        }
        fs::write(folder.join("status"), "")?;
        let source = |mirror: &str, suite: &str| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        let sources = [
            source(MIRROR, RELEASE),
            source(MIRROR, &format!("{RELEASE}-backports")),
            // Kernels only: apt prefers the packages of the release to those of backports.
            source(MIRROR, &format!("{NEXT_RELEASE}-backports")),
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

    /// Fetches the lists of packages.
    pub fn update(&self) -> Result<()> {
        run(self.command("apt-get").args(["--quiet", "--quiet", "update"]))
    }

    /// Downloads a package, and what it depends on.
    pub fn download_with_dependencies(&self, package: &str) -> Result<()> {
        run(self.command("apt-get").args(["--quiet", "--quiet", "--yes", "--download-only", "install", package]))
    }

    /// Downloads a package.
    pub fn download(&self, package: &str) -> Result<()> {
        run(self.command("apt-get").args(["--quiet", "--quiet", "download", package]))
    }

    /// The names of matching packages, lowest version first.
    pub fn names(&self, pattern: &str) -> Vec<String> {
        let found = output(self.command("apt-cache").args(["search", "--names-only", pattern])).unwrap_or_default();
        let mut names: Vec<_> = found.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        names.sort_by_key(|name| numbers(name));
        names
    }

    /// Unpacks the downloads.
    pub fn unpack(&self, into: &Path) -> Result<()> {
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
        assert_eq!(fs::read_to_string(apt.folder.join("etc/sources.list")).unwrap().lines().count(), 4);
    }
}
