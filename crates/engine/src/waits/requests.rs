//! Which request a coroutine waits for, where stacks are grouped by that, or only those of some are kept.

use lj_trace_luajit::Vm;
use lj_trace_process::ProcessMemory;
use lj_trace_profile::Frame as Named;
use lj_trace_profile::model::RequestKey;

use super::names::WaitNames;
use crate::options::Options;
use crate::resolve::{RequestLabeller, RequestTally};

/// Finds the requests of the coroutines of a process.
pub struct WaitRequests {
    labeller: RequestLabeller,
    group_by: Option<RequestKey>,
    only: Vec<(RequestKey, String)>,
}

/// What somebody has asked about a coroutine that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitGroup {
    /// What its stack is put under.
    pub frame: Option<Named>,
    /// Whether its request is none of those that are kept.
    pub is_left_out: bool,
}

impl WaitRequests {
    /// [`None`] if nobody asks for requests.
    pub fn asked(options: &Options, memory: &ProcessMemory, vms: &[Vm], names: &mut WaitNames) -> Option<Self> {
        options.wants_requests().then(|| Self {
            labeller: RequestLabeller::new(memory, vms, names.namer()),
            group_by: options.group_by,
            only: options.only_requests.clone(),
        })
    }

    /// One more VM.
    pub fn see_vm(&mut self, memory: &ProcessMemory, vm: &Vm, names: &mut WaitNames) {
        self.labeller.see_vm(memory, vm, names.namer());
    }

    /// What was asked about a coroutine, whose stack has Lua functions if it `runs_lua`. It is read while the program runs: it
    /// holds if the coroutine has not moved by the time that this is known.
    pub fn of(&mut self, memory: &ProcessMemory, vm: &Vm, thread: u64, runs_lua: bool) -> WaitGroup {
        let mut request = self.labeller.of_coroutine(memory, vm, thread, runs_lua);
        let is_left_out = !request.has(&self.only);
        if let Some(key) = self.group_by {
            request.group_by(key);
        }
        WaitGroup { frame: request.group, is_left_out }
    }

    /// What became of the look for requests, by coroutines that have begun to wait.
    pub fn tally(&self) -> RequestTally {
        self.labeller.tally()
    }
}
