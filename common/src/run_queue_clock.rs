//! `CLOCK_MONOTONIC` at a thread switch, from the clock that the kernel has just read for its own accounting.
//!
//! To read `CLOCK_MONOTONIC` takes a third of what a BPF program at a thread switch may take. The kernel has read its
//! scheduler's clock a moment ago, and the difference between the two clocks hardly changes. So it is measured only now
//! and then.

use crate::memory::Pod;

/// How long a measured difference is used, in nanoseconds.
pub const PERIOD: u64 = 10_000_000;

/// A difference that has grown by more than this, in nanoseconds, has changed: one of the clocks stood still while the
/// machine slept.
const STEP: u64 = 100_000_000;

/// The difference between the two clocks on a CPU. All its values wrap.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunQueueClock {
    /// When the difference was measured, by the scheduler's clock; 0 if it never was.
    pub measured: u64,
    /// By how much `CLOCK_MONOTONIC` is ahead.
    pub ahead: u64,
}

impl RunQueueClock {
    /// Whether the difference should be measured now, by the scheduler's clock.
    #[inline(always)]
    pub const fn is_old(&self, scheduler: u64) -> bool {
        scheduler.wrapping_sub(self.measured) > PERIOD
    }

    /// Measures the difference: `monotonic` was read after the scheduler's clock was.
    ///
    /// What passed between the two reads makes the difference seem larger: most often less than a microsecond, but
    /// milliseconds where a hypervisor stopped the CPU in between. So it may grow only as much as the kernel adjusts
    /// `CLOCK_MONOTONIC` at most, which is 500 ppm.
    #[inline(always)]
    pub const fn measure(&mut self, scheduler: u64, monotonic: u64) {
        let read = monotonic.wrapping_sub(scheduler);
        let possible = scheduler.wrapping_sub(self.measured) >> 10;
        let growth = read.wrapping_sub(self.ahead);
        let is_first = self.measured == 0;
        let is_smaller = growth > u64::MAX / 2;
        self.ahead = if is_first || is_smaller || growth <= possible || growth > STEP {
            read
        } else {
            self.ahead.wrapping_add(possible)
        };
        self.measured = scheduler;
    }

    /// `CLOCK_MONOTONIC` when the scheduler's clock was read.
    #[inline(always)]
    pub const fn monotonic(&self, scheduler: u64) -> u64 {
        scheduler.wrapping_add(self.ahead)
    }
}

// SAFETY: the fields are integers laid out without padding.
unsafe impl Pod for RunQueueClock {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds of the monotonic clock ahead of the scheduler's, and a rate that differs by 20 ppm.
    fn monotonic(scheduler: u64, ahead: u64) -> u64 {
        (scheduler + scheduler / 50_000).wrapping_add(ahead)
    }

    #[test]
    fn is_right_to_microseconds_though_some_reads_are_late() {
        for ahead in [0, 5, 40_000_000, 7_000_000_000, 0_u64.wrapping_sub(3_000_000_000)] {
            let mut clock = RunQueueClock::default();
            for step in 1..5000_u64 {
                let scheduler = 4_000_000_000 + step * 2_500_000;
                if clock.is_old(scheduler) {
                    // The hypervisor stops the CPU in every tenth.
                    let late = if step % 50 == 7 { 4_000_000 } else { step * 7919 % 600 };
                    clock.measure(scheduler, monotonic(scheduler, ahead) + late);
                }
                let error = clock.monotonic(scheduler).wrapping_sub(monotonic(scheduler, ahead)) as i64;
                assert!(step < 10 || (-1000..13_000).contains(&error), "{ahead}, {step}: {error}");
            }
        }
    }

    #[test]
    fn a_late_first_read_is_forgotten() {
        let mut clock = RunQueueClock::default();
        clock.measure(1_000_000_000, 1_000_000_000 + 9_000_000);
        assert_eq!(clock.monotonic(1_000_000_000), 1_009_000_000);
        assert!(!clock.is_old(1_000_000_000 + PERIOD));
        clock.measure(1_020_000_000, 1_020_000_300);
        assert_eq!(clock.monotonic(1_020_000_000), 1_020_000_300);
    }

    #[test]
    fn sleep_of_the_machine_is_followed() {
        let mut clock = RunQueueClock { measured: 5_000_000_000, ahead: 10 };
        for ahead in [8_000_000_000, 0_u64.wrapping_sub(8_000_000_000)] {
            clock.measure(clock.measured + 20_000_000, (clock.measured + 20_000_000).wrapping_add(ahead));
            assert_eq!(clock.ahead, ahead);
        }
    }
}
