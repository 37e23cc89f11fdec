//! Which request or fiber a sample is for, which route the request takes, and its trace ID.
//!
//! All functions are global, like [`crate::memory::is_sampled_frame`], so that the verifier checks each of them once.
//! While a sample is being built, nobody else uses the fields that they change.

use lj_trace_common::event::{NO_VM, reg};
use lj_trace_common::request::RequestState;

use crate::maps::{CONFIG, SCRATCH, VMS};
use crate::memory::UserMemory;

/// Looks for the request in a coroutine on the stack of the sample in this working area. The coroutine's VM is the one
/// that is being walked. Called from the innermost coroutine outward.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn see_thread(area: u32, thread: u64) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 0 };
    // SAFETY: whoever samples has the area to itself, and no reference to the field that is changed.
    let (header, vm) = unsafe { (&mut (*scratch).header, (*scratch).machine.vm) };
    let Some(config) = CONFIG.get(header.process) else { return 0 };
    if config.requests.is_wanted == 0 {
        return 0;
    }
    let is_innermost = header.vm == NO_VM || header.vm == vm;
    let Some(vm) = VMS.get(vm) else { return 0 };
    header.request.see(&UserMemory, vm, thread, is_innermost);
    0
}

/// Reads the labels of the request and of the fiber of the sample in this working area.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn note_request(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 0 };
    // SAFETY: as in `see_thread`.
    let header = unsafe { &mut (*scratch).header };
    let Some(config) = CONFIG.get(header.process) else { return 0 };
    header.request.follow(&UserMemory, &config.requests);
    // Only the main thread's fiber is known to the agent.
    if config.fibers.current != 0 && header.pid == header.tid {
        let sp = header.registers[reg::SP];
        header.fiber.read(&UserMemory, &config.fibers, sp);
    }
    0
}

/// Reads the route of the request of the sample in this working area, after [`note_request`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn note_route(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 0 };
    // SAFETY: as in `see_thread`.
    let header = unsafe { &mut (*scratch).header };
    let Some(config) = CONFIG.get(header.process) else { return 0 };
    if config.requests.routes.global == 0 || header.request.state != RequestState::Found as u32 {
        return 0;
    }
    let Some(vm) = VMS.get(header.vm) else { return 0 };
    if vm.global == config.requests.routes.global {
        header.route.read(&UserMemory, &config.requests, &vm.layout, header.request.request);
    }
    0
}

/// Reads the trace ID of the request of the sample in this working area, after [`note_request`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn note_trace_id(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return 0 };
    // SAFETY: as in `see_thread`.
    let header = unsafe { &mut (*scratch).header };
    let Some(config) = CONFIG.get(header.process) else { return 0 };
    let layout = &config.requests.trace_ids;
    if layout.values != 0 && header.request.state == RequestState::Found as u32 {
        header.trace_id.read(&UserMemory, layout, header.request.request);
    }
    0
}
