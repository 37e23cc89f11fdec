//! Limits how many objects are followed at a time, so that checking them at each flip costs the target little.
//!
//! A VM with a small heap that allocates much has thousands of collection cycles per second. Each flip stops the VM for as
//! long as it takes to check all followed objects.

use lj_trace_common::lifetime::MAX_FOLLOWED;

use lj_trace_estimate::observation::Nanos;
use lj_trace_probes::calibrate::ASSUMED;

/// The limit of the cost of checking, as a share of the target's CPU time.
const MOST: f64 = 0.005;

/// The least number of followed objects, even if they cost more than `MOST`: fewer would tell nothing.
const FEWEST: usize = 32;

/// If even `FEWEST` objects would cost this share, flips are not watched any more.
const TOO_MUCH: f64 = 0.01;

/// How many judgements in a row must find that.
const SURE: u32 = 3;

/// The time between two judgements in nanoseconds, and the CPU time that it must include, in seconds.
const PERIOD: Nanos = 100_000_000;
const LEAST_CPU: f64 = 0.02;

/// The part of the BPF program's time at a hit that does not depend on objects, in seconds.
const BASE: f64 = 0.5e-6;

/// The least time to check an object, in seconds.
const LEAST_EACH: f64 = 0.02e-6;

/// What watchpoints have cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// The number of hits.
    pub hits: u64,
    /// The nanoseconds of the BPF program at these hits.
    pub time: u64,
}

/// The verdict on the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowVerdict {
    /// At most this many objects may be followed.
    AtMost(usize),
    /// Flips are too frequent to watch them at all.
    TooFrequent,
}

/// Judges the cost from time to time.
#[derive(Debug)]
pub struct FollowBudget {
    last: Option<(Nanos, f64, Spent)>,
    limit: usize,
    too_frequent: u32,
}

impl FollowBudget {
    /// A budget without any observation.
    pub fn new() -> Self {
        Self { last: None, limit: MAX_FOLLOWED as usize, too_frequent: 0 }
    }

    /// Whether it is time to judge again.
    pub fn is_due(&self, now: Nanos) -> bool {
        self.last.is_none_or(|(last, ..)| now.saturating_sub(last) >= PERIOD)
    }

    /// Judges the cost. The target has used `cpu` seconds of CPU time so far, and `followed` objects are followed now.
    pub fn judge(&mut self, now: Nanos, cpu: f64, spent: Spent, followed: usize) -> FollowVerdict {
        let Some((_, cpu_before, before)) = self.last else {
            self.last = Some((now, cpu, spent));
            return FollowVerdict::AtMost(self.limit);
        };
        let used = cpu - cpu_before;
        if used < LEAST_CPU {
            return FollowVerdict::AtMost(self.limit);
        }
        self.last = Some((now, cpu, spent));
        let hits = spent.hits.saturating_sub(before.hits) as f64;
        if hits == 0.0 {
            self.limit = (self.limit * 2).min(MAX_FOLLOWED as usize);
            return FollowVerdict::AtMost(self.limit);
        }
        let time = spent.time.saturating_sub(before.time) as f64 * 1e-9 / hits;
        let each = ((time - BASE).max(0.0) / followed.max(1) as f64).max(LEAST_EACH);
        let anyway = ASSUMED.hit + BASE;
        let affordable = ((used * MOST / hits - anyway) / each).max(0.0) as usize;
        // The limit falls at once, but rises slowly.
        self.limit = affordable.clamp(FEWEST, (self.limit * 2).min(MAX_FOLLOWED as usize));
        let is_too_much = hits * (anyway + FEWEST as f64 * each) > used * TOO_MUCH;
        self.too_frequent = if is_too_much { self.too_frequent + 1 } else { 0 };
        if self.too_frequent >= SURE { FollowVerdict::TooFrequent } else { FollowVerdict::AtMost(self.limit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict after some seconds with `flips` per second, if checking an object takes `each` microseconds, and the
    /// share of time that checking costs at the end.
    fn after(flips: f64, each: f64, budget: &mut FollowBudget) -> (FollowVerdict, f64) {
        let (mut spent, mut limit, mut share) = (Spent::default(), MAX_FOLLOWED as usize, 0.0);
        let began = budget.last.map_or((0, 0.0), |(now, cpu, _)| (now, cpu));
        budget.last = budget.last.map(|(now, cpu, _)| (now, cpu, spent));
        for step in 1..=40 {
            let (now, cpu) = (began.0 + step * PERIOD, began.1 + step as f64 * 0.1);
            assert!(budget.is_due(now));
            spent.hits += (flips * 0.1) as u64;
            spent.time += (flips * 0.1 * (500.0 + 1000.0 * each * limit as f64)) as u64;
            match budget.judge(now, cpu, spent, limit) {
                FollowVerdict::AtMost(most) => limit = most,
                FollowVerdict::TooFrequent => return (FollowVerdict::TooFrequent, share),
            }
            share = flips * (ASSUMED.hit + BASE + each * 1e-6 * limit as f64);
        }
        (FollowVerdict::AtMost(limit), share)
    }

    #[test]
    fn few_flips_leave_room_for_all() {
        assert_eq!(after(0.0, 0.2, &mut FollowBudget::new()).0, FollowVerdict::AtMost(2048));
        assert_eq!(after(10.0, 0.2, &mut FollowBudget::new()).0, FollowVerdict::AtMost(2048));
    }

    #[test]
    fn more_flips_have_fewer_objects_looked_at() {
        for flips in [50.0, 100.0, 400.0] {
            let (verdict, share) = after(flips, 0.2, &mut FollowBudget::new());
            assert!(matches!(verdict, FollowVerdict::AtMost(33..1024)), "{flips}: {verdict:?}");
            assert!((0.0045..=0.0051).contains(&share), "{flips}: {share}");
        }
        let (verdict, share) = after(800.0, 0.2, &mut FollowBudget::new());
        assert!(verdict == FollowVerdict::AtMost(FEWEST) && share < TOO_MUCH, "{verdict:?} {share}");
    }

    #[test]
    fn what_costs_too_much_anyway_is_given_up() {
        assert_eq!(after(3000.0, 0.2, &mut FollowBudget::new()).0, FollowVerdict::TooFrequent);
    }

    #[test]
    fn the_limit_rises_again() {
        let mut budget = FollowBudget::new();
        assert!(matches!(after(400.0, 0.2, &mut budget).0, FollowVerdict::AtMost(..100)));
        assert_eq!(after(5.0, 0.2, &mut budget).0, FollowVerdict::AtMost(2048));
    }
}
