//! Whose allocations are recorded. To attach to a process's allocators takes half a second of CPU time, and what comes then is read all
//! the time. So a process has to live for a while first, and do something, and the agent has to have CPU time to spare.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use lj_trace_process::Process;
use lj_trace_process::clocks::{ClockId, cpu_time};

/// How long after a process was found its allocations may be recorded.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// How long to wait before looking at it again.
const NEXT_LOOK: Duration = Duration::from_secs(10);

/// How long to wait after its allocator could not be attached to.
const RETRY: Duration = Duration::from_secs(60);

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
    /// The recorded processes.
    found: HashMap<u32, Candidate>,
}

/// A process whose allocations may be recorded.
#[derive(Debug)]
struct Candidate {
    process: Process,
    /// The CPU time that it had used when it was found, in seconds.
    used_before: f64,
    /// When to look at it next.
    next: Instant,
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

    /// Notes that a process was found, and is recorded but for its allocations.
    pub fn find(&mut self, process: Process, now: Instant) {
        let used_before = cpu_time(process.pid()).unwrap_or(0.0);
        self.found.insert(process.pid(), Candidate { process, used_before, next: now + FIRST_LOOK });
    }

    /// Forgets a process.
    pub fn forget(&mut self, pid: u32) {
        self.found.remove(&pid);
    }

    /// Notes that a process's allocator could not be attached to.
    pub fn refuse(&mut self, pid: u32, now: Instant) {
        if let Some(candidate) = self.found.get_mut(&pid) {
            candidate.next = now + RETRY;
        }
    }

    /// A process whose allocations to record now, if there is one; those in `recorded` are already.
    pub fn next(&mut self, recorded: &HashSet<u32>, now: Instant) -> Option<Process> {
        let due: Vec<u32> = self.found.iter().filter(|(_, own)| own.next <= now).map(|(pid, _)| *pid).collect();
        for pid in due {
            let candidate = self.found.get_mut(&pid)?;
            candidate.next = now + NEXT_LOOK;
            let used = cpu_time(pid).map_or(0.0, |used| used - candidate.used_before);
            let process = candidate.process.clone();
            if !recorded.contains(&pid) && self.has_room(used, recorded.len(), now) {
                return Some(process);
            }
        }
        None
    }

    /// Whether to record a process that has used so much CPU time, in seconds, besides so many.
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
            self.most = self.most.saturating_add(self.most.div_ceil(8).max(1));
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
        let (none, later) = (HashSet::new(), begin + FIRST_LOOK);
        assert!(own.next(&none, later).is_none(), "none was found");
        own.find(Process::open(pid).unwrap(), begin);
        let before = own.found[&pid].used_before;
        let mut sum = 0_u64;
        while cpu_time(pid).unwrap() - before < 2.0 * LEAST_USED {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(own.next(&none, begin).is_none(), "it is not due");
        assert!(own.next(&[pid].into(), later).is_none(), "it is recorded already");
        assert_eq!(own.next(&none, later + NEXT_LOOK).unwrap().pid(), pid);
        // Whatever became of that, it is looked at again.
        assert!(own.next(&none, later + NEXT_LOOK).is_none());
        assert!(own.next(&none, later + 2 * NEXT_LOOK).is_some());
        own.refuse(pid, later + 2 * NEXT_LOOK);
        assert!(own.next(&none, later + 3 * NEXT_LOOK).is_none());
        assert!(own.next(&none, later + 2 * NEXT_LOOK + RETRY).is_some());
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
