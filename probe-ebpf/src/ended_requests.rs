//! Counts the requests of nginx that end, by location and route: a probe at the entry of `ngx_http_free_request`.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use lj_trace_common::config::{Counter, LONGEST_PROGRAM};
use lj_trace_common::ended_request::{EndedCount, EndedRequest};
use lj_trace_common::request::{RequestMarks, RequestState};
use lj_trace_common::route::RouteMarks;

use crate::allocation::arguments::registers;
use crate::arch;
use crate::count::{add_to, count_exactly};
use crate::maps::{CONFIG, ENDED_REQUESTS, VMS};
use crate::memory::UserMemory;

/// A request ends: it is the function's first argument.
#[uprobe(multi)]
pub fn request_ended(context: ProbeContext) -> u32 {
    // SAFETY: the helper has no preconditions.
    let began = unsafe { bpf_ktime_get_ns() };
    let [address, ..] = arch::arguments(registers(&context));
    let Some(config) = CONFIG.get(0) else { return 0 };
    let mut request = RequestMarks { request: address, state: RequestState::Open as u32, ..RequestMarks::default() };
    request.follow(&UserMemory, &config.requests);
    let mut route = RouteMarks::default();
    if config.requests.routes.global != 0
        && request.state == RequestState::Found as u32
        && let Some(vm) = VMS.get(0)
    {
        route.read(&UserMemory, &config.requests, &vm.layout, address);
    }
    let ended = EndedRequest::new(&request, &route);
    let Some(count) = count_of(&ended) else {
        count_exactly(Counter::EndedRequestsBeyond);
        return 0;
    };
    // SAFETY: the helper has no preconditions; the words belong to a map's entry, which nobody deletes.
    unsafe {
        add_to(&raw mut (*count).requests, 1);
        let took = bpf_ktime_get_ns() - began;
        if took <= LONGEST_PROGRAM {
            add_to(&raw mut (*count).time, took);
        }
    }
    0
}

/// The count of such requests; it begins at 0.
#[inline(always)]
fn count_of(ended: &EndedRequest) -> Option<*mut EndedCount> {
    const BPF_NOEXIST: u64 = 1;
    if let Some(count) = ENDED_REQUESTS.get_ptr_mut(ended) {
        return Some(count);
    }
    // Another thread may have been faster.
    let _ = ENDED_REQUESTS.insert(ended, &EndedCount::default(), BPF_NOEXIST);
    ENDED_REQUESTS.get_ptr_mut(ended)
}
