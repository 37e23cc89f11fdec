//! Which request, route or fiber a sample belongs to: its labels, and how many were found.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use lj_trace_common::ended_request::EndedRequest;
use lj_trace_common::event::RecordKind;
use lj_trace_common::fiber::FiberLayout;
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::request::{RequestLayout, RequestMarks, RequestState};
use lj_trace_luajit::Vm;
use lj_trace_probes::sample::Sample;
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::Frame;
use lj_trace_profile::model::{RequestKey, RequestLabels};
use lj_trace_requests::{
    Circumstances, FiberCircumstances, Fibers, RequestOutcome, Requests, RouteOutcome, RunningFiber, ServedRequest,
    TraceIdOutcome, count_calls,
};
use lj_trace_text::counted;
use lj_trace_unwind::{NativeFrame, NativeStack};

use super::naming::Namer;
use super::plugins::Plugins;
use super::routes::{ProcessRoutes, code_around};
use super::trace_ids::{ProcessTraceIds, TraceIdTally};

/// What is known about the request of a sample.
#[derive(Clone, Debug, Default)]
pub struct SampleRequest {
    /// The labels, if there is a request and it is known.
    pub labels: Option<RequestLabels>,
    /// The id of the fiber that ran.
    pub fiber_id: Option<u64>,
    /// Whether there may be a request that is not known.
    pub is_unknown: bool,
    /// Whether the request may have a route that is not known.
    pub is_route_unknown: bool,
    /// Whether a plugin may run that is not known.
    pub is_plugin_unknown: bool,
    /// Whether the request may have a trace ID that is not known.
    pub is_trace_id_unknown: bool,
    /// The frame to group the sample by, if samples are grouped.
    pub group: Option<Frame>,
}

impl SampleRequest {
    /// Groups the sample by a label.
    pub fn group_by(&mut self, key: RequestKey) {
        let name = match self.labels.as_ref().map(|labels| labels.get(key)) {
            Some(Some(value)) => Arc::clone(value),
            Some(None) if key == RequestKey::Route && self.is_route_unknown => "[route not known]".into(),
            Some(None) if key == RequestKey::Plugin && self.is_plugin_unknown => "[plugin not known]".into(),
            Some(None) if key == RequestKey::TraceId && self.is_trace_id_unknown => "[trace_id not known]".into(),
            Some(None) => format!("[no {key}]").into(),
            None => {
                let what = if key == RequestKey::Fiber { "fiber" } else { "request" };
                if self.is_unknown { format!("[{what} not known]") } else { format!("[no {what}]") }.into()
            }
        };
        self.group = Some(Frame::Root { name });
    }

    /// Whether the sample has all of these labels.
    pub fn has(&self, wanted: &[(RequestKey, String)]) -> bool {
        let has = |(key, value): &(RequestKey, String)| {
            self.labels.as_ref().and_then(|labels| labels.get(*key)).is_some_and(|own| **own == **value)
        };
        wanted.iter().all(has)
    }
}

/// How many requests of samples were found, and why the others were not.
#[derive(Clone, Debug, Default)]
pub struct RequestTally {
    /// Whether lj-trace looked for requests at all.
    pub is_wanted: bool,
    /// Whether what is found are fibers, which do not serve one request each.
    pub are_fibers: bool,
    /// Samples with labels.
    pub found: u64,
    /// Samples of coroutines that serve no request.
    pub without: u64,
    /// Samples whose request is not known, by reason.
    pub unknown: BTreeMap<String, u64>,
    /// Samples with a name that exceeds the limit of distinct names.
    pub others: u64,
    /// Why phases are not known; [`None`] if they are.
    pub no_phases: Option<&'static str>,
    /// Why fibers are not known, if the program has any; [`None`] if they are.
    pub no_fibers: Option<&'static str>,
    /// Samples with a route.
    pub routed: u64,
    /// Samples of requests that have no route.
    pub unrouted: u64,
    /// Samples of requests whose route is not known, by reason.
    pub unknown_routes: BTreeMap<String, u64>,
    /// Why routes are not known; [`None`] if they are.
    pub no_routes: Option<&'static str>,
    /// Trace IDs; [`None`] if nobody has asked for them.
    pub trace_ids: Option<TraceIdTally>,
}

impl RequestTally {
    /// Adds the tally of another process.
    pub fn add(&mut self, other: Self) {
        self.is_wanted |= other.is_wanted;
        self.are_fibers |= other.are_fibers;
        self.found += other.found;
        self.without += other.without;
        self.others += other.others;
        self.routed += other.routed;
        self.unrouted += other.unrouted;
        for (own, others) in [(&mut self.unknown, other.unknown), (&mut self.unknown_routes, other.unknown_routes)] {
            for (reason, count) in others {
                *own.entry(reason).or_default() += count;
            }
        }
        if let Some(other) = other.trace_ids {
            match &mut self.trace_ids {
                Some(own) => own.add(other),
                none => *none = Some(other),
            }
        }
        self.no_routes = self.no_routes.or(other.no_routes);
        self.no_phases = self.no_phases.or(other.no_phases);
        self.no_fibers = self.no_fibers.or(other.no_fibers);
    }

    /// How many were looked at.
    pub fn total(&self) -> u64 {
        self.found + self.without + self.unknown.values().sum::<u64>()
    }

    /// What is looked for, in words.
    pub fn subject(&self) -> &'static str {
        if self.are_fibers { "fiber" } else { "request" }
    }

    /// Writes what became of the look for requests, a line for each outcome, with `share` of what was counted. Writes nothing if
    /// lj-trace did not look for requests.
    ///
    /// # Errors
    /// As `out`.
    pub fn write_counts(&self, share: impl Fn(u64) -> String, out: &mut impl std::fmt::Write) -> std::fmt::Result {
        if !self.is_wanted {
            return Ok(());
        }
        let what = self.subject();
        writeln!(out, "  {:<18} {}", format!("{what} known"), share(self.found))?;
        writeln!(out, "  {:<18} {}", format!("of no {what}"), share(self.without))?;
        for (reason, count) in &self.unknown {
            writeln!(out, "  {:<18} {}: {reason}", format!("{what} not known"), share(*count))?;
        }
        if self.routed + self.unrouted > 0 || !self.unknown_routes.is_empty() {
            writeln!(out, "  {:<18} {}", "route known", share(self.routed))?;
            writeln!(out, "  {:<18} {}", "of no route", share(self.unrouted))?;
        }
        for (reason, count) in &self.unknown_routes {
            writeln!(out, "  {:<18} {}: {reason}", "route not known", share(*count))?;
        }
        if let Some(trace_ids) = &self.trace_ids {
            trace_ids.write_counts(share, out)?;
        }
        self.no_fibers.map_or(Ok(()), |why| writeln!(out, "  no fibers          {why}"))?;
        self.no_routes.map_or(Ok(()), |why| writeln!(out, "  no routes          {why}"))?;
        self.no_phases.map_or(Ok(()), |why| writeln!(out, "  no phases          {why}"))
    }

    /// Why none of the counted things has a route, each called `sample` in the text; [`None`] if some have.
    pub fn why_no_routes(&self, sample: &str) -> Option<String> {
        if self.routed > 0 {
            return None;
        }
        Some(match self.unknown_routes.iter().max_by_key(|(_, count)| **count) {
            Some((reason, count)) => format!("{reason} ({})", counted(*count, sample)),
            None => self.no_routes.map_or_else(|| format!("no {sample} hit a request that has one"), str::to_owned),
        })
    }

    /// Why none of the counted things has labels, each called `sample` in the text; [`None`] if some have.
    pub fn why_none(&self, sample: &str) -> Option<String> {
        if self.found > 0 {
            return None;
        }
        Some(match self.unknown.iter().max_by_key(|(_, count)| **count) {
            _ if self.no_fibers.is_some() => self.no_fibers.unwrap_or_default().to_owned(),
            _ if !self.is_wanted => {
                "its LuaJIT has no word for requests in coroutines, so it is not OpenResty's, and it has no fibers \
                 of Tarantool"
                    .to_owned()
            }
            Some((reason, count)) => format!("{reason} ({})", counted(*count, sample)),
            None if self.are_fibers => format!("no {sample} hit a fiber"),
            None => format!("no {sample} hit a coroutine that serves a request"),
        })
    }
}

/// What the kernel half has to be told.
#[derive(Clone, Copy, Debug)]
pub enum LabelLayout {
    /// Where nginx keeps its requests.
    Requests(RequestLayout),
    /// Where Tarantool keeps its fibers.
    Fibers(FiberLayout),
}

/// Finds the requests or fibers of the samples of one process.
pub struct RequestLabeller {
    process: Process,
    memory: ProcessMemory,
    requests: Requests,
    routes: ProcessRoutes,
    plugins: Plugins,
    /// Trace IDs; [`None`] if nobody has asked for them.
    trace_ids: Option<ProcessTraceIds>,
    fibers: Fibers,
    /// The code of the functions that change a fiber's name.
    naming: Vec<Range<u64>>,
    /// The function that ends each request of nginx.
    ending: Option<u64>,
    tally: RequestTally,
    /// What the kernel half still has to be told.
    news: Option<LabelLayout>,
    /// Whether request labels are off.
    is_off: bool,
}

/// The function of nginx that ends each request of a client. Modules call it by this name.
const ENDING: &str = "ngx_http_free_request";

/// Functions of Tarantool that change a fiber's name: until 2.10, and since 2.11.
const FIBER_NAMING: [&str; 2] = ["fiber_set_name", "fiber_set_name_n"];

impl RequestLabeller {
    /// A labeller for a process with these VMs, whose functions `namer` knows.
    pub fn new(process: &Process, vms: &[Vm], namer: &mut Namer) -> Self {
        let mut labeller = Self::nothing(process);
        vms.iter().for_each(|vm| labeller.see_vm(vm, namer));
        labeller
    }

    /// A labeller that finds no requests.
    pub fn off(process: &Process) -> Self {
        Self { is_off: true, ..Self::nothing(process) }
    }

    fn nothing(process: &Process) -> Self {
        Self {
            process: process.clone(),
            memory: process.memory(),
            requests: Requests::default(),
            routes: ProcessRoutes::default(),
            plugins: Plugins::default(),
            trace_ids: None,
            fibers: Fibers::default(),
            naming: Vec::new(),
            ending: None,
            tally: RequestTally::default(),
            news: None,
            is_off: false,
        }
    }

    /// Looks for trace IDs, too: in this variable of nginx, or in those that are known to have some.
    pub fn find_trace_ids(&mut self, variable: Option<&str>, namer: &mut Namer) {
        if !self.is_off {
            self.trace_ids = Some(ProcessTraceIds::of_variable(variable, namer));
        }
    }

    /// Looks for the same trace IDs as another labeller, if that looks for any.
    pub fn find_trace_ids_of(&mut self, other: &Self, namer: &mut Namer) {
        if let Some(trace_ids) = &other.trace_ids {
            self.find_trace_ids(trace_ids.variable(), namer);
        }
    }

    /// One more VM: it may be the first that has requests.
    pub fn see_vm(&mut self, vm: &Vm, namer: &mut Namer) {
        if self.is_off || self.fibers.are_there() {
            return;
        }
        if self.requests.is_wanted() {
            self.see_routes(vm, namer);
            return;
        }
        if vm.fork().contains("Tarantool") {
            self.fibers = Fibers::find(&self.memory, |name| namer.function(name));
            if self.fibers.are_there() {
                self.naming = FIBER_NAMING.iter().filter_map(|name| namer.function_range(name)).collect();
                self.look_again();
                return;
            }
        }
        self.requests = Requests::find(&self.memory, &[vm.config()], |name| namer.function(name));
        if self.requests.is_wanted() {
            self.news = Some(LabelLayout::Requests(self.requests.layout()));
            self.ending = namer.function(ENDING);
            self.see_routes(vm, namer);
        }
    }

    /// Whether the program's code calls a function of its own from several places: a compiler that puts the function's code there
    /// instead would do so in the first place.
    fn is_always_called(&self, function: u64) -> bool {
        /// The end of a request, and the end of one on a connection that is kept (`ngx_http_close_request`,
        /// `ngx_http_set_keepalive`).
        const LEAST: usize = 2;
        /// More than any nginx has, in bytes.
        const MOST_CODE: u64 = 32 << 20;
        let code = code_around(&self.process, function).into_iter().filter(|code| code.end - code.start <= MOST_CODE);
        let calls = code.filter_map(|code| {
            let bytes = self.memory.read_bytes(code.start, (code.end - code.start) as usize).ok()?;
            Some(count_calls(&bytes, code.start, function))
        });
        calls.sum::<usize>() >= LEAST
    }

    /// The address of the function that ends each request of nginx; else why there is none.
    ///
    /// # Errors
    /// The program is no nginx whose requests are known, or has no function of that name.
    pub fn ending(&self) -> Result<u64, &'static str> {
        match self.ending {
            Some(function) if self.is_always_called(function) => Ok(function),
            _ if self.requests.is_wanted() => {
                Err("the program has no function ngx_http_free_request that all its code calls")
            }
            _ if self.fibers.are_there() => Err("fibers serve no countable requests"),
            _ => Err("its LuaJIT has no word for requests in coroutines, so it is not OpenResty's"),
        }
    }

    /// The labels of a request that has ended; [`None`] if it is not known which it was. `vm` is one that serves requests.
    pub fn of_ended(&mut self, vm: &Vm, ended: &EndedRequest) -> Option<RequestLabels> {
        let (request, route) = ended.marks();
        let RequestOutcome::Found(mut served) = self.requests.of_ended(&self.memory, &request) else { return None };
        served.route = self.routes.of_marks(&self.memory, vm, &route);
        labels(served)
    }

    /// One more VM whose requests may have routes.
    fn see_routes(&mut self, vm: &Vm, namer: &mut Namer) {
        self.routes.see_vm(&self.process, vm, &self.requests.layout(), |name| namer.function(name));
        self.tell_layout();
    }

    /// Has the kernel half told where routes and trace IDs are, or that this is not known.
    fn tell_layout(&mut self) {
        let routes = self.routes.layout().unwrap_or_default();
        let trace_ids = self.trace_ids.as_ref().map(ProcessTraceIds::layout).unwrap_or_default();
        self.news = Some(LabelLayout::Requests(RequestLayout { routes, trace_ids, ..self.requests.layout() }));
    }

    /// Tries again to find what was not found before, because the program may not have been ready.
    pub fn look_again(&mut self) {
        if self.fibers.look(&self.memory, || self.process.main_thread_pointer()) {
            self.news = self.fibers.layout().map(LabelLayout::Fibers);
        }
        if self.routes.look_again(&self.process, &self.memory) {
            self.tell_layout();
        }
    }

    /// The layout for the kernel half, if it does not know the layout yet.
    pub fn take_layout(&mut self) -> Option<LabelLayout> {
        self.news.take()
    }

    /// The tally of all samples.
    pub fn tally(&self) -> RequestTally {
        let (requests, fibers) = (&self.requests, &self.fibers);
        let trace_ids = self.trace_ids.as_ref().map(ProcessTraceIds::tally);
        RequestTally {
            is_wanted: requests.is_wanted() || fibers.are_there(),
            are_fibers: fibers.are_there(),
            others: requests.others()
                + fibers.others()
                + self.routes.others()
                + self.plugins.others()
                + self.trace_ids.as_ref().map_or(0, ProcessTraceIds::others),
            no_routes: self.routes.why_not(),
            no_phases: requests.no_phases(),
            no_fibers: fibers.why_not(),
            trace_ids,
            ..self.tally.clone()
        }
    }

    /// The request or the fiber of a sample that hit this VM, if it hit any. Call it while the frames are still as the kernel
    /// has seen them.
    pub fn label(&mut self, vm: Option<&Vm>, sample: &Sample<'_>, native: &NativeStack) -> SampleRequest {
        let inner = sample.frames.len().min(sample.header.inner_frames as usize);
        let runs_lua = sample.frames[..inner].iter().any(|frame| frame.kind == RecordKind::Lua as u8);
        let outcome = if self.fibers.are_there() {
            let is_naming = |frame: &NativeFrame| self.naming.iter().any(|code| code.contains(&frame.lookup_address()));
            let is_being_named = native.frames.iter().any(is_naming);
            let is_other_thread = sample.header.pid != sample.header.tid;
            let circumstances = FiberCircumstances { runs_lua, is_being_named, is_other_thread };
            self.fibers.resolve(&sample.header.fiber, circumstances)
        } else if let Some(vm) = vm {
            let on_main_thread = sample.header.thread == vm.main_thread;
            let circumstances = Circumstances { on_main_thread, runs_lua };
            let mut outcome = self.requests.resolve(&self.memory, &sample.header.request, circumstances);
            if let RequestOutcome::Found(served) = &mut outcome {
                served.route = self.routes.of_sample(&self.memory, vm, sample, native);
                if let Some(trace_ids) = &mut self.trace_ids {
                    let marks = &sample.header.trace_id;
                    served.trace_id = trace_ids.of_sample(marks, native, sample.weight());
                    if trace_ids.learn_once_in_a_while(&self.memory, sample.header.request.request) {
                        self.tell_layout();
                    }
                }
            }
            outcome
        } else {
            RequestOutcome::NotLooked
        };
        self.count(outcome, sample.weight())
    }

    /// Adds the plugin that runs to a sample's labels. The named frames go from the innermost outward.
    pub fn add_plugin<'a>(&mut self, request: &mut SampleRequest, frames: impl DoubleEndedIterator<Item = &'a Frame>) {
        if self.requests.is_wanted() {
            self.plugins.label(request, frames);
        }
    }

    /// The request or the fiber of a suspended coroutine. The program runs meanwhile: the result is valid if the coroutine has
    /// not moved when it is known. `runs_lua` says whether its stack has Lua functions.
    pub fn of_coroutine(&mut self, vm: &Vm, thread: u64, runs_lua: bool) -> SampleRequest {
        if self.fibers.are_there() {
            let outcome = self.fiber_of_coroutine(vm, thread);
            return self.count(outcome, 1);
        }
        let marks = self.marks_of_coroutine(vm, thread);
        let circumstances = Circumstances { on_main_thread: thread == vm.main_thread, runs_lua };
        let mut outcome = self.requests.resolve(&self.memory, &marks, circumstances);
        if let RequestOutcome::Found(served) = &mut outcome {
            served.route = self.routes.of_waiting(&self.memory, vm, &self.requests.layout(), marks.request);
            if let Some(trace_ids) = &mut self.trace_ids {
                served.trace_id = trace_ids.of_waiting(&self.memory, marks.request);
            }
        }
        self.count(outcome, 1)
    }

    /// What the memory tells of the request of a suspended coroutine.
    fn marks_of_coroutine(&self, vm: &Vm, thread: u64) -> RequestMarks {
        let mut marks = RequestMarks::default();
        if self.requests.is_wanted() {
            marks.see(&self.memory, &vm.config(), thread, true);
            marks.follow(&self.memory, &self.requests.layout());
        }
        marks
    }

    /// Learns from the requests of suspended coroutines where requests have their trace IDs, if that is still to be learned.
    pub fn learn_from(&mut self, vm: &Vm, threads: impl Iterator<Item = u64>) {
        /// Each takes some 0.1 ms.
        const MOST: usize = 32;
        for thread in threads.take(MOST) {
            if self.trace_ids.as_ref().is_none_or(ProcessTraceIds::is_settled) {
                return;
            }
            let marks = self.marks_of_coroutine(vm, thread);
            if let Some(trace_ids) = self.trace_ids.as_mut().filter(|_| marks.state == RequestState::Found as u32) {
                trace_ids.learn(&self.memory, marks.request);
            }
        }
    }

    /// The fiber that a suspended coroutine waits in: its C frame is in the fiber's stack.
    fn fiber_of_coroutine(&mut self, vm: &Vm, thread: u64) -> RequestOutcome {
        /// Two bits of the address of a C frame are flags.
        const FLAGS: u64 = 3;
        self.look_again();
        let cframe = self.memory.read::<u64>(thread.wrapping_add(u64::from(vm.layout.l_cframe)));
        let Ok(cframe) = cframe else { return RequestOutcome::NotLooked };
        if cframe & !FLAGS == 0 {
            // It has yielded to another coroutine, and no fiber is in it.
            return RequestOutcome::NoRequest;
        }
        let marks = self.fibers.of_stack(&self.memory, cframe & !FLAGS);
        self.fibers.resolve(&marks, FiberCircumstances { runs_lua: true, ..FiberCircumstances::default() })
    }

    fn count(&mut self, outcome: RequestOutcome, weight: u64) -> SampleRequest {
        match outcome {
            RequestOutcome::NotLooked => SampleRequest::default(),
            RequestOutcome::NoRequest => {
                self.tally.without += weight;
                SampleRequest::default()
            }
            RequestOutcome::Not(reason) => {
                *self.tally.unknown.entry(reason.to_string()).or_default() += weight;
                SampleRequest { is_unknown: true, ..SampleRequest::default() }
            }
            RequestOutcome::Found(request) => {
                self.tally.found += weight;
                let is_route_unknown = self.count_route(&request.route, weight);
                let is_trace_id_unknown = matches!(request.trace_id, TraceIdOutcome::Not(_));
                let fiber_id = request.fiber.as_ref().map(|fiber| fiber.id);
                let labels = labels(request);
                SampleRequest { labels, fiber_id, is_route_unknown, is_trace_id_unknown, ..SampleRequest::default() }
            }
        }
    }

    /// Counts the route of a request. True if it is not known.
    fn count_route(&mut self, route: &RouteOutcome, weight: u64) -> bool {
        match route {
            RouteOutcome::NotLooked => return true,
            RouteOutcome::NoRoute => self.tally.unrouted += weight,
            RouteOutcome::Found(_) => self.tally.routed += weight,
            RouteOutcome::Not(reason) => {
                *self.tally.unknown_routes.entry(reason.to_string()).or_default() += weight;
                return true;
            }
        }
        false
    }
}

/// The labels of a request.
pub(crate) fn labels(request: ServedRequest) -> Option<RequestLabels> {
    let ServedRequest { phase, location, server, route, trace_id, fiber } = request;
    let phase = phase.map(|phase| (RequestKey::Phase, phase.name().into()));
    let location = location.map(|name| (RequestKey::Location, name));
    let server = server.map(|name| (RequestKey::Server, name));
    let route = match route {
        RouteOutcome::Found(name) => Some((RequestKey::Route, name)),
        RouteOutcome::NotLooked | RouteOutcome::NoRoute | RouteOutcome::Not(_) => None,
    };
    let trace_id = match trace_id {
        TraceIdOutcome::Found(id) => Some((RequestKey::TraceId, id)),
        TraceIdOutcome::NotLooked | TraceIdOutcome::NotSet | TraceIdOutcome::Not(_) => None,
    };
    let fiber = fiber.map(|RunningFiber { name, .. }| (RequestKey::Fiber, name));
    RequestLabels::new([location, route, phase, server, trace_id, fiber].into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(labels: &[(RequestKey, &str)]) -> SampleRequest {
        let labels = RequestLabels::new(labels.iter().map(|(key, value)| (*key, Arc::from(*value))));
        SampleRequest { labels, ..SampleRequest::default() }
    }

    #[test]
    fn samples_are_grouped_and_chosen_by_labels() {
        let mut cart = sample(&[(RequestKey::Location, "/cart"), (RequestKey::Phase, "log")]);
        let wanted = |key, value: &str| vec![(key, value.to_owned())];
        assert!(cart.has(&[]) && cart.has(&wanted(RequestKey::Location, "/cart")));
        assert!(!cart.has(&wanted(RequestKey::Location, "/ca")) && !cart.has(&wanted(RequestKey::Server, "/cart")));
        let both = [wanted(RequestKey::Location, "/cart"), wanted(RequestKey::Phase, "content")].concat();
        assert!(!cart.has(&both));
        let shown = |request: &mut SampleRequest, key| {
            request.group_by(key);
            request.group.clone().unwrap().to_string()
        };
        assert_eq!(shown(&mut cart, RequestKey::Location), "/cart");
        assert_eq!(shown(&mut cart, RequestKey::Server), "[no server]");
        assert_eq!(shown(&mut sample(&[]), RequestKey::Phase), "[no request]");
        let mut unknown = SampleRequest { is_unknown: true, ..SampleRequest::default() };
        assert_eq!(shown(&mut unknown, RequestKey::Phase), "[request not known]");
    }
}
