//! Measures what an event on a thread costs at each context switch: the kernel stops its timer or counter when the
//! thread leaves a CPU, and sets it anew when the thread returns. This cost differs between machines and rates by an
//! order of magnitude. So lj-trace measures it on two threads of its own, which pass a token back and forth on one CPU,
//! with events and without.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;

use lj_trace_process::clocks::ClockId;

use super::perf_event::{Clock, Ticking};

/// Tokens in a round, and the number of rounds.
const TOKENS: u32 = 200;
const ROUNDS: usize = 9;

/// The byte that ends the other thread.
const LAST: u8 = 0;
const TOKEN: u8 = 1;

/// The extra cost of a context switch, in seconds, if the thread has an event of this clock.
///
/// # Errors
/// The kernel gives lj-trace no events or no threads.
pub fn armed(clock: Clock, rate: u32) -> io::Result<f64> {
    let (mut own, mut others) = UnixStream::pair()?;
    let (tell, told) = mpsc::channel();
    let cpu = current_cpu();
    stay_on(cpu);
    let other = thread::Builder::new().name("calibrate".to_owned()).spawn(move || -> io::Result<()> {
        stay_on(cpu);
        let _ = tell.send(thread_id());
        let mut token = [TOKEN];
        while token[0] != LAST {
            others.read_exact(&mut token)?;
            others.write_all(&token)?;
        }
        Ok(())
    })?;
    let threads = [thread_id(), told.recv().map_err(io::Error::other)?];
    let measured = measure(clock, rate, threads, &mut own);
    // The other thread ends by this byte, or because this end is closed.
    let _ = own.write_all(&[LAST]);
    drop(own);
    let _ = other.join();
    measured
}

fn measure(clock: Clock, rate: u32, threads: [u32; 2], socket: &mut UnixStream) -> io::Result<f64> {
    let events = [Ticking::on(clock, rate, threads[0])?, Ticking::on(clock, rate, threads[1])?];
    let mut hand = || -> io::Result<f64> {
        let before = cpu_time(threads)?;
        let mut token = [TOKEN];
        for _ in 0..TOKENS {
            socket.write_all(&token)?;
            socket.read_exact(&mut token)?;
        }
        // The token makes the scheduler switch twice, to the other thread and back.
        Ok((cpu_time(threads)? - before) / f64::from(2 * TOKENS))
    };
    hand()?;
    let mut more = [0.0; ROUNDS];
    for more in &mut more {
        let without = hand()?;
        events.iter().try_for_each(|event| event.enable(true))?;
        let with = hand()?;
        events.iter().try_for_each(|event| event.enable(false))?;
        *more = with - (without + hand()?) / 2.0;
    }
    more.sort_by(f64::total_cmp);
    Ok(more[ROUNDS / 2].max(0.0))
}

/// The CPU time of both threads, in seconds.
fn cpu_time(threads: [u32; 2]) -> io::Result<f64> {
    threads.iter().map(|&thread| Ok(ClockId::of_thread(thread).read()?.as_secs_f64())).sum()
}

fn thread_id() -> u32 {
    // SAFETY: gettid(2) takes nothing, and always succeeds.
    unsafe { libc::gettid() }.cast_unsigned()
}

fn current_cpu() -> usize {
    // SAFETY: sched_getcpu(3) takes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Keeps this thread on one CPU, if possible. On two CPUs, one would go idle at each hand-over.
fn stay_on(cpu: usize) {
    // SAFETY: a zeroed set is an empty one, and the call reads no more than its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if cpu < libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_costs_something_at_each_switch() {
        match armed(Clock::CpuClock, 499) {
            // 0.3 to 3 us on a virtual machine; a token itself takes some 3 us.
            Ok(seconds) => assert!((0.0..50e-6).contains(&seconds), "{seconds}"),
            Err(error) => println!("NOT RUN: there are no events here: {error}"),
        }
    }

    #[test]
    fn both_threads_have_a_clock() {
        let own = thread_id();
        assert!(cpu_time([own, own]).unwrap() > 0.0);
        assert!(cpu_time([own, u32::MAX >> 4]).is_err());
    }
}
