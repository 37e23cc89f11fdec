//! What can be read of a process, and what cannot.

use lj_trace_luajit::{Vm, find_vms};
use lj_trace_probes::allocator::Allocator;
use lj_trace_process::privileges::{Capabilities, Capability, HOW_TO_GET};
use lj_trace_process::sandbox;
use lj_trace_process::{Maps, Process, TargetError, breakpoints};
use lj_trace_unwind::Modules;
use lj_trace_unwind::modules::Located;
use lj_trace_unwind::symbols::{debug_file, elf};

use super::{Area, Check, Purpose, Verdict, read, status_field};

pub fn checks(pid: u32) -> Result<Vec<Check>, TargetError> {
    let process = match Process::open(pid) {
        Ok(process) => process,
        // The other checks of this host are still worth showing.
        Err(TargetError::NotPermitted { pid, path, why }) => {
            let found = format!("not permitted to look at process {pid} ({path})");
            let refused =
                |found, fix| Check { area: Area::Privileges, ..check("process", Verdict::Problem, found).fix(fix) };
            // The check of this capability says why, and what to do.
            let refused = if Capabilities::effective().has(Capability::SysPtrace) {
                refused(format!("{found}: {why}"), "run as root: `sudo lj-trace doctor`")
            } else {
                refused(found, HOW_TO_GET)
            };
            return Ok(vec![refused.affects(&Purpose::ALL)]);
        }
        Err(error) => return Err(error),
    };
    let maps = process.maps()?;
    let mut checks = vec![check("process", Verdict::Ok, format!("{pid} ({})", process.command()))];
    checks.extend(others(pid));
    checks.extend(code(&process, &maps));
    match find_vms(&process, &maps) {
        Ok(vms) => {
            checks.extend(vms.iter().flat_map(layout));
            checks.extend(allocators(&process, &maps, &vms));
            checks.extend(modules(&process, &maps, &vms));
        }
        Err(error) => {
            checks.push(check("LuaJIT", Verdict::Problem, error.to_string()).affects(&Purpose::ALL));
        }
    }
    Ok(checks)
}

fn check(name: &str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check::new(Area::Target, name, verdict, found)
}

/// Other tools that affect the process.
fn others(pid: u32) -> Vec<Check> {
    let status = read(&format!("/proc/{pid}/status")).unwrap_or_default();
    let mut checks = Vec::new();
    if let Some(tracer) = status_field(&status, "TracerPid").filter(|tracer| *tracer != "0") {
        let found = format!("process {tracer} traces it: while that has stopped it, nothing happens in it");
        checks.push(check("debugger", Verdict::Note, found));
    }
    if status_field(&status, "Seccomp").is_some_and(|mode| mode != "0") && return_probes_are_system_calls() {
        let found = "the process has a seccomp filter, and this kernel ends return probes with a system call, which a \
                     filter may forbid: the process would be killed";
        checks.push(
            check("seccomp of the process", Verdict::Note, found)
                .fix("run Linux 6.14 or later before recording with --mode memprof")
                .affects(&[Purpose::Memprof]),
        );
    }
    checks
}

/// Whether the code of the process equals the code in its files.
fn code(process: &Process, maps: &Maps) -> Vec<Check> {
    const MOST: u64 = 1 << 30;
    let found = breakpoints::find(process, maps, MOST);
    if found.is_empty() {
        return vec![check("code", Verdict::Ok, "no breakpoints in it")];
    }
    found.iter().map(|file| check("code", Verdict::Note, file.describe(process.pid()))).collect()
}

/// Whether return probes use the system call `uretprobe`, which seccomp filters see: Linux 6.11 to 6.13 on x86-64
/// (commits 190fec72df4a and cf6cb56ef244).
fn return_probes_are_system_calls() -> bool {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    matches!(major_minor(&release), Some((6, 11..=13)))
}

fn major_minor(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A VM, and how its layout was proven.
fn layout(vm: &Vm) -> Vec<Check> {
    let name = format!("VM at {:#x}", vm.global);
    let proof = "its memory fulfils every invariant of this layout";
    let mut checks = vec![check(&name, Verdict::Ok, format!("{}; {proof}", vm.describe()))];
    if vm.leaves_traces_open() {
        let found = format!(
            "some builds of this layout keep traces differently, which shows once there are traces (not decided: {})",
            vm.undecided.join(", ")
        );
        checks.push(check(&format!("{name}, traces"), Verdict::Ok, found));
    }
    if !vm.text.exact {
        let found =
            "its extent is not known, for want of unwind information: it is taken to end with the last bytecode";
        let fix = "build LuaJIT without LUAJIT_NO_UNWIND, if native stacks turn out to be incomplete";
        let check = check(&format!("{name}, interpreter"), Verdict::Note, found);
        checks.push(check.fix(fix).affects(&[Purpose::Sysprof, Purpose::Dump]));
    }
    checks
}

/// The allocators and the probes on them.
fn allocators(process: &Process, maps: &Maps, vms: &[Vm]) -> Vec<Check> {
    let allocators = match Allocator::all(process, maps, vms) {
        Ok(allocators) => allocators,
        Err(error) => {
            let fix = "the message names the way on; `--mode sysprof` does not need the allocator";
            let problem = check("allocator", Verdict::Problem, error.to_string());
            return vec![problem.fix(fix).affects(&[Purpose::Memprof])];
        }
    };
    let described = |allocator: &Allocator| {
        let Allocator { function, plan, users } = allocator;
        let vms = if users.len() == 1 { "1 VM".to_owned() } else { format!("{} VMs", users.len()) };
        let found = format!("in {}, for {vms}; {plan}", function.path);
        if plan.is_cheap() {
            return check("allocator", Verdict::Ok, found);
        }
        let dear = "; the kernel single-steps them, which costs the process some ten times more for each event";
        check("allocator", Verdict::Note, found + dear).affects(&[Purpose::Memprof])
    };
    allocators.iter().map(described).collect()
}

/// Symbols and unwind tables of all files with code.
fn modules(process: &Process, maps: &Maps, vms: &[Vm]) -> Vec<Check> {
    let located = Modules::new(process.clone()).open_all();
    let (mut full, mut exported, mut blind) = (0, Vec::new(), Vec::new());
    for Located { module, .. } in &located {
        let links = elf::debug_links(module.image()).unwrap_or_default();
        if links.has_symtab || debug_file::find(process, module.path(), &links).is_some() {
            full += 1;
        } else if !module.name().starts_with('[') {
            exported.push(module.name().to_string());
        }
        if module.table().is_none() {
            blind.push(module.name().to_string());
        }
    }
    let mut checks = Vec::new();
    if exported.is_empty() {
        checks.push(check("symbols", Verdict::Ok, format!("all {full} files with code have their symbols")));
    } else {
        let found = format!(
            "stripped, so that only exported functions have names, others read FILE+OFFSET: {}",
            exported.join(", ")
        );
        let fix = "install the debug symbols of their packages (Debian: PACKAGE-dbgsym or PACKAGE-dbg; Fedora: dnf \
                   debuginfo-install PACKAGE); Lua functions have their names all the same";
        checks.push(check("symbols", Verdict::Note, found).fix(fix));
    }
    if blind.is_empty() {
        checks.push(check("unwind tables", Verdict::Ok, "all files with code have them"));
    } else {
        let found = format!("none in {}: native stacks end there, or go on at the next Lua frame", blind.join(", "));
        let fix = "build them with -fasynchronous-unwind-tables";
        let note = check("unwind tables", Verdict::Note, found).fix(fix);
        checks.push(note.affects(&[Purpose::Sysprof, Purpose::Dump]));
    }
    let unread = sandbox::unread();
    if !unread.is_empty() {
        let found = unread.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let fix = "files that others than root can write are read by a process with limits: if these are no attack, have \
                   root own the file and its folders";
        checks.push(check("files of others", Verdict::Note, found).fix(fix));
    }
    let of_vm = |vm: &Vm| maps.find(vm.text.range.start).map(|mapping| mapping.path.clone());
    let mut files: Vec<String> = vms.iter().filter_map(of_vm).collect();
    files.sort();
    files.dedup();
    checks.push(check("LuaJIT's code", Verdict::Ok, format!("in {}", files.join(", "))));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_kernel_versions() {
        assert_eq!(major_minor("6.12.3-arch1-1"), Some((6, 12)));
        assert_eq!(major_minor("6.1.0-49-cloud-amd64"), Some((6, 1)));
        assert_eq!(major_minor(""), None);
    }

    #[test]
    fn a_process_without_luajit_is_a_problem_for_all_modes() {
        let checks = checks(std::process::id()).unwrap();
        let problem = checks.iter().find(|check| check.verdict == Verdict::Problem).unwrap();
        assert_eq!((problem.name.as_str(), &problem.affects[..]), ("LuaJIT", &Purpose::ALL[..]));
    }
}
