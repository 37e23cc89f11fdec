//! Finds VMs that are created while a process is recorded.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lj_trace_luajit::{Vm, find_vms, prove_again, runs_its_text};
use lj_trace_probes::programs::Programs;
use lj_trace_process::Process;
use lj_trace_process::clocks::ClockId;

use crate::resolve::Pipeline;

/// How soon memory is searched again. Twice as long after each search that has found nothing.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The same where there is no VM yet, as long as searching takes no more than one part of so many of the time.
const FIRST_WAIT_FOR_ONE: Duration = Duration::from_millis(2);
const LONGEST_WAIT_FOR_ONE: Duration = Duration::from_millis(200);
const SHARE: u32 = 10;

/// Samples without a known VM after which memory is searched: one alone may have hit the few instructions before an
/// interpreter has a C frame.
const UNKNOWN: u32 = 3;

/// What a search has found.
#[derive(Default)]
struct FoundVms {
    vms: Vec<Vm>,
    took: Duration,
}

/// Finds new VMs: the allocator's probes tell of those that they see come into being, others are searched for when samples are
/// in an interpreter that runs none of the known VMs.
pub struct VmDiscovery {
    /// The search that is under way, in a thread of its own: samples go on coming meanwhile.
    search: Option<JoinHandle<FoundVms>>,
    /// How much CPU time the last search took.
    took: Duration,
    next_search: Instant,
    wait: Duration,
    /// Whether there has been no VM so far.
    waits_for_one: bool,
}

impl VmDiscovery {
    /// If not all of the memory of `process` was searched for its first VMs, the rest is now. If it `waits_for_one`, since
    /// there are none, it is searched again and again.
    pub fn new(process: &Process, may_have_more: bool, waits_for_one: bool) -> Self {
        let wait = if waits_for_one { FIRST_WAIT_FOR_ONE } else { FIRST_WAIT };
        let (took, next_search) = (Duration::ZERO, Instant::now());
        let mut discovery = Self { search: None, took, next_search, wait, waits_for_one };
        if may_have_more {
            discovery.search(process);
        }
        discovery
    }

    /// Sees to it that the pipeline knows the VMs up to `index`, as far as the programs know them.
    pub fn register_vms(process: &Process, pipeline: &mut Pipeline, programs: &mut Programs, index: usize) {
        // One that was closed has left its place to it.
        if pipeline.places().is_free(index)
            && let Some((global, template)) = u32::try_from(index).ok().and_then(|index| programs.new_vm(index))
            && let Some(template) = pipeline.vms().get(template as usize)
        {
            let vm = template.copy_at(global);
            pipeline.replace_vm(index, vm);
        }
        while let Ok(next) = u32::try_from(pipeline.vms().len())
            && next as usize <= index
            && let Some((global, template)) = programs.new_vm(next)
            && let Some(template) = pipeline.vms().get(template as usize)
        {
            let vm = template.copy_at(global);
            let vm = match proven_anew(process, &vm) {
                // What the programs copied from the template is not true of it. If they cannot be told, its native
                // stacks are not whole, which is counted.
                Some(vm) => {
                    let _ = programs.update_vm(next, &vm.config());
                    vm
                }
                None => vm,
            };
            pipeline.add_vm(vm);
        }
    }

    /// Whether it is time to search, if so many samples were in an interpreter that no known VM was running.
    pub fn are_due(&self, unknown_vms: u32) -> bool {
        (self.waits_for_one || unknown_vms >= UNKNOWN) && self.search.is_none() && Instant::now() >= self.next_search
    }

    /// Whether a search is under way, or there is no VM yet.
    pub fn is_busy(&self) -> bool {
        self.waits_for_one || self.search.is_some()
    }

    /// Has the process searched for VMs.
    pub fn search(&mut self, process: &Process) {
        let process = process.clone();
        // A process that is going away has no VMs any more: that is no error here.
        let find = move || {
            let vms = process.maps().ok().and_then(|maps| find_vms(&process, &maps).ok()).unwrap_or_default();
            // The thread has done nothing else.
            FoundVms { vms, took: ClockId::THIS_THREAD.read().unwrap_or_default() }
        };
        self.search = thread::Builder::new().name("vm search".to_owned()).spawn(find).ok();
    }

    /// All VMs that a search has found, once it is over.
    pub fn found(&mut self) -> Option<Vec<Vm>> {
        let search = self.search.take_if(|search| search.is_finished())?;
        let FoundVms { vms, took } = search.join().unwrap_or_default();
        self.took = took;
        Some(vms)
    }

    /// Takes note of whether there were new ones among these.
    pub fn note(&mut self, is_new: bool) {
        if self.waits_for_one && !is_new {
            self.wait = LONGEST_WAIT_FOR_ONE.min(self.wait * 2).max(self.took * SHARE).min(LONGEST_WAIT);
            self.next_search = Instant::now() + self.wait;
            return;
        }
        self.waits_for_one = false;
        // A process with much memory takes long to search: 4% of a core are enough. What others have the CPU for meanwhile
        // is no reason to wait.
        let wait = if is_new { FIRST_WAIT } else { LONGEST_WAIT.min(self.wait * 2).max(self.took * 25) };
        self.wait = wait;
        self.next_search = Instant::now() + wait;
    }
}

/// A copy of a VM, if its interpreter is not where that of its template is.
fn proven_anew(process: &Process, copy: &Vm) -> Option<Vm> {
    let maps = process.maps().ok()?;
    if runs_its_text(process, &maps, copy) {
        return None;
    }
    prove_again(process, &maps, copy).ok()
}
