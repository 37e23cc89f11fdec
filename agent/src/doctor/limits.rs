//! Limits that a container or a service manager sets.

use lj_trace_text::bytes;

use super::{Area, Check, Purpose, Verdict, read, status_field};

/// The memory that lj-trace needs, including its buffers, in bytes.
const ENOUGH_MEMORY: u64 = 96 << 20;

pub fn checks() -> Vec<Check> {
    let status = read("/proc/self/status").unwrap_or_default();
    vec![
        seccomp(status_field(&status, "Seccomp").unwrap_or("0")),
        pid_namespace(),
        memory_limit(read("/proc/self/cgroup").as_deref().and_then(cgroup_memory_limit)),
        locked_memory(),
    ]
}

fn check(name: &str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check::new(Area::Limits, name, verdict, found)
}

fn seccomp(mode: &str) -> Check {
    if mode == "0" {
        return check("seccomp", Verdict::Ok, "no filter");
    }
    let found = "a filter is on: it must allow bpf, perf_event_open, process_vm_readv and pidfd_open (the checks above \
                 have tried the first two)";
    check("seccomp", Verdict::Note, found)
        .fix("docker: --security-opt seccomp=unconfined; systemd: SystemCallFilter=@system-service bpf perf_event_open process_vm_readv")
}

fn pid_namespace() -> Check {
    /// `PROC_PID_INIT_INO` (`linux/proc_ns.h`).
    const INITIAL: &str = "pid:[4026531836]";
    match std::fs::read_link("/proc/self/ns/pid") {
        Ok(namespace) if namespace.as_os_str() != INITIAL => {
            check("pid namespace", Verdict::Note, "not the initial one: processes outside of it cannot be seen")
                .fix("docker: --pid=host, or --pid=container:NAME for those of another container")
        }
        _ => check("pid namespace", Verdict::Ok, "the initial one"),
    }
}

/// The tightest memory limit among the cgroup of this process and its parents, for both versions of cgroups.
fn cgroup_memory_limit(cgroups: &str) -> Option<u64> {
    let mut limits = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            controllers if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for folder in std::path::Path::new(path.trim_start_matches('/')).ancestors() {
            let file = std::path::Path::new(root).join(folder).join(file);
            limits.extend(read(&file.to_string_lossy()).and_then(|text| text.parse::<u64>().ok()));
        }
    }
    // Without a limit, version 1 shows the largest number of pages.
    limits.into_iter().min().filter(|limit| *limit < 1 << 60)
}

fn memory_limit(limit: Option<u64>) -> Check {
    match limit {
        Some(limit) if limit < ENOUGH_MEMORY => {
            let found = format!("the cgroup has {}: too little for lj-trace and its buffers", bytes(limit));
            check("memory limit", Verdict::Problem, found)
                .fix(format!("give it {} (systemd: MemoryMax=, docker: --memory)", bytes(ENOUGH_MEMORY)))
                .affects(&[Purpose::Sysprof, Purpose::Memprof])
        }
        Some(limit) => check("memory limit", Verdict::Ok, bytes(limit)),
        None => check("memory limit", Verdict::Ok, "none"),
    }
}

fn locked_memory() -> Check {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call only writes the structure that it is given.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    let found = match limit.rlim_cur {
        _ if !known => "not known".to_owned(),
        libc::RLIM_INFINITY => "unlimited".to_owned(),
        limit => format!("{}: does not matter, since Linux 5.11 BPF's memory counts in the cgroup", bytes(limit)),
    };
    check("RLIMIT_MEMLOCK", Verdict::Ok, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_is_a_problem() {
        assert_eq!(memory_limit(Some(32 << 20)).verdict, Verdict::Problem);
        assert_eq!(memory_limit(Some(256 << 20)).verdict, Verdict::Ok);
        assert_eq!(memory_limit(None).verdict, Verdict::Ok);
    }

    #[test]
    fn cgroups_that_are_not_there_have_no_limit() {
        assert_eq!(cgroup_memory_limit("0::/no/such/group\n4:memory:/no/such/group\nnonsense"), None);
        assert_eq!(cgroup_memory_limit(""), None);
    }

    #[test]
    fn a_filter_of_system_calls_is_noted() {
        assert_eq!(seccomp("2").verdict, Verdict::Note);
        assert_eq!(seccomp("0").verdict, Verdict::Ok);
    }
}
