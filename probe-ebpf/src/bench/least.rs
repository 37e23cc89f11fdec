//! The least that recording probes can do: note the call, read a word of the target's memory, send a record. And the
//! least that also finds the caller: four reads, each of which, but the last, needs the one before. What lj-trace does
//! beyond that turns the values into functions and lines, and makes sure that no event is lost or wrong.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::bpf_get_func_ip;
use aya_ebpf::programs::ProbeContext;
use lj_trace_common::allocation::{AllocationEvent, AllocationKind};
use lj_trace_common::frame::CFRAME_FLAGS;
use lj_trace_common::head::Head;
use lj_trace_common::memory::{ReadMemory as _, Unreadable, zeroed};
use lj_trace_common::vm::{VmConfig, VmState, WINDOW};

use crate::allocation::arguments::registers;
use crate::allocation::send::send;
use crate::arch;
use crate::maps::VMS;
use crate::memory::UserMemory;
use crate::pending;

/// In place of [`crate::allocation::allocator_session`].
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe.multi")]
pub extern "C" fn recording_session(context: *mut c_void) -> u32 {
    session(&ProbeContext::new(context), |event, context| {
        // A session that waits for its result has to know which call the result belongs to.
        event.place = arch::return_address(registers(context));
        Ok(())
    })
}

/// The same, with the caller, for the first of the target's VMs.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe.multi")]
pub extern "C" fn attributing_session(context: *mut c_void) -> u32 {
    session(&ProbeContext::new(context), |event, _| VMS.get(0).map_or(Ok(()), |vm| attribute(vm, event)))
}

/// A call of the allocator, or its return.
#[inline(always)]
fn session(
    context: &ProbeContext,
    read: impl FnOnce(&mut AllocationEvent, &ProbeContext) -> Result<(), Unreadable>,
) -> u32 {
    let Some(pending) = pending::of_thread() else { return 1 };
    let event = &mut pending.event;
    // SAFETY: the context is valid for the whole program.
    if arch::program_counter(registers(context)) != unsafe { bpf_get_func_ip(context.as_ptr()) } {
        event.result = arch::result(registers(context));
        send(event);
        return 0;
    }
    // The registers in which LuaJIT's own allocator has its arguments at the probes.
    let [_, pointer, old_size, size] = arch::arguments(registers(context));
    let kind = AllocationKind::of_call(pointer, size);
    (event.kind, event.pointer, event.old_size, event.size, event.result) = (kind as u8, pointer, old_size, size, 0);
    if read(event, context).is_err() {
        event.place = 0;
    }
    if kind != AllocationKind::Free {
        return 0;
    }
    send(event);
    1
}

/// Reads what identifies the allocating code: the VM's state and coroutine, and, unless the garbage collector
/// allocates, the coroutine's position, its function, and its PC.
#[inline(always)]
fn attribute(vm: &VmConfig, event: &mut AllocationEvent) -> Result<(), Unreadable> {
    let layout = &vm.layout;
    let mut window = MaybeUninit::uninit();
    let start = vm.global.wrapping_add(u64::from(layout.g_vmstate & !7));
    let window = UserMemory.read_array::<WINDOW>(start, &mut window)?;
    let raw = (window[0] >> (u32::from(layout.g_vmstate & 4) * 8)) as i32;
    let word = vm.thread_word as usize;
    if VmState::from_raw(layout.states(), raw) == VmState::Gc || word >= WINDOW {
        return Ok(());
    }
    let mut place = MaybeUninit::uninit();
    let head = zeroed::<Head>(&mut place);
    head.read::<11, 7>(&UserMemory, layout.is_gc64(), window[word])?;
    let (base, cframe) = (head.u64(layout.l_base)?, head.u64(layout.l_cframe)? & !CFRAME_FLAGS);
    let frame = UserMemory.read::<[u64; 2]>(base.wrapping_sub(16))?;
    let pc = UserMemory.read_ref(layout.is_gc64(), cframe.wrapping_add(u64::from(layout.cframe_pc)))?;
    (event.place, event.line) = (frame[0], pc as u32);
    Ok(())
}
