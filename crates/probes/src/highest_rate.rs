//! How often the kernel lets a perf event tick. Beyond that, it stops the event until the scheduler's next tick and tells no
//! program: samples are missing ([`__perf_event_account_interrupt`]).
//!
//! [`__perf_event_account_interrupt`]: https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::set::lock;

/// The setting. The kernel lowers it itself where it finds that samples take too long.
pub const SETTING: &str = "kernel.perf_event_max_sample_rate";

/// How many ticks a second of an event the kernel allows at the moment, at least.
pub fn highest_rate() -> u32 {
    of_setting(fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").ok().as_deref())
}

/// The same, up to half a second old: with many recorded processes, each of them asks.
pub(super) fn highest_rate_lately() -> u32 {
    const AGE: Duration = Duration::from_millis(500);
    static LAST: Mutex<Option<(Instant, u32)>> = Mutex::new(None);
    let mut last = lock(&LAST);
    if let Some((_, rate)) = last.filter(|(read, _)| read.elapsed() < AGE) {
        return rate;
    }
    let rate = highest_rate();
    *last = Some((Instant::now(), rate));
    rate
}

fn of_setting(text: Option<&str>) -> u32 {
    /// At least one is allowed between two ticks of the scheduler, of which there are 100 or more a second (`CONFIG_HZ`).
    const LEAST: u32 = 100;
    text.and_then(|text| text.trim().parse().ok()).map_or(u32::MAX, |rate: u32| rate.max(LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_read_with_what_the_scheduler_allows() {
        assert_eq!([Some("100000\n"), Some("300\n"), Some("1\n")].map(of_setting), [100_000, 300, 100]);
        // Without the setting there is no limit.
        assert_eq!([None, Some("")].map(of_setting), [u32::MAX; 2]);
        assert!(highest_rate() >= 100);
    }
}
