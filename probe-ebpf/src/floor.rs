//! The least that a probe which records can do, for the benchmark: note the call, read one word of the target, hand over a
//! record. What lj-trace needs beyond that tells who caused the event.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::bpf_get_func_ip;
use aya_ebpf::programs::ProbeContext;
use lj_trace_common::allocation::AllocationKind;
use lj_trace_common::memory::ReadMemory as _;

use crate::allocation::arguments::{registers, stack_pointer};
use crate::allocation::pending;
use crate::allocation::send::send;
use crate::memory::UserMemory;

/// In place of [`crate::allocation::allocator_session`].
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe.multi")]
pub extern "C" fn floor_session(context: *mut c_void) -> u32 {
    let context = ProbeContext::new(context);
    let Some(pending) = pending::of_thread() else { return 1 };
    // SAFETY: the context is valid for the whole program.
    if registers(&context).rip != unsafe { bpf_get_func_ip(context.as_ptr()) } {
        pending.event.result = registers(&context).rax;
        send(&pending.event);
        return 0;
    }
    // Where LuaJIT's own allocator has them at the probes.
    let (pointer, old_size, size) = (registers(&context).rsi, registers(&context).rdx, registers(&context).rcx);
    let kind = AllocationKind::of_call(pointer, size);
    let event = &mut pending.event;
    (event.kind, event.pointer, event.old_size, event.size, event.result) = (kind as u8, pointer, old_size, size, 0);
    pending.return_address = UserMemory.read::<u64>(stack_pointer(&context)).unwrap_or(0);
    if kind != AllocationKind::Free {
        return 0;
    }
    send(event);
    1
}
