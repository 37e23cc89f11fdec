//! Turns of an event loop: what a thread does from the return of a wait for events to the beginning of the next one.

use crate::memory::Pod;

/// Marks an [`EndedTurn`] among samples: no sample is taken at that time.
pub const TURN_ENDED: u64 = u64::MAX - 1;

/// System calls that wait for events: each with the programs at its beginning and its end.
pub const LOOP_WAITS: [LoopWait; 8] = [
    LoopWait { call: "epoll_wait", begins: "epoll_wait_begins", ends: "epoll_wait_ends" },
    LoopWait { call: "epoll_pwait", begins: "epoll_pwait_begins", ends: "epoll_pwait_ends" },
    LoopWait { call: "epoll_pwait2", begins: "epoll_pwait2_begins", ends: "epoll_pwait2_ends" },
    LoopWait { call: "poll", begins: "poll_begins", ends: "poll_ends" },
    LoopWait { call: "ppoll", begins: "ppoll_begins", ends: "ppoll_ends" },
    LoopWait { call: "select", begins: "select_begins", ends: "select_ends" },
    LoopWait { call: "pselect6", begins: "pselect6_begins", ends: "pselect6_ends" },
    // A poll that a signal without a handler has interrupted goes on so: SIGSTOP, a frozen container.
    LoopWait { call: "restart_syscall", begins: "restart_syscall_begins", ends: "restart_syscall_ends" },
];

/// A system call that waits for events.
#[derive(Clone, Copy, Debug)]
pub struct LoopWait {
    /// Its name, without what the kernel puts before it for a processor.
    pub call: &'static str,
    /// The program at its beginning.
    pub begins: &'static str,
    /// The program at its end.
    pub ends: &'static str,
}

/// Whether a system call waits for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopCall {
    /// It does not.
    None,
    /// With epoll.
    Epoll,
    /// With poll or select.
    Other,
    /// It goes on with one that was interrupted, whichever that was.
    Restart,
}

/// A wait with poll or select that is called from so many bytes deeper on the stack than the thread's event loop waits is none
/// of the loop's, but blocks it. Between a call of the FFI by the interpreter and one by machine code it is some 1000; the
/// resolver of the C library takes more than twice this.
pub const DEEPER: u64 = 2048;

/// After so many deeper waits one after the other the loop is there now: some program waits for something else before it has its
/// loop. The resolver waits a few times.
pub const DEEPER_WAITS: u32 = 32;

/// A turn that was longer than it should be.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedTurn {
    /// [`TURN_ENDED`].
    pub mark: u64,
    /// Which turn of its thread it is: samples have the same number.
    pub number: u64,
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
    /// For how many nanoseconds of it the thread was off the CPU.
    pub waited: u64,
    /// For how many of these it could have run, and others did.
    pub preempted: u64,
    /// For how many nanoseconds it is not known whether the thread ran or waited: the kernel did not show that it came back.
    pub unseen: u64,
    /// The thread, in the kernel's own namespace.
    pub tid: u32,
    /// The number of the process among those that are recorded.
    pub process: u32,
    /// 1 if it ended since its thread did: by itself, or killed.
    pub exited: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

impl EndedTurn {
    /// How long it was, in nanoseconds.
    pub const fn length(&self) -> u64 {
        self.ended.saturating_sub(self.began)
    }
}

/// How many lengths of turns are told apart: each power of two nanoseconds, in [`STEPS`] steps.
pub const LENGTHS: usize = 64 * STEPS as usize;

/// Steps from one power of two to the next.
pub const STEPS: u64 = 4;

/// How often turns of a process had which length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TurnLengths {
    /// How long all of them were together, in nanoseconds.
    pub time: u64,
    /// Long ones that were not told, since the ring buffer was full.
    pub lost: u64,
    /// Turns by length: see [`step_of`].
    pub turns: [u64; LENGTHS],
}

impl TurnLengths {
    /// None.
    pub const EMPTY: Self = Self { time: 0, lost: 0, turns: [0; LENGTHS] };
}

/// In which place of [`TurnLengths::turns`] a turn of so many nanoseconds is counted.
#[inline(always)]
pub const fn step_of(length: u64) -> usize {
    let length = if length < STEPS { STEPS } else { length };
    // Without a loop, and without an instruction that BPF has not: the highest bit by halves.
    let mut power = 0;
    let mut rest = length;
    let mut half = 32;
    while half != 0 {
        if rest >> half != 0 {
            rest >>= half;
            power += half;
        }
        half /= 2;
    }
    (power * STEPS + ((length >> (power - 2)) & (STEPS - 1))) as usize
}

/// The least length that is counted in this place of [`TurnLengths::turns`], in nanoseconds.
pub const fn step_begins(step: usize) -> u64 {
    let (power, part) = (step as u64 / STEPS, step as u64 % STEPS);
    if power < 2 { 0 } else { (STEPS + part) << (power - 2) }
}

// SAFETY: the fields are integers laid out without padding, as the assertions below prove.
unsafe impl Pod for EndedTurn {}
// SAFETY: as above.
unsafe impl Pod for TurnLengths {}

const _: () = {
    assert!(size_of::<EndedTurn>() == 7 * 8 + 4 * 4);
    assert!(size_of::<TurnLengths>() == (2 + LENGTHS) * 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_is_in_its_step() {
        let mut length = 4_u64;
        let mut before = 0;
        while length < 1 << 62 {
            for of in [length - 1, length, length + 1] {
                let step = step_of(of);
                assert!(step_begins(step) <= of.max(STEPS) && of < step_begins(step + 1), "{of}: {step}");
            }
            assert!(step_of(length) >= before);
            before = step_of(length);
            length += length / 7 + 1;
        }
        assert_eq!((step_of(0), step_of(u64::MAX)), (step_of(STEPS), LENGTHS - 1));
    }

    #[test]
    fn programs_have_the_names_of_their_calls() {
        for LoopWait { call, begins, ends } in LOOP_WAITS {
            assert_eq!((begins, ends), (&*format!("{call}_begins"), &*format!("{call}_ends")));
        }
    }
}
