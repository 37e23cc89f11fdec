//! The request of each allocation event, or the fiber that it is in.
//!
//! The BPF program sends a record for each change of the coroutine or its request, before the next event. The record has the
//! return address of the call that resumed the coroutine. It must be in the code of lua-nginx-module, which writes the
//! coroutine's word before it resumes the coroutine.
//!
//! An event has no stack, only the function that it happens in, so nothing tells which plugin it is for.

use std::collections::HashMap;
use std::ops::Range;

use lj_trace_common::allocation::serving::RequestSeen;
use lj_trace_common::allocation::serving_fiber::FiberSeen;
use lj_trace_common::allocation::{AllocationEvent, AllocationSource};
use lj_trace_common::fiber::{FiberLayout, FiberState};
use lj_trace_common::request::RequestLayout;
use lj_trace_luajit::Vm;
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::memory::EventRequest;
use lj_trace_profile::model::RequestKey;
use lj_trace_requests::{
    Circumstances, FiberCircumstances, Fibers, RequestOutcome, Requests, RouteOutcome, ServedRequest, Unlabelled,
};
use lj_trace_unwind::symbols::Symbolizer;

use super::request_summary::{AllocationRequestSummary, RequestSums};
use crate::options::Options;
use crate::resolve::{ProcessRoutes, RequestTally, SampleRequest, code_around, labels};

/// What a VM allocates for, as of its last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// An index of [`AllocationRequests::known`].
    index: usize,
    /// Whether it is the main coroutine, which serves one request after the other.
    is_on_main_thread: bool,
}

/// One of the known requests, with its sums.
struct KnownRequest {
    outcome: RequestOutcome,
    request: EventRequest,
    sums: RequestSums,
}

/// The requests for which the VMs of a process allocate.
pub struct AllocationRequests {
    process: Process,
    memory: ProcessMemory,
    requests: Requests,
    /// Their routes, if somebody asks for them.
    routes: ProcessRoutes,
    /// The fibers of Tarantool, if somebody asks for them.
    fibers: Fibers,
    /// Address ranges of the code of the file that contains lua-nginx-module.
    resumer: Vec<Range<u64>>,
    /// Whether requests are ignored.
    is_off: bool,
    group_by: Option<RequestKey>,
    only: Vec<(RequestKey, String)>,
    /// Whether fibers are asked for.
    wants_fibers: bool,
    /// Whether routes are asked for.
    wants_routes: bool,
    /// Why plugins that were asked for are not there.
    never_known: Option<&'static str>,
    known: Vec<KnownRequest>,
    indices: HashMap<RequestOutcome, usize>,
    /// The number of events that `only` has left out.
    left_out: u64,
}

/// The outcome for the main coroutine if no Lua function is known to run in it.
const NO_LUA: RequestOutcome = RequestOutcome::Not(Unlabelled::NoLua);

impl AllocationRequests {
    /// Those of a process with these VMs.
    pub fn new(options: &Options, process: &Process, vms: &[Vm]) -> Self {
        let mut requests = Self {
            process: process.clone(),
            memory: process.memory(),
            requests: Requests::default(),
            routes: ProcessRoutes::default(),
            fibers: Fibers::default(),
            resumer: Vec::new(),
            // A look at each call makes the probes cost half as much again.
            is_off: options.testing.no_requests
                || options.overhead.is_some()
                || !(options.wants_requests() || options.per_request),
            group_by: options.group_by,
            only: options.only_requests.clone(),
            wants_fibers: options.asks_for(RequestKey::Fiber),
            wants_routes: options.asks_for(RequestKey::Route) || options.per_request,
            never_known: options
                .asks_for(RequestKey::Plugin)
                .then_some("memory profiles do not know of plugins")
                .or(options.asks_for(RequestKey::TraceId).then_some("memory profiles do not know of trace IDs")),
            known: Vec::new(),
            indices: HashMap::new(),
            left_out: 0,
        };
        // The first entry is for VMs without a record.
        requests.index_of(RequestOutcome::NotLooked);
        requests.look_at(vms);
        requests
    }

    /// One more VM, which may be the first that has requests, or routes: what the kernel half has to be told then.
    pub fn see_vm(&mut self, vm: &Vm) -> Option<RequestLayout> {
        if self.requests.is_wanted() {
            self.look_at_routes(vm);
            return self.layout().filter(|_| self.wants_routes);
        }
        self.look_at(std::slice::from_ref(vm));
        self.layout()
    }

    /// What the kernel half has to know, if there may be requests.
    pub fn layout(&self) -> Option<RequestLayout> {
        let routes = self.routes.layout().unwrap_or_default();
        self.requests.is_wanted().then(|| RequestLayout { routes, ..self.requests.layout() })
    }

    /// Where the kernel half finds routes, if that has only now become known, or has become wrong.
    pub fn look_for_routes(&mut self) -> Option<RequestLayout> {
        let is_news = self.wants_routes && self.routes.look_again(&self.process, &self.memory);
        is_news.then(|| self.layout()).flatten()
    }

    /// One more VM whose requests may have routes.
    fn look_at_routes(&mut self, vm: &Vm) {
        if self.wants_routes {
            let find = |name: &str| Symbolizer::new(self.process.clone()).function(name);
            self.routes.see_vm(&self.process, vm, &self.requests.layout(), find);
        }
    }

    fn look_at(&mut self, vms: &[Vm]) {
        if self.is_off {
            return;
        }
        if self.wants_fibers && vms.iter().any(|vm| vm.fork().contains("Tarantool")) {
            self.fibers = Fibers::find(&self.memory, |name| Symbolizer::new(self.process.clone()).function(name));
        }
        if self.fibers.are_there() {
            return;
        }
        let configs: Vec<_> = vms.iter().map(Vm::config).collect();
        let mut accessor = None;
        self.requests = Requests::find(&self.memory, &configs, |name| {
            accessor = Symbolizer::new(self.process.clone()).function(name);
            accessor
        });
        self.resumer = accessor.map(|address| code_around(&self.process, address)).unwrap_or_default();
        if self.requests.is_wanted() {
            vms.iter().for_each(|vm| self.look_at_routes(vm));
        }
    }

    /// Where the kernel half finds fibers, if that has only now become known.
    pub fn look_for_fibers(&mut self) -> Option<FiberLayout> {
        let Self { fibers, memory, process, .. } = self;
        fibers.look(memory, || process.main_thread_pointer()).then(|| fibers.layout()).flatten()
    }

    /// Which fiber a VM allocates in from now on.
    pub fn see_fiber(&mut self, seen: &FiberSeen) -> Serving {
        // The program allocates nothing in Lua while it changes a fiber's name.
        let is_other_thread = seen.marks.state == FiberState::None as u32;
        let circumstances = FiberCircumstances { runs_lua: true, is_being_named: false, is_other_thread };
        let mut outcome = self.fibers.resolve(&seen.marks, circumstances);
        if let RequestOutcome::Found(ServedRequest { fiber: Some(fiber), .. }) = &mut outcome {
            // There may be any number of ids.
            fiber.id = 0;
        }
        Serving { index: self.index_of(outcome), is_on_main_thread: false }
    }

    /// What a VM allocates for from now on.
    pub fn see(&mut self, vm: &Vm, seen: &RequestSeen) -> Serving {
        let is_on_main_thread = seen.thread == vm.main_thread;
        let mut outcome = if seen.thread == 0 {
            NO_LUA
        } else if is_on_main_thread || self.is_resumed_by_nginx(vm, seen.resumed_from) {
            // Of the main coroutine each event tells whether Lua runs. nginx resumes no other coroutine than for that.
            let circumstances = Circumstances { on_main_thread: is_on_main_thread, runs_lua: true };
            self.requests.resolve(&self.memory, &seen.marks, circumstances)
        } else if seen.marks.request == 0 && self.resumer.is_empty() {
            RequestOutcome::NoRequest
        } else {
            RequestOutcome::Not(Unlabelled::OtherResumer)
        };
        if let RequestOutcome::Found(served) = &mut outcome
            && self.wants_routes
        {
            served.route = self.routes.of_marks(&self.memory, vm, &seen.route());
        }
        // Nobody but nginx has the main coroutine serve one request after the other.
        let is_on_main_thread = is_on_main_thread && !self.resumer.is_empty();
        Serving { index: self.index_of(outcome), is_on_main_thread }
    }

    fn is_resumed_by_nginx(&self, vm: &Vm, address: u64) -> bool {
        !vm.text.range.contains(&address) && self.resumer.iter().any(|code| code.contains(&address))
    }

    /// The request of an event of a VM that serves this; `made` are the bytes that it has allocated.
    pub fn of_event(&mut self, serving: Serving, event: &AllocationEvent, made: Option<u64>) -> &EventRequest {
        let index = match serving.index {
            _ if serving.is_on_main_thread && !runs_lua(event) => self.index_of(NO_LUA),
            // The kernel half was not told yet where fibers are.
            0 if self.fibers.are_there() => self.index_of(RequestOutcome::Not(Unlabelled::UnprovenFibers)),
            index => index,
        };
        let KnownRequest { request, sums, .. } = &mut self.known[index];
        sums.events += 1;
        if let Some(bytes) = made {
            sums.allocations += 1;
            sums.bytes = sums.bytes.saturating_add(bytes);
        }
        self.left_out += u64::from(request.is_left_out);
        request
    }

    /// The number of a request that is told from others.
    fn index_of(&mut self, outcome: RequestOutcome) -> usize {
        if let Some(&index) = self.indices.get(&outcome) {
            return index;
        }
        let mut sample = SampleRequest {
            is_unknown: matches!(outcome, RequestOutcome::Not(_)),
            is_route_unknown: is_route_unknown(&outcome),
            is_plugin_unknown: matches!(outcome, RequestOutcome::Found(_)),
            labels: match &outcome {
                RequestOutcome::Found(served) => labels(served.clone()),
                _ => None,
            },
            ..SampleRequest::default()
        };
        let is_left_out = !sample.has(&self.only);
        if let Some(key) = self.group_by {
            sample.group_by(key);
        }
        let index = self.known.len();
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let request = EventRequest { number, labels: sample.labels, group: sample.group, is_left_out };
        self.known.push(KnownRequest { outcome: outcome.clone(), request, sums: RequestSums::default() });
        self.indices.insert(outcome, index);
        index
    }

    /// What became of all events.
    pub fn summary(&self) -> AllocationRequestSummary {
        let mut tally = RequestTally {
            is_wanted: self.requests.is_wanted() || self.fibers.are_there(),
            are_fibers: self.fibers.are_there(),
            others: self.requests.others() + self.fibers.others() + self.routes.others(),
            no_phases: self.requests.no_phases(),
            no_fibers: self.fibers.why_not(),
            no_routes: self.routes.why_not().filter(|_| self.wants_routes).or(self.never_known),
            ..RequestTally::default()
        };
        let mut unrouted_bytes = 0;
        let mut of_labels = Vec::new();
        for KnownRequest { outcome, request, sums } in self.known.iter().filter(|known| known.sums.events > 0) {
            match outcome {
                RequestOutcome::NotLooked => {}
                RequestOutcome::NoRequest => tally.without += sums.events,
                RequestOutcome::Not(reason) => *tally.unknown.entry(reason.to_string()).or_default() += sums.events,
                RequestOutcome::Found(served) => {
                    tally.found += sums.events;
                    match &served.route {
                        RouteOutcome::NotLooked => {}
                        RouteOutcome::NoRoute => tally.unrouted += sums.events,
                        RouteOutcome::Found(_) => tally.routed += sums.events,
                        RouteOutcome::Not(reason) => {
                            *tally.unknown_routes.entry(reason.to_string()).or_default() += sums.events;
                            unrouted_bytes += sums.bytes;
                        }
                    }
                }
            }
            of_labels.push((request.labels.clone(), *sums));
        }
        let wants = |key| self.group_by == Some(key) || self.only.iter().any(|(own, _)| *own == key);
        AllocationRequestSummary {
            tally,
            of_labels,
            unrouted_bytes,
            wants_requests: self.group_by.is_some() || !self.only.is_empty(),
            wants_routes: wants(RequestKey::Route),
            left_out: self.left_out,
        }
    }
}

/// Whether there is a request, which may have a route that is not known.
fn is_route_unknown(outcome: &RequestOutcome) -> bool {
    matches!(
        outcome,
        RequestOutcome::Found(ServedRequest { route: RouteOutcome::NotLooked | RouteOutcome::Not(_), .. })
    )
}

/// Whether an event tells that a Lua function is on the coroutine's stack.
fn runs_lua(event: &AllocationEvent) -> bool {
    match AllocationSource::from_u8(event.source) {
        Some(AllocationSource::Lua | AllocationSource::Trace | AllocationSource::LostTrace) => true,
        Some(AllocationSource::C) => event.caller != 0,
        Some(AllocationSource::Internal) | None => false,
    }
}
