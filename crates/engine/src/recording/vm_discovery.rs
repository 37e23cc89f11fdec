//! Finds VMs that are created while a process is recorded.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lj_trace_luajit::{Vm, find_vms, prove_again, runs_its_text};
use lj_trace_probes::programs::Programs;
use lj_trace_process::Process;
use lj_trace_process::clocks::ClockId;

use crate::resolve::Pipeline;

/// The wait until memory is searched again. It doubles after each search that finds nothing.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The same for a process without a VM, as long as searches take at most one part in `SHARE` of the time.
const FIRST_WAIT_FOR_ONE: Duration = Duration::from_millis(2);
const LONGEST_WAIT_FOR_ONE: Duration = Duration::from_millis(200);
const SHARE: u32 = 10;

/// The number of samples without a known VM after which memory is searched. A single sample may have hit the few
/// instructions before an interpreter sets its C frame.
const UNKNOWN: u32 = 3;

/// The result of a search.
#[derive(Default)]
struct FoundVms {
    vms: Vec<Vm>,
    took: Duration,
}

/// Finds new VMs. The allocator's probes report the VMs that they see being created; the search finds others, when samples
/// are in an interpreter that runs no known VM.
pub struct VmDiscovery {
    /// The search under way. It has a thread of its own, so that samples are taken meanwhile.
    search: Option<JoinHandle<FoundVms>>,
    /// The CPU time of the last search.
    took: Duration,
    next_search: Instant,
    wait: Duration,
    /// Whether the process has had no VM so far.
    waits_for_one: bool,
}

impl VmDiscovery {
    /// If only a part of the memory of `process` was searched for its first VMs, searches the rest now. If the recording
    /// `waits_for_one` because there is no VM yet, it repeats the search.
    pub fn new(process: &Process, may_have_more: bool, waits_for_one: bool) -> Self {
        let wait = if waits_for_one { FIRST_WAIT_FOR_ONE } else { FIRST_WAIT };
        let (took, next_search) = (Duration::ZERO, Instant::now());
        let mut discovery = Self { search: None, took, next_search, wait, waits_for_one };
        if may_have_more {
            discovery.search(process);
        }
        discovery
    }

    /// Makes the VMs up to `index` known to the pipeline, as far as the programs know them.
    pub fn register_vms(process: &Process, pipeline: &mut Pipeline, programs: &mut Programs, index: usize) {
        // The VM takes the place of a closed VM.
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
                // The programs copied values from the template that are wrong for this VM. If the update fails, native
                // stacks of the VM are incomplete, and that is counted.
                Some(vm) => {
                    let _ = programs.update_vm(next, &vm.config());
                    vm
                }
                None => vm,
            };
            pipeline.add_vm(vm);
        }
    }

    /// Whether to search now, after `unknown_vms` samples in an interpreter that ran no known VM.
    pub fn are_due(&self, unknown_vms: u32) -> bool {
        (self.waits_for_one || unknown_vms >= UNKNOWN) && self.search.is_none() && Instant::now() >= self.next_search
    }

    /// Whether a search is under way, or there is no VM yet.
    pub fn is_busy(&self) -> bool {
        self.waits_for_one || self.search.is_some()
    }

    /// Starts a search of the process for VMs.
    pub fn search(&mut self, process: &Process) {
        let process = process.clone();
        // A process that is exiting has no VMs any more: that is no error here.
        let find = move || {
            let vms = process.maps().ok().and_then(|maps| find_vms(&process, &maps).ok()).unwrap_or_default();
            // The thread has done nothing but the search.
            FoundVms { vms, took: ClockId::THIS_THREAD.read().unwrap_or_default() }
        };
        self.search = thread::Builder::new().name("vm search".to_owned()).spawn(find).ok();
    }

    /// All VMs that the search has found, once it is over.
    pub fn found(&mut self) -> Option<Vec<Vm>> {
        let search = self.search.take_if(|search| search.is_finished())?;
        let FoundVms { vms, took } = search.join().unwrap_or_default();
        self.took = took;
        Some(vms)
    }

    /// Notes whether the last search has found new VMs.
    pub fn note(&mut self, is_new: bool) {
        if self.waits_for_one && !is_new {
            self.wait = LONGEST_WAIT_FOR_ONE.min(self.wait * 2).max(self.took * SHARE).min(LONGEST_WAIT);
            self.next_search = Instant::now() + self.wait;
            return;
        }
        self.waits_for_one = false;
        // A process with much memory takes long to search: 4% of a core are enough. Only CPU time counts, so that other
        // processes on the CPU do not delay the next search.
        let wait = if is_new { FIRST_WAIT } else { LONGEST_WAIT.min(self.wait * 2).max(self.took * 25) };
        self.wait = wait;
        self.next_search = Instant::now() + wait;
    }
}

/// A copy of a VM, if its interpreter lies elsewhere than the interpreter of its template.
fn proven_anew(process: &Process, copy: &Vm) -> Option<Vm> {
    let maps = process.maps().ok()?;
    if runs_its_text(process, &maps, copy) {
        return None;
    }
    prove_again(process, &maps, copy).ok()
}
