//! The kernel's clocks (clock_gettime(2), clock_getcpuclockid(3)).

use std::io;
use std::time::Duration;

/// `CPUCLOCK_SCHED` of `include/linux/posix-timers.h`: the scheduler's time, to the nanosecond.
const SCHED: i32 = 2;

/// `CPUCLOCK_PERTHREAD_MASK`, from the same header.
const OF_THREAD: i32 = 4;

/// The number of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockId(libc::clockid_t);

impl ClockId {
    /// The CPU time of this process.
    pub const THIS_PROCESS: Self = Self(libc::CLOCK_PROCESS_CPUTIME_ID);

    /// The time since the system was started.
    pub const MONOTONIC: Self = Self(libc::CLOCK_MONOTONIC);

    /// The CPU time of the calling thread.
    pub const THIS_THREAD: Self = Self(libc::CLOCK_THREAD_CPUTIME_ID);

    /// The CPU time of all threads of a process.
    pub fn of_process(pid: u32) -> Self {
        Self(!pid.cast_signed() << 3 | SCHED)
    }

    /// The CPU time of a thread.
    pub fn of_thread(tid: u32) -> Self {
        Self(!tid.cast_signed() << 3 | OF_THREAD | SCHED)
    }

    /// Reads the clock.
    ///
    /// # Errors
    /// If there is no such process or thread.
    pub fn read(self) -> io::Result<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel checks the clock's number, and writes `time` alone.
        if unsafe { libc::clock_gettime(self.0, &raw mut time) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)))
    }
}

/// The CPU time of a process with all its threads, also those that have ended, in seconds.
pub fn cpu_time(pid: u32) -> Option<f64> {
    // A larger number is no process id; for some of these numbers the clock would be this process's own.
    i32::try_from(pid).ok()?;
    ClockId::of_process(pid).read().ok().map(|time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_go_forward_and_belong_to_somebody() {
        // SAFETY: gettid(2) takes nothing, and always succeeds.
        let tid = unsafe { libc::gettid() }.cast_unsigned();
        let own = [
            ClockId::MONOTONIC,
            ClockId::THIS_THREAD,
            ClockId::of_process(std::process::id()),
            ClockId::of_thread(tid),
        ];
        let before = own.map(|clock| clock.read().unwrap());
        while ClockId::THIS_THREAD.read().unwrap() < before[1] + Duration::from_millis(5) {}
        let after = own.map(|clock| clock.read().unwrap());
        assert!(before.iter().zip(after).all(|(before, after)| *before < after), "{before:?}, {after:?}");
        assert!(
            ClockId::of_process(u32::MAX >> 4).read().is_err() && ClockId::of_thread(u32::MAX >> 4).read().is_err()
        );
    }

    #[test]
    fn the_clock_of_a_process_runs_while_it_works() {
        let before = cpu_time(std::process::id()).unwrap();
        let began = std::time::Instant::now();
        while cpu_time(std::process::id()).unwrap() - before < 0.02 {
            assert!(began.elapsed() < Duration::from_secs(60), "it stands still");
        }
        assert_eq!(cpu_time(u32::MAX), None);
    }
}
