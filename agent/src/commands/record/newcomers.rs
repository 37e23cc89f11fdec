//! VMs that come into being while a process is recorded.

use std::time::{Duration, Instant};

use crate::commands::exit::CommandError;
use crate::probes::programs::Programs;
use crate::record::Pipeline;
use crate::target::Process;
use crate::vm::find_vms;

/// How soon memory is searched again. Twice as long after each search that has found nothing.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Makes new VMs known to the CPU profile: the allocator's probes tell of those that they see come into being, others
/// are searched for when a sample is in an interpreter that runs none of the known VMs.
pub struct Newcomers {
    next_search: Instant,
    wait: Duration,
}

impl Newcomers {
    /// Nothing was searched yet.
    pub fn new() -> Self {
        Self { next_search: Instant::now(), wait: FIRST_WAIT }
    }

    /// Sees to it that the pipeline knows the VMs up to `index`, as far as the programs know them.
    pub fn introduce(pipeline: &mut Pipeline, programs: &mut Programs, index: usize) {
        while let Ok(next) = u32::try_from(pipeline.vms().len())
            && next as usize <= index
            && let Some((global, template)) = programs.new_vm(next)
            && let Some(template) = pipeline.vms().get(template as usize)
        {
            pipeline.add_vm(template.copy_at(global));
        }
    }

    /// Searches the process for VMs that the programs do not know, if there is reason to.
    ///
    /// # Errors
    /// The kernel does not take a VM that was found.
    pub fn search(
        &mut self,
        process: &Process,
        programs: &mut Programs,
        pipeline: &mut Pipeline,
    ) -> Result<(), CommandError> {
        if Instant::now() < self.next_search || !pipeline.has_seen_stranger() {
            return Ok(());
        }
        // A process that is going away has no VMs any more: that is no error here.
        let found = process.maps().ok().and_then(|maps| find_vms(process, &maps).ok()).unwrap_or_default();
        let mut is_new = false;
        for vm in found {
            if pipeline.vms().iter().any(|known| known.global == vm.global) {
                continue;
            }
            let Some(index) = programs.add_late_vm(&vm.config())? else { break };
            if index as usize == pipeline.vms().len() {
                pipeline.add_vm(vm);
                is_new = true;
            }
        }
        self.wait = if is_new { FIRST_WAIT } else { LONGEST_WAIT.min(self.wait * 2) };
        self.next_search = Instant::now() + self.wait;
        Ok(())
    }
}
