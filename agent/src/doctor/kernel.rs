//! The kernel's features.

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, UProbeMultiFeature, is_helper_supported, is_uprobe_multi_supported};
use lj_trace_probes::calibrate;
use lj_trace_probes::mechanism::Mechanism;
use lj_trace_probes::perf_event::{self, Clock};
use lj_trace_probes::programs::{ProbeError, Programs, Wanted};
use lj_trace_probes::session;
use lj_trace_probes::turn_cost::WaitPrograms;
use lj_trace_probes::turns;
use lj_trace_process::privileges::{Capabilities, Capability, Operation, Refusal};
use lj_trace_text::bytes;

use super::{Area, Check, Purpose, Verdict, read};

const BOTH: [Purpose; 2] = [Purpose::Sysprof, Purpose::Memprof];
/// The capabilities that are needed to try out the kernel.
const NEEDED: [Capability; 2] = [Capability::Bpf, Capability::Perfmon];

pub fn checks() -> Vec<Check> {
    let mut checks = vec![version(), btf(), lockdown()];
    // Without these capabilities, the kernel refuses everything below. That is reported once, with the capabilities.
    let effective = Capabilities::effective();
    if !NEEDED.iter().all(|&capability| effective.has(capability)) {
        let names = NEEDED.map(Capability::name).join(" and ");
        let found = format!("not tried: BPF programs and perf events need {names}");
        checks.push(check("BPF", Verdict::Note, found).affects(&BOTH));
        return checks;
    }
    checks.extend([bpf_loop(), uprobe_multi(), uprobe_session(), clock()]);
    let nothing = Wanted::nothing();
    checks.push(programs("BPF sampler", Wanted { cpu: true, ..nothing }, Purpose::Sysprof));
    checks.push(waits_for_events());
    checks.push(programs("BPF allocation probes", Wanted { memory: true, ..nothing }, Purpose::Memprof));
    checks
}

fn check(name: &str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check::new(Area::Kernel, name, verdict, found)
}

fn version() -> Check {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned());
    let found = format!("Linux {release} on {}", std::env::consts::ARCH);
    match std::env::consts::ARCH {
        "x86_64" => check("kernel", Verdict::Ok, found),
        _ => check("kernel", Verdict::Note, format!("{found}: there, lj-trace was tried in emulated machines only")),
    }
}

fn btf() -> Check {
    const PATH: &str = "/sys/kernel/btf/vmlinux";
    match std::fs::metadata(PATH) {
        Ok(file) if file.len() != 0 => check("BTF", Verdict::Ok, format!("{PATH}, {}", bytes(file.len()))),
        _ => check("BTF", Verdict::Problem, format!("no {PATH}: the kernel does not describe its own structures"))
            .fix("boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, as all distributions' are; in a container, mount /sys")
            .affects(&BOTH),
    }
}

fn lockdown() -> Check {
    match read("/sys/kernel/security/lockdown") {
        Some(mode) if mode.contains("[confidentiality]") => {
            check("lockdown", Verdict::Problem, "confidentiality: BPF programs may not read memory")
                .fix("boot without lockdown=confidentiality (lockdown=integrity is fine), or without Secure Boot")
                .affects(&BOTH)
        }
        Some(mode) => check("lockdown", Verdict::Ok, mode),
        None => check("lockdown", Verdict::Ok, "none"),
    }
}

fn bpf_loop() -> Check {
    const NAME: &str = "bpf_loop";
    match is_helper_supported(ProgramType::PerfEvent, BpfHelper::BPF_FUNC_loop) {
        Ok(true) => check(NAME, Verdict::Ok, "there"),
        Ok(false) => check(NAME, Verdict::Problem, "missing: stacks cannot be walked in the kernel")
            .fix("run Linux 5.17 or later")
            .affects(&BOTH),
        Err(error) => untried(NAME, &error.to_string()),
    }
}

fn uprobe_multi() -> Check {
    const NAME: &str = "uprobe_multi";
    match is_uprobe_multi_supported(UProbeMultiFeature::LinkCreation) {
        Ok(true) => {}
        Ok(false) => return classic_probes(NAME, "not there (Linux 6.6 has it)"),
        Err(error) => return untried(NAME, &error.to_string()),
    }
    match is_uprobe_multi_supported(UProbeMultiFeature::ProcessScopedPidFilter) {
        Ok(true) => check(NAME, Verdict::Ok, "there, for all threads of a process"),
        Ok(false) => classic_probes(NAME, "there, but for one thread where a process is asked for (before Linux 6.10)"),
        Err(error) => untried(NAME, &error.to_string()),
    }
}

/// Tries the probes that replace `uprobe_multi`.
fn classic_probes(name: &str, why: &str) -> Check {
    let Err(error) = calibrate::try_probe(Mechanism::Classic) else {
        return check(name, Verdict::Ok, format!("{why}: the allocator is probed by perf events, which work"));
    };
    let found = format!("{why}, and the allocator cannot be probed by perf events: {error}");
    let problem = check(name, Verdict::Problem, found).affects(&[Purpose::Memprof]);
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            Check { area: Area::Privileges, ..problem.fix("run as root, or give lj-trace CAP_SYS_ADMIN") }
        }
        _ => problem.fix("run Linux 6.6 or later"),
    }
}

fn uprobe_session() -> Check {
    const NAME: &str = "uprobe_session";
    match session::try_session() {
        Ok(()) => check(NAME, Verdict::Ok, "there"),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            untried(NAME, &error.to_string())
        }
        Err(_) => check(
            NAME,
            Verdict::Ok,
            "not there (Linux 6.13 has it): some hosts' allocators cost a little more to probe",
        ),
    }
}

/// A feature that could not be tried, although lj-trace has the capabilities.
fn untried(name: &str, error: &str) -> Check {
    check(name, Verdict::Note, format!("could not be tried: {error}")).fix("run as root: `sudo lj-trace doctor`")
}

fn clock() -> Check {
    const NAME: &str = "sampling clock";
    if let Err(error) = perf_event::try_open(Clock::CpuClock) {
        let found = format!("perf events cannot be opened: {error}");
        let problem = check(NAME, Verdict::Problem, found).affects(&[Purpose::Sysprof]);
        if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) {
            let fix = Refusal::now().explain(Operation::PerfEvents);
            return Check { area: Area::Privileges, ..problem.fix(fix) };
        }
        return problem.fix("boot a kernel built with CONFIG_PERF_EVENTS=y");
    }
    let why_threads = match perf_event::try_open_on_cpus() {
        Ok(()) => {
            let found = "a kernel timer on each CPU (samples fall on what follows where the kernel has interrupts off)";
            return check(NAME, Verdict::Ok, found);
        }
        Err(error) => error,
    };
    let note = |clock: &str| {
        let found = format!(
            "{clock}, on threads, which costs them something at each context switch: CPUs have none: {why_threads}"
        );
        check(NAME, Verdict::Note, found).fix("allow perf_event_open for all processes on a CPU")
    };
    match Clock::detect() {
        Clock::Cycles => note("the CPU's cycle counter"),
        Clock::CpuClock => note(
            "a kernel timer: this machine shows no cycle counter, as most virtual ones (samples are as many, but fall \
             on what follows where the kernel has interrupts off)",
        ),
    }
}

/// Where the programs of `blockers` can be.
fn waits_for_events() -> Check {
    const NAME: &str = "waits for events";
    match turns::try_programs() {
        Ok(WaitPrograms::Functions) => {
            check(NAME, Verdict::Ok, "blockers has its programs at the kernel's functions for them")
        }
        Ok(WaitPrograms::Tracepoints) => check(
            NAME,
            Verdict::Ok,
            "blockers has its programs at their tracepoints, since the kernel allows none at its functions: all other system \
             calls of the machine take a little longer",
        ),
        Ok(WaitPrograms::AllCalls) => check(
            NAME,
            Verdict::Note,
            "blockers has its programs at all system calls, which take longer: the kernel allows none at its functions, and \
             lj-trace cannot read the numbers of its tracepoints",
        )
        .fix("run blockers as root, or have tracefs mounted and readable"),
        Err(error) => untried(NAME, &format!("{error:#}")),
    }
}

/// Makes the kernel's verifier check the very programs that a recording uses.
fn programs(name: &str, wanted: Wanted, mode: Purpose) -> Check {
    let error = match Programs::try_load(wanted) {
        Ok(()) => return check(name, Verdict::Ok, "accepted by the kernel"),
        Err(error) => error,
    };
    let fix = match &error {
        ProbeError::Object(_) => "build lj-trace with `cargo xtask build`",
        ProbeError::NotPermitted { .. } => "run as root, or give lj-trace CAP_BPF and CAP_PERFMON",
        ProbeError::GaveUp(_) => {
            "report this, with the output of `uname -r`, and use an older kernel until it is mended"
        }
        _ => "run Linux 5.17 or later; if this is one, please report this",
    };
    let mut check = check(name, Verdict::Problem, error.to_string()).fix(fix).affects(&[mode]);
    if matches!(error, ProbeError::NotPermitted { .. }) {
        check.area = Area::Privileges;
    }
    check
}
