//! VMs that are created and closed during recording.
//!
//! [`lua_newstate`] (`lj_state.c`) first asks for one block with the main thread and the `global_State` in it
//! ([`GG_State`]). No other VM object has its size, but a string may. So the programs hold the event back until the
//! same thread calls the allocator again. By then, the block either has a main thread in it that points right behind
//! itself, or it is something else.
//!
//! [`lua_newstate`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L262-L286
//! [`GG_State`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_dispatch.h#L90-L110

use lj_trace_common::allocation::event::{AllocationEvent, AllocationSource, Creation, PendingAllocation};
use lj_trace_common::allocation::tally::VmTally;
use lj_trace_common::config::{Config, Counter, NOBODY, SHARED_USER_DATA, VM_BEYOND};
use lj_trace_common::frame::gct_offset;
use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::vm::VmConfig;

use super::caller::key;
use super::send::{send, tally_of};
use crate::count::count_exactly;
use crate::maps::{ALLOCATORS, CONFIG, FREE_VMS, GLOBALS, VMS};
use crate::memory::UserMemory;

/// The VM whose layout a new VM gets, if its first block has this size.
#[inline(always)]
pub fn template_of(settings: &Config, size: u64) -> Option<u32> {
    for template in &settings.templates {
        if template.size == size && size != 0 {
            return Some(template.vm);
        }
    }
    None
}

/// The address of a VM's first block: it begins with the main thread, and the `global_State` follows.
#[inline(always)]
pub fn first_block(vm: &VmConfig) -> u64 {
    vm.global.wrapping_sub(vm.global_offset)
}

/// Holds back the event of a call that may have created a VM.
#[inline(always)]
pub fn hold(pending: &mut PendingAllocation) {
    pending.creation += Creation::HeldByNobody as u32 - Creation::ByNobody as u32;
    count_exactly(Counter::AllocationsHeld);
}

/// Finds out what the block of the held-back event has become, and sends the event.
#[inline(never)]
pub fn settle(pending: &mut PendingAllocation) {
    count_exactly(Counter::AllocationsSettled);
    let by_vm = pending.creation == Creation::HeldByVm as u32;
    pending.creation = Creation::No as u32;
    let event = &mut pending.event;
    if let Some(config) = VMS.get(pending.template as u32)
        && is_vm(config, event.result)
    {
        let global = event.result.wrapping_add(config.global_offset);
        let Some(vm) = new_vm() else {
            count_exactly(Counter::VmsBeyond);
            count_exactly(Counter::CallsBeyond);
            let _ = GLOBALS.insert(&key(global), &VM_BEYOND, 0);
            know_allocator(VM_BEYOND, global, pending.user_data);
            return;
        };
        register(vm, config, global, pending.user_data);
        (event.vm, event.source, event.line, event.place) = (vm as u8, AllocationSource::Internal as u8, 0, 0);
        send_counted(event);
    } else if by_vm {
        send_counted(event);
    } else {
        count_exactly(Counter::UnknownVm);
    }
}

/// Counts a held-back call, and sends its event to user space.
#[inline(always)]
fn send_counted(event: &AllocationEvent) {
    if let Some(tally) = tally_of(u32::from(event.vm)) {
        tally.calls += 1;
    }
    send(event);
}

/// Whether a main thread with its `global_State` is at `block`.
#[inline(always)]
fn is_vm(template: &VmConfig, block: u64) -> bool {
    let layout = &template.layout;
    let gc64 = layout.is_gc64();
    UserMemory.read_ref(gc64, block.wrapping_add(u64::from(layout.l_glref)))
        == Ok(block.wrapping_add(template.global_offset))
        && UserMemory.read::<u8>(block.wrapping_add(gct_offset(gc64))) == Ok(gct::THREAD)
}

/// Takes an index for a new VM.
#[inline(always)]
fn new_vm() -> Option<u32> {
    FREE_VMS.pop().ok().flatten()
}

/// Registers a VM with the programs.
#[inline(always)]
fn register(vm: u32, template: &VmConfig, global: u64, user_data: u64) {
    let Some(place) = VMS.get_ptr_mut(vm) else { return };
    // SAFETY: the number was nobody's before.
    unsafe {
        *place = *template;
        (*place).global = global;
    }
    if let Some(tally) = tally_of(vm) {
        *tally = VmTally { generation: tally.generation + 1, ..VmTally::default() };
    }
    let _ = GLOBALS.insert(&key(global), &vm, 0);
    know_allocator(vm, global, user_data);
}

/// Registers which VM passes this `ud` to its allocator.
#[inline(always)]
fn know_allocator(vm: u32, global: u64, user_data: u64) {
    // SAFETY: entries are copied at once.
    let before = unsafe { ALLOCATORS.get(&user_data) }.copied();
    let shared = match before {
        Some(SHARED_USER_DATA) => true,
        Some(other) => VMS.get(other).is_some_and(|other| other.global != global && is_vm(other, first_block(other))),
        None => false,
    };
    let of_data = if shared { SHARED_USER_DATA } else { vm };
    // The maps have room for all VMs.
    let _ = ALLOCATORS.insert(&user_data, &of_data, 0);
    if let Some(settings) = CONFIG.get_ptr_mut(0) {
        // SAFETY: fields of their own, each written at once.
        unsafe {
            if (*settings).allocator_data == user_data {
                (*settings).allocator_vm = of_data;
            }
        }
    }
}

/// The VM whose first block this call frees, or [`NOBODY`]. This is the VM's last call: `close_state` ends with it, and
/// the caller's registers no longer point to the VM.
#[inline(always)]
pub fn closing_vm(settings: &Config, pointer: u64, old_size: u64, size: u64) -> u32 {
    if size == 0
        && let Some(template) = template_of(settings, old_size).and_then(|template| VMS.get(template))
    {
        // SAFETY: entries are copied at once.
        return unsafe { GLOBALS.get(&key(pointer.wrapping_add(template.global_offset))) }.copied().unwrap_or(NOBODY);
    }
    NOBODY
}

/// Forgets a VM that got no index, if this call frees its first block.
#[inline(always)]
pub fn close_beyond(settings: &Config, pointer: u64, old_size: u64, size: u64, user_data: u64) {
    if size == 0
        && let Some(template) = template_of(settings, old_size).and_then(|template| VMS.get(template))
        && GLOBALS.remove(&key(pointer.wrapping_add(template.global_offset))).is_ok()
    {
        forget_allocator(user_data);
    }
}

/// Forgets a VM whose first block is being freed.
#[inline(never)]
pub fn close(vm: &VmConfig, user_data: u64) {
    let _ = GLOBALS.remove(&key(vm.global));
    forget_allocator(user_data);
}

/// Forgets which VM passes this `ud` to its allocator.
#[inline(always)]
fn forget_allocator(user_data: u64) {
    // SAFETY: entries are copied at once.
    if unsafe { ALLOCATORS.get(&user_data) }.is_some_and(|&of_data| of_data != SHARED_USER_DATA) {
        let _ = ALLOCATORS.remove(&user_data);
        if let Some(settings) = CONFIG.get_ptr_mut(0) {
            // SAFETY: a field of its own, written at once.
            unsafe {
                if (*settings).allocator_data == user_data {
                    (*settings).allocators = 0;
                }
            }
        }
    }
}
