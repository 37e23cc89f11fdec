//! The light sampler: a perf event's program that records only which function runs. It takes a tenth of the time of a
//! sample with stacks, so it may run much more often.

use core::ffi::c_void;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_loop, bpf_probe_read_kernel, bpf_task_pt_regs,
};
use aya_ebpf::macros::perf_event;
use aya_ebpf::programs::PerfEventContext;
use lj_trace_common::activity::{self, ActivitySample};
use lj_trace_common::config::{Counter, LONGEST_SAMPLE, MAX_VMS};
use lj_trace_common::event::{NO_VM, reg};

use crate::arch;
use crate::clock::Timer;
use crate::count::count;
use crate::maps::{ACTIVITY, ACTIVITY_SCRATCH, CONFIG, RAN_LAST, VMS};
use crate::memory::UserMemory;
use crate::sample::is_duplicate;
use crate::scratch::Scratchpad;
use crate::wakeup::NO_WAKEUP;

/// Marks threads that have inherited this sampler's event: the other sampler has its own entries.
const THIS_SAMPLER: u32 = 1 << 31;

/// The sampler.
#[perf_event]
pub fn sample_activity(context: PerfEventContext) -> u32 {
    let timer = Timer::start();
    let Some(config) = CONFIG.get(0) else { return 0 };
    let tid = bpf_get_current_pid_tgid() as u32;
    if config.late_events != 0 && is_duplicate(&context, tid | THIS_SAMPLER) {
        return 0;
    }
    count(Counter::ActivitySampled);
    let mut sample = ActivitySample { tid, ..ActivitySample::EMPTY };
    // SAFETY: the helper has no preconditions.
    sample.time = unsafe { bpf_ktime_get_ns() };
    // Perf programs do not nest on a CPU (`bpf_prog_active`), so the area is this run's own.
    if let Some(pad) = ACTIVITY_SCRATCH.get_ptr_mut(0)
        // SAFETY: as above.
        && let pad = unsafe { &mut *pad }
        && read_registers(pad)
    {
        look(pad, &mut sample, config.vms);
    }
    // SAFETY: plain data of its own.
    if ACTIVITY.output::<ActivitySample>(&sample, NO_WAKEUP).is_err() {
        count(Counter::ActivityLost);
    }
    timer.stop(Counter::ActivityTime, LONGEST_SAMPLE);
    0
}

/// Reads the registers of the user code, also if the tick hit the kernel.
#[inline(always)]
fn read_registers(pad: &mut Scratchpad) -> bool {
    // SAFETY: plain helpers; a task's registers may be read while it runs, and the place has room for them.
    let outcome = unsafe {
        let registers = bpf_task_pt_regs(bpf_get_current_task_btf());
        bpf_probe_read_kernel((&raw mut pad.kernel).cast(), size_of::<pt_regs>() as u32, registers as *const c_void)
    };
    let r = &pad.kernel;
    pad.registers = arch::registers(r);
    outcome == 0 && arch::stack_pointer(r) != 0
}

/// Finds the VM that runs on this thread, and what it executes.
#[inline(always)]
fn look(pad: &mut Scratchpad, sample: &mut ActivitySample, vms: u32) {
    let stack = pad.registers[reg::SP];
    // SAFETY: entries are copied at once.
    let mut index = unsafe { RAN_LAST.get(&sample.tid) }.copied().unwrap_or(0);
    if !runs(pad, index, stack) {
        let mut search = VmSearch { stack, vms, vm: NO_VM };
        // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
        unsafe { bpf_loop(MAX_VMS, try_next as *mut c_void, (&raw mut search).cast(), 0) };
        index = search.vm;
        if index == NO_VM {
            sample.function = pad.registers[reg::PC];
            return;
        }
        let _ = RAN_LAST.insert(&sample.tid, &index, 0);
    }
    sample.vm = index;
    let Some(vm) = VMS.get(index) else { return };
    let Scratchpad { registers, room, thread, .. } = pad;
    sample.function = activity::function(&UserMemory, vm, registers, thread, room).unwrap_or(0);
}

/// Whether the VM with this index runs on the thread whose stack pointer is `stack`.
#[inline(always)]
fn runs(pad: &mut Scratchpad, index: u32, stack: u64) -> bool {
    let Some(vm) = VMS.get(index) else { return false };
    if vm.global == 0 {
        return false;
    }
    let Some(thread) = activity::running(&UserMemory, vm, stack, &mut pad.room) else { return false };
    pad.thread = thread;
    true
}

/// The search for the VM that runs on a thread.
#[repr(C)]
struct VmSearch {
    /// The thread's stack pointer.
    stack: u64,
    /// How many VMs there were at the start of recording. Later VMs have higher indices.
    vms: u32,
    /// The VM that was found.
    vm: u32,
}

/// Tries the VM with this index: 0 to continue, 1 to stop.
extern "C" fn try_next(index: u64, search: *mut c_void) -> i64 {
    // SAFETY: `look` passes its own search, which it does not use meanwhile.
    let search = unsafe { &mut *search.cast::<VmSearch>() };
    let index = index as u32;
    let Some(pad) = ACTIVITY_SCRATCH.get_ptr_mut(0) else { return 1 };
    // SAFETY: as in `sample_activity`, whose own reference is not used while this runs.
    let pad = unsafe { &mut *pad };
    let is_there = index < search.vms || VMS.get(index).is_some_and(|vm| vm.global != 0);
    if is_there && runs(pad, index, search.stack) {
        search.vm = index;
        return 1;
    }
    i64::from(!is_there)
}
