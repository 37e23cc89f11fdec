//! How long processes were ready to run but had no CPU: such a process is not waiting for anything else.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use lj_trace_engine::{Recording, Session};

/// The least time between two looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// The pause is also this many times as long as a look takes, which limits it to 0.1% of a CPU.
const REST: u32 = 1000;

/// How many processes, and how many threads of each, to look at.
const MOST: usize = 64;

/// How long threads have waited in run queues since the first look at each.
#[derive(Debug, Default)]
pub struct CpuQueue {
    /// For each thread: nanoseconds in a run queue, at the first and at the last look.
    threads: HashMap<u32, [u64; 2]>,
    next: Option<Instant>,
}

impl CpuQueue {
    /// Looks if it is time to.
    pub fn look(&mut self, session: &Session<'_>) {
        let begin = Instant::now();
        if self.next.is_some_and(|next| begin < next) {
            return;
        }
        for recording in session.recordings().take(MOST) {
            self.look_at(recording);
        }
        self.next = Some(Instant::now() + INTERVAL.max(begin.elapsed() * REST));
    }

    fn look_at(&mut self, recording: &Recording) {
        let pid = recording.process().pid();
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        for task in tasks.flatten().take(MOST) {
            let Some(thread) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            if let Some(queued) = queued(&text) {
                self.threads.entry(thread).or_insert([queued; 2])[1] = queued;
            }
        }
    }

    /// The sum over all threads in seconds, if the kernel counts it.
    pub fn seconds(&self) -> Option<f64> {
        let sum = self.threads.values().map(|[first, last]| last.saturating_sub(*first)).sum::<u64>();
        (!self.threads.is_empty()).then_some(sum as f64 / 1e9)
    }
}

/// The second number of `/proc/PID/task/TID/schedstat`: nanoseconds on a run queue. If the kernel does not count, the
/// numbers are zero.
fn queued(schedstat: &str) -> Option<u64> {
    let mut numbers = schedstat.split_whitespace().map(|number| number.parse::<u64>().ok());
    let (ran, queued) = (numbers.next()??, numbers.next()??);
    (ran > 0).then_some(queued)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_numbers_are_read() {
        assert_eq!(queued("1234 5678 9\n"), Some(5678));
        for nothing in ["", "0 0 0", "1", "x 1 2"] {
            assert_eq!(queued(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn only_what_was_added_since_counts() {
        let mut queue = CpuQueue::default();
        assert_eq!(queue.seconds(), None);
        queue.threads.insert(7, [1_000_000_000, 2_500_000_000]);
        queue.threads.insert(8, [500, 500]);
        assert_eq!(queue.seconds(), Some(1.5));
    }
}
