//! One perf event on each CPU for all recorded processes. At a tick, this program looks up the process that runs there,
//! and samples it here, or tail-calls the sampler of another set of programs. For all other processes, a tick costs
//! only the lookup.

use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_get_ns_current_pid_tgid;
use aya_ebpf::macros::{perf_event, raw_tracepoint};
use aya_ebpf::programs::{PerfEventContext, RawTracePointContext};
use lj_trace_common::config::OTHER_SAMPLER;

use crate::clock::Timer;
use crate::maps::{CHOSEN, NAMESPACE, SAMPLERS};
use crate::sample::sample;

/// A tick on a CPU.
#[perf_event]
pub fn sample_chosen(context: PerfEventContext) -> u32 {
    let timer = Timer::start();
    let number = number();
    if number == NOBODY {
        return 0;
    }
    if number < OTHER_SAMPLER {
        sample(&context, number, timer);
        return 0;
    }
    // SAFETY: nothing here waits to be dropped. It comes back if there is no program of this number, since its recording is
    // just ending.
    unsafe { SAMPLERS.tail_call(&context, number - OTHER_SAMPLER) };
    0
}

/// Not the number of any recorded process.
const NOBODY: u32 = u32::MAX;

/// The entry of the process that runs on this CPU, or [`NOBODY`]. This is a function of its own because samples need
/// all of the program's stack.
#[inline(never)]
fn number() -> u32 {
    let Some(process) = current_process() else { return NOBODY };
    // SAFETY: entries are copied at once.
    unsafe { CHOSEN.get(&process) }.copied().unwrap_or(NOBODY)
}

/// A process executes another program, which is not recorded from its first instruction on.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn chosen_executes(_context: RawTracePointContext) -> i32 {
    if let Some(process) = current_process() {
        // Most processes had no entry.
        let _ = CHOSEN.remove(&process);
    }
    0
}

/// The number of the process that runs on this CPU, in the PID namespace that the agent has named. In the initial
/// namespace, every process has one; in another namespace, only the processes of that very namespace.
#[inline(always)]
fn current_process() -> Option<u32> {
    let namespace = NAMESPACE.get(0)?;
    if namespace.inode == 0 {
        return Some((bpf_get_current_pid_tgid() >> 32) as u32);
    }
    let mut ids = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: `ids` has the size that is passed.
    let outcome = unsafe {
        bpf_get_ns_current_pid_tgid(namespace.device, namespace.inode, &raw mut ids, size_of::<bpf_pidns_info>() as u32)
    };
    (outcome == 0).then_some(ids.tgid)
}
