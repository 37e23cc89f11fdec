//! The agent's own heap: what is freed goes back to the system.
//!
//! An agent runs for months, and what it holds comes and goes: processes, symbol tables, an interval's profiles. glibc
//! gives each thread a heap of its own, keeps what was freed in the middle of each, and so stays near the sum of the
//! largest that each thread ever needed: 13 MB where 6 MB are in use, reached in steps over an hour.

use std::time::{Duration, Instant};

/// How often to give memory back. It takes some milliseconds at most.
const INTERVAL: Duration = Duration::from_secs(30);

/// When memory was given back last.
#[derive(Debug, Default)]
pub struct OwnHeap {
    last: Option<Instant>,
}

impl OwnHeap {
    /// Has all threads that start from now on share one heap. The agent's threads are seldom busy at the same time.
    pub fn share() {
        #[cfg(target_env = "gnu")]
        // SAFETY: mallopt takes plain integers, and may be called at any time.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }

    /// Gives back what is free, if it is time to.
    pub fn give_back(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            return;
        }
        self.last = Some(now);
        #[cfg(target_env = "gnu")]
        // SAFETY: malloc_trim takes a plain integer, and locks what it changes.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
