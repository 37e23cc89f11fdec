//! Explains why the kernel refused something: the exact capability or setting that is missing, and how to get it.

use super::{Capabilities, Capability, HOW_TO_GET};

/// An operation that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading another process's memory.
    ReadProcess,
    /// Loading or attaching BPF programs.
    Bpf,
    /// Opening a perf event.
    PerfEvents,
    /// Opening a perf event for a probe on an instruction, where the kernel has no `uprobe_multi` links.
    ClassicProbes,
}

impl Operation {
    /// The capabilities that the operation needs.
    pub const fn needs(self) -> &'static [Capability] {
        match self {
            Self::ReadProcess => &[Capability::SysPtrace],
            Self::Bpf | Self::PerfEvents => &[Capability::Bpf, Capability::Perfmon],
            Self::ClassicProbes => &[Capability::SysAdmin],
        }
    }
}

/// The state of this system that may be the reason.
#[derive(Clone, Debug)]
pub struct Refusal {
    capabilities: Capabilities,
    /// `/proc/self/uid_map`.
    user_namespace: String,
    /// `kernel.yama.ptrace_scope`, if the kernel has Yama.
    ptrace_scope: Option<i32>,
    /// `kernel.perf_event_paranoid`.
    paranoid: Option<i32>,
    /// `/sys/kernel/security/lockdown`.
    lockdown: String,
    /// Whether a system call filter is active.
    seccomp: bool,
}

impl Refusal {
    /// Reads the state of this system.
    pub fn now() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let number = |name: &str| read(&format!("/proc/sys/kernel/{name}")).parse().ok();
        let status = read("/proc/thread-self/status");
        let filter = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        Self {
            capabilities: Capabilities::effective(),
            user_namespace: read("/proc/self/uid_map"),
            ptrace_scope: number("yama/ptrace_scope"),
            paranoid: number("perf_event_paranoid"),
            lockdown: read("/sys/kernel/security/lockdown"),
            seccomp: filter.is_some_and(|mode| mode.trim() != "0"),
        }
    }

    /// Whether `kernel.perf_event_paranoid` has one of the values that Debian and Ubuntu have added: with them, their
    /// kernels want `CAP_SYS_ADMIN` for every perf event.
    pub fn wants_admin_for_perf_events(&self) -> bool {
        self.paranoid.is_some_and(|level| level >= 3)
    }

    /// The cause and the fix, for an operation that was refused.
    pub fn explain(&self, operation: Operation) -> String {
        let scope = self.ptrace_scope.unwrap_or(0);
        if operation == Operation::ReadProcess && scope >= 3 {
            return "kernel.yama.ptrace_scope is 3, so nobody may read another process: it can be lowered by a reboot \
                    only"
                .to_owned();
        }
        let missing: Vec<&str> =
            operation.needs().iter().filter(|one| !self.capabilities.has(**one)).map(|one| one.name()).collect();
        if !missing.is_empty() {
            let are = if missing.len() == 1 { "is" } else { "are" };
            let missing = missing.join(" and ");
            let why = match (operation, scope) {
                (Operation::ReadProcess, 1 | 2) => {
                    format!(" (kernel.yama.ptrace_scope is {scope}: even processes of the same user need it)")
                }
                (Operation::ClassicProbes, _) => {
                    return "CAP_SYS_ADMIN is missing (this kernel has no uprobe_multi links, which do without it since \
                            Linux 6.6): run as root (`sudo lj-trace ...`), or add CAP_SYS_ADMIN to the capabilities"
                        .to_owned();
                }
                _ => String::new(),
            };
            return format!("{missing} {are} missing{why}: {HOW_TO_GET}");
        }
        let namespace: Vec<&str> = self.user_namespace.split_whitespace().collect();
        if !namespace.is_empty() && namespace != ["0", "0", "4294967295"] {
            return "lj-trace is in a user namespace of its own, and capabilities count only inside of it: run it \
                    outside of the rootless container, on the host"
                .to_owned();
        }
        if operation != Operation::ReadProcess && self.lockdown.contains("[confidentiality]") {
            return "the kernel's lockdown is in confidentiality mode, in which BPF programs may not read memory: boot \
                    with lockdown=integrity, or without Secure Boot"
                .to_owned();
        }
        let paranoid = self.paranoid.unwrap_or(0);
        let is_perf = matches!(operation, Operation::PerfEvents | Operation::ClassicProbes);
        if is_perf && self.wants_admin_for_perf_events() && !self.capabilities.has(Capability::SysAdmin) {
            return format!(
                "kernel.perf_event_paranoid is {paranoid}, at which this distribution's kernel wants CAP_SYS_ADMIN for \
                 perf events: `sudo sysctl kernel.perf_event_paranoid=2`, or run as root"
            );
        }
        if self.seccomp {
            return "the capabilities are there, but a filter of system calls (seccomp) is on: it must allow bpf, \
                    perf_event_open and process_vm_readv (docker: --security-opt seccomp=unconfined; systemd: \
                    SystemCallFilter=@system-service bpf perf_event_open process_vm_readv)"
                .to_owned();
        }
        "the capabilities are there, so a security module (AppArmor, SELinux) forbids it: the kernel's log \
         (`sudo dmesg`) may name it"
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Capability::{Bpf, Perfmon, SysAdmin, SysPtrace};

    fn with(capabilities: &[Capability]) -> Refusal {
        Refusal {
            capabilities: Capabilities::of(capabilities),
            user_namespace: "0 0 4294967295".to_owned(),
            ptrace_scope: None,
            paranoid: Some(2),
            lockdown: "[none] integrity confidentiality".to_owned(),
            seccomp: false,
        }
    }

    const ALL: [Capability; 3] = [Bpf, Perfmon, SysPtrace];

    #[test]
    fn names_exactly_what_is_missing() {
        for (there, operation, said) in [
            (&[][..], Operation::Bpf, "CAP_BPF and CAP_PERFMON are missing: "),
            (&[Bpf], Operation::Bpf, "CAP_PERFMON is missing: "),
            (&[Perfmon], Operation::Bpf, "CAP_BPF is missing: "),
            (&[Bpf], Operation::PerfEvents, "CAP_PERFMON is missing: "),
            (&[Bpf, Perfmon], Operation::ReadProcess, "CAP_SYS_PTRACE is missing: "),
            (&[SysAdmin], Operation::ReadProcess, "CAP_SYS_PTRACE is missing: "),
            (&ALL, Operation::ClassicProbes, "CAP_SYS_ADMIN is missing (this kernel has no uprobe_multi links"),
        ] {
            let text = with(there).explain(operation);
            assert!(text.starts_with(said), "{there:?}, {operation:?}: {text}");
        }
    }

    #[test]
    fn settings_are_named_where_capabilities_do_not_help() {
        let said = |refusal: Refusal, operation, words: &str| {
            let text = refusal.explain(operation);
            assert!(text.contains(words), "{text}");
        };
        let yama = |scope| Refusal { ptrace_scope: Some(scope), ..with(&[]) };
        said(yama(1), Operation::ReadProcess, "CAP_SYS_PTRACE is missing (kernel.yama.ptrace_scope is 1");
        said(Refusal { ptrace_scope: Some(3), ..with(&ALL) }, Operation::ReadProcess, "ptrace_scope is 3");
        said(Refusal { paranoid: Some(4), ..with(&ALL) }, Operation::PerfEvents, "kernel.perf_event_paranoid is 4");
        let lockdown = "none integrity [confidentiality]".to_owned();
        said(Refusal { lockdown, ..with(&ALL) }, Operation::Bpf, "lockdown");
        let user_namespace = "0 100000 65536".to_owned();
        said(Refusal { user_namespace, ..with(&ALL) }, Operation::Bpf, "user namespace");
        said(Refusal { seccomp: true, ..with(&ALL) }, Operation::Bpf, "seccomp");
        said(with(&ALL), Operation::Bpf, "security module");
    }
}
