//! Whose allocations are recorded. To attach to a process's allocators takes half a second of CPU time, and what comes then is read all
//! the time. So a process has to live for a while first, and do something, and the agent has to have CPU time to spare.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lj_trace_process::clocks::{ClockId, cpu_time};

/// How long after a process was found its allocations may be recorded.
pub const FIRST_LOOK: Duration = Duration::from_secs(3);

/// How long to wait before looking at it again.
pub const NEXT_LOOK: Duration = Duration::from_secs(10);

/// The CPU time that it must have used since it was found, in seconds: about as much as one sample of the CPU profile stands for.
const LEAST_USED: f64 = 0.05;

/// The CPU time for attaching that the agent has at first: enough for some fifty processes.
const AT_FIRST: Duration = Duration::from_secs(30);

/// The part of the limit of the agent's CPU time that attaching may take later.
const FOR_ATTACHING: f64 = 0.5;

/// Decides whose allocations are recorded.
#[derive(Debug)]
pub struct AllocationRoom {
    /// What the agent may use, as a share of one CPU.
    limit: f64,
    /// CPU time for attaching, in seconds; below zero if more was used.
    purse: f64,
    filled: Instant,
    /// The most processes at a time.
    most: usize,
    /// The CPU time that processes had used when they were found, in seconds.
    found: HashMap<u32, f64>,
}

impl AllocationRoom {
    /// Records nobody's yet. The agent may use the share `limit` of one CPU.
    pub fn new(limit: f64, now: Instant) -> Self {
        let (purse, most) = (AT_FIRST.as_secs_f64(), usize::MAX);
        Self { limit, purse, filled: now, most, found: HashMap::new() }
    }

    /// Sets what the agent may use from now on.
    pub fn set_limit(&mut self, limit: f64) {
        (self.limit, self.most) = (limit, usize::MAX);
    }

    /// Notes that a process was found.
    pub fn find(&mut self, pid: u32) {
        self.found.insert(pid, cpu_time(pid).unwrap_or(0.0));
    }

    /// Forgets a process.
    pub fn forget(&mut self, pid: u32) {
        self.found.remove(&pid);
    }

    /// Whether to record a process's allocations now, if those of so many are recorded already; else look again after [`NEXT_LOOK`].
    pub fn has_room_for(&mut self, pid: u32, recorded: usize, now: Instant) -> bool {
        let used = self.found.get(&pid).zip(cpu_time(pid)).map_or(0.0, |(before, used)| used - before);
        self.has_room(used, recorded, now)
    }

    fn has_room(&mut self, used: f64, recorded: usize, now: Instant) -> bool {
        let time = now.saturating_duration_since(std::mem::replace(&mut self.filled, now)).as_secs_f64();
        self.purse = (self.purse + time * self.limit * FOR_ATTACHING).min(AT_FIRST.as_secs_f64());
        let is_afforded = self.purse > 0.0 && recorded < self.most;
        used >= LEAST_USED && is_afforded
    }

    /// Runs `attach`, and notes the CPU time of this thread that it takes.
    pub fn pay_for<T>(&mut self, attach: impl FnOnce() -> T) -> T {
        let clock = || ClockId::THIS_THREAD.read().unwrap_or_default();
        let before = clock();
        let outcome = attach();
        self.purse -= clock().saturating_sub(before).as_secs_f64();
        outcome
    }

    /// The agent uses too much CPU time: lowers how many processes' allocations may be recorded, of `recorded` now.
    pub fn lower(&mut self, recorded: usize) -> usize {
        self.most = recorded - recorded.div_ceil(8);
        self.most
    }

    /// The agent has CPU time to spare. Whether more are allowed than before.
    pub fn raise(&mut self) -> bool {
        let is_limited = self.most != usize::MAX;
        if is_limited {
            self.most += self.most.div_ceil(8).max(1);
        }
        is_limited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What attaching to a process costs.
    const EACH: f64 = 0.5;

    #[test]
    fn however_many_come_attaching_keeps_to_its_part() {
        for (limit, every) in [(0.05, 0.01), (0.02, 1.0), (0.5, 0.1)] {
            let begin = Instant::now();
            let mut own = AllocationRoom::new(limit, begin);
            let (mut spent, hours) = (0.0, 2.0);
            for look in 0..(hours * 3600.0 / every) as u64 {
                let now = begin + Duration::from_secs_f64(look as f64 * every);
                if own.has_room(1.0, 0, now) {
                    own.purse -= EACH;
                    spent += EACH;
                }
            }
            let most = AT_FIRST.as_secs_f64() + EACH + hours * 3600.0 * limit * FOR_ATTACHING;
            assert!(
                spent <= most && spent > 0.9 * most.min(EACH * hours * 3600.0 / every),
                "{limit}: {spent} of {most}"
            );
        }
    }

    #[test]
    fn one_that_does_nothing_waits() {
        let begin = Instant::now();
        let mut own = AllocationRoom::new(0.05, begin);
        assert!(!own.has_room(0.0, 0, begin));
        assert!(own.has_room(0.2, 0, begin));
        let pid = std::process::id();
        assert!(!own.has_room_for(pid, 0, begin), "it was not found");
        own.find(pid);
        let mut sum = 0_u64;
        while cpu_time(pid).unwrap() - own.found[&pid] < 2.0 * LEAST_USED {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(own.has_room_for(pid, 0, begin));
    }

    #[test]
    fn fewer_are_recorded_until_none_is() {
        let begin = Instant::now();
        let mut own = AllocationRoom::new(0.05, begin);
        assert!(!own.raise());
        let mut recorded = 20;
        for _ in 0..40 {
            recorded = own.lower(recorded);
            assert!(!own.has_room(1.0, recorded, begin));
        }
        assert_eq!(recorded, 0);
        assert!(own.raise());
        assert!(own.has_room(1.0, 0, begin));
    }
}
