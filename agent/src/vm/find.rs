//! All VMs of a process.

use std::collections::HashMap;
use std::rc::Rc;
use std::thread::sleep;
use std::time::Duration;

use lj_trace_common::layout::{ABSENT, VmLayout};
use lj_trace_common::memory::ReadMemory;

use super::debug_layout;
use super::layouts::{self, KnownLayout, may_stay_undecided};
use super::machine::Vm;
use super::prove::{Failures, Look};
use super::scan::{Candidate, candidates};
use super::text::interpreter_text;
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
         Give lj-trace the debug information of the file that LuaJIT is in (its separate debug file, or a build that \
         is not stripped): it then reads the layout from there. Or report this line with the exact LuaJIT version and \
         its build flags", .violated.join("; ")
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

/// The most candidates that are looked at more than in passing: more than one process can have VMs that are recorded.
/// Only memory that is made to mislead has more.
const MAX_CANDIDATES: usize = 1024;

/// Candidates that no layout fits and that are looked at still more closely, to say why.
const MAX_REFUSALS: usize = 8;

/// Finds all VMs of `process`, in the order of their addresses, and proves the layout of each.
///
/// VMs that have been closed are not reported. `maps` are the mappings of `process` at this moment. It takes a bounded
/// time whatever the process has in its memory.
///
/// # Errors
/// [`FindError`] if there is no VM whose layout can be proven.
pub fn find_vms(process: &Process, maps: &Maps) -> Result<Vec<Vm>, FindError> {
    let mut vms: Vec<Vm> = Vec::new();
    let mut pending = Vec::new();
    let mut tables: HashMap<(bool, u64), Rc<[KnownLayout]>> = HashMap::new();
    let shared_maps = Rc::new(maps.clone());
    for candidate in stable_candidates(process, maps) {
        if let Some(vm) = vms.iter().find_map(|vm| sibling(process, maps, vm, candidate)) {
            vms.push(vm);
            continue;
        }
        let size = candidate.global.wrapping_sub(candidate.thread);
        let table = tables.entry((candidate.gc64, size));
        let table = table.or_insert_with(|| layouts::candidates(candidate.gc64, size).into());
        let mut examined = Examined::with(process, shared_maps.clone(), candidate, table.clone());
        examined.look();
        examined.look();
        match examined.fits().then(|| examined.decide()) {
            Some(Ok(vm)) => vms.push(vm),
            _ => pending.push(examined),
        }
    }
    // The others in turns, so that they wait together.
    for look_number in 2..LOOKS {
        pending.retain(|examined| examined.may_be_a_vm() || look_number < 3);
        if pending.is_empty() || !pending.iter().any(|examined| !examined.fits()) {
            break;
        }
        sleep(BETWEEN_LOOKS);
        // The target may have mapped memory since.
        let maps = Rc::new(process.maps()?);
        for examined in pending.iter_mut().filter(|examined| !examined.fits()) {
            examined.maps = maps.clone();
            examined.look();
        }
    }
    let mut refusal = None;
    let (fitting, strange): (Vec<_>, Vec<_>) = pending.into_iter().partition(Examined::fits);
    for examined in fitting.into_iter().chain(strange.into_iter().take(MAX_REFUSALS)) {
        match examined.settle() {
            Ok(vm) => vms.push(vm),
            Err(error) => refusal = Some(error),
        }
    }
    vms.sort_by_key(|vm| vm.global);
    vms.dedup_by_key(|vm| vm.global);
    if !vms.is_empty() {
        return Ok(vms);
    }
    // A process that has just exited, or is about to, shows nothing either.
    if !process.is_alive() || process.is_exiting() {
        return Err(TargetError::NoSuchProcess(process.pid()).into());
    }
    Err(refusal.unwrap_or(FindError::NoVm { pid: process.pid() }))
}

/// The candidates; where there are none, it may be that their stacks were just being moved.
fn stable_candidates(process: &Process, maps: &Maps) -> Vec<Candidate> {
    for _ in 0..3 {
        let found = candidates(process.pid(), &process.memory(), maps, MAX_CANDIDATES);
        if !found.missed || !found.candidates.is_empty() {
            return found.candidates;
        }
        sleep(BETWEEN_LOOKS);
    }
    Vec::new()
}

/// Proves a VM again that was found earlier: its undecided fields may be decided now.
///
/// # Errors
/// [`FindError`] if it is not there any more.
pub fn prove_again(process: &Process, maps: &Maps, vm: &Vm) -> Result<Vm, FindError> {
    let candidate = Candidate { thread: vm.main_thread, global: vm.global, gc64: vm.layout.is_gc64() };
    let table = layouts::candidates(candidate.gc64, candidate.global.wrapping_sub(candidate.thread)).into();
    let mut examined = Examined::with(process, Rc::new(maps.clone()), candidate, table);
    for look_number in 0..LOOKS {
        examined.look();
        if look_number > 0 && examined.fits() {
            break;
        }
        if look_number == 2 && !examined.may_be_a_vm() {
            return Err(FindError::NoVm { pid: process.pid() });
        }
        sleep(BETWEEN_LOOKS);
        examined.maps = Rc::new(process.maps()?);
    }
    examined.settle()
}

/// Whether the interpreter that a VM uses is the one that `vm.text` describes: a library that is unloaded and loaded
/// again may be somewhere else then.
pub fn runs_its_text(process: &Process, maps: &Maps, vm: &Vm) -> bool {
    let candidate = Candidate { thread: vm.main_thread, global: vm.global, gc64: vm.layout.is_gc64() };
    let targets = Look::new(&process.memory(), maps, candidate).dispatch_targets(&vm.layout);
    !targets.is_empty() && targets.iter().all(|target| vm.text.range.contains(target))
}

/// The VM of a candidate that runs the same interpreter as `vm` does, so that it is laid out the same: a process with
/// hundreds of VMs has few builds. `None` if it does not, or if it has to be looked at more closely.
fn sibling(process: &Process, maps: &Maps, vm: &Vm, candidate: Candidate) -> Option<Vm> {
    let same_offset = candidate.global.wrapping_sub(candidate.thread) == vm.global.wrapping_sub(vm.main_thread);
    if !same_offset || candidate.gc64 != vm.layout.is_gc64() {
        return None;
    }
    let memory = process.memory();
    let look = Look::new(&memory, maps, candidate);
    let sibling = Vm { global: candidate.global, main_thread: candidate.thread, ..vm.clone() };
    (runs_its_text(process, maps, &sibling)
        && look.failures(&vm.layout) == Failures::NONE
        && sibling.still_valid(&memory))
    .then_some(sibling)
}

/// A candidate, and how some layouts fit it.
struct Examined<'a> {
    process: &'a Process,
    maps: Rc<Maps>,
    candidate: Candidate,
    layouts: Rc<[KnownLayout]>,
    /// By layout: what every look has found violated.
    failures: Vec<Failures>,
}

impl<'a> Examined<'a> {
    /// A candidate that is to be held against certain layouts.
    fn with(process: &'a Process, maps: Rc<Maps>, candidate: Candidate, layouts: Rc<[KnownLayout]>) -> Self {
        let failures = vec![Failures::ALL; layouts.len()];
        Self { process, maps, candidate, layouts, failures }
    }

    /// Looks once more.
    fn look(&mut self) {
        let memory = self.process.memory();
        let look = Look::new(&memory, &self.maps, self.candidate);
        for (known, failures) in self.layouts.iter().zip(&mut self.failures) {
            *failures = look.still_violated(&known.layout, *failures);
        }
    }

    /// Whether some layout fits.
    fn fits(&self) -> bool {
        self.failures.contains(&Failures::NONE)
    }

    /// Whether it has a Lua stack, as chance finds and the remains of closed VMs do not.
    fn may_be_a_vm(&self) -> bool {
        self.failures.iter().any(|failures| !failures.lacks_stack())
    }

    /// The VM, if the table or debug information has its layout.
    fn settle(self) -> Result<Vm, FindError> {
        let decided = self.decide();
        if decided.is_err() {
            // The table does not know the build, or cannot tell it from others. Its debug information may.
            let described = debug_layout::read(self.process, &self.maps, self.candidate);
            if !described.is_empty() {
                let mut examined = Self::with(self.process, self.maps.clone(), self.candidate, described.into());
                for look_number in 0..LOOKS {
                    examined.look();
                    if look_number > 0 && examined.fits() {
                        break;
                    }
                    sleep(BETWEEN_LOOKS);
                }
                if let Ok(vm) = examined.decide() {
                    return Ok(vm);
                }
            }
        }
        decided
    }

    /// The VM, if one layout fits, or several that agree about what matters.
    fn decide(&self) -> Result<Vm, FindError> {
        let (memory, pid) = (self.process.memory(), self.process.pid());
        decide(&memory, &self.maps, pid, self.candidate, None, &self.layouts, &self.failures)
            .unwrap_or_else(|| Err(self.nothing_fits()))
    }

    /// Why no layout fits: what the nearest of all violates.
    fn nothing_fits(&self) -> FindError {
        let memory = self.process.memory();
        let mut failures = vec![Failures::ALL; self.layouts.len()];
        for _ in 0..3 {
            let look = Look::new(&memory, &self.maps, self.candidate);
            for (failures, known) in failures.iter_mut().zip(self.layouts.iter()) {
                *failures = failures.and(look.failures(&known.layout));
            }
            sleep(BETWEEN_LOOKS);
        }
        unknown_layout(self.process.pid(), self.candidate, &self.layouts, &failures)
    }
}

/// That no layout fits, and what the nearest one violates.
fn unknown_layout(pid: u32, candidate: Candidate, layouts: &[KnownLayout], failures: &[Failures]) -> FindError {
    let ranked = layouts.iter().zip(failures);
    match ranked.min_by_key(|(_, failures)| failures.count()) {
        Some((known, failures)) => FindError::UnknownLayout {
            pid,
            global: candidate.global,
            nearest: format!("{known} ({})", known.mode),
            violated: failures.names(),
        },
        None => FindError::NoVm { pid },
    }
}

/// The VM of a candidate, if one of `layouts` fits, or several that agree about what matters; [`None`] if none fits.
/// `failures` has what each of them violates, `cframe_size` what is known besides.
fn decide<M: ReadMemory + 'static>(
    memory: &M,
    maps: &Maps,
    pid: u32,
    candidate: Candidate,
    cframe_size: Option<u64>,
    layouts: &[KnownLayout],
    failures: &[Failures],
) -> Option<Result<Vm, FindError>> {
    let global = candidate.global;
    let judged = layouts.iter().zip(failures);
    let mut fitting: Vec<KnownLayout> =
        judged.filter(|(_, failures)| **failures == Failures::NONE).map(|(known, _)| known.clone()).collect();
    // Those come first that need the fewest options to fit: they are the most likely ones.
    fitting.sort_by_key(|known| known.options.len());
    let targets = Look::new(memory, maps, candidate).dispatch_targets(&fitting.first()?.layout);
    let (text, frame_size) = interpreter_text(memory, maps, &targets);
    if let Some(frame_size) = frame_size.or(cframe_size) {
        let nearest = fitting.first()?.clone();
        fitting.retain(|known| u64::from(known.layout.cframe_size) == frame_size);
        if fitting.is_empty() {
            return Some(Err(FindError::UnknownLayout {
                pid,
                global,
                nearest: format!("{nearest} ({})", nearest.mode),
                violated: vec!["the C frame has the size that the interpreter's code tells"],
            }));
        }
    }
    let names = |layouts: &[KnownLayout]| layouts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (layout, undecided) = match agree(&fitting) {
        Ok(agreed) => agreed,
        Err(fields) => return Some(Err(FindError::AmbiguousLayout { pid, global, builds: names(&fitting), fields })),
    };
    let fewest = fitting.first().map_or(0, |known| known.options.len());
    let builds = names(&fitting[..fitting.partition_point(|known| known.options.len() == fewest)]);
    Some(Ok(Vm { global, main_thread: candidate.thread, layout, builds, undecided, text }))
}

/// Proves the layout of the VM that may be at `candidate`, in memory that stands still, as saved memory does: one look
/// tells all there is to see. `pid` is what errors call the process. `cframe_size` is the size of the interpreter's C
/// frames in bytes, if it is known although neither its unwind information nor its code can be read in `memory`.
///
/// # Errors
/// [`FindError`] if no layout of the table fits, or several that disagree.
pub fn prove_still<M: ReadMemory + 'static>(
    memory: &M,
    maps: &Maps,
    pid: u32,
    candidate: Candidate,
    cframe_size: Option<u64>,
) -> Result<Vm, FindError> {
    let table = layouts::candidates(candidate.gc64, candidate.global.wrapping_sub(candidate.thread));
    let look = Look::new(memory, maps, candidate);
    let failures: Vec<_> = table.iter().map(|known| look.failures(&known.layout)).collect();
    decide(memory, maps, pid, candidate, cframe_size, &table, &failures)
        .unwrap_or_else(|| Err(unknown_layout(pid, candidate, &table, &failures)))
}

/// What all of `fitting` agree about, with the fields marked [`ABSENT`] in which they differ and may.
/// The error lists the fields in which they must not differ.
fn agree(fitting: &[KnownLayout]) -> Result<(VmLayout, Vec<&'static str>), Vec<&'static str>> {
    let Some(first) = fitting.first() else { return Err(Vec::new()) };
    let mut values = first.layout.values();
    let mut undecided = Vec::new();
    for (index, field) in VmLayout::FIELDS.iter().enumerate() {
        let differs = |known: &KnownLayout| match *field {
            // Only sums with it are ever used, and those are compared.
            "g_to_j" => (known.layout.g_to_j == ABSENT) != (first.layout.g_to_j == ABSENT),
            _ => place(&known.layout, index) != place(&first.layout, index),
        };
        if fitting.iter().any(differs) {
            values[index] = ABSENT;
            undecided.push(*field);
        }
    }
    let contested: Vec<_> = undecided.iter().copied().filter(|field| !may_stay_undecided(field)).collect();
    if contested.is_empty() { Ok((VmLayout::from_values(&values), undecided)) } else { Err(contested) }
}

/// Where the field with this index lies: those of `jit_State` counted from `global_State`, too.
fn place(layout: &VmLayout, index: usize) -> Option<u32> {
    let value = layout.values()[index];
    let start = if VmLayout::FIELDS[index].starts_with("j_") { layout.g_to_j } else { 0 };
    (value != ABSENT && start != ABSENT).then(|| u32::from(value) + u32::from(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(names: &[&str], mode: &str) -> Vec<KnownLayout> {
        let named = |row: &&KnownLayout| row.mode == mode && row.builds.split(", ").any(|name| names.contains(&name));
        layouts::known_layouts().iter().filter(named).cloned().collect()
    }

    #[test]
    fn layouts_may_differ_in_what_traces_show() {
        let rows = known(&["2.1b3", "2019-01"], "x64gc64");
        let (layout, undecided) = agree(&rows).unwrap();
        assert_eq!(undecided.len(), 6);
        assert_eq!((layout.tr_nsnap, layout.sizeof_snap), (ABSENT, ABSENT));
        assert_eq!(layout.g_vmstate, rows[0].layout.g_vmstate);
    }

    #[test]
    fn layouts_must_not_differ_in_what_samples_need() {
        let rows = known(&["tt2.6+smart", "tt2.8+smart"], "x64");
        let contested = agree(&rows).unwrap_err();
        assert!(contested.contains(&"g_jit_base") && contested.contains(&"cframe_size"), "{contested:?}");
    }

    #[test]
    fn what_lies_at_the_same_place_is_no_difference() {
        // Without the FFI `jit_State` begins 8 bytes earlier; with GDB's interface its fields lie 8 bytes later.
        let rows = layouts::candidates(false, 64);
        let with = |options: &[&str]| {
            let is_it = |row: &&KnownLayout| row.builds.contains("tt2.6.0+smart") && row.options == options;
            rows.iter().find(is_it).unwrap().clone()
        };
        let fitting = [with(&[]), with(&["LUAJIT_DISABLE_FFI", "LUAJIT_USE_GDBJIT"])];
        assert_eq!(fitting[0].layout.g_to_dispatch, fitting[1].layout.g_to_dispatch);
        let (layout, undecided) = agree(&fitting).unwrap();
        assert_eq!(undecided, ["sizeof_g"]);
        assert_eq!((layout.g_to_j, layout.j_mcarea), (fitting[0].layout.g_to_j, fitting[0].layout.j_mcarea));
    }

    #[test]
    fn finds_no_vm_in_itself() {
        let process = Process::open(std::process::id()).unwrap();
        let error = find_vms(&process, &process.maps().unwrap()).unwrap_err();
        assert!(matches!(error, FindError::NoVm { .. }), "{error}");
    }
}
