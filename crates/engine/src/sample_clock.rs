//! The clock of samples.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The current time on the clock of samples: nanoseconds of the machine's `CLOCK_MONOTONIC`, even if lj-trace runs in a
/// time namespace.
pub fn now() -> u64 {
    static OFFSET: LazyLock<i64> = LazyLock::new(|| {
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        monotonic_offset(&offsets).unwrap_or(0)
    });
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec * NANOSECONDS + time.tv_nsec - *OFFSET) as u64
}

/// When the clock of samples had this time; [`None`] if that is before all that [`Instant`] knows.
pub fn instant_of(time: u64) -> Option<Instant> {
    Instant::now().checked_sub(Duration::from_nanos(now().saturating_sub(time)))
}

const NANOSECONDS: i64 = 1_000_000_000;

/// The offset that a time namespace adds to `CLOCK_MONOTONIC`, in nanoseconds, from `/proc/PID/timens_offsets`
/// (time_namespaces(7)).
fn monotonic_offset(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(|number| number.parse::<i64>().ok());
    numbers.next()??.checked_mul(NANOSECONDS)?.checked_add(numbers.next()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_namespace_has_an_offset() {
        let offsets = "monotonic         100         5\nboottime            0         0\n";
        assert_eq!(monotonic_offset(offsets), Some(100_000_000_005));
        assert_eq!(monotonic_offset("monotonic -1 0\n"), Some(-1_000_000_000));
        assert_eq!(monotonic_offset(""), None);
    }

    #[test]
    fn it_goes_on() {
        assert!(now() > 0 && now() <= now());
    }
}
