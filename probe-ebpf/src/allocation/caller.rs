//! Which VM calls, where its allocator's data does not tell.

use aya_ebpf::programs::ProbeContext;
use lj_trace_common::memory::ReadMemory as _;

use super::arguments::registers;
use crate::maps::{GLOBALS, VMS};
use crate::memory::UserMemory;

/// The VM that calls the allocator, by what the caller keeps over the call: it adds up the VM's memory afterwards
/// (`lj_mem_realloc`, `lj_gc.c`), or goes on to sweep, for which it needs the `global_State`. Where a probe is, the
/// allocator has not saved any register yet.
#[inline(always)]
pub fn calling_vm(context: &ProbeContext) -> Option<u32> {
    let registers = registers(context);
    let kept = [registers.rbx, registers.rbp, registers.r12, registers.r13, registers.r14, registers.r15];
    let layout = &VMS.get(0)?.layout;
    for value in kept {
        // SAFETY: entries are copied at once.
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
