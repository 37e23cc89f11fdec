//! Finds the calling VM where the allocator's `ud` does not name it, and the calling coroutine where the `global_State`
//! does not.
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

/// The VM that calls the allocator, or [`NOBODY`], found through what the caller keeps in registers across the call.
/// The caller either adds up the VM's memory afterwards (`lj_mem_realloc`, `lj_gc.c`) or continues to sweep; for both
/// it needs the `global_State`. At a probe, the allocator has not saved any register yet.
///
/// `user_data` is a `ud` that no known VM passes, or [`UNKNOWN_USER_DATA`]. A new `ud` must be the VM's current one,
/// set by `lua_setallocf`; from then on it identifies the VM.
#[inline(never)]
pub fn calling_vm(context: &ProbeContext, user_data: u64) -> u32 {
    let vm = vm_in_registers(context);
    if user_data == UNKNOWN_USER_DATA {
        return vm;
    }
    let Some(config) = VMS.get(vm) else { return NOBODY };
    // A matching register is not enough: the program may call this function for itself.
    let place = config.global.wrapping_add(u64::from(config.layout.g_allocd));
    if UserMemory.read::<u64>(place) != Ok(user_data) {
        return NOBODY;
    }
    let _ = ALLOCATORS.insert(&user_data, &vm, 0);
    vm
}

/// The VM that the registers point to, or [`NOBODY`].
#[inline(never)]
fn vm_in_registers(context: &ProbeContext) -> u32 {
    let kept = arch::kept(registers(context));
    for value in kept {
        let vm = vm_at(value);
        if vm != NOBODY {
            return vm;
        }
    }
    // Or the caller keeps the coroutine: of this build's layout, or of another build in the same process.
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
    // The code that frees traces keeps the `jit_State` (`lj_trace_free`, `lj_trace.c`), which is at a fixed distance in
    // the same block.
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

/// The VM whose `global_State` is at this address, or [`NOBODY`].
#[inline(always)]
fn vm_at(global: u64) -> u32 {
    // SAFETY: entries are copied at once.
    unsafe { GLOBALS.get(&key(global)) }.copied().unwrap_or(NOBODY)
}

/// The key of a VM in [`GLOBALS`]. These programs probe the allocators of the first process only.
#[inline(always)]
pub const fn key(global: u64) -> VmKey {
    VmKey::new(0, global)
}

/// How many places on the native stack to search for the innermost C frame. Between it and the allocator there are
/// functions of LuaJIT's, some with buffers of 8 KiB (`LUAL_BUFFERSIZE`, `luaconf.h`).
const PLACES: u32 = 1024;

/// The search for a C frame on the native stack.
#[repr(C)]
struct FrameSearch {
    /// The lowest address to search.
    lowest: u64,
    /// The coroutine that runs in the frame; 0 until it is found.
    thread: u64,
    /// The VM's index.
    vm: u32,
}

/// The coroutine that calls the allocator; 0 if it is not found. It is the coroutine with the innermost C frame on the
/// native stack.
#[inline(always)]
pub fn calling_thread(context: &ProbeContext, vm: u32) -> u64 {
    // C frames are 16-byte aligned: the VM calls C functions from there.
    let lowest = (arch::stack_pointer(registers(context)) + 15) & !15;
    let mut search = FrameSearch { lowest, thread: 0, vm };
    // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
    unsafe { bpf_loop(PLACES, look_at_place as *mut c_void, (&raw mut search).cast(), 0) };
    search.thread
}

/// Checks whether a C frame begins at a place: 0 to continue, 1 to stop.
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
