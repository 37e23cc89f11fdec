//! What there is to say of the event loops of some processes at the end.

use std::time::Duration;

use lj_trace_common::turn::TurnLengths;
use lj_trace_engine::blockers::Blocker;
use lj_trace_probes::cost::Cost;
use lj_trace_probes::turn_cost::TurnCost;

/// The turns of one process.
#[derive(Clone, Debug)]
pub struct ProcessTurns {
    /// Its process id.
    pub pid: u32,
    /// What people know it by.
    pub name: String,
    /// How long its turns were.
    pub lengths: TurnLengths,
    /// How many were too long.
    pub count: u64,
    /// How long these were together, in nanoseconds.
    pub time: u64,
    /// The longest of them.
    pub longest: Vec<Blocker>,
    /// What was lost, by reason.
    pub lost: Vec<(&'static str, u64)>,
    /// What ticks, samples and walks of stacks have cost.
    pub sampling: Cost,
    /// What each of its turns has cost, and each system call of the machine.
    pub turn_cost: TurnCost,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct BlockersReport {
    /// Each process.
    pub processes: Vec<ProcessTurns>,
    /// How long they were watched.
    pub duration: Duration,
    /// A turn that is not shorter is too long, in nanoseconds.
    pub over: u64,
    /// Why time off the CPU was not measured, if it was not.
    pub unmeasured: Option<String>,
}

impl ProcessTurns {
    /// How many turns there were.
    pub fn turns(&self) -> u64 {
        self.lengths.turns.iter().sum()
    }

    /// What it has cost the process, in seconds of CPU time. What system calls and switches of threads cost is not in it: how
    /// many there are on the machine is not counted.
    pub fn cost(&self) -> f64 {
        self.sampling.seconds + self.turns() as f64 * self.turn_cost.turn
    }
}

impl BlockersReport {
    /// The longest of all processes, with their names.
    pub fn longest(&self) -> Vec<(&str, &Blocker)> {
        let mut all: Vec<(&str, &Blocker)> = Vec::new();
        for process in &self.processes {
            all.extend(process.longest.iter().map(|blocker| (&*process.name, blocker)));
        }
        all.sort_by_key(|(_, blocker)| std::cmp::Reverse(blocker.turn.length()));
        all.truncate(super::SHOWN);
        all
    }
}
