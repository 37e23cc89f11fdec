//! All VMs of a process.

use std::thread::sleep;
use std::time::Duration;

use lj_trace_common::layout::{ABSENT, VmLayout};

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

/// Finds all VMs of `process`, in the order of their addresses, and proves the layout of each.
///
/// VMs that have been closed are not reported. `maps` are the mappings of `process` at this moment.
///
/// # Errors
/// [`FindError`] if there is no VM whose layout can be proven.
pub fn find_vms(process: &Process, maps: &Maps) -> Result<Vec<Vm>, FindError> {
    let mut vms: Vec<Vm> = Vec::new();
    let mut refusal = None;
    for candidate in candidates(process.pid(), &process.memory(), maps) {
        if let Some(vm) = vms.iter().find_map(|vm| sibling(process, maps, vm, candidate)) {
            vms.push(vm);
            continue;
        }
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

/// The VM of a candidate that runs the same interpreter as `vm` does, so that it is laid out the same: a process with
/// hundreds of VMs has few builds. `None` if it does not, or if it has to be looked at more closely.
fn sibling(process: &Process, maps: &Maps, vm: &Vm, candidate: Candidate) -> Option<Vm> {
    let same_offset = candidate.global.wrapping_sub(candidate.thread) == vm.global.wrapping_sub(vm.main_thread);
    if !same_offset || candidate.gc64 != vm.layout.is_gc64() {
        return None;
    }
    let memory = process.memory();
    let look = Look::new(&memory, maps, candidate);
    let targets = look.dispatch_targets(&vm.layout);
    let same_code = !targets.is_empty() && targets.iter().all(|target| vm.text.range.contains(target));
    let sibling = Vm { global: candidate.global, main_thread: candidate.thread, ..vm.clone() };
    (same_code && look.failures(&vm.layout) == Failures::NONE && sibling.still_valid(&memory)).then_some(sibling)
}

/// Proves the layout of one candidate; `None` if it is no VM at all.
fn prove(process: &Process, maps: &Maps, candidate: Candidate) -> Result<Option<Vm>, FindError> {
    let size = candidate.global.wrapping_sub(candidate.thread);
    let known = layouts::candidates(candidate.gc64, size);
    let Some(mut examined) = Examined::new(process, maps, candidate, known)? else { return Ok(None) };
    if examined.decide().is_err() {
        // The table does not know the build, or cannot tell it from others. Its debug information may.
        let described = debug_layout::read(process, &examined.maps, candidate);
        if !described.is_empty()
            && let Some(described) = Examined::new(process, maps, candidate, described)?
            && described.decide().is_ok()
        {
            examined = described;
        }
    }
    examined.decide().map(Some)
}

/// A candidate, and how some layouts fit it.
struct Examined<'a> {
    process: &'a Process,
    maps: Maps,
    candidate: Candidate,
    layouts: Vec<(KnownLayout, Failures)>,
}

impl<'a> Examined<'a> {
    /// Looks at the candidate until a layout fits or none can be expected to; `None` if it is no VM at all.
    fn new(
        process: &'a Process,
        maps: &Maps,
        candidate: Candidate,
        layouts: Vec<KnownLayout>,
    ) -> Result<Option<Self>, FindError> {
        let memory = process.memory();
        let layouts = layouts.into_iter().map(|layout| (layout, Failures::ALL)).collect();
        let mut examined = Self { process, maps: maps.clone(), candidate, layouts };
        for look_number in 0..LOOKS {
            let look = Look::new(&memory, &examined.maps, candidate);
            for (known, failures) in &mut examined.layouts {
                *failures = look.still_violated(&known.layout, *failures);
            }
            let has_stack = examined.layouts.iter().any(|(_, failures)| !failures.lacks_stack());
            if look_number > 0 && examined.layouts.iter().any(|(_, failures)| *failures == Failures::NONE) {
                break;
            }
            if has_stack {
                sleep(BETWEEN_LOOKS);
                // The target may have mapped memory since.
                examined.maps = process.maps()?;
            } else if look_number == 2 {
                // Chance finds and remains of closed VMs have no stack: no reason to go on looking at them.
                return Ok(None);
            }
        }
        Ok(Some(examined))
    }

    /// The VM, if one layout fits, or several that agree about what matters.
    fn decide(&self) -> Result<Vm, FindError> {
        let (pid, global) = (self.process.pid(), self.candidate.global);
        let fits =
            |(known, failures): &'_ (KnownLayout, Failures)| (*failures == Failures::NONE).then(|| known.clone());
        let mut fitting: Vec<KnownLayout> = self.layouts.iter().filter_map(fits).collect();
        // Those come first that need the fewest options to fit: they are the most likely ones.
        fitting.sort_by_key(|known| known.options.len());
        let Some(first) = fitting.first() else { return Err(self.nothing_fits()) };
        let memory = self.process.memory();
        let targets = Look::new(&memory, &self.maps, self.candidate).dispatch_targets(&first.layout);
        let (text, frame_size) = interpreter_text(&memory, &self.maps, &targets);
        if let Some(frame_size) = frame_size {
            let nearest = fitting[0].clone();
            fitting.retain(|known| u64::from(known.layout.cframe_size) == frame_size);
            if fitting.is_empty() {
                return Err(FindError::UnknownLayout {
                    pid,
                    global,
                    nearest: format!("{nearest} ({})", nearest.mode),
                    violated: vec!["the C frame has the size that the interpreter's code tells"],
                });
            }
        }
        let names = |layouts: &[KnownLayout]| layouts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (layout, undecided) = match agree(&fitting) {
            Ok(agreed) => agreed,
            Err(fields) => return Err(FindError::AmbiguousLayout { pid, global, builds: names(&fitting), fields }),
        };
        let fewest = fitting.first().map_or(0, |known| known.options.len());
        let builds = names(&fitting[..fitting.partition_point(|known| known.options.len() == fewest)]);
        Ok(Vm { global, main_thread: self.candidate.thread, layout, builds, undecided, text })
    }

    /// Why no layout fits: what the nearest of all violates.
    fn nothing_fits(&self) -> FindError {
        let memory = self.process.memory();
        let mut failures = vec![Failures::ALL; self.layouts.len()];
        for _ in 0..3 {
            let look = Look::new(&memory, &self.maps, self.candidate);
            for (failures, (known, _)) in failures.iter_mut().zip(&self.layouts) {
                *failures = failures.and(look.failures(&known.layout));
            }
            sleep(BETWEEN_LOOKS);
        }
        let ranked = self.layouts.iter().map(|(known, _)| known).zip(failures);
        match ranked.min_by_key(|(_, failures)| failures.count()) {
            Some((known, failures)) => FindError::UnknownLayout {
                pid: self.process.pid(),
                global: self.candidate.global,
                nearest: format!("{known} ({})", known.mode),
                violated: failures.names(),
            },
            None => FindError::NoVm { pid: self.process.pid() },
        }
    }
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
