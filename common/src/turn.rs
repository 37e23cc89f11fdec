//! Turns of an event loop: what a thread does from the return of a wait for events to the beginning of the next one.

use crate::memory::Pod;

/// Takes the place of a sample's time to mark an [`EndedTurn`] in the stream: no sample has this time.
pub const TURN_ENDED: u64 = u64::MAX - 1;

/// System calls that wait for events, each with the BPF programs at its entry and its return.
pub const LOOP_WAITS: [LoopWait; 8] = [
    LoopWait::new("epoll_wait", "epoll_wait_begins", "epoll_wait_ends", LoopCall::Epoll),
    LoopWait::new("epoll_pwait", "epoll_pwait_begins", "epoll_pwait_ends", LoopCall::Epoll),
    LoopWait::new("epoll_pwait2", "epoll_pwait2_begins", "epoll_pwait2_ends", LoopCall::Epoll),
    LoopWait::new("poll", "poll_begins", "poll_ends", LoopCall::Other),
    LoopWait::new("ppoll", "ppoll_begins", "ppoll_ends", LoopCall::Other),
    LoopWait::new("select", "select_begins", "select_ends", LoopCall::Other),
    LoopWait::new("pselect6", "pselect6_begins", "pselect6_ends", LoopCall::Other),
    // The kernel resumes a poll with this call after a signal without a handler has interrupted it: SIGSTOP, a frozen
    // container.
    LoopWait::new("restart_syscall", "restart_syscall_begins", "restart_syscall_ends", LoopCall::Restart),
];

/// A system call that waits for events.
#[derive(Clone, Copy, Debug)]
pub struct LoopWait {
    /// Its name, without the prefix that the kernel adds for a processor.
    pub call: &'static str,
    /// The BPF program at the entry of its function.
    pub begins: &'static str,
    /// The BPF program at the return of its function.
    pub ends: &'static str,
    /// The BPF program at its entry, where programs are at tracepoints.
    pub begins_at_tracepoint: &'static str,
}

impl LoopWait {
    const fn new(call: &'static str, begins: &'static str, ends: &'static str, kind: LoopCall) -> Self {
        let begins_at_tracepoint = match kind {
            LoopCall::Epoll => "epoll_call_begins",
            LoopCall::Other | LoopCall::None => "other_call_begins",
            LoopCall::Restart => "restart_call_begins",
        };
        Self { call, begins, ends, begins_at_tracepoint }
    }
}

/// The BPF program at the return of all of them, where programs are at tracepoints.
pub const ENDS_AT_TRACEPOINT: &str = "wait_call_ends";

/// What kind of wait for events a system call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopCall {
    /// It is no wait for events.
    None,
    /// A wait with epoll.
    Epoll,
    /// A wait with poll or select.
    Other,
    /// The resumption of an interrupted wait of either kind.
    Restart,
}

/// How much deeper on the stack, in bytes, a wait with poll or select must be called to be no wait of the event loop,
/// but one that blocks it. Between an FFI call by the interpreter and one by machine code the difference is some 1000
/// bytes; the resolver of the C library takes more than twice this constant.
pub const DEEPER: u64 = 2048;

/// After so many deeper waits in a row, that place counts as the event loop: some programs wait for something else
/// before they enter their loop. The resolver waits only a few times.
pub const DEEPER_WAITS: u32 = 32;

/// A turn that took longer than the limit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedTurn {
    /// [`TURN_ENDED`].
    pub mark: u64,
    /// Number of the turn on its thread: samples in the turn have the same number.
    pub number: u64,
    /// When the turn began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began: u64,
    /// When the turn ended, in nanoseconds of `CLOCK_MONOTONIC`.
    pub ended: u64,
    /// How many nanoseconds of the turn the thread was off the CPU.
    pub waited: u64,
    /// How many of these nanoseconds the thread could have run, but others did.
    pub preempted: u64,
    /// How many nanoseconds it is not known whether the thread ran or waited: the kernel did not show that it came back.
    pub unseen: u64,
    /// Thread id, in the kernel's own namespace.
    pub tid: u32,
    /// Number of the process among the recorded ones.
    pub process: u32,
    /// 1 if the turn ended because its thread did, by itself or killed.
    pub exited: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

impl EndedTurn {
    /// Length of the turn in nanoseconds.
    pub const fn length(&self) -> u64 {
        self.ended.saturating_sub(self.began)
    }
}

/// Number of length classes: each power of two nanoseconds has [`STEPS`] of them.
pub const LENGTHS: usize = 64 * STEPS as usize;

/// Classes from one power of two to the next.
pub const STEPS: u64 = 4;

/// A histogram of the lengths of a process's turns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TurnLengths {
    /// Total length of all turns, in nanoseconds.
    pub time: u64,
    /// Long turns that were not reported because the ring buffer was full.
    pub lost: u64,
    /// Number of turns in each class: see [`step_of`].
    pub turns: [u64; LENGTHS],
}

impl TurnLengths {
    /// A histogram without turns.
    pub const EMPTY: Self = Self { time: 0, lost: 0, turns: [0; LENGTHS] };
}

/// Index in [`TurnLengths::turns`] for a turn of `length` nanoseconds.
#[inline(always)]
pub const fn step_of(length: u64) -> usize {
    let length = if length < STEPS { STEPS } else { length };
    // Finds the highest bit by halving: BPF has no instruction for it, and this needs no loop.
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

/// The smallest length that counts at this index of [`TurnLengths::turns`], in nanoseconds.
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
        for LoopWait { call, begins, ends, .. } in LOOP_WAITS {
            assert_eq!((begins, ends), (&*format!("{call}_begins"), &*format!("{call}_ends")));
        }
    }
}
