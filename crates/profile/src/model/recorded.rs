//! When a profile was recorded, and for how long.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its beginning.
    pub began: SystemTime,
    /// How long it was.
    pub duration: Duration,
}

impl Recorded {
    /// From some time until now.
    pub fn since(began: SystemTime) -> Self {
        Self { began, duration: began.elapsed().unwrap_or_default() }
    }

    /// The same in nanoseconds, the beginning since 1970.
    pub fn nanoseconds(self) -> [u64; 2] {
        [self.began.duration_since(UNIX_EPOCH).unwrap_or_default(), self.duration]
            .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// What [`Self::nanoseconds`] says.
    pub fn of_nanoseconds([began, duration]: [u64; 2]) -> Option<Self> {
        let began = UNIX_EPOCH.checked_add(Duration::from_nanos(began))?;
        Some(Self { began, duration: Duration::from_nanos(duration) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_tell_all() {
        let numbers = [1_764_000_000_123_456_789, 20_000_000_001];
        assert_eq!(Recorded::of_nanoseconds(numbers).unwrap().nanoseconds(), numbers);
    }
}
