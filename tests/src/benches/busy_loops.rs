//! Threads that take what CPU time they get, at the same priority as everything else.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};

/// Some of them; they end when this is dropped.
#[derive(Debug, Default)]
pub struct BusyLoops {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyLoops {
    /// Starts so many.
    pub fn start(count: u32) -> Self {
        let over = Arc::<AtomicBool>::default();
        let run = || {
            let over = over.clone();
            spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            })
        };
        let threads = (0..count).map(|_| run()).collect();
        Self { over, threads }
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
