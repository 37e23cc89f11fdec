//! Selects processes by names that users know, instead of by process id.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::proc_file;

/// A way to choose processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The name of the command, or of its file: `nginx`.
    Name(String),
    /// A systemd unit, with or without `.service`.
    Unit(String),
    /// A container's id, or the first digits of it.
    Container(String),
}

/// The fewest digits of a container's id that are accepted: with fewer, several containers may match.
pub const LEAST_OF_ID: usize = 4;

impl Selector {
    /// Ids of the processes that match now, without lj-trace itself.
    pub fn processes(&self) -> Vec<u32> {
        let own = std::process::id();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut chosen: Vec<u32> = pids.filter(|pid| *pid != own && self.chooses(*pid)).collect();
        chosen.sort_unstable();
        chosen
    }

    fn chooses(&self, pid: u32) -> bool {
        match self {
            Self::Name(name) => has_name(pid, name),
            Self::Unit(unit) => in_group(pid, |part| is_unit(part, unit)),
            Self::Container(id) => in_group(pid, |part| is_container(part, id)),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "processes called `{name}`"),
            Self::Unit(unit) => write!(f, "processes of the unit `{unit}`"),
            Self::Container(id) => write!(f, "processes of the container `{id}`"),
        }
    }
}

/// Whether the command or its file has this name. The kernel keeps the first 15 bytes of a command's name.
fn has_name(pid: u32, name: &str) -> bool {
    const KEPT: usize = 15;
    let folder = format!("/proc/{pid}");
    let command = proc_file::read(Path::new(&folder).join("comm")).unwrap_or_default();
    let command = command.trim_ascii_end();
    let is_command = command == name.as_bytes() || (command.len() == KEPT && name.as_bytes().starts_with(command));
    // A kernel thread has no file.
    is_command && fs::read_link(Path::new(&folder).join("exe")).is_ok()
        || fs::read_link(Path::new(&folder).join("exe")).is_ok_and(|file| file_name(&file) == Some(name.as_bytes()))
}

/// The name of a file, without the mark of a file that was deleted since.
fn file_name(path: &Path) -> Option<&[u8]> {
    let name = path.file_name().map(OsStr::as_bytes)?;
    Some(name.strip_suffix(b" (deleted)").unwrap_or(name))
}

/// Whether `is_wanted` accepts a part of the path of one of the process's control groups.
fn in_group(pid: u32, is_wanted: impl Fn(&str) -> bool) -> bool {
    let groups = proc_file::read_text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.split('/')).any(is_wanted)
}

fn is_unit(part: &str, unit: &str) -> bool {
    part == unit || part.strip_suffix(".service") == Some(unit)
}

/// Whether this part of the path names the group of the container `id`:
/// `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID.scope`.
fn is_container(part: &str, id: &str) -> bool {
    /// Digits of an id, as container engines generate it.
    const DIGITS: usize = 64;
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let own = name.rsplit('-').next().unwrap_or(name);
    let is_id = own.len() == DIGITS && own.bytes().all(|digit| digit.is_ascii_hexdigit());
    id.len() >= LEAST_OF_ID && is_id && own.starts_with(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_the_names_of_their_files() {
        let mut child = std::process::Command::new("sleep").arg("9").spawn().unwrap();
        let chosen = Selector::Name("sleep".to_owned()).processes();
        assert!(chosen.contains(&child.id()), "{chosen:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!Selector::Name("sleep".to_owned()).processes().contains(&child.id()));
        assert!(Selector::Name("no such program".to_owned()).processes().is_empty());
        let own = fs::read_link("/proc/self/exe").unwrap();
        let own = own.file_name().unwrap().to_string_lossy().into_owned();
        assert!(has_name(std::process::id(), &own));
        assert!(!Selector::Name(own).processes().contains(&std::process::id()));
    }

    #[test]
    fn removed_files_keep_their_names() {
        assert_eq!(file_name(Path::new("/usr/sbin/nginx (deleted)")), Some(&b"nginx"[..]));
    }

    #[test]
    fn units_and_containers_are_parts_of_a_groups_path() {
        let id = "0123456789abcdef".repeat(4);
        for part in [id.clone(), format!("docker-{id}.scope"), format!("cri-containerd-{id}.scope")] {
            assert!(is_container(&part, "0123") && is_container(&part, &id), "{part}");
            assert!(!is_container(&part, "012") && !is_container(&part, "1234"), "{part}");
        }
        assert!(!is_container("user-1000.slice", "1000") && !is_container("nginx.service", "nginx"));
        assert!(is_unit("nginx.service", "nginx") && is_unit("nginx.service", "nginx.service"));
        assert!(!is_unit("nginx2.service", "nginx") && is_unit("lj-trace@7.service", "lj-trace@7"));
    }
}
