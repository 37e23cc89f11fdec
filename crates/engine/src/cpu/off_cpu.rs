//! The summary of a recording of time off the CPU, and a check of its sums against the kernel's own counts.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use lj_trace_process::Process;
use lj_trace_profile::answer::{CpuFacts, OffCpuUse, off_cpu_sentence, wait_lines};
use lj_trace_text::{Room, counted};

/// The sums of a recording of time off the CPU. Times are in nanoseconds, over all threads.
#[derive(Clone, Debug, Default)]
pub struct OffCpuSummary {
    /// The number of waits: those that were over, and those under way at the end.
    pub waits: u64,
    /// The total length of these waits inside the recording.
    pub waited: u64,
    /// The time that their samples account for.
    pub told: u64,
    /// The number of threads that were off the CPU during the whole recording.
    pub all_the_time: u64,
    /// The number of threads at the end.
    pub threads: u64,
    /// The lost time of waits, by reason.
    pub lost: Vec<(&'static str, u64)>,
    /// Whether the profile also has CPU time.
    pub has_cpu_time: bool,
    /// Shorter waits than this were sampled at random.
    pub threshold: u64,
    /// The waits of those threads that existed from beginning to end: as measured, and according to the kernel's counts.
    pub checked: Option<(u64, u64)>,
}

/// The relative difference from the kernel's counts above which the sums do not fit.
const MISFIT: f64 = 0.03;

/// The time per thread that may be missing on either side, because the kernel has not counted it yet.
const TICK: u64 = 5_000_000;

impl OffCpuSummary {
    /// The sums of several processes.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        let mut lost: BTreeMap<&str, u64> = BTreeMap::new();
        for own in all {
            sum.waits += own.waits;
            sum.waited += own.waited;
            sum.told += own.told;
            sum.all_the_time += own.all_the_time;
            sum.threads += own.threads;
            sum.has_cpu_time |= own.has_cpu_time;
            sum.threshold = own.threshold;
            own.lost.iter().for_each(|(reason, time)| *lost.entry(reason).or_default() += time);
            if let Some((measured, accounted)) = own.checked {
                let checked = sum.checked.get_or_insert((0, 0));
                *checked = (checked.0 + measured, checked.1 + accounted);
            }
        }
        sum.lost = lost.into_iter().collect();
        sum
    }

    /// The difference from the kernel's counts, as a share of them, if it is more than chance.
    fn misfit(&self) -> Option<f64> {
        let (measured, accounted) = self.checked?;
        let apart = measured.abs_diff(accounted);
        let share = apart as f64 / accounted.max(1) as f64;
        (share > MISFIT && apart > TICK * self.threads.max(1)).then_some(share)
    }

    /// How well the sums fit, in one line.
    fn sums(&self) -> String {
        let seconds = |time: u64| format!("{:.3} s", time as f64 / 1e9);
        let told = format!(
            "{} in {}, of which samples tell {}",
            seconds(self.waited),
            counted(self.waits, "wait"),
            seconds(self.told)
        );
        match (self.checked, self.misfit()) {
            (None, _) => format!("{told}; no thread was there all the time, so they were not held against schedstat"),
            (Some((measured, accounted)), Some(share)) => format!(
                "{told}. THEY DO NOT FIT: threads that were there all the time waited for {} by the kernel's own account \
                 (schedstat), and {} were seen, {:.1}% apart: CPU time that the kernel counts for interrupts or for other guests \
                 of its host may be the difference",
                seconds(accounted),
                seconds(measured),
                share * 100.0
            ),
            (Some((measured, accounted)), None) => format!(
                "{told}; of threads that were there all the time {}, by the kernel's own account (schedstat) {}",
                seconds(measured),
                seconds(accounted)
            ),
        }
    }

    /// The answer to where the time went, for processes that were recorded for this many seconds.
    pub fn answer(&self, facts: &CpuFacts, seconds: f64, room: Room) -> String {
        let mut out = String::new();
        let about = OffCpuUse {
            seconds,
            threads: self.threads,
            waited: self.waited as f64 / 1e9,
            all_the_time: self.all_the_time,
            has_cpu_time: self.has_cpu_time,
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "\n{}\n", off_cpu_sentence(facts, &about, room));
        wait_lines(facts, room).iter().for_each(|line| {
            let _ = writeln!(out, "{line}");
        });
        let _ = writeln!(out, "sums        {}", self.sums());
        out
    }

    /// The losses, for the user.
    pub fn losses(&self) -> Vec<String> {
        self.lost.iter().map(|(reason, time)| format!("{:.3} s {reason}", *time as f64 / 1e9)).collect()
    }
}

/// The kernel's own counts of threads, since some moment.
#[derive(Clone, Debug, Default)]
pub struct SchedAccount(HashMap<u32, u64>);

impl SchedAccount {
    /// Reads the counts: the nanoseconds that each thread has run so far.
    pub fn read(process: &Process) -> Self {
        let threads = process.threads().unwrap_or_default();
        let of = |tid: u32| {
            let text = std::fs::read_to_string(format!("/proc/{}/task/{tid}/schedstat", process.pid())).ok()?;
            Some((tid, text.split_ascii_whitespace().next()?.parse().ok()?))
        };
        Self(threads.into_iter().filter_map(of).collect())
    }

    /// The nanoseconds that each thread has run until `later`, for threads that already existed at the first reading.
    pub fn until(&self, later: &Self) -> HashMap<u32, u64> {
        let of = |(tid, run): (&u32, &u64)| Some((*tid, later.0.get(tid)?.checked_sub(*run)?));
        self.0.iter().filter_map(of).collect()
    }

    /// The number of threads.
    pub fn threads(&self) -> u64 {
        self.0.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_do_not_fit_are_told() {
        let of = |measured: u64, accounted: u64| OffCpuSummary {
            waits: 7,
            waited: measured,
            told: measured,
            threads: 1,
            checked: Some((measured, accounted)),
            ..OffCpuSummary::default()
        };
        let second = 1_000_000_000;
        for (measured, accounted, fits) in [
            (second, second, true),
            (second, second + second / 40, true),
            (second, second + second / 20, false),
            (second, second - second / 20, false),
            // A tick of the clock does not count as a difference.
            (1_000_000, 3_000_000, true),
        ] {
            let own = of(measured, accounted);
            assert_eq!(!own.sums().contains("DO NOT FIT"), fits, "{measured} {accounted}: {}", own.sums());
        }
        let sum = OffCpuSummary::sum([of(second, second), of(2 * second, second)].iter());
        assert_eq!((sum.waits, sum.checked), (14, Some((3 * second, 2 * second))));
        assert!(OffCpuSummary::default().sums().contains("not held against"));
    }

    #[test]
    fn this_process_has_run() {
        let process = Process::open(std::process::id()).unwrap();
        let before = SchedAccount::read(&process);
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 30 {}
        let after = SchedAccount::read(&process);
        // Without schedstat there are no counts.
        let run: u64 = before.until(&after).values().sum();
        assert!(before.threads() == 0 || run > 5_000_000, "{run}");
    }
}
