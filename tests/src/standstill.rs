//! For how long a process stands still, as others see it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::usage::stolen;

/// A process may stand still for so much longer than it was allowed to.
pub const MORE: Duration = Duration::from_millis(100);

/// What was seen of a process that was stopped.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// For how long it was seen to stand still: from the first to the last look at which it did.
    pub stood: Duration,
    /// The longest time that a thread had to wait for a CPU meanwhile, and the time that the host of a virtual machine has taken from
    /// its CPUs: what lets the process go on may have been without one.
    pub late: Duration,
}

/// Whether all of a process is stopped by a tracer.
pub fn stands(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('t'))
}

/// Watches a process while something is done.
pub fn watch<T>(pid: u32, work: impl FnOnce() -> T) -> (T, Seen) {
    const LOOK: Duration = Duration::from_millis(1);
    let over = AtomicBool::new(false);
    let taken = || stolen().unwrap_or(0.0);
    let before = taken();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut first, mut seen) = (None, Seen { stood: Duration::ZERO, late: Duration::ZERO });
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                std::thread::sleep(LOOK);
                seen.late = seen.late.max(before.elapsed().saturating_sub(LOOK));
                let now = Instant::now();
                if stands(pid) {
                    seen.stood = now - *first.get_or_insert(now);
                }
            }
            seen
        });
        let result = work();
        over.store(true, Ordering::Relaxed);
        let nothing = Seen { stood: Duration::ZERO, late: Duration::ZERO };
        let mut seen = watcher.join().unwrap_or(nothing);
        seen.late += Duration::from_secs_f64((taken() - before).max(0.0));
        (result, seen)
    })
}
