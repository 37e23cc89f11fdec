//! The programs for turns of event loops, against generated loops on several threads of this test.
//!
//! The test's own clock gives two bounds for each turn. The turn is at least as long as the time from after the wait
//! before it to the beginning of the next wait. It is at most as long as the time from before the first wait to after
//! the second. However busy the machine is, the reported length must be between the two.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use lj_trace_common::turn::{EndedTurn, step_of};
use lj_trace_probes::off_cpu::OffCpu;
use lj_trace_probes::programs::{Programs, Wanted};
use lj_trace_probes::sample::Record;
use lj_trace_probes::sample_buffer::SampleBuffer;
use lj_trace_probes::turns::{self, TurnLimits, Turns};
use lj_trace_process::Process;

use crate::{alone, skips};

const MS: u64 = 1_000_000;
const OVER: u64 = 5 * MS;
const THREADS: u64 = 4;
const TURNS: usize = 60;

/// Pseudorandom numbers, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn tid() -> u32 {
    // SAFETY: it has no preconditions.
    u32::try_from(unsafe { libc::gettid() }).unwrap()
}

/// How a loop waits.
#[derive(Clone, Copy, Debug)]
enum Wait {
    /// epoll_wait, epoll_pwait, epoll_pwait2.
    Epoll(i64),
    Poll,
    Ppoll,
    Select,
    Pselect,
}

const WAITS: [Wait; 7] = [
    Wait::Epoll(libc::SYS_epoll_wait),
    Wait::Epoll(libc::SYS_epoll_pwait),
    Wait::Epoll(libc::SYS_epoll_pwait2),
    Wait::Poll,
    Wait::Ppoll,
    Wait::Select,
    Wait::Pselect,
];

/// Waits this many milliseconds for events that never come.
fn wait(how: Wait, file: i32, milliseconds: i64) {
    let mut events = [0_u8; 64];
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
    let mut short = libc::timeval { tv_sec: 0, tv_usec: milliseconds * 1000 };
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the files and sets are none or an epoll file of ours, the places have the room that the calls are told.
    unsafe {
        match how {
            Wait::Epoll(call) if call == libc::SYS_epoll_pwait2 => {
                libc::syscall(call, file, events.as_mut_ptr(), 1, &raw mut time, none, 8);
            }
            Wait::Epoll(call) => _ = libc::syscall(call, file, events.as_mut_ptr(), 1, milliseconds, none, 8),
            Wait::Poll => _ = libc::syscall(libc::SYS_poll, none, 0, milliseconds),
            Wait::Ppoll => _ = libc::syscall(libc::SYS_ppoll, none, 0, &raw mut time, none, 8),
            Wait::Select => _ = libc::syscall(libc::SYS_select, 0, none, none, none, &raw mut short),
            Wait::Pselect => _ = libc::syscall(libc::SYS_pselect6, 0, none, none, none, &raw mut time, none),
        }
    }
}

/// A wait within a turn, from deeper on the stack, like those of the C library's resolver.
#[inline(never)]
fn wait_deeper(how: Wait, file: i32, milliseconds: i64) -> u8 {
    let mut room = [0_u8; 4096];
    std::hint::black_box(&mut room);
    wait(how, file, milliseconds);
    std::hint::black_box(room)[7]
}

/// What is known of a turn: the earliest and the latest moments at which it may have begun and ended.
#[derive(Clone, Debug)]
struct Turn {
    tid: u32,
    began: [u64; 2],
    ended: [u64; 2],
    /// What it did.
    #[expect(dead_code, reason = "it is shown where a test fails")]
    did: String,
    /// How many nanoseconds it slept.
    slept: u64,
}

impl Turn {
    fn least(&self) -> u64 {
        self.ended[0] - self.began[1]
    }

    fn most(&self) -> u64 {
        self.ended[1] - self.began[0]
    }

    fn is(&self, told: &EndedTurn) -> bool {
        let within = |time: u64, [from, to]: [u64; 2]| (from..=to).contains(&time);
        told.tid == self.tid && within(told.began, self.began) && within(told.ended, self.ended)
    }
}

/// Runs a loop. Returns its turns.
fn run(seed: u64) -> Vec<Turn> {
    let mut numbers = Numbers(seed);
    // SAFETY: it has no preconditions.
    let file = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let how = WAITS[numbers.below(WAITS.len() as u64) as usize];
    let nested = [Wait::Poll, Wait::Ppoll, Wait::Select, Wait::Pselect];
    let mut turns = Vec::new();
    let mut began: Option<([u64; 2], String, u64)> = None;
    for _ in 0..=TURNS {
        let before = now();
        // Some waits end at once, as if there were events.
        wait(how, file, numbers.below(2) as i64);
        let behind = now();
        if let Some((began, did, slept)) = began.take() {
            turns.push(Turn { tid: tid(), began, ended: [before, behind], did, slept });
        }
        let length = match numbers.below(4) {
            0 => numbers.below(OVER),
            1 => OVER + numbers.below(2 * OVER),
            // Close to the threshold.
            2 => OVER - MS / 2 + numbers.below(MS),
            _ => 0,
        };
        let did = match numbers.below(3) {
            _ if length == 0 => "nothing".to_owned(),
            0 => {
                let began = Instant::now();
                while began.elapsed() < Duration::from_nanos(length) {}
                "ran".to_owned()
            }
            1 => {
                thread::sleep(Duration::from_nanos(length));
                "slept".to_owned()
            }
            _ => {
                let inner = nested[numbers.below(4) as usize];
                wait_deeper(inner, file, (length / MS) as i64);
                format!("{inner:?}")
            }
        };
        let slept = if did == "slept" { length } else { 0 };
        began = Some(([before, behind], format!("{how:?}: {did}, {length} ns"), slept));
    }
    // SAFETY: the file is this function's own.
    unsafe { libc::close(file) };
    turns
}

#[test]
fn all_long_turns_of_generated_loops_are_told_and_no_others() {
    let _alone = alone();
    if let Err(error) = lj_trace_probes::object::object() {
        skips::skip(&error.to_string());
        return;
    }
    if let Err(error) = turns::check() {
        skips::skip(&format!("{error:#}"));
        return;
    }
    // With waits measured, and without, as on kernels that cannot measure them.
    for off_cpu in [lj_trace_probes::off_cpu::check().is_ok(), false] {
        let wanted = Wanted { off_cpu, turns: true, ..Wanted::nothing() };
        let process = Process::open(std::process::id()).unwrap();
        let mut programs = Programs::load(wanted, &[]).unwrap_or_else(|error| panic!("{error}"));
        let mut buffer = SampleBuffer::open(&programs).unwrap();
        let mut waits = off_cpu.then(|| OffCpu::attach(&programs, &process).unwrap());
        let turns =
            Turns::attach(&mut programs, &process, TurnLimits::over(OVER)).unwrap_or_else(|error| panic!("{error}"));
        println!("{:?}", turns.cost());
        if let Some(waits) = &mut waits {
            waits.begin(now()).unwrap();
        }
        turns.begin(now()).unwrap();
        let mut known = Vec::new();
        // Several rounds: threads get the numbers of others that have ended.
        for round in 0..3 {
            let threads: Vec<_> = (0..THREADS).map(|seed| thread::spawn(move || run(100 * round + seed))).collect();
            for thread in threads {
                known.extend(thread.join().unwrap());
            }
        }
        let mut told = Vec::new();
        buffer.drain(|record| {
            if let Record::Turn(turn) = record {
                told.push(turn);
            }
            ControlFlow::Continue(())
        });
        // Threads end in the middle of their last turn, of which the test knows nothing. The thread that reads samples
        // has turns as well.
        let has_loop = |tid: u32| known.iter().any(|turn| turn.tid == tid);
        told.retain(|turn| turn.exited == 0 && has_loop(turn.tid));
        for turn in known.iter().filter(|turn| turn.least() >= OVER) {
            assert_eq!(told.iter().filter(|told| turn.is(told)).count(), 1, "off_cpu {off_cpu}: {turn:?} in {told:#?}");
        }
        let mut unseen_sleeps = 0;
        for told in &told {
            let own: Vec<_> = known.iter().filter(|turn| turn.is(told)).collect();
            assert!(own.len() == 1 && own[0].most() >= OVER, "off_cpu {off_cpu}: {told:?} is {own:?}");
            assert!(told.length() >= OVER && told.waited + told.unseen <= told.length(), "{told:?}");
            assert!(told.preempted <= told.waited, "{told:?}");
            assert!(off_cpu || told.waited == 0, "{told:?}");
            unseen_sleeps += u32::from(off_cpu && told.waited + told.unseen < own[0].slept / 2);
        }
        // Between the timer's start and the switch the thread may lose its CPU to another virtual machine, for so long that it sleeps no
        // more: that is some microseconds of each of some hundred sleeps, so it happens to one of them, and not to two.
        assert!(unseen_sleeps <= 1, "{unseen_sleeps} sleeps were not seen as waits: {told:#?}");
        let lengths = turns.lengths();
        let count = lengths.turns.iter().sum::<u64>();
        assert!(count >= known.len() as u64 && lengths.lost == 0, "{count} of {}", known.len());
        let long = lengths.turns[step_of(OVER)..].iter().sum::<u64>();
        assert!(long >= told.len() as u64, "{long} of {}", told.len());
        let least: u64 = known.iter().map(Turn::least).sum();
        assert!(lengths.time >= least, "{} of {least}", lengths.time);
    }
}
