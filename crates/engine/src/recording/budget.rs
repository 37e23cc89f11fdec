//! Limits how long pending records are processed before lj-trace checks signals and the duration again.

use std::time::{Duration, Instant};

/// How long one look at the buffers may take, for all processes together.
pub const LOOK: Duration = Duration::from_millis(100);

/// How long lj-trace processes pending records after the recording has ended. Records that are left then count as lost.
pub const END: Duration = Duration::from_millis(300);

/// A point in time at which the work has to pause.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    until: Instant,
}

impl Budget {
    /// A budget of `time`, from now on.
    pub fn new(time: Duration) -> Self {
        Self { until: Instant::now() + time }
    }

    /// The share of one process, if `left` processes still wait for their turn.
    pub fn share(self, left: usize) -> Self {
        let time = self.until.saturating_duration_since(Instant::now());
        Self::new(time / u32::try_from(left).unwrap_or(u32::MAX).max(1))
    }

    /// Whether the budget is used up.
    pub fn is_over(self) -> bool {
        Instant::now() >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_shared() {
        let budget = Budget::new(Duration::from_secs(3600));
        assert!(!budget.is_over() && !budget.share(4).is_over());
        assert!(budget.share(4).until < Instant::now() + Duration::from_secs(901));
        assert!(budget.share(0).until > Instant::now() + Duration::from_secs(3500));
        let over = Budget::new(Duration::ZERO);
        assert!(over.is_over() && over.share(2).is_over());
    }
}
