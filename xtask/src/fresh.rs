//! `cargo xtask fresh`: the README's commands on a system that has nothing yet. A machine on which people work has
//! programs of which nobody remembers that they are needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::paths;
use crate::run::{is_root, run};

/// Options of `cargo xtask fresh`.
#[derive(clap::Args)]
pub struct Options {
    /// The release of Debian
    #[arg(long, default_value = "bookworm")]
    release: String,
    /// What to run there: `demo` or `test`, with its options
    #[arg(default_value = "demo", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// What the README expects: Rust and git, and what every build with Rust needs. Debian's newest Rust has a name of its own in
/// the releases that began with a Rust of their time.
const RUST: &str =
    "if apt-cache show cargo-web > /dev/null 2>&1; then rust='cargo-web rustc-web'; else rust='cargo rustc'; fi
    apt-get --quiet --quiet --yes --no-install-recommends install $rust gcc libc6-dev git";

/// Where the system sees this clone.
const CLONE: &str = "/mnt";

/// Makes a new system, clones this clone's last commit there, and runs one of the README's commands.
///
/// # Errors
/// The system cannot be made, or the command fails there.
pub fn fresh(options: &Options) -> Result<()> {
    if !is_root() {
        bail!("only root makes a system in a folder: run this as root");
    }
    let folder = make(&options.release)?;
    let script = script(&folder, &options.command.join(" "));
    // With mounts of its own, which disappear with it, and with none of this system's settings.
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-e", "-c", &script]).env_clear();
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
    run(command.env("LANG", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Installs the essential packages of a release into a new folder.
fn make(release: &str) -> Result<PathBuf> {
    ensure!(paths::find_command("debootstrap").is_some(), "there is no debootstrap: run `cargo xtask setup`");
    let folder = paths::cache().join(format!("fresh-{release}"));
    // Whatever somebody has mounted there is not part of it.
    run(Command::new("rm").args(["--recursive", "--force", "--one-file-system"]).arg(&folder))?;
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", "--include=ca-certificates", release]).arg(&folder);
    run(command.arg("http://deb.debian.org/debian"))?;
    let sources = format!(
        "deb http://deb.debian.org/debian {release} main\n\
         deb http://deb.debian.org/debian {release}-updates main\n\
         deb http://deb.debian.org/debian-security {release}-security main\n"
    );
    fs::write(folder.join("etc/apt/sources.list"), sources)?;
    // How this machine reaches the network.
    for file in ["etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"] {
        let here = Path::new("/").join(file);
        if here.is_file() {
            fs::copy(&here, folder.join(file)).with_context(|| format!("cannot copy {}", here.display()))?;
        }
    }
    Ok(folder)
}

/// What the shell does. The folder becomes the root of all mounts: in a mere `chroot`, no program makes namespaces.
fn script(folder: &Path, command: &str) -> String {
    let (folder, clone) = (folder.display(), paths::root().display());
    format!(
        "mount --make-rprivate /
        mount --bind '{folder}' '{folder}'
        for mount in proc sys dev; do mount --rbind /$mount '{folder}'/$mount; done
        mount --bind '{clone}' '{folder}{CLONE}'
        cd '{folder}'
        pivot_root . media
        exec chroot . /bin/sh -e <<'END'
        umount --lazy /media
        apt-get --quiet --quiet update
        {RUST}
        git config --global --add safe.directory '*'
        git clone --quiet {CLONE} /root/lj-trace
        cd /root/lj-trace
        cargo --version
        cargo xtask {command} < /dev/null
END"
    )
}
