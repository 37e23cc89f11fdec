//! Measures what a probe costs on this machine apart from its program: the way into the kernel and back. This cost
//! differs between machines by an order of magnitude, so lj-trace measures it on calls of its own.
//!
//! All measurements that trap run inside `trapped::survive`. A trap that the kernel takes for somebody else's may skip
//! the probed instruction, so the probes are on instructions that may be skipped: a `nop`, or a `test` whose remaining
//! bytes form another instruction. Watchpoints trap after the instruction that wrote.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use lj_trace_process::Maps;
use lj_trace_process::clocks::ClockId;

use super::arch::{self, copy_in_bulk, count_down};
use super::guardian::{self, Held, Means};
use super::mechanism::Mechanism;
use super::perf_event::{self, Clock};
use super::trapped::survive;
use super::uprobe_multi::{BpfInstruction, UprobeKind, load};

/// What one event of each kind costs the thread that runs into it, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProbeCost {
    /// A probe on an instruction.
    pub call: f64,
    /// A probe on a return.
    pub returned: f64,
    /// A tick of the sampler.
    pub tick: f64,
    /// A hit of a watchpoint.
    pub hit: f64,
    /// A context switch, if the sampler's events are on threads.
    pub switch: f64,
    /// A context switch, if the light sampler's events are on threads.
    pub light_switch: f64,
}

/// The costs to assume where they cannot be measured: those of a virtual machine (Linux 6.18, 2 CPUs).
pub const ASSUMED: ProbeCost =
    ProbeCost { call: 0.4e-6, returned: 0.4e-6, tick: 13e-6, hit: 4e-6, switch: 0.7e-6, light_switch: 0.7e-6 };

/// Calls in a round, and the number of rounds.
pub(super) const CALLS: u32 = 500;
pub(super) const ROUNDS: usize = 7;

/// Measures the probes on the allocator, inserted by `mechanism`. `is_cheap` says whether the kernel emulates the
/// probed instructions.
///
/// # Errors
/// The kernel refuses.
pub fn allocation_probes(mechanism: Mechanism, is_cheap: bool) -> io::Result<ProbeCost> {
    survive(|| measure_allocation_probes(mechanism, is_cheap))
}

fn measure_allocation_probes(mechanism: Mechanism, is_cheap: bool) -> io::Result<ProbeCost> {
    let function = if is_cheap { Callable::emulated() } else { Callable::stepped() };
    let (offset, plain) = (function.file_offset()?, function.time());
    // A session that wants the return is called at both; without sessions, two programs do that.
    let probed = |wants_return| match probe(mechanism, UprobeKind::Session, offset, wants_return) {
        Ok(link) => Ok(vec![link]),
        Err(_) => {
            let returns = wants_return.then(|| probe(mechanism, UprobeKind::Return, offset, true)).transpose()?;
            Ok::<_, io::Error>(returns.into_iter().chain([probe(mechanism, UprobeKind::Call, offset, true)?]).collect())
        }
    };
    let called = {
        let _links = probed(false)?;
        function.time()
    };
    let both = {
        let _links = probed(true)?;
        function.time()
    };
    Ok(ProbeCost { call: (called - plain).max(0.0), returned: (both - called).max(0.0), ..ProbeCost::default() })
}

/// Tries a probe on an instruction of lj-trace's own.
///
/// # Errors
/// The kernel refuses.
pub fn try_probe(mechanism: Mechanism) -> io::Result<()> {
    probe(mechanism, UprobeKind::Call, Callable::emulated().file_offset()?, true).map(drop)
}

/// Measures a tick of the sampler, in seconds.
///
/// # Errors
/// What `perf_event_open(2)` says.
pub fn tick(clock: Clock) -> io::Result<f64> {
    /// Ticks a second: as many as the kernel allows, so that some fall into a few milliseconds.
    const RATE: u32 = 20_000;
    /// Loop iterations that take about a millisecond.
    const TURNS: u64 = 3_000_000;
    let event = perf_event::Ticking::new(clock, RATE)?;
    let spin = || {
        let began = thread_time();
        count_down(TURNS);
        thread_time().saturating_sub(began).as_secs_f64()
    };
    let mut costs = [0.0; ROUNDS];
    for cost in &mut costs {
        let (plain, before) = (spin(), event.ticks()?);
        event.enable(true)?;
        let ticking = spin();
        event.enable(false)?;
        *cost = (ticking - plain) / (event.ticks()? - before).max(1.0);
    }
    Ok(median(&mut costs).max(0.0))
}

/// Measures a hit of a watchpoint, in seconds.
///
/// # Errors
/// There are no debug registers, or others use them.
pub fn hit() -> io::Result<f64> {
    survive(measure_hit)
}

fn measure_hit() -> io::Result<f64> {
    const WRITES: u32 = 100;
    let byte = AtomicU8::new(0);
    let write = || {
        let began = thread_time();
        (0..WRITES).for_each(|_| byte.store(1, Ordering::Relaxed));
        thread_time().saturating_sub(began).as_secs_f64() / f64::from(WRITES)
    };
    let event = perf_event::Watching::new(byte.as_ptr() as u64)?;
    let mut costs = [0.0; ROUNDS];
    for cost in &mut costs {
        event.enable(false)?;
        let plain = write();
        event.enable(true)?;
        *cost = write() - plain;
    }
    Ok(median(&mut costs).max(0.0))
}

/// How much slower string instructions are while a watchpoint exists that is never hit, as a factor.
///
/// As long as a data breakpoint is enabled, processors do not use their fast path for `rep movs` and `rep stos`. On the
/// Intel Xeon where this was measured, each of them takes 2.5 to 4 times as long, and a program that creates tables all
/// the time runs slower by a quarter (compilers copy and clear small objects with these instructions). String
/// instructions whose target is the very start of a cache line stay fast, so the measurement uses targets off that
/// start (`OffTheStart`).
///
/// # Errors
/// As [`hit`].
pub fn armed() -> io::Result<f64> {
    survive(measure_armed)
}

fn measure_armed() -> io::Result<f64> {
    const COPIES: u32 = 2000;
    let (source, mut target) = ([1; LINE], OffTheStart::default());
    let mut copy = || {
        let began = thread_time();
        for _ in 0..COPIES {
            copy_in_bulk(&source, &mut target.words);
        }
        thread_time().saturating_sub(began).as_secs_f64()
    };
    let byte = AtomicU8::new(0);
    let event = perf_event::Watching::new(byte.as_ptr() as u64)?;
    let mut factors = [0.0; ROUNDS];
    for factor in &mut factors {
        event.enable(false)?;
        let plain = copy();
        event.enable(true)?;
        *factor = copy() / plain.max(1e-9);
    }
    Ok(median(&mut factors))
}

/// Words in a cache line.
const LINE: usize = 8;

/// Words that begin after the start of a cache line.
#[derive(Default)]
#[repr(C, align(64))]
struct OffTheStart {
    start: u64,
    words: [u64; LINE],
}

/// Puts an empty program on an instruction of lj-trace's own file, for this process alone.
fn probe(mechanism: Mechanism, kind: UprobeKind, offset: u64, wants_return: bool) -> io::Result<Held> {
    // `r0 = 0; exit`, or `r0 = 1; exit`, which tells a session to skip the return.
    let answer = u8::from(!wants_return);
    let program: [BpfInstruction; 2] = [[0xb7, 0, 0, 0, answer, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let means = Means::of(mechanism, kind)?;
    let program = load("calibrate", &program, c"GPL", matches!(means, Means::Multi(_)).then_some(kind))?;
    guardian::attach(program.as_fd(), Path::new("/proc/self/exe"), &[(offset, 0)], std::process::id(), means)
}

/// A function to call.
struct Callable(extern "C" fn());

impl Callable {
    /// A function that begins with an instruction that the kernel emulates, like the points that a plan chooses in an
    /// allocator.
    fn emulated() -> Self {
        Self(arch::emulated)
    }

    /// A function that begins with an instruction that the kernel has to single-step.
    fn stepped() -> Self {
        Self(arch::stepped)
    }

    fn file_offset(&self) -> io::Result<u64> {
        let address = self.0 as usize as u64;
        let maps = Maps::read(std::process::id()).map_err(io::Error::other)?;
        let mapping = maps.find(address).ok_or(io::ErrorKind::NotFound)?;
        Ok(address - mapping.start + mapping.offset)
    }

    /// The time of a call, in seconds.
    fn time(&self) -> f64 {
        let mut rounds = [0.0; ROUNDS];
        for round in &mut rounds {
            let began = thread_time();
            (0..CALLS).for_each(|_| (self.0)());
            *round = thread_time().saturating_sub(began).as_secs_f64() / f64::from(CALLS);
        }
        median(&mut rounds)
    }
}

/// The CPU time of this thread: other threads must not count.
pub(super) fn thread_time() -> Duration {
    // Every Linux has this clock.
    ClockId::THIS_THREAD.read().unwrap_or_default()
}

pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_in_our_own_file() {
        let of = |function: Callable| function.file_offset().unwrap();
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(bytes[of(Callable::emulated()) as usize..][..2], [0x90, 0xc3]);
        assert_eq!(bytes[of(Callable::stepped()) as usize..][..4], [0x48, 0x85, 0xc9, 0xc3]);
    }

    #[test]
    fn string_instructions_copy() {
        let mut target = [0; 8];
        copy_in_bulk(&[1, 2, 3, 4, 5, 6, 7, 8], &mut target);
        assert_eq!(target, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(OffTheStart::default().words.as_ptr() as usize % 64, 8);
        match armed() {
            Ok(factor) => assert!((0.2..50.0).contains(&factor), "{factor}"),
            Err(error) => println!("NOT RUN: there are no watchpoints here: {error}"),
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(&mut []), 0.0);
    }
}
