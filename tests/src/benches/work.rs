//! What the workload `bench_bounded.lua` says of its work.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use crate::usage::cpu_times;
use crate::workload::Workload;

/// Its name.
pub const SCRIPT: &str = "bench_bounded.lua";

/// A stretch of its work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// By line.
    pub lines: BTreeMap<u64, Calls>,
    /// By the kind of turns.
    pub kinds: BTreeMap<String, Spent>,
    /// Slots of the string tables that the collector has made smaller.
    pub shrunk: f64,
    /// Bytes allocated, if the VM counts them.
    pub allocated: Option<f64>,
    /// The share of its CPU time that it spent in the kernel: next to nothing, but for what others make it do there.
    pub in_kernel: f64,
}

/// What a line has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calls {
    /// The line that its function begins in.
    pub function: u64,
    /// How often it was run.
    pub calls: f64,
    /// Slots of the string tables that were made larger there.
    pub grown: f64,
    /// The bytes of objects that each of them makes, as the workload has measured itself, if that is of one line alone.
    pub bytes: Option<f64>,
}

/// What turns have taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// How many there were.
    pub turns: f64,
    /// CPU time, in seconds.
    pub cpu: f64,
    /// Elapsed time, in seconds.
    pub wall: f64,
}

impl Work {
    /// Lets the workload work for so many seconds; `mask` is the address of its VM's string table's mask.
    ///
    /// # Errors
    /// If it ends, or says what is not understood.
    pub fn of(workload: &mut Workload, mask: u64, seconds: f64) -> Result<Self> {
        let before = cpu_times(workload.pid())?;
        workload.tell(&format!("{seconds} {mask}"))?;
        let work = Self::parse(&workload.report()?)?;
        let after = cpu_times(workload.pid())?;
        let [user, kernel] = [0, 1].map(|which| after[which] - before[which]);
        Ok(Self { in_kernel: kernel / (user + kernel).max(f64::EPSILON), ..work })
    }

    /// What it has reported.
    ///
    /// # Errors
    /// If that is not understood.
    pub fn parse(report: &[String]) -> Result<Self> {
        let mut work = Self::default();
        for line in report {
            work.add(line).with_context(|| format!("the workload reported {line:?}"))?;
        }
        Ok(work)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let number = |word: &str| word.parse::<f64>().ok();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["line", line, function, calls, grown, bytes] => {
                let (calls, grown) = (number(calls)?, number(grown)?);
                let calls = Calls { function: function.parse().ok()?, calls, grown, bytes: number(bytes) };
                self.lines.insert(line.parse().ok()?, calls);
            }
            ["shrunk", slots] => self.shrunk = number(slots)?,
            ["kind", name, turns, cpu, wall] => {
                let spent = Spent { turns: number(turns)?, cpu: number(cpu)?, wall: number(wall)? };
                self.kinds.insert(name.to_owned(), spent);
            }
            ["allocated", bytes] => self.allocated = Some(number(bytes)?),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_workload_says() {
        let report =
            ["line 29 28 300 64 88.000", "line 30 28 20 0 -", "shrunk 32", "kind mix 10 0.5 0.75", "allocated 4711"];
        let work = Work::parse(&report.map(str::to_owned)).unwrap();
        assert_eq!(work.lines[&29], Calls { function: 28, calls: 300.0, grown: 64.0, bytes: Some(88.0) });
        assert_eq!(work.lines[&30].bytes, None);
        assert_eq!(work.kinds["mix"], Spent { turns: 10.0, cpu: 0.5, wall: 0.75 });
        assert_eq!((work.allocated, work.shrunk), (Some(4711.0), 32.0));
        assert!(Work::parse(&["ready".to_owned()]).is_err());
    }
}
