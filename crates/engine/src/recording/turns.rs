//! Turns of the event loops of one process.

use lj_trace_common::turn::{EndedTurn, TurnLengths};
use lj_trace_probes::programs::Programs;
use lj_trace_probes::turn_cost::TurnCost;
use lj_trace_probes::turns::{TurnLimits, Turns};
use lj_trace_process::Process;

use crate::error::EngineError;
use crate::sample_clock::now;

/// A recording of turns of event loops.
pub struct TurnsRecording {
    probes: Turns,
    /// The turns that had not ended when the recording did.
    under_way: Vec<EndedTurn>,
}

impl TurnsRecording {
    /// Prepares to record the turns of `process`.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(programs: &mut Programs, process: &Process, limits: TurnLimits) -> Result<Self, EngineError> {
        Ok(Self { probes: Turns::attach(programs, process, limits)?, under_way: Vec::new() })
    }

    /// Begins to record. The probes for waits must have begun before: they set up the same process.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn begin(&self) -> Result<(), EngineError> {
        Ok(self.probes.begin(now())?)
    }

    /// Ends the recording, and looks at the turns that have not ended.
    pub fn end(&mut self) {
        self.probes.end();
        if self.under_way.is_empty() {
            self.under_way = self.probes.under_way(now());
        }
    }

    /// What turn tracking costs: for each turn of a thread here, and for each system call on the machine.
    pub fn cost(&self) -> TurnCost {
        self.probes.cost()
    }

    /// How long the turns were so far.
    pub fn lengths(&self) -> TurnLengths {
        self.probes.lengths()
    }

    /// The turns that were too long and had not ended when the recording did.
    pub fn under_way(&self) -> Vec<EndedTurn> {
        self.under_way.clone()
    }
}
