//! Measures what the programs for turns cost on this machine: on waits for events and on other system calls of
//! lj-trace's own, before the programs are attached and after.

use lj_trace_common::off_cpu::OffCpuProcess;

use super::calibrate::{CALLS, ROUNDS, median, thread_time};

/// Where the programs for waits for events are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPrograms {
    /// At the kernel's functions for these system calls: others cost nothing.
    #[default]
    Functions,
    /// At the tracepoints of these system calls: the kernel enters and leaves all others more slowly.
    Tracepoints,
    /// At the tracepoints of all system calls, for which they run.
    AllCalls,
}

impl WaitPrograms {
    /// Where they are, in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Functions => "the kernel's functions for waits",
            Self::Tracepoints => "the tracepoints of waits",
            Self::AllCalls => "all system calls",
        }
    }
}

/// What recording turns costs threads, in seconds, including the way into the programs and back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TurnCost {
    /// A turn: the end of a wait for events and the beginning of the next one.
    pub turn: f64,
    /// Any other system call of any process on the machine; 0 if the programs are at the functions of waits for events.
    pub call: f64,
    /// Where the programs are.
    pub programs: WaitPrograms,
}

/// The time of a wait and of another system call, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimes {
    wait: f64,
    other: f64,
}

impl CallTimes {
    /// Measures both times; this takes some milliseconds.
    pub(super) fn measure() -> Self {
        // SAFETY: no files are polled, and it does not wait.
        let wait = || _ = unsafe { libc::poll(std::ptr::null_mut(), 0, 0) };
        // SAFETY: it has no preconditions. The C library might remember the answer of its own function.
        let other = || _ = unsafe { libc::syscall(libc::SYS_getppid) };
        Self { wait: time(wait), other: time(other) }
    }

    /// The difference from `before`, with programs there.
    pub(super) fn since(self, before: Self, programs: WaitPrograms) -> TurnCost {
        let call = if programs == WaitPrograms::Functions { 0.0 } else { (self.other - before.other).max(0.0) };
        TurnCost { turn: (self.wait - before.wait).max(0.0), call, programs }
    }
}

/// The entry for lj-trace itself while it measures: its waits are turns, but none of them is reported.
pub(super) const OWN: OffCpuProcess =
    OffCpuProcess { began: 0, threshold: u64::MAX >> 1, over: u64::MAX, turn_after: u64::MAX, number: 0, pid: 0 };

/// The time of a call, in seconds of CPU time.
fn time(call: impl Fn()) -> f64 {
    let mut rounds = [0.0; ROUNDS];
    for round in &mut rounds {
        let began = thread_time();
        (0..CALLS).for_each(|_| call());
        *round = thread_time().saturating_sub(began).as_secs_f64() / f64::from(CALLS);
    }
    median(&mut rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_the_difference() {
        let times = |wait, other| CallTimes { wait, other };
        let cost = times(0.9, 0.5).since(times(0.4, 0.25), WaitPrograms::AllCalls);
        assert_eq!(cost, TurnCost { turn: 0.5, call: 0.25, programs: WaitPrograms::AllCalls });
        assert_eq!(times(0.9, 0.5).since(times(0.4, 0.25), WaitPrograms::Functions).call, 0.0);
        // Random variation must not make a cost negative.
        let none = times(0.3, 0.2).since(times(0.4, 0.25), WaitPrograms::Tracepoints);
        assert_eq!((none.turn, none.call), (0.0, 0.0));
    }

    #[test]
    fn a_system_call_takes_some_time_and_not_much() {
        let CallTimes { wait, other } = CallTimes::measure();
        for time in [wait, other] {
            assert!(time > 1e-9 && time < 1e-3, "{time}");
        }
    }
}
