//! Turns of the event loops of one process.

use lj_trace_common::turn::{EndedTurn, TurnLengths};
use lj_trace_probes::programs::Programs;
use lj_trace_probes::turn_cost::TurnCost;
use lj_trace_probes::turns::{TurnLimits, Turns};
use lj_trace_process::Process;

use crate::cpu::about_process::now;
use crate::error::EngineError;

/// Turns that are being looked at.
pub struct TurnsRecording {
    probes: Turns,
    /// Those that had not ended at its end.
    under_way: Vec<EndedTurn>,
}

impl TurnsRecording {
    /// Prepares to look at those of `process`.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(programs: &mut Programs, process: &Process, limits: TurnLimits) -> Result<Self, EngineError> {
        Ok(Self { probes: Turns::attach(programs, process, limits)?, under_way: Vec::new() })
    }

    /// Begins. What sees waits has begun before: it is told of the same process.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn begin(&self) -> Result<(), EngineError> {
        Ok(self.probes.begin(now())?)
    }

    /// Ends it: looks at the turns that have not ended.
    pub fn end(&mut self) {
        self.probes.end();
        if self.under_way.is_empty() {
            self.under_way = self.probes.under_way(now());
        }
    }

    /// What a turn costs its thread here, and each system call of the machine.
    pub fn cost(&self) -> TurnCost {
        self.probes.cost()
    }

    /// How long they were so far.
    pub fn lengths(&self) -> TurnLengths {
        self.probes.lengths()
    }

    /// Those that had not ended at its end, and were too long.
    pub fn under_way(&self) -> Vec<EndedTurn> {
        self.under_way.clone()
    }
}
