//! Decides between layouts that only traces can tell apart, once there are traces.

use std::time::{Duration, Instant};

use lj_trace_luajit::{Vm, prove_again};
use lj_trace_process::Process;

/// The waits between two tries. The wait doubles after each try, from `SOON` up to `LATE`. A try has to see the same trace
/// twice, so it fails while traces are flushed all the time.
const SOON: Duration = Duration::from_millis(5);
const LATE: Duration = Duration::from_millis(100);

/// Decides what is open in the layout of a VM.
#[derive(Debug, Default)]
pub struct LayoutDecision {
    /// The earliest time of the next try.
    next: Option<Instant>,
    /// The number of tries so far.
    tries: u32,
}

impl LayoutDecision {
    /// The same VM with more of its layout decided, now that it has traces. [`None`] if no open question needs traces, if
    /// the last try was too recent, if there are no traces at the moment, or if the process is gone.
    pub fn decide(&mut self, process: &Process, vm: &Vm) -> Option<Vm> {
        let began = Instant::now();
        if !vm.leaves_traces_open() || self.next.is_some_and(|next| began < next) {
            return None;
        }
        let decided = process.maps().ok().and_then(|maps| prove_again(process, &maps, vm).ok());
        self.next = Some(Instant::now() + pause(self.tries, began.elapsed()));
        self.tries += 1;
        // A moment without traces would decide less than what is known already.
        decided.filter(|decided| decided.undecided.len() < vm.undecided.len())
    }
}

/// The wait after so many tries, of which the last one `took` this long: other work needs time, too.
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
