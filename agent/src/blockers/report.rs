//! The final report about the event loops of some processes.

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
    /// The name by which people know it.
    pub name: String,
    /// The histogram of its turns.
    pub lengths: TurnLengths,
    /// How many turns were too long.
    pub count: u64,
    /// The total length of these, in nanoseconds.
    pub time: u64,
    /// The longest of them.
    pub longest: Vec<Blocker>,
    /// Losses, by reason.
    pub lost: Vec<(&'static str, u64)>,
    /// The cost of ticks, samples and stack walks.
    pub sampling: Cost,
    /// The cost of each of its turns, and of each system call on the machine.
    pub turn_cost: TurnCost,
}

/// The turns of all processes.
#[derive(Clone, Debug)]
pub struct BlockersReport {
    /// The processes.
    pub processes: Vec<ProcessTurns>,
    /// How long they were watched.
    pub duration: Duration,
    /// The length from which a turn is too long, in nanoseconds.
    pub over: u64,
    /// Why time off the CPU was not measured.
    pub unmeasured: Option<String>,
}

impl ProcessTurns {
    /// The number of turns.
    pub fn turns(&self) -> u64 {
        self.lengths.turns.iter().sum()
    }

    /// What watching has cost the process, in seconds of CPU time. The cost of system calls and context switches is not
    /// included, because their number on the whole machine is not counted.
    pub fn cost(&self) -> f64 {
        self.sampling.seconds + self.turns() as f64 * self.turn_cost.turn
    }
}

impl BlockersReport {
    /// The longest turns of all processes, with the processes' names.
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
