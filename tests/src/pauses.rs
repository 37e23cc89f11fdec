//! Times at which nothing ran at all: the host of a virtual machine stops it now and then, and tells nobody. The CPU time of
//! whoever ran there goes on meanwhile, the timer behind the samples does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use lj_trace_process::privileges::priority::come_first;

/// How long the watching thread sleeps at a time.
const NAP: Duration = Duration::from_millis(1);

/// What comes first is never this late for want of a CPU.
const LATE: Duration = Duration::from_millis(10);

/// Watches for them, in a thread that comes before all others.
pub struct Pauses {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Duration>>,
}

impl Pauses {
    /// Begins to watch.
    pub fn watch() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            come_first();
            let mut sum = Duration::ZERO;
            while !told.load(Ordering::Relaxed) {
                let began = Instant::now();
                sleep(NAP);
                let late = began.elapsed().saturating_sub(NAP);
                if late >= LATE {
                    sum += late;
                }
            }
            sum
        });
        Self { is_over, thread: Some(thread) }
    }

    /// How long they took, in seconds.
    ///
    /// # Panics
    /// If the thread has.
    pub fn end(mut self) -> f64 {
        self.is_over.store(true, Ordering::Relaxed);
        let sum = self.thread.take().map(|thread| thread.join().expect("it does not panic"));
        sum.unwrap_or_default().as_secs_f64()
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        // A test that fails leaves no thread that comes before all others.
        self.is_over.store(true, Ordering::Relaxed);
    }
}
