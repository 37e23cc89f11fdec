//! The memory that lj-trace may use as a service or in a container. lj-trace ends by itself, with complete files, before
//! the kernel kills it for using more.

use std::path::{Path, PathBuf};

use lj_trace_process::proc_file;

/// The least memory to leave for writing the files, in bytes.
const RESERVE: u64 = 8 << 20;

/// The tightest memory limit that applies to this process.
#[derive(Clone, Debug)]
pub struct MemoryLimit {
    /// The control group that sets the limit.
    group: PathBuf,
    limit: u64,
    files: &'static Files,
}

/// The names of files and of statistics fields in one version of control groups.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    current: &'static str,
    /// Page cache of files. The kernel can reclaim it at any time, except for pages that are not written yet.
    cached: [&'static str; 2],
    unwritten: [&'static str; 2],
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    current: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
    unwritten: ["total_dirty", "total_writeback"],
};

const VERSION_2: Files = Files {
    limit: "memory.max",
    current: "memory.current",
    cached: ["inactive_file", "active_file"],
    unwritten: ["file_dirty", "file_writeback"],
};

/// Version 1 shows this many bytes or more if there is no limit.
const NO_LIMIT: u64 = 1 << 60;

impl MemoryLimit {
    /// The limit of this process's control group or of a parent group; [`None`] if there is none.
    pub fn of_this_process() -> Option<Self> {
        let groups = proc_file::read_text("/proc/self/cgroup").ok()?;
        let of = |line: &str| {
            let (_, line) = line.split_once(':')?;
            match line.split_once(":/")? {
                ("", group) => Self::tightest(Path::new("/sys/fs/cgroup"), Path::new(group), &VERSION_2),
                (controllers, group) if controllers.split(',').any(|name| name == "memory") => {
                    Self::tightest(Path::new("/sys/fs/cgroup/memory"), Path::new(group), &VERSION_1)
                }
                _ => None,
            }
        };
        groups.lines().filter_map(of).min_by_key(|limited| limited.limit)
    }

    fn tightest(root: &Path, own: &Path, files: &'static Files) -> Option<Self> {
        let limited = own.ancestors().filter_map(|group| {
            let group = root.join(group);
            let limit = number(&group.join(files.limit)).filter(|limit| *limit < NO_LIMIT)?;
            Some(Self { group, limit, files })
        });
        limited.min_by_key(|limited| limited.limit)
    }

    /// Whether so little memory is left that the recording must end. `growth` is the number of bytes that its tables need
    /// with the next step.
    pub fn is_near(&self, growth: u64) -> bool {
        let stat = proc_file::read_text(self.group.join("memory.stat")).unwrap_or_default();
        let sum = |names: &[&str; 2]| names.iter().filter_map(|name| field(&stat, name)).sum::<u64>();
        let Some(current) = number(&self.group.join(self.files.current)) else { return false };
        let used = current.saturating_sub(sum(&self.files.cached).saturating_sub(sum(&self.files.unwritten)));
        self.limit.saturating_sub(used.saturating_add(growth)) < RESERVE.max(self.limit / 8)
    }

    /// The limit, in bytes.
    pub fn bytes(&self) -> u64 {
        self.limit
    }
}

/// The number in a file; [`None`] for `max`.
fn number(path: &Path) -> Option<u64> {
    proc_file::read_text(path).ok()?.trim().parse().ok()
}

/// The value in a line of the form `name value`.
fn field(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_tightest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        let write = |group: &Path, name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        let found = || MemoryLimit::tightest(root.path(), Path::new("a/b"), &VERSION_2);
        assert!(found().is_none());
        write(&group, "memory.max", "max\n");
        write(&root.path().join("a"), "memory.max", "134217728\n");
        let limit = found().unwrap();
        assert_eq!((limit.bytes(), limit.group.as_path()), (128 << 20, root.path().join("a").as_path()));
        let parent = root.path().join("a");
        write(&parent, "memory.stat", "anon 1\nfile 1\nactive_file 62914560\ninactive_file 0\nfile_dirty 0\n");
        // The group uses 120 of 128 MiB, and 60 of these are page cache.
        write(&parent, "memory.current", "125829120\n");
        assert!(!limit.is_near(0) && limit.is_near(60 << 20));
        write(&parent, "memory.stat", "active_file 1048576\ninactive_file 0\n");
        assert!(limit.is_near(0));
    }
}
