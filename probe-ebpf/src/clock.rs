//! Times the programs: this is what recording costs the target, apart from the kernel's way into them and back.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use lj_trace_common::config::{Counter, LONGEST_PROGRAM, LONGEST_SAMPLE, TIMED_EVERY};

use crate::count::{add, add_of, count, count_exactly};

/// A run that is being timed, or one of the many runs that are not.
#[derive(Clone, Copy)]
pub struct Timer(u64);

impl Timer {
    /// Counts a run of a program, and times every Nth run. The count is exact.
    #[inline(always)]
    pub fn some(runs: Counter) -> Self {
        if count_exactly(runs) % TIMED_EVERY == 0 { Self::start() } else { Self(0) }
    }

    /// Times this run.
    #[inline(always)]
    pub fn start() -> Self {
        // SAFETY: the helper has no preconditions.
        Self(unsafe { bpf_ktime_get_ns() })
    }

    /// Ends a run of a program of which only some runs are timed: `timed` counts those.
    #[inline(always)]
    pub fn end(self, timed: Counter, time: Counter) {
        if self.0 != 0 && self.stop(time, LONGEST_PROGRAM) {
            count(timed);
        }
    }

    /// Ends a run of a sampler, and adds its time to this counter of the process. A virtual machine's host may run in between,
    /// and other threads where a wait is sampled: so no run counts for longer than a sample may take.
    #[inline(always)]
    pub fn stop_of(self, process: u32, time: u32) {
        // SAFETY: the helper has no preconditions.
        let took = unsafe { bpf_ktime_get_ns() } - self.0;
        add_of(process, time, if took < LONGEST_SAMPLE { took } else { LONGEST_SAMPLE });
    }

    /// Ends a run, and adds its time. False if the run took longer than programs do, because something else ran in
    /// between.
    #[inline(always)]
    pub fn stop(self, time: Counter, longest: u64) -> bool {
        // SAFETY: the helper has no preconditions.
        let took = unsafe { bpf_ktime_get_ns() } - self.0;
        let is_own = took <= longest;
        if is_own {
            add(time, took);
        }
        is_own
    }
}
