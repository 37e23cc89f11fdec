//! Looks at the coroutines of all VMs of a process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lj_trace_luajit::{Vm, find_vms};
use lj_trace_process::clocks::ClockId;
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::model::StackId;
use lj_trace_profile::waits::WaitLook;
use lj_trace_profile::{Frame as Named, WaitProfile};

use super::c_stacks::CStacks;
use super::names::WaitNames;
use super::requests::WaitRequests;
use super::vm_found::{Doubts, Looking, VmFound};
use super::vm_look::CoroutineLooks;
use crate::request_counter::{EndedSummary, RequestCounter};
use crate::resolve::RequestTally;
use crate::target::RecordTarget;

/// The share of a core that searches for VMs may cost.
const SEARCH_SHARE: f64 = 0.001;
/// The shortest interval between searches, and the share of a core that they may cost while there is no VM.
const SEARCH_INTERVAL: Duration = Duration::from_secs(30);
const FIRST_SEARCH_SHARE: f64 = 0.02;

/// The number of a VM's coroutines to look at again a moment later.
const ECHOES: usize = 512;

/// Looks at the coroutines of a process.
pub struct ProcessLooks {
    process: Process,
    memory: ProcessMemory,
    names: WaitNames,
    requests: Option<WaitRequests>,
    /// Counts the requests that the process ends, if that was asked for, or says why not.
    counter: Option<Result<RequestCounter, String>>,
    c_stacks: CStacks,
    vms: Vec<CoroutineLooks>,
    /// The number of VMs so far.
    vms_so_far: usize,
    /// Whether to look only at the initial VMs, because the user has chosen them.
    is_chosen: bool,
    next_search: Instant,
    /// The result of the last look, until it is added to the sums.
    pending: Pending,
    /// The doubts of VMs that are gone.
    doubts: Doubts,
    looked: Option<Instant>,
}

/// The result of the last look, until it is known how much time it counts for.
#[derive(Debug, Default)]
struct Pending {
    there: f64,
    waiting: HashMap<StackId, f64>,
}

impl ProcessLooks {
    /// The looks at a target. If the profile has several processes, stacks get roots.
    pub fn new(target: &RecordTarget, has_root: bool, now: Instant) -> Self {
        let vms = target.recorded();
        let root = has_root.then(|| Named::Root { name: target.name().into() });
        let memory = target.process.memory();
        let mut names = WaitNames::new(&target.process, &vms, root);
        let requests = WaitRequests::asked(&target.options, &target.process, &vms, &mut names);
        let mut counter = target.options.per_request.then(|| RequestCounter::start(target));
        if let Some(Ok(counter)) = &mut counter {
            counter.begin();
        }
        Self {
            process: target.process.clone(),
            memory,
            names,
            requests,
            counter,
            c_stacks: CStacks::default(),
            vms_so_far: vms.len(),
            vms: (0..).zip(vms).map(|(index, vm)| CoroutineLooks::new(vm, index, now)).collect(),
            is_chosen: target.only.is_some(),
            next_search: now + if target.vms.is_empty() { Duration::ZERO } else { SEARCH_INTERVAL },
            pending: Pending::default(),
            doubts: Doubts::default(),
            looked: None,
        }
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The number of VMs now, and the number of VMs so far.
    pub fn vms(&self) -> (usize, usize) {
        (self.vms.len(), self.vms_so_far)
    }

    /// How many coroutines waited at the last look.
    pub fn waiting(&self) -> f64 {
        self.pending.waiting.values().sum()
    }

    /// Looks at all coroutines.
    pub fn look(&mut self, profile: &mut WaitProfile) {
        let now = Instant::now();
        self.search(now);
        self.names.begin_look();
        if let Some(requests) = &mut self.requests {
            requests.look_again();
        }
        if let Some(Ok(counter)) = &mut self.counter {
            counter.keep_up();
        }
        let lag = self.looked.map(|looked| now.saturating_duration_since(looked));
        let mut pending = Pending::default();
        for VmFound { there, waiting, pairs } in self.each_vm(profile, |vm, looking| Some((lag, vm.look(looking)))) {
            pending.there += there;
            for (stack, count) in waiting {
                *pending.waiting.entry(stack).or_insert(0.0) += count;
            }
            add_pairs(profile, lag, &pairs);
        }
        // The memory of a process that has exited meanwhile is inconsistent.
        if self.process.runs_same_program() {
            self.pending = pending;
        }
        self.looked = Some(now);
    }

    /// Looks at some of the coroutines again, a moment after the look at all of them.
    pub fn echo(&mut self, profile: &mut WaitProfile, rng: &mut fastrand::Rng) {
        let mut lag = None;
        let found = self.each_vm(profile, |vm, looking| {
            vm.echo(looking, ECHOES, rng).map(|(time, found)| {
                lag = Some(time);
                (Some(time), found)
            })
        });
        found.iter().for_each(|found| add_pairs(profile, lag, &found.pairs));
    }

    /// Calls a function for all VMs. VMs that are closed meanwhile do not count.
    fn each_vm(
        &mut self,
        profile: &mut WaitProfile,
        mut act: impl FnMut(&mut CoroutineLooks, &mut Looking<'_>) -> Option<(Option<Duration>, VmFound)>,
    ) -> Vec<VmFound> {
        let Self { process, memory, names, requests, c_stacks, vms, vms_so_far, doubts, .. } = self;
        let mut used_stacks = None;
        let mut all = Vec::new();
        vms.retain_mut(|vm| {
            let used_stacks = &mut used_stacks;
            let vms = *vms_so_far;
            let mut looking = Looking { process, memory, names, requests, profile, vms, used_stacks, c_stacks };
            let found = act(vm, &mut looking);
            let is_there = vm.vm.still_valid(memory);
            if is_there {
                all.extend(found.map(|(_, found)| found));
            } else {
                names.forget_vm(vm.index());
                doubts.add(vm.doubts);
            }
            is_there
        });
        all
    }

    /// Searches for new VMs from time to time.
    fn search(&mut self, now: Instant) {
        if self.is_chosen || now < self.next_search {
            return;
        }
        let begin = ClockId::THIS_THREAD.read().unwrap_or_default();
        let found = self.process.maps().ok().and_then(|maps| find_vms(&self.process, &maps).ok()).unwrap_or_default();
        let cost = ClockId::THIS_THREAD.read().unwrap_or_default().saturating_sub(begin);
        let (share, least) =
            if self.vms_so_far == 0 { (FIRST_SEARCH_SHARE, Duration::ZERO) } else { (SEARCH_SHARE, SEARCH_INTERVAL) };
        self.next_search = now + cost.mul_f64(1.0 / share).max(least);
        for vm in found {
            if self.vms.iter().all(|known| known.vm.global != vm.global) {
                self.add(vm, now);
            }
        }
    }

    fn add(&mut self, vm: Vm, now: Instant) {
        self.names.add_vm(&vm);
        if let Some(requests) = &mut self.requests {
            requests.see_vm(&vm, &mut self.names);
        }
        self.vms.push(CoroutineLooks::new(vm, self.vms_so_far, now));
        self.vms_so_far += 1;
    }

    /// Adds the result of the last look to the sums of all processes, now that its stretch is over.
    pub fn take(&mut self, sums: &mut WaitLook) {
        let Pending { there, waiting } = std::mem::take(&mut self.pending);
        sums.there += there;
        sums.waiting.extend(waiting.into_iter().filter(|(_, count)| *count > 0.0));
    }

    /// Updates the numbers of stacks after they have changed.
    pub fn renumber(&mut self, moved: &[StackId]) {
        self.names.renumber(moved);
        self.vms.iter_mut().for_each(|vm| vm.renumber(moved));
        let waiting = std::mem::take(&mut self.pending.waiting);
        for (stack, count) in waiting {
            let to = moved.get(stack.index()).copied().unwrap_or(stack);
            *self.pending.waiting.entry(to).or_insert(0.0) += count;
        }
    }

    /// How many requests were found, and why the others were not, if the options ask for requests.
    pub fn requests(&self) -> Option<RequestTally> {
        self.requests.as_ref().map(WaitRequests::tally)
    }

    /// Ends counting requests. The outcome, if that was asked for: the counts, or why there are none.
    pub fn take_ended(&mut self) -> Option<Result<EndedSummary, String>> {
        Some(self.counter.take()?.map(RequestCounter::finish))
    }

    /// What may be wrong with the results.
    pub fn doubts(&self) -> Doubts {
        let mut all = self.doubts;
        all.unsearched += self.names.unsearched();
        self.vms.iter().for_each(|vm| all.add(vm.doubts));
        all
    }
}

fn add_pairs(profile: &mut WaitProfile, lag: Option<Duration>, pairs: &HashMap<StackId, [u64; 2]>) {
    let Some(lag) = lag else { return };
    for (stack, &[same, gone]) in pairs {
        profile.pair(*stack, lag, same, gone);
    }
}
