//! What lj-trace may do.

use super::{Area, Check, Mode, Verdict, read, status_field};

/// Capabilities (`linux/capability.h`), what they are for, and the modes that need them.
const CAPABILITIES: [(&str, u32, &str, &[Mode]); 3] = [
    ("CAP_SYS_PTRACE", 19, "reading other users' processes", &Mode::ALL),
    ("CAP_BPF", 39, "loading BPF programs", &[Mode::Sysprof, Mode::Memprof]),
    ("CAP_PERFMON", 38, "sampling, and reading memory from BPF programs", &[Mode::Sysprof, Mode::Memprof]),
];

const CAP_SYS_ADMIN: u32 = 21;
const CAP_CHECKPOINT_RESTORE: u32 = 40;

const HOW: &str = "run as root (`sudo lj-trace ...`), or `sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep \
                   $(command -v lj-trace)`; in a systemd unit `AmbientCapabilities=CAP_BPF CAP_PERFMON CAP_SYS_PTRACE`; in \
                   a container `--cap-add` for each";

pub fn checks() -> Vec<Check> {
    let status = read("/proc/self/status").unwrap_or_default();
    let effective = status_field(&status, "CapEff").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let mut checks = capabilities(effective);
    checks.push(user_namespace(&read("/proc/self/uid_map").unwrap_or_default()));
    checks.extend(sysctls(effective, |name| read(&format!("/proc/sys/kernel/{name}"))));
    checks
}

fn check(name: &str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check::new(Area::Privileges, name, verdict, found)
}

fn has(effective: u64, capability: u32) -> bool {
    effective >> capability & 1 != 0
}

fn capabilities(effective: u64) -> Vec<Check> {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let mut checks =
        vec![check("user", Verdict::Ok, if user == 0 { "root".to_owned() } else { format!("uid {user}") })];
    for (name, number, purpose, modes) in CAPABILITIES {
        // CAP_SYS_ADMIN implies the two younger ones, not CAP_SYS_PTRACE.
        let implied = number != 19 && has(effective, CAP_SYS_ADMIN);
        checks.push(if has(effective, number) || implied {
            check(name, Verdict::Ok, format!("there, for {purpose}"))
        } else {
            check(name, Verdict::Problem, format!("missing: no {purpose}")).fix(HOW).affects(modes)
        });
    }
    if !has(effective, CAP_CHECKPOINT_RESTORE) && !has(effective, CAP_SYS_ADMIN) {
        let found = "missing: programs that were replaced since they were started (upgrades) cannot be opened, and their \
                     native frames have no names";
        checks
            .push(check("CAP_CHECKPOINT_RESTORE", Verdict::Note, found).fix("add it where native frames stay unnamed"));
    }
    checks
}

/// The initial user namespace maps all of 2^32 ids to themselves (user_namespaces(7)).
fn user_namespace(uid_map: &str) -> Check {
    let numbers: Vec<&str> = uid_map.split_whitespace().collect();
    if numbers.is_empty() || numbers == ["0", "0", "4294967295"] {
        return check("user namespace", Verdict::Ok, "the initial one");
    }
    let found = "not the initial one: capabilities count only inside of it, and neither BPF nor perf events do";
    check("user namespace", Verdict::Problem, found)
        .fix("run lj-trace outside of the rootless container, on the host")
        .affects(&[Mode::Sysprof, Mode::Memprof])
}

fn sysctls(effective: u64, read: impl Fn(&str) -> Option<String>) -> Vec<Check> {
    let number = |name: &str| read(name).and_then(|text| text.parse::<i32>().ok());
    let mut checks = Vec::new();
    if let Some(scope) = number("yama/ptrace_scope") {
        let name = "kernel.yama.ptrace_scope";
        checks.push(match scope {
            3.. => check(name, Verdict::Problem, "3: nobody may read another process, not even root")
                .fix("reboot, and do not set it to 3 (it cannot be lowered while the system runs)")
                .affects(&Mode::ALL),
            1 | 2 if !has(effective, 19) => {
                check(name, Verdict::Note, format!("{scope}: other processes can be read with CAP_SYS_PTRACE only"))
            }
            _ => check(name, Verdict::Ok, scope.to_string()),
        });
    }
    if let Some(paranoid) = number("perf_event_paranoid") {
        let privileged = has(effective, 38) || has(effective, CAP_SYS_ADMIN);
        let meaning = if privileged { "does not apply with CAP_PERFMON" } else { "sampling needs CAP_PERFMON" };
        checks.push(check("kernel.perf_event_paranoid", Verdict::Ok, format!("{paranoid}: {meaning}")));
    }
    if let Some(disabled) = number("unprivileged_bpf_disabled") {
        let privileged = has(effective, 39) || has(effective, CAP_SYS_ADMIN);
        let meaning = if privileged { "does not apply with CAP_BPF" } else { "BPF needs CAP_BPF" };
        checks.push(check("kernel.unprivileged_bpf_disabled", Verdict::Ok, format!("{disabled}: {meaning}")));
    }
    if let Some(restrict) = number("kptr_restrict") {
        let found = format!("{restrict}: does not matter, time in the kernel is shown as one frame");
        checks.push(check("kernel.kptr_restrict", Verdict::Ok, found));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(checks: &[Check]) -> Vec<&str> {
        checks.iter().filter(|check| check.verdict == Verdict::Problem).map(|check| check.name.as_str()).collect()
    }

    #[test]
    fn each_missing_capability_has_its_fix() {
        let none = capabilities(0);
        assert_eq!(problems(&none), ["CAP_SYS_PTRACE", "CAP_BPF", "CAP_PERFMON"]);
        assert!(none.iter().filter(|check| check.verdict == Verdict::Problem).all(|check| check.fix.is_some()));
        assert_eq!(problems(&capabilities(u64::MAX)), Vec::<&str>::new());
        assert_eq!(problems(&capabilities(1 << CAP_SYS_ADMIN)), ["CAP_SYS_PTRACE"]);
        assert_eq!(problems(&capabilities(1 << 19 | 1 << 38 | 1 << 39)), Vec::<&str>::new());
    }

    #[test]
    fn only_the_initial_user_namespace_will_do() {
        assert_eq!(user_namespace("         0          0 4294967295").verdict, Verdict::Ok);
        assert_eq!(user_namespace("0 100000 65536").verdict, Verdict::Problem);
    }

    #[test]
    fn settings_that_forbid_everything_are_problems() {
        let set = |scope: &'static str| {
            sysctls(u64::MAX, move |name| (name == "yama/ptrace_scope").then(|| scope.to_owned()))
        };
        assert_eq!(problems(&set("3")), ["kernel.yama.ptrace_scope"]);
        assert_eq!(problems(&set("2")), Vec::<&str>::new());
        assert!(sysctls(0, |_| Some("garbage".to_owned())).is_empty());
    }
}
