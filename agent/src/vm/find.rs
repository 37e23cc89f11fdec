//! All VMs of a process.

use std::thread::sleep;
use std::time::Duration;

use lj_trace_common::layout::{ABSENT, VmLayout};

use super::layouts::{KnownLayout, known_layouts};
use super::machine::{InterpreterText, Vm};
use super::prove::{Failures, Look, may_stay_undecided};
use super::scan::{Candidate, candidates};
use super::text::described_function;
use crate::target::{Maps, Process, TargetError};

/// Why no VM can be profiled. Each message names the cause and the way on.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Nothing in the process looks like a VM.
    #[error(
        "no LuaJIT VM in process {pid}: it is no LuaJIT program, or has not created its Lua state yet \
         (start lj-trace again once it runs Lua code)"
    )]
    NoVm {
        /// The process.
        pid: u32,
    },
    /// There is a VM, but of a build that no known layout describes.
    #[error(
        "process {pid} has a LuaJIT VM at {global:#x}, but no known layout fits it: the build is unknown to \
         lj-trace, and guessing would give wrong stacks. Nearest: {nearest}, which violates: {}. \
         Please report this line with the exact LuaJIT version and its build flags, or add the build's \
         layout to agent/layouts (`cargo xtask layouts`)", .violated.join("; ")
    )]
    UnknownLayout {
        /// The process.
        pid: u32,
        /// The VM's `global_State`.
        global: u64,
        /// The builds of the layout with the fewest violated invariants.
        nearest: String,
        /// What that layout violates.
        violated: Vec<&'static str>,
    },
    /// Several layouts fit, and they disagree.
    #[error(
        "process {pid} has a LuaJIT VM at {global:#x} that several layouts fit ({}), which disagree about {}: \
         try again while the program runs Lua code, so that its state shows more", .builds.join("; "), .fields.join(", ")
    )]
    AmbiguousLayout {
        /// The process.
        pid: u32,
        /// The VM's `global_State`.
        global: u64,
        /// The layouts that fit, by their builds.
        builds: Vec<String>,
        /// The fields that they disagree about.
        fields: Vec<&'static str>,
    },
    /// The process cannot be looked at.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// How often a VM is looked at before an invariant is believed to be violated.
const LOOKS: u32 = 12;

/// Time between two looks: a running VM leaves any transient state within it.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Finds all VMs of `process`, in the order of their addresses, and proves the layout of each.
///
/// VMs that have been closed are not reported. `maps` are the mappings of `process` at this moment.
///
/// # Errors
/// [`FindError`] if there is no VM whose layout can be proven.
pub fn find_vms(process: &Process, maps: &Maps) -> Result<Vec<Vm>, FindError> {
    let mut vms = Vec::new();
    let mut refusal = None;
    for candidate in candidates(process.pid(), &process.memory(), maps) {
        match prove(process, maps, candidate) {
            Ok(Some(vm)) => vms.push(vm),
            Ok(None) => {}
            Err(error) => refusal = Some(error),
        }
    }
    vms.sort_by_key(|vm| vm.global);
    vms.dedup_by_key(|vm| vm.global);
    if !vms.is_empty() {
        return Ok(vms);
    }
    // A process that has just exited shows nothing either.
    if !process.is_alive() {
        return Err(TargetError::NoSuchProcess(process.pid()).into());
    }
    Err(refusal.unwrap_or(FindError::NoVm { pid: process.pid() }))
}

/// Proves a VM again that was found earlier: its undecided fields may be decided now.
///
/// # Errors
/// [`FindError`] if it is not there any more.
pub fn prove_again(process: &Process, maps: &Maps, vm: &Vm) -> Result<Vm, FindError> {
    let candidate = Candidate { thread: vm.main_thread, global: vm.global, gc64: vm.layout.is_gc64() };
    prove(process, maps, candidate)?.ok_or(FindError::NoVm { pid: process.pid() })
}

/// Proves the layout of one candidate; `None` if it is no VM at all.
fn prove(process: &Process, maps: &Maps, candidate: Candidate) -> Result<Option<Vm>, FindError> {
    let memory = process.memory();
    let size = candidate.global.wrapping_sub(candidate.thread);
    let possible =
        |known: &&KnownLayout| known.layout.is_gc64() == candidate.gc64 && u64::from(known.layout.sizeof_l) == size;
    let layouts: Vec<&KnownLayout> = known_layouts().iter().filter(possible).collect();
    let mut failures = vec![Failures::ALL; layouts.len()];
    let mut fresh_maps = None;
    for look_number in 0..LOOKS {
        let look = Look::new(&memory, fresh_maps.as_ref().unwrap_or(maps), candidate);
        for (failures, known) in failures.iter_mut().zip(&layouts) {
            *failures = failures.and(look.failures(&known.layout));
        }
        let is_thread = failures.iter().any(|failures| !failures.lacks_stack());
        if look_number > 0 && failures.contains(&Failures::NONE) {
            break;
        }
        if is_thread {
            sleep(BETWEEN_LOOKS);
            // The target may have mapped memory since.
            fresh_maps = Some(process.maps()?);
        } else if look_number == 2 {
            // Chance finds and remains of closed VMs have no stack: no reason to go on looking at them.
            return Ok(None);
        }
    }
    let maps = fresh_maps.as_ref().unwrap_or(maps);
    let ranked = || layouts.iter().copied().zip(failures.iter().copied());
    let mut fitting: Vec<&KnownLayout> =
        ranked().filter(|(_, f)| *f == Failures::NONE).map(|(known, _)| known).collect();
    let Some(first) = fitting.first() else {
        let nearest = ranked().min_by_key(|(_, failures)| failures.count());
        return match nearest {
            Some((known, failures)) => Err(FindError::UnknownLayout {
                pid: process.pid(),
                global: candidate.global,
                nearest: format!("{} ({})", known.builds, known.mode),
                violated: failures.names(),
            }),
            None => Ok(None),
        };
    };
    let targets = Look::new(&memory, maps, candidate).dispatch_targets(&first.layout);
    let (text, frame_size) = interpreter_text(process, maps, &targets);
    if let Some(frame_size) = frame_size {
        let (nearest, same_text) =
            (fitting[0], |known: &&KnownLayout| u64::from(known.layout.cframe_size) == frame_size);
        fitting.retain(same_text);
        if fitting.is_empty() {
            return Err(FindError::UnknownLayout {
                pid: process.pid(),
                global: candidate.global,
                nearest: format!("{} ({})", nearest.builds, nearest.mode),
                violated: vec!["the C frame has the size that the unwind information tells"],
            });
        }
    }
    let (layout, undecided) = agree(&fitting).map_err(|fields| FindError::AmbiguousLayout {
        pid: process.pid(),
        global: candidate.global,
        builds: fitting.iter().map(|known| known.builds.clone()).collect(),
        fields,
    })?;
    Ok(Some(Vm {
        global: candidate.global,
        main_thread: candidate.thread,
        layout,
        builds: fitting.iter().map(|known| known.builds.clone()).collect(),
        undecided,
        text,
    }))
}

/// The range of the interpreter's code around its dispatch targets, and the size of its C frame if known.
fn interpreter_text(process: &Process, maps: &Maps, targets: &[u64]) -> (InterpreterText, Option<u64>) {
    let (start, end) = (targets.iter().min().copied().unwrap_or(0), targets.iter().max().copied().unwrap_or(0));
    match described_function(&process.memory(), maps, start) {
        Some(function) if function.range.contains(&end) => {
            (InterpreterText { range: function.range, exact: true }, function.frame_size)
        }
        _ => (InterpreterText { range: start..end.saturating_add(1), exact: false }, None),
    }
}

/// What all of `fitting` agree about, with the fields marked [`ABSENT`] in which they differ and may.
/// The error lists the fields in which they must not differ.
fn agree(fitting: &[&KnownLayout]) -> Result<(VmLayout, Vec<&'static str>), Vec<&'static str>> {
    let Some(first) = fitting.first() else { return Err(Vec::new()) };
    let mut values = first.layout.values();
    let mut undecided = Vec::new();
    for (index, field) in VmLayout::FIELDS.iter().enumerate() {
        if fitting.iter().any(|known| known.layout.values()[index] != first.layout.values()[index]) {
            values[index] = ABSENT;
            undecided.push(*field);
        }
    }
    let contested: Vec<_> = undecided.iter().copied().filter(|field| !may_stay_undecided(field)).collect();
    if contested.is_empty() { Ok((VmLayout::from_values(&values), undecided)) } else { Err(contested) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::layouts::parse;

    fn known(names: &[&str], mode: &str) -> Vec<KnownLayout> {
        let rows = parse(include_str!("../../layouts/x64.tsv")).unwrap();
        let named = |row: &KnownLayout| names.contains(&row.builds.as_str()) && row.mode == mode;
        rows.into_iter().filter(named).collect()
    }

    #[test]
    fn layouts_may_differ_in_what_traces_show() {
        let rows = known(&["2.1b3", "2019-01, tt2.5"], "x64gc64");
        let (layout, undecided) = agree(&rows.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(undecided.len(), 6);
        assert_eq!((layout.tr_nsnap, layout.sizeof_snap), (ABSENT, ABSENT));
        assert_eq!(layout.g_vmstate, rows[0].layout.g_vmstate);
    }

    #[test]
    fn layouts_must_not_differ_in_what_samples_need() {
        let rows = known(&["tt2.6+smart", "tt2.8+smart"], "x64");
        let contested = agree(&rows.iter().collect::<Vec<_>>()).unwrap_err();
        assert!(contested.contains(&"g_jit_base") && contested.contains(&"cframe_size"), "{contested:?}");
    }

    #[test]
    fn finds_no_vm_in_itself() {
        let process = Process::open(std::process::id()).unwrap();
        let error = find_vms(&process, &process.maps().unwrap()).unwrap_err();
        assert!(matches!(error, FindError::NoVm { .. }), "{error}");
    }
}
