//! Finds the request or the fiber that a sample belongs to.
//!
//! [`Requests::find`] searches a process once, [`Requests::layout`] tells the kernel half where to look in each sample, and
//! [`Requests::resolve`] turns what the kernel half has seen into labels. [`Fibers`] does the same for Tarantool's fibers.
//! [`Routes`] adds the route that Kong or APISIX has chosen for a request, [`TraceIds`] its trace ID. Every label is proven: see `docs/requests.md`.

pub mod arch;
mod fibers;
mod names;
mod nginx;
mod outcome;
mod phase;
mod plugins;
mod routes;
#[cfg(test)]
mod test_memory;
mod trace_ids;

use std::sync::Arc;

use lj_trace_common::memory::ReadMemory;
use lj_trace_common::request::{MAX_MODULES, NO_INDEX, RequestLayout, RequestMarks, RequestState, embedder_word};
use lj_trace_common::vm::VmConfig;

pub use arch::{Accessor, FiberSelf, count_calls, only_reads_on};
pub use fibers::{FiberCircumstances, Fibers};
pub use names::{BoundedNames, MOST_NAMES, OTHER};
use nginx::{Configurations, RequestPlace};
pub use outcome::{RequestOutcome, Unlabelled};
pub use phase::RequestPhase;
pub use plugins::plugin_of;
pub use routes::{RouteOutcome, Routes, RoutingProgram, Unrouted};
pub use trace_ids::{MOST_TRACE_IDS, TraceIdOutcome, TraceIds, Untraced};

/// What is known about the request of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServedRequest {
    /// The phase of nginx's work on the request; [`None`] if it is not known.
    pub phase: Option<RequestPhase>,
    /// The location, as it is in nginx's configuration: `/cart`, `= /`, `~ \.php$`, `@fallback`. [`None`] if nginx has not
    /// chosen the request's location yet.
    pub location: Option<Arc<str>>,
    /// The first name of the server in nginx's configuration, if it has one.
    pub server: Option<Arc<str>>,
    /// The route that Kong or APISIX has chosen for it.
    pub route: RouteOutcome,
    /// Its trace ID.
    pub trace_id: TraceIdOutcome,
    /// The fiber of Tarantool that ran.
    pub fiber: Option<RunningFiber>,
}

/// A fiber of Tarantool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunningFiber {
    /// Its name at the time of the sample.
    pub name: Arc<str>,
    /// Its id. There may be any number of ids.
    pub id: u64,
}

/// Conditions besides the request itself that decide whether its labels are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// Whether the innermost coroutine is the VM's main one, which serves one request after the other.
    pub on_main_thread: bool,
    /// Whether a Lua function is on the coroutine's stack: nginx sets the request only just before it calls one.
    pub runs_lua: bool,
}

/// The function of lua-nginx-module that returns a request's phase. Lua libraries call it by this name.
const GET_PHASE: &str = "ngx_http_lua_ffi_get_phase";

/// The requests of one process.
#[derive(Debug, Default)]
pub struct Requests {
    layout: RequestLayout,
    configurations: Configurations,
    locations: BoundedNames,
    servers: BoundedNames,
    /// Why phases are not known; [`None`] if they are.
    no_phases: Option<&'static str>,
}

impl Requests {
    /// Searches a process with these VMs. `function` returns the address of a native function by its name.
    pub fn find(memory: &impl ReadMemory, vms: &[VmConfig], function: impl FnOnce(&str) -> Option<u64>) -> Self {
        if !vms.iter().any(|vm| embedder_word(&vm.layout).is_some()) {
            return Self::default();
        }
        let accessor = function(GET_PHASE).map(|address| {
            // The code of five lines of C is much shorter than this.
            let code = memory.read::<[u8; 96]>(address).ok()?;
            Accessor::read(memory, &code, address)
        });
        Self::with_accessor(accessor)
    }

    /// The same with an accessor of the phase: [`None`] if there is no such function, and an inner [`None`] if its code is
    /// not understood.
    pub fn with_accessor(accessor: Option<Option<Accessor>>) -> Self {
        let unknown = RequestLayout { is_wanted: 1, lua_index: NO_INDEX, ..RequestLayout::default() };
        let (layout, no_phases) = match accessor {
            None => (unknown, Some("the program exports no function that tells phases")),
            Some(None) => (unknown, Some("the code of the function that tells phases is not understood")),
            Some(Some(Accessor { index, offset, mask })) if index < MAX_MODULES => {
                (RequestLayout { lua_index: index, phase: offset, phase_mask: mask, ..unknown }, None)
            }
            Some(Some(_)) => (unknown, Some("the function that tells phases names no module")),
        };
        Self { layout, no_phases, ..Self::default() }
    }

    /// Whether the process has coroutines that can have requests at all.
    pub fn is_wanted(&self) -> bool {
        self.layout.is_wanted != 0
    }

    /// The layout for the kernel half.
    pub fn layout(&self) -> RequestLayout {
        self.layout
    }

    /// Why phases are not known; [`None`] if they are.
    pub fn no_phases(&self) -> Option<&'static str> {
        self.no_phases
    }

    /// The number of samples whose location or server is called `[other]`, because there are too many names.
    pub fn others(&self) -> u64 {
        self.locations.others() + self.servers.others()
    }

    /// What is known about the request of a sample.
    pub fn resolve(
        &mut self,
        memory: &impl ReadMemory,
        marks: &RequestMarks,
        Circumstances { on_main_thread, runs_lua }: Circumstances,
    ) -> RequestOutcome {
        use RequestOutcome::{NoRequest, Not};
        match RequestState::from_u32(marks.state) {
            None | Some(RequestState::None | RequestState::Open | RequestState::Settled) => {
                return RequestOutcome::NotLooked;
            }
            Some(RequestState::NoRequest) => return NoRequest,
            Some(RequestState::Mixed) => return Not(Unlabelled::OtherCoroutine),
            Some(RequestState::Unreadable) => return Not(Unlabelled::Unreadable),
            Some(RequestState::NotOne) => return Not(Unlabelled::NoSignature),
            Some(RequestState::Found) => {}
        }
        if !runs_lua {
            return Not(Unlabelled::NoLua);
        }
        let phase = RequestPhase::from_bits(marks.phase);
        if on_main_thread && phase.is_some_and(|phase| !phase.is_on_main_thread()) {
            return Not(Unlabelled::LeftOver);
        }
        let place = match self.configurations.place(memory, marks) {
            Ok(place) => place,
            // A timer that no request has set: the program's own code gives its phase.
            Err(Unlabelled::NoLocation) if phase.is_some() => RequestPlace::default(),
            Err(why) => return Not(why),
        };
        self.found(phase, place)
    }

    /// What is known about a request that has ended. It has no phase any more.
    pub fn of_ended(&mut self, memory: &impl ReadMemory, marks: &RequestMarks) -> RequestOutcome {
        let place = match RequestState::from_u32(marks.state) {
            Some(RequestState::Found) => self.configurations.place(memory, marks),
            Some(RequestState::Unreadable) => Err(Unlabelled::Unreadable),
            _ => Err(Unlabelled::NoSignature),
        };
        match place {
            Ok(place) => self.found(None, place),
            Err(why) => RequestOutcome::Not(why),
        }
    }

    fn found(&mut self, phase: Option<RequestPhase>, place: RequestPlace) -> RequestOutcome {
        let location = place.location.map(|name| self.locations.bounded(&name));
        let server = place.server.map(|name| self.servers.bounded(&name));
        RequestOutcome::Found(ServedRequest { phase, location, server, ..ServedRequest::default() })
    }
}
