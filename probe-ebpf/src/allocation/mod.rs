//! The allocation probes: on the VM's allocator, `allocf(ud, pointer, old_size, size)`, and on its return where the
//! result matters.

pub mod arguments;
mod caller;
mod creation;
mod objects;
pub mod send;
mod serving;

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_get_func_ip;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use lj_trace_common::allocation::call_site::CallingPlace;
use lj_trace_common::allocation::event::Creation;
use lj_trace_common::allocation::known::KnownObjects as _;
use lj_trace_common::allocation::{AllocationKind, attribute};
use lj_trace_common::arch::STATE_NAMES_TRACE;
use lj_trace_common::config::{Config, Counter, NOBODY, SHARED_USER_DATA, UNKNOWN_USER_DATA, VM_BEYOND};
use lj_trace_common::vm::NO_WORD;

use crate::arch;
use crate::clock::Timer;
use crate::count::count_exactly;
use crate::maps::{ALLOCATORS, CONFIG, GATE, STACK_COUNTDOWN, VMS};
use crate::memory::UserMemory;
use crate::pending;
use crate::sample::sample_allocation;
use arguments::arguments;
use caller::{calling_thread, calling_vm};
use objects::ObjectsOf;
use send::{send, tally_of};
use serving::tell_serving;

/// A call of the allocator.
#[uprobe(multi)]
pub fn allocator_called(context: ProbeContext) -> u32 {
    called::<true>(&context, arguments::cookie(&context));
    0
}

/// A return of the allocator with a result.
#[uretprobe(multi)]
pub fn allocator_returned(context: RetProbeContext) -> u32 {
    returned(context.ret(), arguments::cookie(&context));
    0
}

/// Both in one program, for a uprobe session (Linux 6.13). The program's return value tells the kernel which calls need
/// a return probe. It is written out by hand, because aya's macro always returns 0.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe.multi")]
pub extern "C" fn allocator_session(context: *mut c_void) -> u32 {
    let context = ProbeContext::new(context);
    // SAFETY: the context is valid for the whole program.
    let probe = unsafe { bpf_get_func_ip(context.as_ptr()) };
    let cookie = arguments::cookie(&context);
    let registers = arguments::registers(&context);
    if arch::program_counter(registers) != probe {
        returned(arch::result(registers), cookie);
        return 0;
    }
    u32::from(!called::<false>(&context, cookie))
}

/// Handles a call of the allocator. Returns whether the program waits for its result.
#[inline(always)]
fn called<const SEARCH: bool>(context: &ProbeContext, cookie: u64) -> bool {
    let Some(settings) = CONFIG.get(0) else { return false };
    let Some(&open) = GATE.get(0) else { return false };
    if open != arguments::window(cookie) {
        count_exactly(Counter::CallsOutside);
        return false;
    }
    let timer = Timer::some(Counter::AllocatorCalls);
    let awaits_result = take_call::<SEARCH>(context, cookie, settings);
    timer.end(Counter::CallsTimed, Counter::CallTime);
    awaits_result
}

/// Handles a call: a free is complete at once; a call that asks for memory has to wait for its result.
///
/// Programs without `SEARCH` cannot record VMs whose `global_State` does not name the running coroutine ([`NO_WORD`]):
/// searching for it needs a callback, which lj-trace's loader of session programs does not describe to the kernel.
#[inline(always)]
fn take_call<const SEARCH: bool>(context: &ProbeContext, cookie: u64, settings: &Config) -> bool {
    let [ud, pointer, old_size, size] = arguments(context, cookie);
    let window = arguments::window(cookie);
    let Some(pending) = pending::of_thread() else {
        count_exactly(Counter::PendingFull);
        return false;
    };
    if pending.creation >= Creation::HeldByNobody as u32 {
        creation::settle(pending);
    }
    let found = if ud == settings.allocator_data && settings.allocators != 0 {
        settings.allocator_vm
    } else {
        // SAFETY: entries are copied at once.
        unsafe { ALLOCATORS.get(&ud) }.copied().unwrap_or(NOBODY)
    };
    // Numbers rather than options: for options, the compiler copies uninitialized values, which the kernel refuses.
    let mut vm = found;
    if vm == SHARED_USER_DATA {
        vm = creation::closing_vm(settings, pointer, old_size, size);
    }
    // A single call: the verifier follows the search again at each place that calls it.
    if vm == NOBODY && (found != NOBODY || ud != UNKNOWN_USER_DATA) {
        vm = calling_vm(context, if found == NOBODY { ud } else { UNKNOWN_USER_DATA });
    }
    if vm == VM_BEYOND {
        count_exactly(Counter::CallsBeyond);
        creation::close_beyond(settings, pointer, old_size, size, ud);
        return false;
    }
    // The event is built where it will wait for its result: it is too large for the program's stack.
    let event = &mut pending.event;
    event.pointer = pointer;
    event.old_size = old_size;
    event.size = size;
    event.result = 0;
    event.window = window as u8;
    pending.window = window;
    pending.creation = Creation::No as u32;
    if pointer == 0
        && let Some(template) = creation::template_of(settings, size)
    {
        pending.creation = if vm != NOBODY { Creation::ByVm } else { Creation::ByNobody } as u32;
        pending.user_data = ud;
        pending.template = u64::from(template);
    } else if vm == NOBODY {
        count_exactly(Counter::UnknownVm);
        return false;
    }
    let kind = AllocationKind::of_call(pointer, size);
    event.kind = kind as u8;
    if vm != NOBODY {
        let (Some(config), Some(tally)) = (VMS.get(vm), tally_of(vm)) else { return false };
        // A call that may create a VM is counted once its VM is known.
        if pending.creation == Creation::No as u32 {
            tally.calls += 1;
        }
        event.vm = vm as u8;
        if SEARCH && config.thread_word == NO_WORD {
            pending.room.note_thread(calling_thread(context, vm));
        }
        if !STATE_NAMES_TRACE {
            let registers = arguments::registers(context);
            let (return_address, stack_pointer) = (arch::return_address(registers), arch::stack_pointer(registers));
            pending.room.note_call(CallingPlace { return_address, stack_pointer });
        }
        let mut objects = ObjectsOf { vm, window: window.wrapping_add(tally.generation) };
        attribute(&UserMemory, config, &mut objects, &mut pending.room, event);
        // An event never comes without its request: it would be taken for one of the request before.
        let is_told = settings.tells_serving == 0
            || tell_serving(vm, pending.room.thread(), arch::stack_pointer(arguments::registers(context))) != 0;
        if kind == AllocationKind::Free {
            if pointer != 0 {
                objects.forget(pointer);
                if is_told {
                    send(event);
                } else {
                    tally.ring_full += 1;
                }
                if pointer == creation::first_block(config) {
                    creation::close(config, ud);
                }
            } else {
                tally.nothing_freed += 1;
            }
            return false;
        }
        if !is_told {
            // One that may make a VM is not counted yet.
            if core::mem::replace(&mut pending.creation, Creation::No as u32) != Creation::No as u32 {
                tally.calls += 1;
            }
            tally.ring_full += 1;
            return false;
        }
    }
    let registers = arguments::registers(context);
    pending.stack_pointer = arch::stack_pointer(registers);
    // Only stack samples need the return address.
    pending.return_address = if settings.samples != 0 { arch::return_address(registers) } else { 0 };
    pending.returned = 0;
    true
}

/// Handles the result of a call.
#[inline(always)]
fn returned(result: u64, cookie: u64) {
    let timer = Timer::some(Counter::AllocatorReturns);
    take_result(result, arguments::window(cookie));
    timer.end(Counter::ReturnsTimed, Counter::ReturnTime);
}

#[inline(always)]
fn take_result(result: u64, window: u32) {
    let Some(pending) = pending::of_id(bpf_get_current_pid_tgid()) else { return };
    // The call may have come before this window, whose probes see its return all the same.
    if pending.window != window || core::mem::replace(&mut pending.returned, 1) != 0 {
        return;
    }
    let event = &mut pending.event;
    event.result = result;
    if event.result == 0 {
        if core::mem::replace(&mut pending.creation, Creation::No as u32) == Creation::No as u32 {
            if let Some(tally) = tally_of(u32::from(pending.event.vm)) {
                tally.failed += 1;
            }
        } else {
            count_exactly(Counter::CreationsFailed);
        }
    } else if pending.creation != Creation::No as u32 {
        creation::hold(pending);
    } else {
        send(event);
    }
}

/// For calls that ask for memory: sends the stack of every Nth call. It is a program of its own because it needs most
/// of the size that a program may have.
#[uprobe(multi)]
pub fn allocation_stack(context: ProbeContext) -> u32 {
    let [ud, _, _, size] = arguments(&context, arguments::cookie(&context));
    let Some(config) = CONFIG.get(0) else { return 0 };
    // SAFETY: only whether there is an entry matters.
    if size == 0 || unsafe { ALLOCATORS.get(&ud) }.is_none() {
        return 0;
    }
    let Some(countdown) = STACK_COUNTDOWN.get_ptr_mut(0) else { return 0 };
    // SAFETY: the entry is this CPU's own; a thread that comes in between costs at most one turn.
    let left = unsafe { &mut *countdown };
    if *left > 1 {
        *left -= 1;
    } else {
        *left = config.stack_every;
        sample_allocation(config, size);
    }
    0
}
