//! Measures what the programs that see turns cost on this machine: on waits for events and on other system calls of lj-trace's
//! own, before they are attached and after.

use lj_trace_common::off_cpu::OffCpuProcess;

use super::calibrate::{CALLS, ROUNDS, median, thread_time};

/// What looking at turns costs threads, in seconds, with the way into the programs and back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TurnCost {
    /// A turn: the end of a wait for events and the beginning of the next one.
    pub turn: f64,
    /// Any system call of any process of the machine; 0 where the programs are at waits for events alone.
    pub call: f64,
}

/// What a wait and another system call take, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimes {
    wait: f64,
    other: f64,
}

impl CallTimes {
    /// Measures it: some milliseconds.
    pub(super) fn measure() -> Self {
        // SAFETY: no files are polled, and it does not wait.
        let wait = || _ = unsafe { libc::poll(std::ptr::null_mut(), 0, 0) };
        // SAFETY: it has no preconditions. The C library might remember the answer of its own function.
        let other = || _ = unsafe { libc::syscall(libc::SYS_getppid) };
        Self { wait: time(wait), other: time(other) }
    }

    /// What these take more than `before`; `sees_all` is whether the programs are at all system calls.
    pub(super) fn since(self, before: Self, sees_all: bool) -> TurnCost {
        let call = if sees_all { (self.other - before.other).max(0.0) } else { 0.0 };
        TurnCost { turn: (self.wait - before.wait).max(0.0), call }
    }
}

/// What the programs are told of lj-trace itself, so that its waits are turns that nobody is told of.
pub(super) const OWN: OffCpuProcess =
    OffCpuProcess { began: 0, threshold: u64::MAX >> 1, over: u64::MAX, turn_after: u64::MAX, number: 0, reserved: 0 };

/// How long a call takes, in seconds of CPU time.
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
        let cost = times(0.9, 0.5).since(times(0.4, 0.25), true);
        assert_eq!(cost, TurnCost { turn: 0.5, call: 0.25 });
        assert_eq!(times(0.9, 0.5).since(times(0.4, 0.25), false).call, 0.0);
        // Chance makes no cost negative.
        assert_eq!(times(0.3, 0.2).since(times(0.4, 0.25), true), TurnCost::default());
    }

    #[test]
    fn a_system_call_takes_some_time_and_not_much() {
        let CallTimes { wait, other } = CallTimes::measure();
        for time in [wait, other] {
            assert!(time > 1e-9 && time < 1e-3, "{time}");
        }
    }
}
