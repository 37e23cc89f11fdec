//! How long the programs take: what recording costs the target, apart from the kernel's way into them and out again.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use lj_trace_common::config::{Counter, LONGEST_PROGRAM, LONGEST_SAMPLE, TIMED_EVERY};

use crate::count::{add, add_of, count, count_exactly};

/// A program that is being timed, or one of the many that are not.
#[derive(Clone, Copy)]
pub struct Timer(u64);

impl Timer {
    /// Counts a run of a program, and times it if it is its turn. The count is exact.
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

    /// Ends a run of which only some are timed: `timed` counts them.
    #[inline(always)]
    pub fn end(self, timed: Counter, time: Counter) {
        if self.0 != 0 && self.stop(time, LONGEST_PROGRAM) {
            count(timed);
        }
    }

    /// Ends a run of a sampler, and adds its time to the process's counter of this number, unless something else ran in between.
    #[inline(always)]
    pub fn stop_of(self, process: u32, time: u32) {
        // SAFETY: the helper has no preconditions.
        let took = unsafe { bpf_ktime_get_ns() } - self.0;
        if took <= LONGEST_SAMPLE {
            add_of(process, time, took);
        }
    }

    /// Ends a run, and adds its time; false if it took longer than programs do: then something else ran in between.
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
