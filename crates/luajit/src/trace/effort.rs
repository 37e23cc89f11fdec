//! Limits the work that goes into attributing the code of traces.
//!
//! The search for readings ([`super::reading`]) has no end of its own for some traces, and a program may compile traces
//! all the time, or flush them and compile them anew. So each trace has a limit, and all of them together have a share of
//! the time: what is beyond it is read with the least effort, and again when it is hit while there is time. A trace that is
//! hit often and was not read to its end is read once more with more effort.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The work that may be spent on one trace: each unit is one place at one instruction, and takes some 0.3 µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort {
    /// For the whole trace.
    pub trace: usize,
    /// For one stretch between two snapshots.
    pub stretch: usize,
}

impl Effort {
    /// Where there is no time: enough for small traces.
    pub const LEAST: Self = Self { trace: 1_000, stretch: 500 };
    /// For every trace: some 3 ms.
    pub const USUAL: Self = Self { trace: 10_000, stretch: 2_500 };
    /// For traces that are hit often: some 15 ms.
    pub const MOST: Self = Self { trace: 50_000, stretch: 12_500 };
}

/// So many samples in a trace make more effort worthwhile.
const OFTEN: u32 = 20;

/// The share of the time that traces may take altogether: one part in so many.
const SHARE: u32 = 4;

/// How much of it is there at the beginning, when all traces are new, and at most.
const CREDIT: Duration = Duration::from_millis(500);

/// What is left of the time for traces. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Allowance(Option<Arc<Mutex<Account>>>);

#[derive(Debug)]
struct Account {
    /// What may be spent at once; below zero where it was overdrawn, in which case `debt` says by how much.
    credit: Duration,
    debt: Duration,
    /// When it was last added to.
    settled: Instant,
}

impl Account {
    fn settle(&mut self, now: Instant) {
        let earned = now.saturating_duration_since(self.settled) / SHARE;
        self.settled = now;
        let repaid = earned.min(self.debt);
        self.debt -= repaid;
        self.credit = (self.credit + (earned - repaid)).min(CREDIT);
    }

    fn spend(&mut self, time: Duration) {
        let paid = time.min(self.credit);
        self.credit -= paid;
        self.debt += time - paid;
    }
}

impl Allowance {
    /// For a recording that begins now. The default has no limit for all traces together.
    pub fn new() -> Self {
        let account = Account { credit: CREDIT, debt: Duration::ZERO, settled: Instant::now() };
        Self(Some(Arc::new(Mutex::new(account))))
    }

    /// The effort that a trace is worth now; `done` is what was spent on it in vain, and how often it was hit.
    pub fn effort(&self, done: Option<(Effort, u32)>) -> Option<Effort> {
        let wanted = match done {
            None | Some((Effort::LEAST, _)) => Effort::USUAL,
            Some((Effort::USUAL, hits)) if hits >= OFTEN => Effort::MOST,
            Some(_) => return None,
        };
        if self.has_credit() {
            return Some(wanted);
        }
        done.is_none().then_some(Effort::LEAST)
    }

    fn has_credit(&self) -> bool {
        let Some(account) = &self.0 else { return true };
        let mut account = account.lock().unwrap_or_else(PoisonError::into_inner);
        account.settle(Instant::now());
        !account.credit.is_zero()
    }

    /// Notes how long it took.
    pub fn spend(&self, time: Duration) {
        if let Some(account) = &self.0 {
            account.lock().unwrap_or_else(PoisonError::into_inner).spend(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_gets_more_when_it_is_hit_often() {
        let allowance = Allowance::default();
        assert_eq!(allowance.effort(None), Some(Effort::USUAL));
        assert_eq!(allowance.effort(Some((Effort::USUAL, OFTEN - 1))), None);
        assert_eq!(allowance.effort(Some((Effort::USUAL, OFTEN))), Some(Effort::MOST));
        assert_eq!(allowance.effort(Some((Effort::MOST, u32::MAX))), None, "that was all");
    }

    #[test]
    fn all_together_get_their_share() {
        let allowance = Allowance::new();
        allowance.spend(CREDIT + Duration::from_secs(1000));
        assert_eq!(allowance.effort(None), Some(Effort::LEAST));
        assert_eq!(allowance.effort(Some((Effort::LEAST, 99))), None);
        let account = allowance.0.as_ref().unwrap();
        let later = |seconds| {
            let mut account = account.lock().unwrap();
            let now = account.settled + Duration::from_secs(seconds);
            account.settle(now);
            // Time is not that far.
            account.settled = Instant::now() + Duration::from_secs(1 << 20);
        };
        later(3999);
        assert_eq!(allowance.effort(None), Some(Effort::LEAST), "what was overdrawn comes first");
        account.lock().unwrap().settled = Instant::now();
        later(5);
        assert_eq!(allowance.effort(Some((Effort::LEAST, 1))), Some(Effort::USUAL));
        account.lock().unwrap().settled = Instant::now();
        later(1 << 20);
        assert!(account.lock().unwrap().credit == CREDIT, "no more than that is kept");
    }
}
