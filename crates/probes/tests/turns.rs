//! The programs for turns of event loops in this kernel, with a thread of this test that has a loop.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lj_trace_common::event::SAMPLE_WAIT;
use lj_trace_common::turn::{EndedTurn, step_of};
use lj_trace_probes::off_cpu::{self, OffCpu};
use lj_trace_probes::programs::{Programs, Wanted};
use lj_trace_probes::sample::Record;
use lj_trace_probes::sample_buffer::SampleBuffer;
use lj_trace_probes::sampler::{EventPlaces, Sampler};
use lj_trace_probes::turns::{TurnLimits, Turns};
use lj_trace_process::Process;

use crate::{alone, skips};

const MS: u64 = 1_000_000;
const OVER: u64 = 20 * MS;

/// `CLOCK_MONOTONIC`, in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn poll() {
    // SAFETY: no files are polled.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
}

/// Polls from deeper on the stack: this wait does not belong to the loop.
#[inline(never)]
fn poll_deeper() -> u8 {
    let mut room = [0_u8; 4096];
    std::hint::black_box(&mut room);
    poll();
    std::hint::black_box(room)[7]
}

fn spin(milliseconds: u64) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(milliseconds) {}
}

#[test]
fn each_turn_is_measured_and_long_ones_are_told() {
    let _alone = alone();
    if let Err(error) = lj_trace_probes::object::object() {
        skips::skip(&error.to_string());
        return;
    }
    if let Err(error) = off_cpu::check() {
        skips::skip(&format!("{error:#}"));
        return;
    }
    let wanted = Wanted { cpu: true, off_cpu: true, turns: true, ..Wanted::nothing() };
    let process = Process::open(std::process::id()).unwrap();
    let mut programs = Programs::load(wanted, &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut buffer = SampleBuffer::open(&programs).unwrap();
    let sampler = Sampler::attach(&mut programs, &process, 999, EventPlaces::Auto).unwrap();
    let mut waits = OffCpu::attach(&programs, &process).unwrap();
    let turns =
        Turns::attach(&mut programs, &process, TurnLimits::over(OVER)).unwrap_or_else(|error| panic!("{error}"));
    waits.begin(now()).unwrap();
    turns.begin(now()).unwrap();
    sampler.begin().unwrap();
    // Milliseconds on the CPU, milliseconds in a wait, and whether that is a poll that does not belong to the loop.
    let plan =
        [(0, 0, false), (30, 0, false), (5, 0, false), (0, 40, false), (15, 15, false), (0, 0, false), (25, 0, true)];
    let mut measured = Vec::new();
    poll();
    for (run, wait, polls) in plan {
        let began = now();
        spin(run);
        if wait != 0 {
            sleep(Duration::from_millis(wait));
        }
        if polls {
            poll_deeper();
        }
        measured.push((began, now(), wait));
        poll();
    }
    // SAFETY: it has no preconditions.
    let own = u32::try_from(unsafe { libc::gettid() }).unwrap();
    let (mut told, mut ticks, mut waited) = (Vec::<EndedTurn>::new(), HashMap::new(), HashMap::new());
    buffer.drain(|record| {
        match record {
            Record::Turn(turn) if turn.tid == own => told.push(turn),
            Record::Sample(sample) if sample.header.tid == own => {
                assert_ne!(sample.header.turn, 0);
                let (map, weight) = match sample.header.flags & SAMPLE_WAIT {
                    0 => (&mut ticks, MS),
                    _ => (&mut waited, sample.header.allocation_size),
                };
                *map.entry(sample.header.turn).or_insert(0) += weight;
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let long: Vec<_> = measured.iter().filter(|(began, ended, _)| ended - began >= OVER).collect();
    assert!(long.len() >= 4, "{measured:?}");
    for (began, ended, wait) in &long {
        let turn = told.iter().find(|turn| turn.began <= *began && turn.ended >= *ended);
        let turn = turn.unwrap_or_else(|| panic!("{began} to {ended} is not in {told:?}"));
        // Between the wait and the clock the thread may lose its CPU.
        assert!(turn.length() - (ended - began) < 2 * MS + turn.preempted, "{turn:?}: {began} to {ended}");
        let blocked = turn.waited - turn.preempted;
        // On a busy machine, a thread that was woken may wait long for a CPU: that belongs to its wait.
        assert!(blocked + MS / 2 >= wait * MS, "{turn:?}: {wait} ms");
        assert!(turn.waited + MS / 2 >= wait * MS && turn.waited < turn.length(), "{turn:?}: {wait} ms");
        let seen = ticks.get(&turn.number).copied().unwrap_or(0) + waited.get(&turn.number).copied().unwrap_or(0);
        assert!(seen > (turn.length() - OVER / 4) / 2 && seen < turn.length() + 5 * MS, "{turn:?}: {seen} ns seen");
    }
    assert!(told.iter().all(|turn| turn.length() >= OVER), "{told:?}");
    let lengths = turns.lengths();
    let count: u64 = lengths.turns.iter().sum();
    assert!(count >= plan.len() as u64 && lengths.lost == 0, "{count}");
    let counted: u64 = lengths.turns[step_of(OVER)..].iter().sum();
    assert!(counted >= long.len() as u64, "{counted}");
}
