//! The allocation probes: on the VM's allocator, `allocf(ud, pointer, old_size, size)`, and on its return
//! where the result matters.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use lj_trace_common::allocation::{AllocationEvent, AllocationKind, PendingAllocation, attribute};
use lj_trace_common::config::{ARGUMENT_ZERO, Counter, UNKNOWN_USER_DATA};
use lj_trace_common::event::FrameRecord;
use lj_trace_common::known::{self, KNOWN_FUNCTIONS, KnownFunction, KnownFunctions};
use lj_trace_common::memory::ReadMemory as _;

use crate::count::count;
use crate::maps::{ALLOCATIONS, ALLOCATORS, CONFIG, FUNCTIONS, PENDING, STACK_COUNTDOWN, VMS};
use crate::memory::UserMemory;
use crate::sample::sample_allocation;

/// A call of the allocator. A free is complete; what gives memory waits for the result.
#[uprobe(multi)]
pub fn allocator_called(context: ProbeContext) -> u32 {
    let [ud, pointer, old_size, size] = arguments(&context);
    count(Counter::AllocatorCalls);
    // SAFETY: entries are copied at once; the agent only adds to the map.
    let Some(vm) = (unsafe { ALLOCATORS.get(&ud) }).copied() else {
        count(Counter::UnknownVm);
        return 0;
    };
    let Some(config) = VMS.get(vm) else { return 0 };
    let Some(pending) = pending_of_thread() else {
        count(Counter::PendingFull);
        return 0;
    };
    let kind = AllocationKind::of_call(pointer, size);
    let mut event =
        AllocationEvent { pointer, old_size, size, vm: vm as u16, kind: kind as u8, ..AllocationEvent::default() };
    let mut functions = FunctionsOf { vm };
    let mut record = FrameRecord::default();
    attribute(&UserMemory, config, &mut functions, &mut record, &mut event);
    if kind == AllocationKind::Free {
        if pointer != 0 {
            functions.forget(pointer);
            send(&event);
        } else {
            count(Counter::NothingFreed);
        }
    } else {
        wait_for_result(&context, &event);
        take_stack(size);
    }
    // SAFETY: the context is this program's registers. Wherever a return probe is put, the return address is at rsp.
    pending.return_slot = unsafe { (*context.regs).rsp };
    pending.return_address = UserMemory.read::<u64>(pending.return_slot).unwrap_or(0);
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

/// Takes the stack of every Nth allocation, if that is wanted.
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
        return;
    }
    *left = config.stack_every;
    sample_allocation(config, size);
}

/// Keeps an event until the allocator returns.
#[inline(always)]
fn wait_for_result(context: &ProbeContext, event: &AllocationEvent) {
    // SAFETY: the context is this program's registers. Wherever a return probe is put, the return address is at rsp.
    let return_slot = unsafe { (*context.regs).rsp };
    // Only stacks need it.
    let stacks = CONFIG.get(0).is_some_and(|config| config.samples != 0);
    let return_address = if stacks { UserMemory.read::<u64>(return_slot).unwrap_or(0) } else { 0 };
    let id = bpf_get_current_pid_tgid();
    // Writing to the entry that the thread has had since its first call is much cheaper than to insert one.
    let place = PENDING.get_ptr_mut(&id).or_else(|| {
        PENDING.insert(&id, &NO_ALLOCATION, 0).ok()?;
        PENDING.get_ptr_mut(&id)
    });
    match place {
        // SAFETY: only this thread's own programs write to this entry.
        Some(place) => unsafe {
            core::ptr::copy_nonoverlapping(event, &raw mut (*place).event, 1);
            (*place).return_slot = return_slot;
            (*place).return_address = return_address;
            (*place).returned = 0;
        },
        None => count(Counter::PendingFull),
    }
    0
}

/// The entry of a thread before its first call.
static NO_ALLOCATION: PendingAllocation = PendingAllocation::NONE;

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
    pending.event.result = context.ret();
    if pending.event.result == 0 {
        count(Counter::AllocationsFailed);
    } else {
        send(&pending.event);
    }
    0
}

/// Hands an event to user space.
#[inline(always)]
fn send(event: &AllocationEvent) {
    match ALLOCATIONS.reserve::<AllocationEvent>(0) {
        Some(mut place) => {
            place.write(*event);
            /// The agent looks at the buffer at its own pace.
            const BPF_RB_NO_WAKEUP: u64 = 1;
            place.submit(BPF_RB_NO_WAKEUP);
            count(Counter::AllocationsWritten);
        }
        None => count(Counter::AllocationsLost),
    }
}
