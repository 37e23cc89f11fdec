//! The packages of a Debian or Ubuntu system, through apt.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::paths;
use crate::run::{is_root, output, run};

/// Whether this system has apt.
pub fn is_here() -> bool {
    paths::find_command("apt-get").is_some() && paths::find_command("dpkg-query").is_some()
}

/// The package that a file belongs to.
pub fn owner(file: &Path) -> Option<String> {
    let owner = output(Command::new("dpkg").arg("-S").arg(file)).ok()?;
    owner.split(':').next().map(str::to_owned)
}

/// Whether a package is installed completely.
pub fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Abbrev}", package]).stderr(Stdio::null());
    output(&mut query).is_ok_and(|status| status.starts_with("ii"))
}

/// The installable version of a package, if apt knows the package.
pub fn candidate(package: &str) -> Option<String> {
    let policy = output(Command::new("apt-cache").args(["policy", package]).env("LC_ALL", "C")).ok()?;
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then(|| version.to_owned())
}

/// The names of all packages that match a regular expression.
pub fn names(pattern: &str) -> Vec<String> {
    let found = output(Command::new("apt-cache").args(["search", "--names-only", pattern]).env("LC_ALL", "C"));
    found.unwrap_or_default().lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// The direct dependencies of a package.
pub fn depends(package: &str) -> Vec<String> {
    let text = output(Command::new("apt-cache").args(["depends", package]).env("LC_ALL", "C")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned).collect()
}

/// Whether the package lists exist and are less than a day old: older lists name versions that servers no longer have,
/// and lack newer ones.
pub fn lists_are_recent() -> bool {
    /// Each `apt-get update` touches this folder, even without new lists.
    const TOUCHED_BY_UPDATE: &str = "/var/lib/apt/lists/partial";
    const RECENT: Duration = Duration::from_hours(24);
    let age = || std::fs::metadata(TOUCHED_BY_UPDATE).ok()?.modified().ok()?.elapsed().ok();
    age().is_some_and(|age| age < RECENT) && candidate("libc6").is_some()
}

/// Fetches the package lists. Waits for another program that does so.
pub fn update() -> Result<()> {
    const LOCK: &str = "/var/lib/apt/lists/lock";
    need_root("apt-get update")?;
    if is_locked(Path::new(LOCK)) {
        println!("  another program fetches the package lists: waiting for it, up to 10 minutes");
    }
    // `DPkg::Lock::Timeout` says nothing about this lock.
    for _ in 0..120 {
        if !is_locked(Path::new(LOCK)) {
            break;
        }
        std::thread::sleep(Duration::from_secs(5));
    }
    run(apt_get().args(["--quiet", "--quiet", "update"]))
}

/// Whether a program holds a lock on a file (`/proc/locks`: its sixth word is the device and the inode).
fn is_locked(file: &Path) -> bool {
    let Ok(inode) = file.metadata().map(|file| file.ino()) else { return false };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|lock| lock.split_whitespace().any(|word| word.ends_with(&format!(":{inode}"))))
}

/// Installs packages, without the packages that they only recommend.
pub fn install(packages: &[String]) -> Result<()> {
    need_root(&format!("apt-get install --no-install-recommends {}", packages.join(" ")))?;
    let mut command = apt_get();
    run(command.args(["--quiet", "--quiet", "--yes", "--no-install-recommends", "install"]).args(packages))
}

/// Downloads a package and unpacks it into `folder` without installing it. So no service starts, and packages that
/// exclude each other can both be used.
pub fn unpack(package: &str, folder: &Path) -> Result<()> {
    let beside = |what: &str| {
        let mut name = folder.as_os_str().to_owned();
        name.push(what);
        PathBuf::from(name)
    };
    let (download, partial) = (beside(".download"), beside(".partial"));
    for leftover in [folder, &download, &partial] {
        if leftover.exists() {
            std::fs::remove_dir_all(leftover).with_context(|| format!("cannot remove {}", leftover.display()))?;
        }
    }
    std::fs::create_dir_all(&download).with_context(|| format!("cannot make {}", download.display()))?;
    // apt would run the download as its own unprivileged user, who may not write to this folder.
    let mut command = apt_get();
    command.args(["--quiet", "--quiet", "-o", "APT::Sandbox::User=root", "download", package]);
    run(command.current_dir(&download))?;
    let mut files = download.read_dir()?.flatten().map(|entry| entry.path());
    let file = files.next().with_context(|| format!("apt-get download {package} left no file"))?;
    // It gets its name only once it is complete: an interrupted setup must not look finished.
    run(Command::new("dpkg").arg("-x").arg(&file).arg(&partial))?;
    std::fs::rename(&partial, folder)?;
    std::fs::remove_dir_all(&download)?;
    Ok(())
}

fn apt_get() -> Command {
    /// A new machine updates itself at first, and holds dpkg's lock for some minutes.
    const WAIT_FOR_OTHERS: &str = "DPkg::Lock::Timeout=600";
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", WAIT_FOR_OTHERS]);
    command
}

fn need_root(task: &str) -> Result<()> {
    if !is_root() {
        bail!("installing packages needs root: run `sudo {task}`, then this task again");
    }
    Ok(())
}
