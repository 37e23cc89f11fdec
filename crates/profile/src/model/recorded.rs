//! When a profile was recorded, and for how long.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub duration: Duration,
}

impl Recorded {
    /// From some time until now.
    pub fn since(began: SystemTime) -> Self {
        Self { began, duration: began.elapsed().unwrap_or_default() }
    }

    /// The beginning, counted from 1970, and the duration, in nanoseconds.
    pub fn nanoseconds(self) -> [u64; 2] {
        [self.began.duration_since(UNIX_EPOCH).unwrap_or_default(), self.duration]
            .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The inverse of [`Self::nanoseconds`].
    pub fn of_nanoseconds([began, duration]: [u64; 2]) -> Option<Self> {
        let began = UNIX_EPOCH.checked_add(Duration::from_nanos(began))?;
        Some(Self { began, duration: Duration::from_nanos(duration) })
    }
}

impl fmt::Display for Recorded {
    /// In a readable form: `2026-11-25 17:43:10 UTC, 30.0 s`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let length = self.duration.as_secs_f64();
        write!(formatter, "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC, {length:.1} s")
    }
}

/// The date this many days after the first of January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // The calendar repeats itself every 400 years.
    let (mut year, mut left) = (1970 + days / 146_097 * 400, days % 146_097);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_417, (2025, 11, 25)),
            (47_541, (2100, 3, 1)),
            (146_097, (2370, 1, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }

    #[test]
    fn nanoseconds_tell_all() {
        let numbers = [1_764_000_000_123_456_789, 20_000_000_001];
        assert_eq!(Recorded::of_nanoseconds(numbers).unwrap().nanoseconds(), numbers);
    }
}
