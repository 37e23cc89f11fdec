//! Finds the request of a waiting coroutine, if stacks are grouped by request or only the stacks of some are kept.

use lj_trace_luajit::Vm;
use lj_trace_process::Process;
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
    /// Whether plugins are asked for.
    wants_plugins: bool,
}

/// The request data of a waiting coroutine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitGroup {
    /// The frame to put its stack under.
    pub frame: Option<Named>,
    /// Whether the coroutine is left out because of its request.
    pub is_left_out: bool,
}

impl WaitRequests {
    /// Request data as the options ask for it; [`None`] if they do not.
    pub fn asked(options: &Options, process: &Process, vms: &[Vm], names: &mut WaitNames) -> Option<Self> {
        options.wants_requests().then(|| {
            let mut labeller = RequestLabeller::new(process, vms, names.namer());
            if options.asks_for(RequestKey::TraceId) {
                labeller.find_trace_ids(options.trace_variable.as_deref(), names.namer());
            }
            Self {
                labeller,
                group_by: options.group_by,
                only: options.only_requests.clone(),
                wants_plugins: options.asks_for(RequestKey::Plugin),
            }
        })
    }

    /// Adds a VM.
    pub fn see_vm(&mut self, vm: &Vm, names: &mut WaitNames) {
        self.labeller.see_vm(vm, names.namer());
    }

    /// Tries again to find what was not found before.
    pub fn look_again(&mut self) {
        self.labeller.look_again();
    }

    /// Learns from these coroutines, before the first of them is looked for.
    pub fn learn_from(&mut self, vm: &Vm, threads: impl Iterator<Item = u64>) {
        self.labeller.learn_from(vm, threads);
    }

    /// The request data of a coroutine. `runs_lua` says whether its stack has Lua functions, and `frames` names these, from the
    /// innermost outward. The program runs meanwhile: the result is valid if the coroutine has not moved when it is known.
    pub fn of(&mut self, vm: &Vm, thread: u64, runs_lua: bool, frames: impl FnOnce() -> Vec<Named>) -> WaitGroup {
        let mut request = self.labeller.of_coroutine(vm, thread, runs_lua);
        if self.wants_plugins && request.labels.is_some() {
            self.labeller.add_plugin(&mut request, frames().iter());
        }
        let is_left_out = !request.has(&self.only);
        if let Some(key) = self.group_by {
            request.group_by(key);
        }
        WaitGroup { frame: request.group, is_left_out }
    }

    /// How many requests were found, and why the others were not. It counts coroutines that have begun to wait.
    pub fn tally(&self) -> RequestTally {
        self.labeller.tally()
    }
}
