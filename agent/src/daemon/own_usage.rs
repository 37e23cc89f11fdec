//! The agent's own use of CPU time and memory, and whether it exceeds the limits.

use std::time::{Duration, Instant};

use lj_trace_process::proc_file;

use super::config::OwnLimits;
use lj_trace_process::clocks::ClockId;

/// The least time over which CPU time is measured.
const INTERVAL: Duration = Duration::from_secs(10);

/// The CPU use of the first seconds says nothing about later ones: attaching takes CPU time at the start only.
const ATTACHING: Duration = Duration::from_secs(30);

/// The agent's own use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time, as a share of one CPU.
    pub cpu: f64,
    /// Private memory, and its part of shared memory, in bytes.
    pub memory: u64,
}

/// How to adapt to the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The agent uses more CPU time than it may, so it should record less.
    LessWork,
    /// For long, the agent has used much less CPU time than it may, so it can record more again.
    MoreWork,
    /// The agent uses more memory than it may, so it should record fewer processes.
    FewerProcesses,
}

/// Twice as many samples cost less than twice as much. Below this share of the limit, there is room for them.
const LITTLE: f64 = 0.4;

/// How long the use must be low before more samples are taken again: at first, and after several failed attempts.
const FIRST_PATIENCE: Duration = Duration::from_secs(15);
const LONGEST_PATIENCE: Duration = Duration::from_secs(3600);

/// Measures the agent's use.
#[derive(Debug)]
pub struct OwnUsage {
    limits: OwnLimits,
    began: Instant,
    last: Option<(Instant, Duration)>,
    usage: Usage,
    /// Since when the use has been low.
    little_since: Option<Instant>,
    patience: Duration,
}

impl OwnUsage {
    /// Starts measuring now.
    pub fn new(limits: OwnLimits, now: Instant) -> Self {
        let (usage, little_since) = (Usage::default(), None);
        Self { limits, began: now, last: None, usage, little_since, patience: FIRST_PATIENCE }
    }

    /// Measures if it is time to, and returns what to change.
    pub fn look(&mut self, now: Instant) -> Option<Advice> {
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

    fn judge(&mut self, now: Instant) -> Option<Advice> {
        if self.usage.memory > self.limits.memory {
            return Some(Advice::FewerProcesses);
        }
        let (is_settled, used) = (now.duration_since(self.began) >= ATTACHING, self.usage.cpu / self.limits.cpu);
        if is_settled && used > 1.0 {
            self.little_since = None;
            self.patience = LONGEST_PATIENCE.min(self.patience * 2);
            return Some(Advice::LessWork);
        }
        if used > LITTLE {
            self.little_since = None;
            return None;
        }
        let since = *self.little_since.get_or_insert(now);
        (now.duration_since(since) >= self.patience).then(|| {
            self.little_since = None;
            Advice::MoreWork
        })
    }

    /// The last measured use.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The limits.
    pub fn limits(&self) -> &OwnLimits {
        &self.limits
    }
}

/// Bytes of resident memory without file pages, because the kernel takes those back whenever it needs them.
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
        let with = |cpu, memory| {
            let limits = OwnLimits { cpu: 0.05, memory: 100 << 20 };
            OwnUsage { usage: Usage { cpu, memory }, ..OwnUsage::new(limits, begin) }
        };
        let later = begin + ATTACHING;
        assert_eq!(with(0.04, 99 << 20).judge(later), None);
        assert_eq!(with(0.06, 99 << 20).judge(later), Some(Advice::LessWork));
        assert_eq!(with(0.06, 99 << 20).judge(begin), None);
        assert_eq!(with(0.06, 101 << 20).judge(begin), Some(Advice::FewerProcesses));
    }

    /// Whatever the use is, the rate settles: a rate that was too high is retried less and less often.
    #[test]
    fn rates_rise_again_and_do_not_swing() {
        for (base, each) in [(0.0, 0.001), (0.01, 0.004), (0.02, 0.002), (0.001, 0.02), (0.03, 0.03)] {
            let begin = Instant::now();
            let mut own = OwnUsage::new(OwnLimits { cpu: 0.05, memory: u64::MAX }, begin);
            let (mut halved, mut changes, mut over) = (3_u32, 0, 0);
            const LOOKS: u32 = 6 * 3600;
            for look in 0..LOOKS {
                let now = begin + ATTACHING + INTERVAL * look;
                own.usage.cpu = base + each * f64::from(19 >> halved);
                over += u32::from(own.usage.cpu > 0.05);
                match own.judge(now) {
                    Some(Advice::LessWork) if halved < 4 => (halved, changes) = (halved + 1, changes + 1),
                    Some(Advice::MoreWork) if halved > 0 => (halved, changes) = (halved - 1, changes + 1),
                    _ => {}
                }
            }
            let fits = |halved: u32| base + each * f64::from(19 >> halved) <= 0.05;
            assert!(halved == 4 || fits(halved), "{base} {each}: {halved}");
            assert!(changes < 150, "{base} {each}: {changes} changes in 60 hours");
            assert!(halved == 4 || over < LOOKS / 50, "{base} {each}: too much in {over} looks of {LOOKS}");
            // The rate is not lower than it has to be by more than the margin.
            let could_be_more = halved > 0 && base + each * f64::from(19 >> halved) < 0.05 * LITTLE && fits(halved - 1);
            assert!(!could_be_more, "{base} {each}: {halved}");
        }
    }

    #[test]
    fn this_process_uses_something() {
        let begin = Instant::now();
        let mut usage = OwnUsage::new(OwnLimits { cpu: 0.05, memory: 1 }, begin);
        assert_eq!(usage.look(begin), Some(Advice::FewerProcesses));
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
