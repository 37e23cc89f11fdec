//! What the agent itself uses, and whether that is more than it may.

use std::time::{Duration, Instant};

use lj_trace_process::proc_file;

use super::config::OwnLimits;
use lj_trace_process::clocks::ClockId;

/// CPU time is measured over so long, at least.
const INTERVAL: Duration = Duration::from_secs(10);

/// What is said of the CPU time that it takes to attach holds for the beginning alone.
const ATTACHING: Duration = Duration::from_secs(30);

/// What it uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time, as a share of one CPU.
    pub cpu: f64,
    /// Memory that is its own or in its share, in bytes.
    pub memory: u64,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// It uses more CPU time than it may: fewer samples are to be taken.
    Cpu,
    /// It uses more memory than it may: fewer processes are to be recorded.
    Memory,
}

/// Measures it.
#[derive(Debug)]
pub struct OwnUsage {
    limits: OwnLimits,
    began: Instant,
    last: Option<(Instant, Duration)>,
    usage: Usage,
}

impl OwnUsage {
    /// From now on.
    pub fn new(limits: OwnLimits, now: Instant) -> Self {
        Self { limits, began: now, last: None, usage: Usage::default() }
    }

    /// Measures, if it is time to; what there is too much of.
    pub fn look(&mut self, now: Instant) -> Option<Excess> {
        if self.last.is_some_and(|(last, _)| now.duration_since(last) < INTERVAL) {
            return None;
        }
        let used = ClockId::THIS_PROCESS.read().unwrap_or_default();
        let before = self.last.replace((now, used));
        self.usage.memory = resident().unwrap_or(0);
        if let Some((last, before)) = before {
            self.usage.cpu = used.saturating_sub(before).as_secs_f64() / now.duration_since(last).as_secs_f64();
        }
        self.judge(now)
    }

    fn judge(&self, now: Instant) -> Option<Excess> {
        if self.usage.memory > self.limits.memory {
            return Some(Excess::Memory);
        }
        let is_settled = now.duration_since(self.began) >= ATTACHING;
        (is_settled && self.usage.cpu > self.limits.cpu).then_some(Excess::Cpu)
    }

    /// What it used when it was last measured.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What it may use.
    pub fn limits(&self) -> &OwnLimits {
        &self.limits
    }
}

/// Bytes of memory that are in use and are no pages of files, which the kernel takes back whenever it needs them.
fn resident() -> Option<u64> {
    let text = proc_file::read_text("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_of_either_is_noticed() {
        let begin = Instant::now();
        let with = |cpu, memory, limits| OwnUsage { usage: Usage { cpu, memory }, ..OwnUsage::new(limits, begin) };
        let limits = || OwnLimits { cpu: 0.05, memory: 100 << 20 };
        let later = begin + ATTACHING;
        assert_eq!(with(0.04, 99 << 20, limits()).judge(later), None);
        assert_eq!(with(0.06, 99 << 20, limits()).judge(later), Some(Excess::Cpu));
        assert_eq!(with(0.06, 99 << 20, limits()).judge(begin), None);
        assert_eq!(with(0.06, 101 << 20, limits()).judge(begin), Some(Excess::Memory));
    }

    #[test]
    fn this_process_uses_something() {
        let begin = Instant::now();
        let mut usage = OwnUsage::new(OwnLimits { cpu: 0.05, memory: 1 }, begin);
        assert_eq!(usage.look(begin), Some(Excess::Memory));
        assert!(usage.usage().memory > 1 << 20 && usage.look(begin).is_none());
        let mut sum = 0_u64;
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            sum = std::hint::black_box(sum + 1);
        }
        usage.look(begin + INTERVAL);
        assert!(usage.usage().cpu > 0.001, "{:?}", usage.usage());
    }
}
