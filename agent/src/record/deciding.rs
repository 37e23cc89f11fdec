//! What the layouts of VMs leave open until there are traces.

use std::time::{Duration, Instant};

use crate::target::Process;
use crate::vm::{Vm, prove_again};

/// Decides it.
#[derive(Debug, Default)]
pub struct Deciding {
    /// When it may try again.
    next: Option<Instant>,
}

impl Deciding {
    /// The same VM with what is decided now that it has traces; [`None`] if nothing is open, if a moment ago was too early,
    /// and if the process is gone.
    pub fn decide(&mut self, process: &Process, vm: &Vm) -> Option<Vm> {
        /// Proving takes some milliseconds; where it takes longer, what comes in between takes as long at least.
        const BETWEEN: Duration = Duration::from_millis(50);
        let began = Instant::now();
        if vm.undecided.is_empty() || self.next.is_some_and(|next| began < next) {
            return None;
        }
        let decided = process.maps().ok().and_then(|maps| prove_again(process, &maps, vm).ok());
        self.next = Some(Instant::now() + BETWEEN.max(began.elapsed() * 2));
        decided
    }
}
