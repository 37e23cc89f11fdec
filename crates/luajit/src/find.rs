//! Finds all VMs of a process.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lj_trace_common::layout::{ABSENT, VmLayout};
use lj_trace_common::memory::ReadMemory;
use lj_trace_process::{Maps, PageKind, Process, TargetError};
use lj_trace_unwind::vm_frame::CodeFrame;

use super::debug_layout;
use super::known_files;
use super::layouts::{self, KnownLayout, may_stay_undecided};
use super::machine::Vm;
use super::page_cache::PageCache;
use super::pointed;
use super::prove::{Evidence, Failures, Look};
use super::scan::{Candidate, candidates};
use super::text::{interpreter_edges, interpreter_text};

/// Why no VM can be profiled. Each message names the cause and what to do.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Nothing in the process looks like a VM.
    #[error(
        "no LuaJIT VM in process {pid}: it is no LuaJIT program (`lj-trace list` shows those), or has not created its Lua \
         state yet (`lj-trace record --wait` waits for that)"
    )]
    NoVm {
        /// Process id.
        pid: u32,
    },
    /// There is a VM, but no known layout describes its build.
    #[error(
        "process {pid} has a LuaJIT VM at {global:#x}, but no known layout fits it: the build is unknown to \
         lj-trace, and guessing would give wrong stacks. Nearest: {nearest}, which violates: {}. \
         Give lj-trace the debug information of the file that LuaJIT is in (its separate debug file, or a build that \
         is not stripped): it then reads the layout from there. Or report this line with the exact LuaJIT version and \
         its build flags", .violated.join("; ")
    )]
    UnknownLayout {
        /// Process id.
        pid: u32,
        /// The VM's `global_State`.
        global: u64,
        /// The builds of the layout with the fewest violated invariants.
        nearest: String,
        /// What that layout violates.
        violated: Vec<&'static str>,
    },
    /// There is a VM, but its memory changes all the time.
    #[error(
        "process {pid} has a LuaJIT VM at {global:#x} whose memory did not hold still in {} looks over {:.1} s, so that \
         its layout could not be proven. Nearest: {nearest}, of which it was never seen that {}. \
         Try again, or while the program does less", .looks, .duration.as_secs_f64(), .unseen.join("; ")
    )]
    NeverStill {
        /// Process id.
        pid: u32,
        /// The VM's `global_State`.
        global: u64,
        /// How often the VM was looked at.
        looks: u32,
        /// How long the VM was looked at.
        duration: Duration,
        /// The builds of the layout with the most invariants seen to hold.
        nearest: String,
        /// The invariants of that layout that were not seen to hold.
        unseen: Vec<&'static str>,
    },
    /// Several layouts fit, and they disagree.
    #[error(
        "process {pid} has a LuaJIT VM at {global:#x} that several layouts fit ({}), which disagree about {}: \
         try again while the program runs Lua code, so that its state shows more", .builds.join("; "), .fields.join(", ")
    )]
    AmbiguousLayout {
        /// Process id.
        pid: u32,
        /// The VM's `global_State`.
        global: u64,
        /// The builds of the layouts that fit.
        builds: Vec<String>,
        /// The fields in which these layouts differ.
        fields: Vec<&'static str>,
    },
    /// The process cannot be read.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// Time between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// How long to look at VMs whose memory changes. States of a VM in which some invariant does not hold are over within
/// microseconds, but the VM may be in such a state many times a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// The fewest looks before the search gives up on such a VM, on a machine that leaves little time for looks.
const PATIENT_LOOKS: u32 = 64;

/// How often an invariant has to fail, while memory holds still, before the layout counts as refuted.
const REFUTED: u32 = 32;

/// The same if another layout fits: the right layout does not fail by chance this often.
const REFUTED_BY_ANOTHER: u32 = 8;

/// How often a VM is looked at before its evidence counts as complete.
const LOOKS: u32 = 4;

/// If another layout fits, a layout is also refuted after this many failures of any kind: the memory that a wrong layout
/// points to may never hold still.
const FAILED_BESIDE_ANOTHER: u32 = 16;

/// The most candidates that get more than a quick look. Processes have a thousand VMs at most; only memory that is made
/// to mislead has more.
const MAX_CANDIDATES: usize = 4096;

/// The longest time to look at all candidates, however few looks each has had by then: many candidates take long.
const LONGEST: Duration = Duration::from_secs(10);

/// How many candidates without a fitting layout are examined more closely, to report the reason.
const MAX_REFUSALS: usize = 8;

/// Finds all VMs of `process`, in the order of their addresses, and proves the layout of each.
///
/// VMs that have been closed are not reported. `maps` are the current mappings of `process`. The search takes a bounded
/// time, whatever the process has in its memory.
///
/// # Errors
/// [`FindError`] if there is no VM whose layout can be proven.
pub fn find_vms(process: &Process, maps: &Maps) -> Result<Vec<Vm>, FindError> {
    prove_all(process, maps, all_candidates(process, maps))
}

/// VMs that a quick search has found.
#[derive(Debug)]
pub struct FirstVms {
    /// The VMs, in the order of their addresses.
    pub vms: Vec<Vm>,
    /// Whether the process may have others, because not all of its memory was searched.
    pub may_have_more: bool,
}

/// Processes with less memory than this, in bytes, are searched as a whole, which takes no longer than 0.1 s.
const SMALL: u64 = 256 << 20;

/// Finds the VMs of `process` with a quick search, which takes no longer if the process has much memory. If that finds
/// none, it searches all of its memory.
///
/// # Errors
/// As [`find_vms`].
pub fn find_first_vms(process: &Process, maps: &Maps) -> Result<FirstVms, FindError> {
    if process.rss() >= SMALL {
        let candidates = pointed::candidates(process.pid(), &process.memory(), maps, MAX_CANDIDATES);
        // If some candidate is not proven at once, the full search below takes a closer look.
        if !candidates.is_empty()
            && let Ok(vms) = prove_all(process, maps, candidates)
        {
            return Ok(FirstVms { vms, may_have_more: true });
        }
    }
    Ok(FirstVms { vms: find_vms(process, maps)?, may_have_more: false })
}

/// Proves the VMs among `candidates`.
fn prove_all(process: &Process, maps: &Maps, candidates: Vec<Candidate>) -> Result<Vec<Vm>, FindError> {
    let began = Instant::now();
    let mut vms: Vec<Vm> = Vec::new();
    // VMs that were proven on their own. Candidates are compared with these, not with each other.
    let mut models: Vec<Vm> = Vec::new();
    let mut tables: HashMap<(bool, u64), Rc<[KnownLayout]>> = HashMap::new();
    let mut maps = Rc::new(maps.clone());
    let mut unknown = Vec::new();
    for candidate in candidates {
        // All other VMs of a build are compared with the first one, without another look at the file.
        let known = models.iter().find_map(|vm| sibling(process, &maps, vm, candidate));
        let recalled = match known {
            None if began.elapsed() < PATIENCE => known_files::recall(process, &maps, candidate),
            _ => None,
        };
        models.extend(recalled.clone());
        match known.or(recalled) {
            Some(vm) => vms.push(vm),
            None => unknown.push(candidate),
        }
    }
    let mut pending: Vec<_> = unknown
        .into_iter()
        .map(|candidate| {
            let kind = (candidate.gc64, candidate.global.wrapping_sub(candidate.thread));
            let table = tables.entry(kind).or_insert_with(|| layouts::candidates(kind.0, kind.1).into());
            Examined::with(process, maps.clone(), candidate, table.clone())
        })
        .collect();
    let (mut refused, mut refusal) = (Vec::new(), None);
    // Look at all candidates in turn, so that they wait at the same time.
    let mut turns = 0;
    while !pending.is_empty() {
        turns += 1;
        let is_late = turns >= PATIENT_LOOKS && began.elapsed() >= PATIENCE || began.elapsed() >= LONGEST;
        // Candidates of the same kind probably have the layout that fits the first one.
        let mut fitting: HashSet<(bool, u64)> = HashSet::new();
        for examined in &mut pending {
            if is_late || !fitting.contains(&examined.kind()) {
                examined.maps = maps.clone();
                examined.look();
                if examined.fits() {
                    fitting.insert(examined.kind());
                }
            }
        }
        let (settled, open): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|examined| is_late || examined.is_settled());
        pending = open;
        for mut examined in settled {
            if !examined.fits() {
                refused.push(examined);
                continue;
            }
            if !is_late && examined.rule_out_other_frames() {
                pending.push(examined);
                continue;
            }
            match examined.decide() {
                Ok(vm) => {
                    known_files::remember(process, &maps, &vm);
                    models.push(vm.clone());
                    vms.push(vm);
                }
                // The VM's state may soon show more.
                Err(FindError::AmbiguousLayout { .. }) if !is_late => {
                    examined.forget();
                    pending.push(examined);
                }
                Err(_) => refused.push(examined),
            }
        }
        pending.retain(|examined| match models.iter().find_map(|vm| sibling(process, &maps, vm, examined.candidate)) {
            Some(vm) => {
                vms.push(vm);
                false
            }
            None => true,
        });
        if !pending.is_empty() {
            sleep(BETWEEN_LOOKS);
            // The target may have mapped memory since.
            maps = Rc::new(process.maps()?);
        }
    }
    let strange = refused.into_iter().filter(Examined::may_be_a_vm);
    for examined in strange.take(MAX_REFUSALS) {
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
    // A process that has just exited, or is about to, shows no VM either.
    if !process.is_alive() || process.is_exiting() {
        return Err(TargetError::NoSuchProcess(process.pid()).into());
    }
    Err(refusal.unwrap_or(FindError::NoVm { pid: process.pid() }))
}

/// The candidates in all memory. If there are none, it looks again: their stacks may just have been moved, or they may
/// have been swapped out.
fn all_candidates(process: &Process, maps: &Maps) -> Vec<Candidate> {
    let search = |kind| candidates(process.pid(), &process.memory(), maps, kind, MAX_CANDIDATES);
    for _ in 0..3 {
        let found = search(PageKind::Present);
        if !found.candidates.is_empty() {
            return found.candidates;
        }
        if !found.missed {
            break;
        }
        sleep(BETWEEN_LOOKS);
    }
    search(PageKind::Swapped).candidates
}

/// Proves a VM again that was found earlier: its undecided fields may be decidable now.
///
/// # Errors
/// [`FindError`] if the VM does not exist any more.
pub fn prove_again(process: &Process, maps: &Maps, vm: &Vm) -> Result<Vm, FindError> {
    /// Short, because samples wait for the result.
    const PATIENCE: Duration = Duration::from_millis(50);
    let candidate = Candidate { thread: vm.main_thread, global: vm.global, gc64: vm.layout.is_gc64() };
    let table = layouts::candidates(candidate.gc64, candidate.global.wrapping_sub(candidate.thread)).into();
    let mut examined = Examined::with(process, Rc::new(maps.clone()), candidate, table);
    examined.look_until_settled(PATIENCE);
    if examined.rule_out_other_frames() {
        examined.look_until_settled(PATIENCE);
    }
    if !examined.may_be_a_vm() {
        return Err(FindError::NoVm { pid: process.pid() });
    }
    examined.settle().inspect(|vm| known_files::remember(process, maps, vm))
}

/// Whether the VM still uses the interpreter that `vm.text` describes: a library that was unloaded and loaded again may
/// be at another address.
pub fn runs_its_text(process: &Process, maps: &Maps, vm: &Vm) -> bool {
    let candidate = Candidate { thread: vm.main_thread, global: vm.global, gc64: vm.layout.is_gc64() };
    let targets = Look::once(&process.memory(), maps, candidate).dispatch_targets(&vm.layout);
    !targets.is_empty() && targets.iter().all(|target| vm.text.range.contains(target))
}

/// The VM of a candidate that runs the same interpreter as `vm`, so that it has the same layout: a process with
/// hundreds of VMs has few builds. `None` if it runs another interpreter, or if it needs a closer look.
fn sibling(process: &Process, maps: &Maps, vm: &Vm, candidate: Candidate) -> Option<Vm> {
    let same_offset = candidate.global.wrapping_sub(candidate.thread) == vm.global.wrapping_sub(vm.main_thread);
    if !same_offset || candidate.gc64 != vm.layout.is_gc64() {
        return None;
    }
    // Read each page only once: there may be hundreds of candidates.
    let memory = process.memory();
    let pages = PageCache::new(&memory);
    let look = Look::once(&pages, maps, candidate);
    let targets = look.dispatch_targets(&vm.layout);
    let runs_its_text = !targets.is_empty() && targets.iter().all(|target| vm.text.range.contains(target));
    if !runs_its_text || look.failures(&vm.layout) != Failures::NONE {
        return None;
    }
    let sibling = Vm { global: candidate.global, main_thread: candidate.thread, ..vm.clone() };
    sibling.still_valid(&memory).then_some(sibling)
}

/// A candidate, and the evidence for each layout.
struct Examined<'a> {
    process: &'a Process,
    maps: Rc<Maps>,
    candidate: Candidate,
    layouts: Rc<[KnownLayout]>,
    /// Evidence for each layout, by index.
    evidence: Vec<Evidence>,
    /// How many looks there were, and when they began.
    looks: u32,
    since: Instant,
}

impl<'a> Examined<'a> {
    /// A candidate that is compared with certain layouts only.
    fn with(process: &'a Process, maps: Rc<Maps>, candidate: Candidate, layouts: Rc<[KnownLayout]>) -> Self {
        let evidence = vec![Evidence::NONE; layouts.len()];
        Self { process, maps, candidate, layouts, evidence, looks: 0, since: Instant::now() }
    }

    /// Candidates of the same kind may have the same layout.
    fn kind(&self) -> (bool, u64) {
        (self.candidate.gc64, self.candidate.global.wrapping_sub(self.candidate.thread))
    }

    /// Looks once more for the evidence that is not settled.
    fn look(&mut self) {
        self.looks += 1;
        let (memory, fits) = (self.process.memory(), self.fits());
        let look = Look::new(&memory, &self.maps, self.candidate);
        for (known, evidence) in self.layouts.iter().zip(&mut self.evidence) {
            if evidence.fits() || !is_settled(evidence, fits) {
                evidence.look(&look, &known.layout);
            }
        }
    }

    /// Looks until it is settled which layouts fit, but not much longer than `patience`.
    fn look_until_settled(&mut self, patience: Duration) {
        loop {
            self.look();
            if self.is_settled() || self.looks >= PATIENT_LOOKS && self.since.elapsed() >= patience {
                return;
            }
            sleep(BETWEEN_LOOKS);
            // The target may have mapped memory since. If it has exited, the next look notices that.
            if let Ok(maps) = self.process.maps() {
                self.maps = Rc::new(maps);
            }
        }
    }

    /// Starts again without evidence.
    fn forget(&mut self) {
        self.looks = 0;
        self.since = Instant::now();
        self.evidence.fill(Evidence::NONE);
    }

    /// Rules out layouts whose C frames differ from what the interpreter's code shows. If all fitting layouts are ruled
    /// out, it starts again with the layouts that are not: the right one may have the same fields, but may have failed
    /// because memory changed. Returns whether it did.
    fn rule_out_other_frames(&mut self) -> bool {
        let memory = self.process.memory();
        let mut fitting = self.layouts.iter().zip(&self.evidence).filter(|(_, evidence)| evidence.fits());
        let Some((first, _)) = fitting.clone().next() else { return false };
        let targets = Look::new(&memory, &self.maps, self.candidate).dispatch_targets(&first.layout);
        let (_, Some(frame)) = interpreter_text(&memory, &self.maps, &targets) else { return false };
        let has_it = |known: &KnownLayout| frame.allows(known.layout.cframe_size, known.layout.cframe_l);
        let left: Rc<[KnownLayout]> = self.layouts.iter().filter(|known| has_it(known)).cloned().collect();
        if left.is_empty() || fitting.any(|(known, _)| has_it(known)) {
            return false;
        }
        self.evidence.truncate(left.len());
        self.layouts = left;
        self.forget();
        true
    }

    /// Whether some layout fits.
    fn fits(&self) -> bool {
        self.evidence.iter().any(Evidence::fits)
    }

    /// Whether more looks would change nothing: each layout fits, or is refuted.
    fn is_settled(&self) -> bool {
        let fits = self.fits();
        let is_vacuous = |evidence: &Evidence| evidence.fits() && evidence.is_vacuous();
        self.evidence.iter().all(|evidence| is_settled(evidence, fits))
            && (self.looks >= LOOKS || !self.evidence.iter().any(is_vacuous))
    }

    /// Whether the candidate has a Lua stack: chance finds and the remains of closed VMs have none.
    fn may_be_a_vm(&self) -> bool {
        self.evidence.iter().any(Evidence::has_stack)
    }

    /// The VM, if the table or debug information has its layout.
    fn settle(self) -> Result<Vm, FindError> {
        let decided = self.decide();
        if decided.is_err() {
            // The table does not have this build, or several of its layouts fit. The build's debug information may decide.
            let described = debug_layout::read(self.process, &self.maps, self.candidate);
            if !described.is_empty() {
                let mut examined = Self::with(self.process, self.maps.clone(), self.candidate, described.into());
                examined.look_until_settled(PATIENCE);
                if let Ok(vm) = examined.decide() {
                    return Ok(vm);
                }
            }
        }
        decided
    }

    /// The VM, if one layout fits, or if several fit that agree in all important fields.
    fn decide(&self) -> Result<Vm, FindError> {
        let (memory, pid) = (self.process.memory(), self.process.pid());
        let failures: Vec<_> = self.evidence.iter().map(Evidence::unproven).collect();
        decide(&memory, &self.maps, pid, self.candidate, None, &self.layouts, &failures)
            .unwrap_or_else(|| Err(self.nothing_fits()))
    }

    /// Why no layout fits: the invariants that the nearest layout violates, or that were never seen to hold because
    /// memory never held still.
    fn nothing_fits(&self) -> FindError {
        let memory = self.process.memory();
        // The invariants after the first violated one have not been tried yet.
        let mut failures: Vec<_> = self.evidence.iter().map(Evidence::unproven).collect();
        for _ in 0..3 {
            for (failures, known) in failures.iter_mut().zip(self.layouts.iter()) {
                let look = Look::new(&memory, &self.maps, self.candidate);
                *failures = failures.and(look.failures(&known.layout));
            }
            sleep(BETWEEN_LOOKS);
        }
        let (pid, global) = (self.process.pid(), self.candidate.global);
        let is_open = |index: &usize| !self.evidence[*index].is_refuted(REFUTED);
        match (0..self.layouts.len()).filter(is_open).min_by_key(|&index| failures[index].count()) {
            Some(open) => {
                let known = &self.layouts[open];
                let (looks, duration) = (self.looks, self.since.elapsed());
                let unseen = match failures[open] {
                    // Each invariant held at some time, but never all at once.
                    Failures::NONE => self.evidence[open].unproven().names(),
                    some => some.names(),
                };
                FindError::NeverStill {
                    pid,
                    global,
                    looks,
                    duration,
                    nearest: format!("{known} ({})", known.mode),
                    unseen,
                }
            }
            None => unknown_layout(pid, self.candidate, &self.layouts, &failures),
        }
    }
}

/// Whether it is known if this layout fits. Another layout may fit as well.
fn is_settled(evidence: &Evidence, another_fits: bool) -> bool {
    let refuted = if another_fits { REFUTED_BY_ANOTHER } else { REFUTED };
    evidence.fits() || evidence.is_refuted(refuted) || another_fits && evidence.failed() >= FAILED_BESIDE_ANOTHER
}

/// The error that no layout fits, with the violations of the nearest layout.
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

/// The VM of a candidate, if one of `layouts` fits, or if several fit that agree in all important fields; [`None`] if none
/// fits. `failures` has the violations of each layout. `cframe_size` is the size of the C frames, if it is known otherwise.
fn decide<M: ReadMemory>(
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
    // First the layouts that need the fewest build options: they are the most likely ones.
    fitting.sort_by_key(|known| known.options.len());
    let targets = Look::new(memory, maps, candidate).dispatch_targets(&fitting.first()?.layout);
    let (mut text, frame) = interpreter_text(memory, maps, &targets);
    if let Some(frame) = frame.or(cframe_size.map(|size| CodeFrame { size, l: None })) {
        let nearest = fitting.first()?.clone();
        fitting.retain(|known| frame.allows(known.layout.cframe_size, known.layout.cframe_l));
        if fitting.is_empty() {
            return Some(Err(FindError::UnknownLayout {
                pid,
                global,
                nearest: format!("{nearest} ({})", nearest.mode),
                violated: vec!["the C frame is as the interpreter's code tells"],
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
    text.edges = interpreter_edges(memory, &text.range, &layout);
    Some(Ok(Vm { global, main_thread: candidate.thread, layout, builds, undecided, text }))
}

/// Proves the layout of the VM that may be at `candidate`, in memory that does not change, such as saved memory: one
/// look is enough. `pid` names the process in errors. `cframe_size` is the size of the interpreter's C frames in bytes,
/// for memory in which neither the interpreter's unwind information nor its code can be read.
///
/// # Errors
/// [`FindError`] if no layout of the table fits, or if several fit that disagree.
pub fn prove_still<M: ReadMemory>(
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

/// The common layout of `fitting`: fields in which they differ, and may, are [`ABSENT`]. The error lists the fields in
/// which they must not differ.
fn agree(fitting: &[KnownLayout]) -> Result<(VmLayout, Vec<&'static str>), Vec<&'static str>> {
    let Some(first) = fitting.first() else { return Err(Vec::new()) };
    let mut values = first.layout.values();
    let mut undecided = Vec::new();
    for (index, field) in VmLayout::FIELDS.iter().enumerate() {
        let differs = |known: &KnownLayout| match *field {
            // The code uses this field only in sums, and those are compared.
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

/// Offset of the field with this index; fields of `jit_State` are counted from `global_State`, too.
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
        // Without the FFI, `jit_State` begins 8 bytes earlier; with GDB's interface, its fields lie 8 bytes later.
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
