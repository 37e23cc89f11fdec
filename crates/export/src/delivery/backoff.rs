//! How long a server is left alone after a failure.

use std::time::{Duration, Instant};

/// The first wait after a failure; each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The failures since the last success.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
    /// Until when the server is left alone.
    pub until: Option<Instant>,
}

impl Backoff {
    /// Notes one more failure: waits for at most `longest`, or for as long as the server asked.
    pub fn fail(&mut self, longest: Duration, asked: Option<Duration>) {
        self.until = Some(Instant::now() + self.wait(longest, asked));
        self.failures = self.failures.saturating_add(1);
    }

    fn wait(&self, longest: Duration, asked: Option<Duration>) -> Duration {
        let wait = FIRST_WAIT.min(longest).saturating_mul(1 << self.failures.min(20)).min(longest);
        // Many agents that failed at the same time must not retry at the same time.
        asked.unwrap_or(wait.mul_f64(0.5)) + wait.mul_f64(0.5 * fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let longest = Duration::from_secs(60);
        for failures in 0..100 {
            let backoff = Backoff { failures, until: None };
            let most = Duration::from_secs(1 << failures.min(6)).min(longest);
            for _ in 0..20 {
                let wait = backoff.wait(longest, None);
                assert!(wait >= most / 2 && wait <= most, "{failures}: {wait:?}");
            }
            let asked = Duration::from_secs(100);
            assert!((asked..asked + longest).contains(&backoff.wait(longest, Some(asked))));
        }
    }
}
