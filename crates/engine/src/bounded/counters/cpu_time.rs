//! The CPU time that a process has used, as long as reading it is quick.

use std::time::{Duration, Instant};

use lj_trace_process::clocks::ClockId;

/// The kernel adds up all threads. A reading that takes longer than this is not worth its cost.
const MOST: Duration = Duration::from_micros(20);

/// After this number of slow readings in a row, the clock is not read any more. A single slow reading may have been
/// interrupted.
const TRIES: u32 = 8;

/// Reads the CPU time of a process.
#[derive(Debug)]
pub struct CpuTimeReader {
    clock: ClockId,
    slow: u32,
}

impl CpuTimeReader {
    /// The reader for the process with this id.
    pub fn of(pid: u32) -> Self {
        Self { clock: ClockId::of_process(pid), slow: 0 }
    }

    /// The CPU time in seconds; [`None`] if the process is gone, or has so many threads that reading is slow.
    pub fn read(&mut self) -> Option<f64> {
        if self.slow >= TRIES {
            return None;
        }
        let began = Instant::now();
        let time = self.clock.read().ok();
        self.slow = if began.elapsed() > MOST { self.slow + 1 } else { 0 };
        time.map(|time| time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_process_has_used() {
        let mut own = CpuTimeReader::of(std::process::id());
        let before = own.read().unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        own.slow = 0;
        assert!(own.read().unwrap() > before);
        assert_eq!(CpuTimeReader::of(u32::MAX >> 4).read(), None, "no such process");
    }
}
