//! Which VM calls, where its allocator's data does not tell; and which coroutine, where its `global_State` does not.
//!
//! LuaJIT's sources: [`lj_mem_realloc`], [`gc_sweep`], [`lj_trace_free`].
//!
//! [`lj_mem_realloc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L869-L881
//! [`gc_sweep`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L405-L428
//! [`lj_trace_free`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L172-L184

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::programs::ProbeContext;
use lj_trace_common::config::{NOBODY, UNKNOWN_USER_DATA, VmKey};
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::vm::runs_at;

use super::arguments::registers;
use crate::arch;
use crate::maps::{ALLOCATORS, CONFIG, GLOBALS, VMS};
use crate::memory::UserMemory;

/// The VM that calls the allocator, or [`NOBODY`], by what the caller keeps over the call: it adds up the VM's memory afterwards
/// (`lj_mem_realloc`, `lj_gc.c`), or goes on to sweep, for which it needs the `global_State`. Where a probe is, the
/// allocator has not saved any register yet.
///
/// `user_data` is what no VM has given its allocator so far, or [`UNKNOWN_USER_DATA`]: then the VM must have it now, for
/// `lua_setallocf` has given it that, and is known by it from then on.
#[inline(never)]
pub fn calling_vm(context: &ProbeContext, user_data: u64) -> u32 {
    let vm = vm_in_registers(context);
    if user_data == UNKNOWN_USER_DATA {
        return vm;
    }
    let Some(config) = VMS.get(vm) else { return NOBODY };
    // What happens to be in a register is not enough: the program may call this function for itself.
    let place = config.global.wrapping_add(u64::from(config.layout.g_allocd));
    if UserMemory.read::<u64>(place) != Ok(user_data) {
        return NOBODY;
    }
    let _ = ALLOCATORS.insert(&user_data, &vm, 0);
    vm
}

/// The VM that registers tell of, or [`NOBODY`].
#[inline(never)]
fn vm_in_registers(context: &ProbeContext) -> u32 {
    let kept = arch::kept(registers(context));
    for value in kept {
        let vm = vm_at(value);
        if vm != NOBODY {
            return vm;
        }
    }
    // Or it keeps the coroutine: of one build, or of another one that is in the process, too.
    let Some(settings) = CONFIG.get(0) else { return NOBODY };
    let other = settings.other_kind;
    for kind in [0, other] {
        let Some(config) = VMS.get(kind) else { return NOBODY };
        let layout = &config.layout;
        for value in kept {
            let thread = value.wrapping_add(u64::from(layout.l_glref));
            if let Ok(global) = UserMemory.read_ref(layout.is_gc64(), thread) {
                let vm = vm_at(global);
                if vm != NOBODY {
                    return vm;
                }
            }
        }
        if other == 0 {
            break;
        }
    }
    // What frees traces keeps the `jit_State` (`lj_trace_free`, `lj_trace.c`), at its place in the same block.
    let Some(config) = VMS.get(0) else { return NOBODY };
    let distance = u64::from(config.layout.g_to_j);
    for value in kept {
        let vm = vm_at(value.wrapping_sub(distance));
        if vm != NOBODY {
            return vm;
        }
    }
    NOBODY
}

/// The VM whose `global_State` is there, or [`NOBODY`].
#[inline(always)]
fn vm_at(global: u64) -> u32 {
    // SAFETY: entries are copied at once.
    unsafe { GLOBALS.get(&key(global)) }.copied().unwrap_or(NOBODY)
}

/// What a VM is known by: its process is the only one whose allocators these programs probe.
#[inline(always)]
pub const fn key(global: u64) -> VmKey {
    VmKey::new(0, global)
}

/// How many places on the native stack may be the innermost C frame: between it and the allocator there are functions
/// of LuaJIT's, some with buffers of 8 KiB (`LUAL_BUFFERSIZE`, `luaconf.h`).
const PLACES: u32 = 1024;

/// The search for a C frame on the native stack.
#[repr(C)]
struct FrameSearch {
    /// The lowest place.
    lowest: u64,
    /// The coroutine that runs in the frame; 0 if none is found.
    thread: u64,
    /// The VM's index.
    vm: u32,
}

/// The coroutine that calls the allocator, 0 if it is not found: the one that has the innermost C frame on the native
/// stack.
#[inline(always)]
pub fn calling_thread(context: &ProbeContext, vm: u32) -> u64 {
    // C frames lie 16-byte aligned: the VM calls C functions from there.
    let lowest = (arch::stack_pointer(registers(context)) + 15) & !15;
    let mut search = FrameSearch { lowest, thread: 0, vm };
    // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
    unsafe { bpf_loop(PLACES, look_at_place as *mut c_void, (&raw mut search).cast(), 0) };
    search.thread
}

/// Looks whether a C frame begins at a place: 0 to go on, 1 to stop.
extern "C" fn look_at_place(index: u64, search: *mut c_void) -> i64 {
    // SAFETY: `calling_thread` passes its own search, which it does not use meanwhile.
    let search = unsafe { &mut *search.cast::<FrameSearch>() };
    let Some(vm) = VMS.get(search.vm) else { return 1 };
    let cframe = search.lowest + index * 16;
    let Ok(thread) = UserMemory.read_ref(vm.layout.is_gc64(), cframe + u64::from(vm.layout.cframe_l)) else { return 0 };
    if thread == 0 || thread & 7 != 0 || !runs_at(&UserMemory, vm, thread, cframe) {
        return 0;
    }
    search.thread = thread;
    1
}
