//! What the layouts of VMs leave open until there are traces.

use std::time::{Duration, Instant};

use crate::target::Process;
use crate::vm::{Vm, prove_again};

/// Decides it.
#[derive(Debug, Default)]
pub struct Deciding {
    /// When it has tried last.
    tried: Option<Instant>,
}

impl Deciding {
    /// The same VM with what is decided now that it has traces; [`None`] if nothing is open, if a moment ago was too early,
    /// and if the process is gone.
    pub fn decide(&mut self, process: &Process, vm: &Vm) -> Option<Vm> {
        /// Proving takes some milliseconds.
        const BETWEEN: Duration = Duration::from_millis(50);
        if vm.undecided.is_empty() || self.tried.is_some_and(|tried| tried.elapsed() < BETWEEN) {
            return None;
        }
        self.tried = Some(Instant::now());
        let maps = process.maps().ok()?;
        prove_again(process, &maps, vm).ok()
    }
}
