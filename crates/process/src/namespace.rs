//! Process ids in containers: each PID namespace numbers its processes anew (pid_namespaces(7)).

use std::fs;
use std::path::Path;

/// Whether the process ids in `/proc` are those that this process's system calls take: a `/proc` mounted in another PID
/// namespace shows other processes under the same numbers.
pub fn is_of_proc() -> bool {
    fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&std::process::id().to_string()))
}

/// A hint about where a process `pid` may be that does not exist in this namespace. Empty if there is none.
pub fn hint(pid: u32) -> String {
    let status = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("status")).ok();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let inside: Vec<String> =
        entries.filter_map(status).filter_map(|status| outer_name(&status, pid)).take(4).collect();
    if !inside.is_empty() {
        let inside = inside.join(", ");
        return format!(
            ". In containers, this is the number of {inside}: give lj-trace the number that a process has here"
        );
    }
    if is_initial() {
        return String::new();
    }
    ". lj-trace runs in a PID namespace of its own (a container), and sees the processes in it alone: run it in the host's \
     (`docker run --pid=host`, `hostPID: true`), or in that of the process (`nsenter --target PID --pid --mount`)"
        .to_owned()
}

/// Whether this process sees all processes of the machine.
pub fn is_initial() -> bool {
    // `PROC_PID_INIT_INO` of Linux's include/linux/proc_ns.h, the same since 3.8.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new("pid:[4026531836]"))
}

/// The id of a process in its own namespace, from its `/proc/PID/status`.
pub fn innermost(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

/// The id here and the name of a process whose id in its own namespace is `pid`, but which has another id here; from
/// its `/proc/PID/status`.
fn outer_name(status: &str, pid: u32) -> Option<String> {
    let field = |key: &str| status.lines().find_map(|line| Some(line.strip_prefix(key)?.trim()));
    let mut numbers = field("NSpid:")?.split_whitespace();
    let (here, own) = (numbers.next()?, numbers.next_back()?);
    (own.parse() == Ok(pid)).then(|| format!("process {here} ({})", field("Name:").unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_a_container_is_translated() {
        let status = "Name:\tluajit\nPid:\t4711\nNSpid:\t4711\t12\t1\n";
        assert_eq!(outer_name(status, 1), Some("process 4711 (luajit)".to_owned()));
        assert_eq!(outer_name(status, 12), None);
        assert_eq!(outer_name(status, 4711), None);
        assert_eq!(outer_name("Name:\tluajit\nNSpid:\t4711\n", 4711), None);
    }

    #[test]
    fn the_last_number_is_that_of_its_own_namespace() {
        assert_eq!(innermost("Name:\tluajit\nNSpid:\t4711\t12\t1\n"), Some(1));
        assert_eq!(innermost("Name:\tluajit\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(innermost("Name:\tluajit\n"), None);
    }

    #[test]
    fn this_process_sees_itself() {
        assert!(is_of_proc());
    }
}
