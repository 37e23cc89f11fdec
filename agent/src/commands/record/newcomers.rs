//! VMs that come into being while a process is recorded.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::commands::exit::CommandError;
use crate::probes::programs::Programs;
use crate::record::Pipeline;
use crate::target::Process;
use crate::vm::{Vm, find_vms, prove_again, runs_its_text};

/// How soon memory is searched again. Twice as long after each search that has found nothing.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Samples without a known VM after which memory is searched: one alone may have hit the few instructions before an
/// interpreter has a C frame.
const STRANGERS: u32 = 3;

/// Makes new VMs known to the CPU profile: the allocator's probes tell of those that they see come into being, others
/// are searched for when samples are in an interpreter that runs none of the known VMs.
pub struct Newcomers {
    /// The search that is under way, in a thread of its own: samples go on coming meanwhile.
    search: Option<JoinHandle<Vec<Vm>>>,
    next_search: Instant,
    wait: Duration,
}

impl Newcomers {
    /// Nothing was searched yet.
    pub fn new() -> Self {
        Self { search: None, next_search: Instant::now(), wait: FIRST_WAIT }
    }

    /// Sees to it that the pipeline knows the VMs up to `index`, as far as the programs know them.
    pub fn introduce(process: &Process, pipeline: &mut Pipeline, programs: &mut Programs, index: usize) {
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

    /// Has the process searched for VMs that the programs do not know, if there is reason to, and makes those known
    /// that were found.
    ///
    /// # Errors
    /// The kernel does not take a VM that was found.
    pub fn search(
        &mut self,
        process: &Process,
        programs: &mut Programs,
        pipeline: &mut Pipeline,
    ) -> Result<(), CommandError> {
        if let Some(search) = self.search.take_if(|search| search.is_finished()) {
            let found = search.join().unwrap_or_default();
            let is_new = meet(&found, programs, pipeline)?;
            self.wait = if is_new { FIRST_WAIT } else { LONGEST_WAIT.min(self.wait * 2) };
            self.next_search = Instant::now() + self.wait;
        }
        if self.search.is_none() && Instant::now() >= self.next_search && pipeline.strangers() >= STRANGERS {
            pipeline.forget_strangers();
            let process = process.clone();
            // A process that is going away has no VMs any more: that is no error here.
            let find = move || process.maps().ok().and_then(|maps| find_vms(&process, &maps).ok()).unwrap_or_default();
            self.search = thread::Builder::new().name("vm search".to_owned()).spawn(find).ok();
        }
        Ok(())
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

/// Makes those VMs known that were not; whether there were any.
fn meet(found: &[Vm], programs: &mut Programs, pipeline: &mut Pipeline) -> Result<bool, CommandError> {
    let mut is_new = false;
    for vm in found {
        if pipeline.vms().iter().any(|known| known.global == vm.global) {
            continue;
        }
        let Some(index) = programs.add_late_vm(&vm.config())? else { break };
        if index as usize == pipeline.vms().len() {
            pipeline.add_vm(vm.clone());
            is_new = true;
        }
    }
    Ok(is_new)
}
