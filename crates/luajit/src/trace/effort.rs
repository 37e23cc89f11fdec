//! Limits the work that goes into attributing the code of traces.
//!
//! The search for readings ([`super::reading`]) would take practically forever for some traces. And a program may compile
//! traces all the time, or flush them and compile them again. So each trace has a limit, and all of them together have a share
//! of the time. Beyond that share, a trace gets the least effort, and another attempt when it is hit while there is time. A
//! trace that is hit often and was not attributed to the end gets one more attempt with more effort.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The work that may be spent on one trace. Each unit is one place at one instruction, and takes some 0.3 µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort {
    /// Limit for the whole trace.
    pub trace: usize,
    /// Limit for one part between two snapshots.
    pub stretch: usize,
}

impl Effort {
    /// If no time is left: enough for small traces.
    pub const LEAST: Self = Self { trace: 1_000, stretch: 500 };
    /// For each trace at first: some 3 ms.
    pub const USUAL: Self = Self { trace: 10_000, stretch: 2_500 };
    /// For traces that are hit often: some 15 ms.
    pub const MOST: Self = Self { trace: 50_000, stretch: 12_500 };
}

/// The number of samples in a trace that make more effort worthwhile.
const OFTEN: u32 = 20;

/// All traces together may take one part in this many of the time.
const SHARE: u32 = 4;

/// The largest credit, and the credit at the start, when all traces are new.
const CREDIT: Duration = Duration::from_millis(500);

/// The time that is left for traces. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Allowance(Option<Arc<Mutex<Account>>>);

#[derive(Debug)]
struct Account {
    /// The time that may be spent at once. When it is overdrawn it is zero, and `debt` is the overdrawn time.
    credit: Duration,
    debt: Duration,
    /// When time was last added.
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
    /// An allowance for a recording that begins now. The default has no limit for all traces together.
    pub fn new() -> Self {
        let account = Account { credit: CREDIT, debt: Duration::ZERO, settled: Instant::now() };
        Self(Some(Arc::new(Mutex::new(account))))
    }

    /// The effort that a trace is worth now, if any; `done` is the effort that was not enough before, and how often the
    /// trace was hit.
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

    /// Subtracts the time that an attribution took.
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
            // Make sure that no real time is added.
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
