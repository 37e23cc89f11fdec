//! The request that the allocating coroutine serves, or the fiber that allocates.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use lj_trace_common::allocation::serving::RequestSeen;
use lj_trace_common::allocation::serving_fiber::FiberSeen;
use lj_trace_common::memory::copy_words;

use super::send::tally_of;
use crate::maps::{ALLOCATIONS, CONFIG, SERVING, SERVING_FIBERS, VMS};
use crate::memory::UserMemory;
use crate::wakeup::NO_WAKEUP;

/// Sends user space the request that the coroutine `thread` serves, which allocates in this VM while the native stack pointer is
/// `stack_pointer`, if the request or its route has changed; the fiber that allocates, in programs that have fibers. `shrunk` is
/// the block that the call makes smaller or frees; 0 for other calls. Returns 0 if there is no room for the record: the event is
/// lost, too, then.
///
/// It is a global function, so the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tell_serving(vm: u32, thread: u64, stack_pointer: u64, shrunk: u64) -> u32 {
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
        note_route_of_call(vm, shrunk);
    }
    // SAFETY: as above; the function before has given up its own reference.
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

/// Notes the route of the request that [`tell_serving`] has found. `shrunk` is as there.
///
/// It is a function of its own, since the verifier would follow it for each way that leads there.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn note_route_of_call(vm: u32, shrunk: u64) -> u32 {
    let (Some(place), Some(config), Some(settings)) = (SERVING.get_ptr_mut(vm), VMS.get(vm), CONFIG.get(0)) else {
        return 0;
    };
    // SAFETY: as in `tell_serving`, which has given up its own reference.
    let room = unsafe { &mut *place };
    room.look_for_route(&UserMemory, config, &settings.serving, shrunk);
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
