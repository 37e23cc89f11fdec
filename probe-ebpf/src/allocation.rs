//! The allocation probes: on the VM's allocator, `allocf(ud, pointer, old_size, size)`, and on its return
//! where the result matters.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use lj_trace_common::allocation::{AllocationEvent, AllocationKind, PendingAllocation, attribute};
use lj_trace_common::config::{ARGUMENT_ZERO, Counter, SHARED_USER_DATA, UNKNOWN_USER_DATA};
use lj_trace_common::known::{self, KNOWN_FUNCTIONS, KnownFunction, KnownFunctions};
use lj_trace_common::memory::ReadMemory as _;

use crate::count::count;
use crate::maps::{ALLOCATIONS, ALLOCATORS, CONFIG, FUNCTIONS, GLOBALS, PENDING, STACK_COUNTDOWN, VMS};
use crate::memory::UserMemory;
use crate::sample::sample_allocation;

/// A call of the allocator. A free is complete; what gives memory waits for the result.
#[uprobe(multi)]
pub fn allocator_called(context: ProbeContext) -> u32 {
    let [ud, pointer, old_size, size] = arguments(&context);
    count(Counter::AllocatorCalls);
    let Some(settings) = CONFIG.get(0) else { return 0 };
    let found = if ud == settings.allocator_data && settings.allocators != 0 {
        Some(settings.allocator_vm)
    } else {
        // SAFETY: entries are copied at once; the agent only adds to the map.
        unsafe { ALLOCATORS.get(&ud) }.copied()
    };
    let vm = match found {
        Some(SHARED_USER_DATA) => calling_vm(&context),
        vm => vm,
    };
    let Some(vm) = vm else {
        count(Counter::UnknownVm);
        return 0;
    };
    let Some(config) = VMS.get(vm) else { return 0 };
    let Some(pending) = pending_of_thread() else {
        count(Counter::PendingFull);
        return 0;
    };
    let kind = AllocationKind::of_call(pointer, size);
    // The event is put together where it will wait for its result: a program's stack is too small for it.
    let event = &mut pending.event;
    event.pointer = pointer;
    event.old_size = old_size;
    event.size = size;
    event.result = 0;
    event.vm = vm as u16;
    event.kind = kind as u8;
    let mut functions = FunctionsOf { vm };
    attribute(&UserMemory, config, &mut functions, &mut pending.room, event);
    if kind == AllocationKind::Free {
        if pointer != 0 {
            functions.forget(pointer);
            send(event);
        } else {
            count(Counter::NothingFreed);
        }
        return 0;
    }
    // SAFETY: the context is this program's registers. Wherever a return probe is put, the return address is at rsp.
    pending.return_slot = unsafe { (*context.regs).rsp };
    // Only stacks need it.
    pending.return_address =
        if settings.samples != 0 { UserMemory.read::<u64>(pending.return_slot).unwrap_or(0) } else { 0 };
    pending.returned = 0;
    0
}

/// The functions of a VM. It runs on one thread at a time, so nobody else writes to its entries.
struct FunctionsOf {
    vm: u32,
}

impl KnownFunctions for FunctionsOf {
    #[inline(always)]
    fn place(&mut self, function: u64) -> Option<&mut KnownFunction> {
        let place = FUNCTIONS.get_ptr_mut(self.vm * KNOWN_FUNCTIONS + known::slot(function))?;
        // SAFETY: the map's entries are there as long as the program; the trait hands out one at a time.
        Some(unsafe { &mut *place })
    }
}

/// The VM that calls the allocator, by what the caller keeps over the call: it adds up the VM's memory afterwards
/// (`lj_mem_realloc`, `lj_gc.c`), or goes on to sweep, for which it needs the `global_State`. Where a probe is, the
/// allocator has not saved any register yet.
#[inline(always)]
fn calling_vm(context: &ProbeContext) -> Option<u32> {
    // SAFETY: the context is this program's registers.
    let registers: &pt_regs = unsafe { &*context.regs };
    let kept = [registers.rbx, registers.rbp, registers.r12, registers.r13, registers.r14, registers.r15];
    let layout = &VMS.get(0)?.layout;
    for value in kept {
        // SAFETY: entries are copied at once; the agent only adds to the map.
        if let Some(vm) = unsafe { GLOBALS.get(&value) } {
            return Some(*vm);
        }
        // Or it keeps the coroutine.
        let thread = value.wrapping_add(u64::from(layout.l_glref));
        if let Ok(global) = UserMemory.read_ref(layout.is_gc64(), thread)
            // SAFETY: as above.
            && let Some(vm) = unsafe { GLOBALS.get(&global) }
        {
            return Some(*vm);
        }
    }
    None
}

/// The entry of this thread, made at its first call.
#[inline(always)]
fn pending_of_thread() -> Option<&'static mut PendingAllocation> {
    static EMPTY: PendingAllocation = PendingAllocation { returned: 1, ..PendingAllocation::EMPTY };
    let id = bpf_get_current_pid_tgid();
    let found = PENDING.get_ptr_mut(&id).or_else(|| {
        PENDING.insert(&id, &EMPTY, 0).ok()?;
        PENDING.get_ptr_mut(&id)
    });
    // SAFETY: only this thread's own programs use this entry, one after the other.
    found.map(|pending| unsafe { &mut *pending })
}

/// A call that wants memory: sends the stack of every Nth. A program of its own, for it needs most of the room
/// that a program has.
#[uprobe(multi)]
pub fn allocation_stack(context: ProbeContext) -> u32 {
    let [ud, _, _, size] = arguments(&context);
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

/// The allocator's arguments, from wherever the probe's cookie says they are.
#[inline(always)]
fn arguments(context: &ProbeContext) -> [u64; 4] {
    // SAFETY: the context is this program's registers.
    let registers: &pt_regs = unsafe { &*context.regs };
    // SAFETY: the context is valid for the whole program.
    let cookie = unsafe { bpf_get_attach_cookie(context.as_ptr()) };
    if cookie == 0 {
        return [registers.rdi, registers.rsi, registers.rdx, registers.rcx];
    }
    let codes = (cookie as u32).to_le_bytes();
    [
        argument(registers, codes[0]),
        argument(registers, codes[1]),
        argument(registers, codes[2]),
        argument(registers, codes[3]),
    ]
}

/// One argument, by the code that the agent gave it.
#[inline(always)]
fn argument(registers: &pt_regs, code: u8) -> u64 {
    match code {
        0 => registers.rax,
        1 => registers.rdx,
        2 => registers.rcx,
        3 => registers.rbx,
        4 => registers.rsi,
        5 => registers.rdi,
        6 => registers.rbp,
        7 => registers.rsp,
        8 => registers.r8,
        9 => registers.r9,
        10 => registers.r10,
        11 => registers.r11,
        12 => registers.r12,
        13 => registers.r13,
        14 => registers.r14,
        15 => registers.r15,
        ARGUMENT_ZERO => 0,
        _ => UNKNOWN_USER_DATA,
    }
}

/// A return of the allocator with a result.
#[uretprobe(multi)]
pub fn allocator_returned(context: RetProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    // SAFETY: only this thread's own programs touch this entry.
    let Some(pending) = (unsafe { PENDING.get_ptr_mut(&id).map(|pending| &mut *pending) }) else { return 0 };
    if core::mem::replace(&mut pending.returned, 1) != 0 {
        return 0;
    }
    let event = &mut pending.event;
    event.result = context.ret();
    if event.result == 0 {
        count(Counter::AllocationsFailed);
    } else {
        send(event);
    }
    0
}

/// Hands an event to user space.
#[inline(always)]
fn send(event: &AllocationEvent) {
    match ALLOCATIONS.reserve::<AllocationEvent>(0) {
        Some(mut place) => {
            // SAFETY: both are whole events, and a ring buffer's record is nowhere else.
            unsafe { core::ptr::copy_nonoverlapping(event, place.as_mut_ptr(), 1) };
            /// The agent looks at the buffer at its own pace.
            const BPF_RB_NO_WAKEUP: u64 = 1;
            place.submit(BPF_RB_NO_WAKEUP);
            count(Counter::AllocationsWritten);
        }
        None => count(Counter::AllocationsLost),
    }
}
