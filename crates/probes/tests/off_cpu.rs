//! The programs for time off the CPU in this kernel, with waiting threads of this test.

use std::iter;
use std::ops::ControlFlow;
use std::time::Duration;

use lj_trace_common::config::Counter;
use lj_trace_common::event::SAMPLE_WAIT;
use lj_trace_probes::kernel_places;
use lj_trace_probes::off_cpu::OffCpu;
use lj_trace_probes::programs::{Programs, Wanted};
use lj_trace_probes::sample::Record;
use lj_trace_probes::sample_buffer::SampleBuffer;
use lj_trace_process::Process;

use crate::{alone, skips};

/// `CLOCK_MONOTONIC`, in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A sample: the thread, its weight, whether it has a kernel stack.
type Taken = (u32, u64, bool);

fn taken(buffer: &mut SampleBuffer) -> Vec<Taken> {
    let mut taken = Vec::new();
    buffer.drain(|record| {
        if let Record::Sample(sample) = record {
            assert_ne!(sample.header.flags & SAMPLE_WAIT, 0);
            assert!(!sample.stack.is_empty());
            taken.push((sample.header.tid, sample.header.allocation_size, !sample.kernel.is_empty()));
        }
        ControlFlow::Continue(())
    });
    taken
}

#[test]
fn waits_count_for_as_long_as_they_last() {
    let _alone = alone();
    if let Err(error) = lj_trace_probes::object::object() {
        skips::skip(&error.to_string());
        return;
    }
    if let Err(error) = kernel_places::try_it() {
        skips::skip(&format!("{error:#}"));
        return;
    }
    let wanted = Wanted { off_cpu: true, ..Wanted::nothing() };
    let process = Process::open(std::process::id()).unwrap();
    let programs = match Programs::load(wanted, &[]) {
        Ok(programs) => programs,
        Err(error) => panic!("{error}"),
    };
    let mut buffer = SampleBuffer::open(&programs).unwrap();
    let mut off = OffCpu::attach(&programs, &process).unwrap();
    let sleeper = std::thread::spawn(|| {
        // SAFETY: it has no preconditions.
        let tid = unsafe { libc::gettid() } as u32;
        let mut waits = Vec::new();
        // The first one is under way when it begins; then from far below the threshold to above it.
        for length in iter::once(60_000).chain((0..160_u64).map(|turn| turn * 7919 % 40 * 400)) {
            let began = now();
            std::thread::sleep(Duration::from_micros(length));
            waits.push((began, now()));
        }
        (tid, waits)
    });
    std::thread::sleep(Duration::from_millis(20));
    let began = now();
    off.begin(began).unwrap();
    let (tid, waits) = sleeper.join().unwrap();
    off.end();
    let ended = now();
    let taken = taken(&mut buffer);
    let of_sleeper: u64 = taken.iter().filter(|(of, ..)| *of == tid).map(|(_, weight, _)| weight).sum();
    // On a busy machine it may have begun during a later wait, or between two.
    let waited = waits.iter().map(|(from, to)| to.saturating_sub(began.max(*from)) as f64).sum::<f64>();
    println!("{} taken, {:.3} s of {:.3} s", taken.len(), of_sleeper as f64 / 1e9, waited / 1e9);
    for counter in Counter::ALL {
        if programs.count(*counter) != 0 {
            println!("{}: {}", counter.describe(), programs.count(*counter));
        }
    }
    assert!(taken.iter().filter(|(of, ..)| *of == tid).all(|(_, _, has_kernel)| *has_kernel));
    // One threshold more or less, plus the time of the clock itself.
    assert!((of_sleeper as f64 - waited).abs() < 10e6 + 0.03 * waited, "{of_sleeper} of {waited}");
    // The thread has ended, or is about to: its sum belongs to the process, or still to the thread.
    let own = off.waited().get(&tid).map_or(0, |(_, time)| *time);
    assert!((programs.count(Counter::WaitTime) + own) as f64 > waited * 0.97, "{own}");
    // The main thread of the test's process waits for this thread, and has done so since before recording began.
    let main = process.pid();
    let under_way = off.under_way().unwrap();
    let main = under_way.iter().find(|under_way| under_way.task.tid == main).unwrap();
    assert!(main.since >= began && main.since < ended, "{} {} {}", main.since, began, ended);
    assert!(main.task.kernel_size > 0 && main.task.registers.iter().any(|register| *register != 0));
}
