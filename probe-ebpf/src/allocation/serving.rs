//! The request that the allocating coroutine serves, or the fiber that allocates.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use lj_trace_common::allocation::AllocationEvent;
use lj_trace_common::allocation::serving::RequestSeen;
use lj_trace_common::allocation::serving_fiber::FiberSeen;
use lj_trace_common::memory::copy_words;
use lj_trace_common::route::RouteState;

use super::send::tally_of;
use crate::maps::{ALLOCATIONS, CONFIG, SERVING, SERVING_FIBERS, VMS};
use crate::memory::UserMemory;
use crate::pending;
use crate::wakeup::NO_WAKEUP;

/// Sends user space the request that the coroutine `thread` serves, which allocates in this VM while the native stack pointer is
/// `stack_pointer`, if the request or its route has changed; the fiber that allocates, in programs that have fibers. Returns 0 if
/// there is no room for the record: the event is lost, too, then.
///
/// It is a global function, so the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tell_serving(vm: u32, thread: u64, stack_pointer: u64) -> u32 {
    let (Some(place), Some(config), Some(settings)) = (SERVING.get_ptr_mut(vm), VMS.get(vm), CONFIG.get(0)) else {
        return 0;
    };
    if settings.fibers.current != 0 {
        return tell_fiber(vm, stack_pointer);
    }
    // SAFETY: the map's entries are there as long as the program. A VM runs on one thread at a time, so nobody else uses its
    // entry.
    let room = unsafe { &mut *place };
    (room.now.vm, room.now.generation) = (vm as u16, tally_of(vm).map_or(0, |tally| tally.generation));
    room.look(&UserMemory, config, &settings.serving, (thread, stack_pointer));
    if settings.serving.routes.global != 0 {
        note_route_of_call(vm);
        mark_route_of_call(vm);
    }
    tell_request(vm)
}

/// Sends user space the request that [`tell_serving`] has found, if it has changed. Returns 0 if there is no room for the record.
///
/// It is a function of its own, as those for routes are: the verifier would follow it for each way that leads there.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tell_request(vm: u32) -> u32 {
    let Some(place) = SERVING.get_ptr_mut(vm) else { return 0 };
    // SAFETY: as in `tell_serving`, which has given up its own reference.
    let room = unsafe { &mut *place };
    if room.is_told() {
        return 1;
    }
    let Some(mut record) = ALLOCATIONS.reserve::<RequestSeen>(0) else { return 0 };
    // SAFETY: a ring buffer's record is nowhere else, and as large as was asked for.
    unsafe { copy_words(&room.now, record.as_mut_ptr()) };
    record.submit(NO_WAKEUP);
    // SAFETY: they are two fields of the room.
    unsafe { copy_words(&room.now, &raw mut room.told) };
    1
}

/// Marks the route that [`note_route_of_call`] has noted, if a table that leads to it may be half changed.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mark_route_of_call(vm: u32) -> u32 {
    let Some(place) = SERVING.get_ptr_mut(vm) else { return 0 };
    // SAFETY: as in `tell_serving`, which has given up its own reference.
    let room = unsafe { &mut *place };
    if room.now.route_state == RouteState::NoRoute as u32 {
        room.mark_route(&UserMemory, shrunk_block());
    }
    1
}

/// The block that this thread's call makes smaller or frees; 0 for other calls. It is looked for here: an argument more would have
/// the verifier tell apart in all of the call's program what it knows of the sizes.
#[inline(always)]
fn shrunk_block() -> u64 {
    let Some(pending) = pending::of_id(bpf_get_current_pid_tgid()) else { return 0 };
    let AllocationEvent { pointer, old_size, size, .. } = pending.event;
    if size < old_size { pointer } else { 0 }
}

/// Notes the route of the request that [`tell_serving`] has found.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn note_route_of_call(vm: u32) -> u32 {
    let (Some(place), Some(config), Some(settings)) = (SERVING.get_ptr_mut(vm), VMS.get(vm), CONFIG.get(0)) else {
        return 0;
    };
    // SAFETY: as in `tell_serving`, which has given up its own reference.
    let room = unsafe { &mut *place };
    room.look_for_route(&UserMemory, config, &settings.serving);
    1
}

/// Sends user space the fiber that allocates in this VM while the native stack pointer is `stack_pointer`, if it has changed.
/// Returns 0 if there is no room for the record.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tell_fiber(vm: u32, stack_pointer: u64) -> u32 {
    let (Some(place), Some(settings)) = (SERVING_FIBERS.get_ptr_mut(vm), CONFIG.get(0)) else { return 0 };
    // SAFETY: as in `tell_serving`.
    let room = unsafe { &mut *place };
    let task = bpf_get_current_pid_tgid();
    let is_main_thread = (task >> 32) as u32 == task as u32;
    let generation = tally_of(vm).map_or(0, |tally| tally.generation);
    room.look(&UserMemory, &settings.fibers, (vm as u16, generation), (is_main_thread, stack_pointer));
    if room.is_told() {
        return 1;
    }
    let Some(mut record) = ALLOCATIONS.reserve::<FiberSeen>(0) else { return 0 };
    // SAFETY: as in `tell_serving`.
    unsafe { copy_words(&room.now, record.as_mut_ptr()) };
    record.submit(NO_WAKEUP);
    room.told = room.now;
    1
}
