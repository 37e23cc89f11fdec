//! Decides between layouts that only traces can tell apart, once there are traces.

use std::time::{Duration, Instant};

use lj_trace_luajit::{Vm, prove_again};
use lj_trace_process::Process;

/// How long after the first try is tried again, and after each of the next: twice as long, but no longer than that. A try
/// fails where traces are flushed all the time, for it has to see one twice.
const SOON: Duration = Duration::from_millis(5);
const LATE: Duration = Duration::from_millis(100);

/// Decides it.
#[derive(Debug, Default)]
pub struct LayoutDecision {
    /// When it may try again.
    next: Option<Instant>,
    /// How often it has tried.
    tries: u32,
}

impl LayoutDecision {
    /// The same VM with more that is decided, now that it has traces; [`None`] if nothing is open that traces need, if a
    /// moment ago was too early, if there were none just then, and if the process is gone.
    pub fn decide(&mut self, process: &Process, vm: &Vm) -> Option<Vm> {
        let began = Instant::now();
        if !vm.leaves_traces_open() || self.next.is_some_and(|next| began < next) {
            return None;
        }
        let decided = process.maps().ok().and_then(|maps| prove_again(process, &maps, vm).ok());
        self.next = Some(Instant::now() + pause(self.tries, began.elapsed()));
        self.tries += 1;
        // In a moment without traces it would know less than before.
        decided.filter(|decided| decided.undecided.len() < vm.undecided.len())
    }
}

/// How long it waits after it has tried so often before, and once more for so long: others need the time, too.
fn pause(tries: u32, took: Duration) -> Duration {
    SOON.saturating_mul(1 << tries.min(16)).min(LATE).max(took * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_soon_and_then_less_often() {
        let milliseconds = |tries, took| pause(tries, Duration::from_millis(took)).as_millis();
        assert_eq!([0, 1, 2, 3, 4, 5, 99].map(|tries| milliseconds(tries, 1)), [5, 10, 20, 40, 80, 100, 100]);
        assert_eq!((milliseconds(0, 4), milliseconds(99, 70)), (8, 140));
    }
}
