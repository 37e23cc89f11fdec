//! Frozen cgroups. A process in one does not run, and its state does not show why (`S` in version 2, `D` in version 1).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::proc_file;

/// The file that thaws the frozen cgroup of a process, and the text to write into it; [`None`] if the process is in no
/// frozen cgroup, or this cannot be found out.
pub fn thawed_by(pid: u32) -> Option<(PathBuf, &'static str)> {
    let cgroups = proc_file::read_text(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = mounts()?;
    folders(&cgroups, &mounts).find_map(|(version, folder, mount)| frozen_by(version, &folder, &mount))
}

/// The text of lj-trace's own `/proc/PID/mountinfo`, at most some seconds old: if many processes are watched, each needs it.
fn mounts() -> Option<Arc<str>> {
    const AGE: Duration = Duration::from_secs(5);
    static LAST: Mutex<Option<(Instant, Arc<str>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, mounts)) = last.as_ref().filter(|(read, _)| read.elapsed() < AGE) {
        return Some(mounts.clone());
    }
    let mounts: Arc<str> = proc_file::read_text("/proc/self/mountinfo").ok()?.into();
    *last = Some((Instant::now(), mounts.clone()));
    Some(mounts)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The folders of a process's cgroups that may be frozen, each with the mount that it is beneath: from the process's
/// `/proc/PID/cgroup` and lj-trace's own `/proc/PID/mountinfo`.
fn folders(cgroups: &str, mounts: &str) -> impl Iterator<Item = (Version, PathBuf, PathBuf)> {
    let path_of = move |version: Version| {
        cgroups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match version {
                Version::One => controllers.split(',').any(|controller| controller == "freezer"),
                Version::Two => controllers.is_empty(),
            };
            is_it.then_some(path)
        })
    };
    mounts.lines().filter_map(move |line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.next_back()?);
        let version = match name {
            "cgroup2" => Version::Two,
            "cgroup" if options.split(',').any(|option| option == "freezer") => Version::One,
            _ => return None,
        };
        // In a container, the mount may show only a part of the hierarchy.
        let path = path_of(version)?;
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path.trim_start_matches('/')));
        Some((version, Path::new(mount).join(below), mount.into()))
    })
}

/// The file that thaws a folder's cgroup, if that or a cgroup above it is frozen.
fn frozen_by(version: Version, folder: &Path, mount: &Path) -> Option<(PathBuf, &'static str)> {
    let read = |folder: &Path, file: &str| proc_file::read_text(folder.join(file)).unwrap_or_default();
    let (is_frozen, own, value, file, thawed) = match version {
        Version::One => {
            (read(folder, "freezer.state").trim() != "THAWED", "freezer.self_freezing", "1", "freezer.state", "THAWED")
        }
        Version::Two => {
            let events = read(folder, "cgroup.events");
            (events.lines().any(|line| line == "frozen 1"), "cgroup.freeze", "1", "cgroup.freeze", "0")
        }
    };
    if !is_frozen {
        return None;
    }
    let mut above = folder.ancestors().take_while(|above| above.starts_with(mount));
    let cause = above.find(|above| read(above, own).trim() == value)?;
    Some((cause.join(file), thawed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_the_mounts() {
        let cgroups = "12:freezer,pids:/docker/1\n3:cpu:/other\n0::/user.slice/x\n";
        let mounts = "30 23 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n\
                      31 23 0:27 /docker /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
                      32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      33 23 0:29 / /proc rw - proc proc rw\n";
        let found: Vec<_> = folders(cgroups, mounts).map(|(version, folder, _)| (version, folder)).collect();
        let [two, one] = ["/sys/fs/cgroup/unified/user.slice/x", "/sys/fs/cgroup/freezer/1"].map(PathBuf::from);
        assert_eq!(found, [(Version::Two, two), (Version::One, one)]);
    }

    #[test]
    fn the_cause_may_be_above() {
        let root = tempfile::tempdir().unwrap();
        let [outer, inner] = ["a", "a/b"].map(|name| root.path().join(name));
        std::fs::create_dir_all(&inner).unwrap();
        let write = |folder: &Path, file: &str, text: &str| std::fs::write(folder.join(file), text).unwrap();
        assert_eq!(frozen_by(Version::Two, &inner, root.path()), None, "files that are not there");
        write(&inner, "cgroup.events", "populated 1\nfrozen 1\n");
        write(&inner, "cgroup.freeze", "0\n");
        write(&outer, "cgroup.freeze", "1\n");
        assert_eq!(frozen_by(Version::Two, &inner, root.path()), Some((outer.join("cgroup.freeze"), "0")));
        write(&inner, "cgroup.events", "populated 1\nfrozen 0\n");
        assert_eq!(frozen_by(Version::Two, &inner, root.path()), None);
        write(&inner, "freezer.state", "FREEZING\n");
        write(&inner, "freezer.self_freezing", "1\n");
        assert_eq!(frozen_by(Version::One, &inner, root.path()), Some((inner.join("freezer.state"), "THAWED")));
        write(&inner, "freezer.state", "THAWED\n");
        assert_eq!(frozen_by(Version::One, &inner, root.path()), None);
    }
}
