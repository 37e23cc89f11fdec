//! Whether lj-trace has the privileges it needs.

use lj_trace_process::privileges::{Capabilities, Capability, HOW_TO_GET};

use super::{Area, Check, Purpose, Verdict, read};

/// Capabilities, what they are for, and the modes that need them.
const CAPABILITIES: [(Capability, &str, &[Purpose]); 3] = [
    (Capability::SysPtrace, "reading other users' processes", &Purpose::ALL),
    (Capability::Bpf, "loading BPF programs", &[Purpose::Sysprof, Purpose::Memprof]),
    (Capability::Perfmon, "sampling, and reading memory from BPF programs", &[Purpose::Sysprof, Purpose::Memprof]),
];

pub fn checks() -> Vec<Check> {
    let effective = Capabilities::effective();
    let mut checks = capabilities(effective);
    checks.push(user_namespace(&read("/proc/self/uid_map").unwrap_or_default()));
    checks.extend(sysctls(effective, |name| read(&format!("/proc/sys/kernel/{name}"))));
    checks
}

fn check(name: &str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check::new(Area::Privileges, name, verdict, found)
}

fn capabilities(effective: Capabilities) -> Vec<Check> {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let mut checks =
        vec![check("user", Verdict::Ok, if user == 0 { "root".to_owned() } else { format!("uid {user}") })];
    for (capability, purpose, modes) in CAPABILITIES {
        checks.push(if effective.has(capability) {
            check(capability.name(), Verdict::Ok, format!("there, for {purpose}"))
        } else {
            let found = format!("missing: no {purpose}");
            check(capability.name(), Verdict::Problem, found).fix(HOW_TO_GET).affects(modes)
        });
    }
    if !effective.has(Capability::CheckpointRestore) {
        let found = "missing: programs that were replaced since they were started (upgrades) cannot be opened, and their \
                     native frames have no names";
        checks.push(
            check(Capability::CheckpointRestore.name(), Verdict::Note, found)
                .fix("add it where native frames stay unnamed"),
        );
    }
    checks
}

/// The initial user namespace maps all 2^32 IDs to themselves (user_namespaces(7)).
fn user_namespace(uid_map: &str) -> Check {
    let numbers: Vec<&str> = uid_map.split_whitespace().collect();
    if numbers.is_empty() || numbers == ["0", "0", "4294967295"] {
        return check("user namespace", Verdict::Ok, "the initial one");
    }
    let found = "not the initial one: capabilities count only inside of it, and neither BPF nor perf events do";
    check("user namespace", Verdict::Problem, found)
        .fix("run lj-trace outside of the rootless container, on the host")
        .affects(&[Purpose::Sysprof, Purpose::Memprof])
}

fn sysctls(effective: Capabilities, read: impl Fn(&str) -> Option<String>) -> Vec<Check> {
    let number = |name: &str| read(name).and_then(|text| text.parse::<i32>().ok());
    let mut checks = Vec::new();
    if let Some(scope) = number("yama/ptrace_scope") {
        let name = "kernel.yama.ptrace_scope";
        checks.push(match scope {
            3.. => check(name, Verdict::Problem, "3: nobody may read another process, not even root")
                .fix("reboot, and do not set it to 3 (it cannot be lowered while the system runs)")
                .affects(&Purpose::ALL),
            1 | 2 if !effective.has(Capability::SysPtrace) => {
                check(name, Verdict::Note, format!("{scope}: other processes can be read with CAP_SYS_PTRACE only"))
            }
            _ => check(name, Verdict::Ok, scope.to_string()),
        });
    }
    if let Some(paranoid) = number("perf_event_paranoid") {
        let (verdict, meaning) = match () {
            () if effective.has(Capability::SysAdmin) => (Verdict::Ok, "does not apply with CAP_SYS_ADMIN"),
            // The mainline kernel has no such levels; their meaning depends on the distribution.
            () if paranoid >= 3 => (
                Verdict::Note,
                "Debian's and Ubuntu's kernels want CAP_SYS_ADMIN for sampling from 3 on, others CAP_PERFMON",
            ),
            () if effective.has(Capability::Perfmon) => (Verdict::Ok, "does not apply with CAP_PERFMON"),
            () => (Verdict::Ok, "sampling needs CAP_PERFMON"),
        };
        checks.push(check("kernel.perf_event_paranoid", verdict, format!("{paranoid}: {meaning}")));
    }
    if let Some(disabled) = number("unprivileged_bpf_disabled") {
        let privileged = effective.has(Capability::Bpf);
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

    fn all() -> Capabilities {
        Capabilities::of_bits(u64::MAX)
    }

    fn problems(checks: &[Check]) -> Vec<&str> {
        checks.iter().filter(|check| check.verdict == Verdict::Problem).map(|check| check.name.as_str()).collect()
    }

    #[test]
    fn each_missing_capability_has_its_fix() {
        let of = |names: &[Capability]| capabilities(Capabilities::of(names));
        let none = of(&[]);
        assert_eq!(problems(&none), ["CAP_SYS_PTRACE", "CAP_BPF", "CAP_PERFMON"]);
        assert!(none.iter().filter(|check| check.verdict == Verdict::Problem).all(|check| check.fix.is_some()));
        assert_eq!(problems(&of(&[Capability::SysAdmin])), ["CAP_SYS_PTRACE"]);
        assert_eq!(problems(&of(&[Capability::SysPtrace, Capability::Perfmon, Capability::Bpf])), Vec::<&str>::new());
    }

    #[test]
    fn only_the_initial_user_namespace_will_do() {
        assert_eq!(user_namespace("         0          0 4294967295").verdict, Verdict::Ok);
        assert_eq!(user_namespace("0 100000 65536").verdict, Verdict::Problem);
    }

    #[test]
    fn some_kernels_want_all_powers_for_sampling() {
        let of = |level: &'static str, names: &[Capability]| {
            let read = move |name: &str| (name == "perf_event_paranoid").then(|| level.to_owned());
            sysctls(Capabilities::of(names), read)[0].verdict
        };
        assert_eq!(of("2", &[Capability::Perfmon]), Verdict::Ok);
        assert_eq!(of("3", &[Capability::Perfmon]), Verdict::Note);
        assert_eq!(of("4", &[Capability::SysAdmin]), Verdict::Ok);
    }

    #[test]
    fn settings_that_forbid_everything_are_problems() {
        let set =
            |scope: &'static str| sysctls(all(), move |name| (name == "yama/ptrace_scope").then(|| scope.to_owned()));
        assert_eq!(problems(&set("3")), ["kernel.yama.ptrace_scope"]);
        assert_eq!(problems(&set("2")), Vec::<&str>::new());
        assert!(sysctls(Capabilities::default(), |_| Some("garbage".to_owned())).is_empty());
    }
}
