//! The summary at the end of a CPU recording.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use lj_trace_common::vm::VmState;
use lj_trace_probes::cost::Cost;
use lj_trace_profile::answer::CpuFacts;
use lj_trace_text::counted;

use super::OffCpuSummary;
use crate::output::written;
use crate::resolve::{RequestTally, Tally};

/// The numbers of a finished recording.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The process.
    pub pid: u32,
    /// Samples per second of CPU time.
    pub rate: u32,
    /// The duration of the recording.
    pub duration: Duration,
    /// The counts of the samples.
    pub tally: Tally,
    /// Samples that never arrived, by reason.
    pub lost: Vec<(&'static str, u64)>,
    /// Further counts.
    pub noted: Vec<(&'static str, u64)>,
    /// Samples that were left out because only one VM is recorded: those of other VMs, and those outside of any.
    pub left_out: u64,
    /// What the recording has cost the process.
    pub cost: Cost,
    /// CPU time that the process has used, in seconds; [`None`] if it is not known.
    pub used: Option<f64>,
    /// The share of each CPU's time that the recording takes from all other processes; [`None`] if events were on threads,
    /// which takes none.
    pub others: Option<f64>,
    /// If the full rate would have cost too much: the final rate in samples per second, and the weight of each sample.
    pub lowered_to: Option<(f64, u32)>,
    /// How many samples a second the kernel allowed, if the rate was lowered for that reason.
    pub allowed_rate: Option<u32>,
    /// Why events were on threads, if they should have been on CPUs.
    pub why_threads: Option<String>,
    /// How many requests were found, and why the others were not.
    pub requests: RequestTally,
    /// Whether the user has asked for requests.
    pub wants_requests: bool,
    /// Whether the user has asked for routes.
    pub wants_routes: bool,
    /// Whether the user asked for trace IDs.
    pub wants_trace_ids: bool,
    /// The table of traces, if the user wants it.
    pub traces: Option<String>,
    /// The sums of time off the CPU, if it was recorded.
    pub off_cpu: Option<OffCpuSummary>,
    /// The facts of the samples, if a single process was recorded and the user wants an answer.
    pub facts: Option<CpuFacts>,
}

/// How much to say about a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// How it ended, and its files. The [answer](super::answer()) summarizes the rest.
    Brief,
    /// All numbers.
    Full,
}

impl Summary {
    /// How many seconds of its CPU time no sample stands for, taken or lost; [`None`] if that may be chance, or the few
    /// percent that other work of the kernel and of a virtual machine's host takes.
    pub fn without_samples(&self) -> Option<f64> {
        /// The share of its CPU time that may be missing, and the seconds: the clock of another process is read late.
        const FEW: (f64, f64) = (0.25, 0.1);
        let used = self.used.filter(|_| self.off_cpu.is_none())?;
        let lost: u64 = self.lost.iter().map(|(_, count)| count).sum();
        let rate = f64::from(self.rate);
        let told = (self.tally.samples + self.left_out + lost) as f64 / rate;
        let weight = self.lowered_to.map_or(1.0, |(_, weight)| f64::from(weight));
        let chance = 4.0 * (used * weight / rate).sqrt();
        let missing = used - told;
        (missing > FEW.0 * used + FEW.1 + chance).then_some(missing)
    }

    /// The summary as text for the user. Losses come first.
    pub fn text(&self, end: &str, files: &[PathBuf], verbosity: Verbosity) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out, end, files, verbosity);
        out
    }

    fn write(&self, out: &mut String, end: &str, files: &[PathBuf], verbosity: Verbosity) -> std::fmt::Result {
        let Tally { samples, with_lua, lua_complete, both_ends, left_out, .. } = &self.tally;
        let Tally { native_complete, in_kernel, states, unresolved, .. } = &self.tally;
        for (reason, count) in &self.lost {
            writeln!(out, "LOST: {count} {reason}")?;
        }
        let seconds = self.duration.as_secs_f64();
        let cpu = *samples as f64 / f64::from(self.rate);
        let counted = counted(*samples, "sample");
        match &self.off_cpu {
            Some(off_cpu) => {
                off_cpu.losses().iter().try_for_each(|loss| writeln!(out, "LOST: {loss}"))?;
                let waited = off_cpu.waited as f64 / 1e9;
                writeln!(out, "{end}: recorded {seconds:.1} s, {counted}, {waited:.2} s of threads off the CPU")?;
            }
            None => writeln!(out, "{end}: recorded {seconds:.1} s, {counted}, {cpu:.2} s of CPU time")?,
        }
        if *samples == 0 && self.off_cpu.is_some() {
            writeln!(out, "No thread was off the CPU for long enough to be told of.")?;
        } else if *samples == 0 {
            match self.used.filter(|used| *used >= 0.000_5) {
                // With so little CPU time, even one sample would have been luck.
                Some(used) => writeln!(
                    out,
                    "No sample hit it: it used {used:.3} s of CPU time, in which {:.1} are taken on average at {} Hz. Record \
                     for longer, or with a higher --rate.",
                    used * f64::from(self.rate),
                    self.rate
                )?,
                None => writeln!(out, "The process used no CPU time while it was recorded.")?,
            }
        } else if verbosity == Verbosity::Full {
            let lost: u64 = self.lost.iter().map(|(_, count)| count).sum();
            writeln!(out, "  lost               {lost}")?;
            if let Some(missing) = self.without_samples() {
                writeln!(out, "  without samples    {missing:.2} s of its CPU time")?;
            }
            writeln!(out, "  cost to it         {}", self.cost)?;
            if let Some(others) = self.others {
                writeln!(out, "  cost to all others {:.3}% of each CPU", others * 100.0)?;
            }
            if let Some((rate, weight)) = self.lowered_to {
                writeln!(out, "  rate lowered       to {rate:.0} Hz, where each sample counts as {weight}")?;
            }
            if self.left_out != 0 {
                writeln!(out, "  of other code      {} (left out)", self.left_out)?;
            }
            writeln!(out, "  hit Lua            {}", share(*with_lua, *samples))?;
            writeln!(out, "  hit the kernel     {}", share(*in_kernel, *samples))?;
            writeln!(out, "  Lua complete       {}", share(*lua_complete, *with_lua))?;
            if *both_ends != 0 {
                let average = *left_out as f64 / *both_ends as f64;
                writeln!(out, "  both ends of Lua   {}", share(*both_ends, *with_lua))?;
                writeln!(out, "  left out between   {average:.0} Lua frames of each, on average")?;
            }
            writeln!(out, "  native complete    {}", share(*native_complete, *samples))?;
            for state in VmState::ALL {
                if let Some(count) = states.get(&state) {
                    writeln!(out, "  {:<18} {}", describe_state(state), share(*count, *samples))?;
                }
            }
            for (reason, count) in unresolved {
                writeln!(out, "  [unknown: {reason}] {}", share(*count, *samples))?;
            }
            self.write_requests(out)?;
            for (what, count) in &self.noted {
                writeln!(out, "  {what}: {count}")?;
            }
        }
        if let Some(why) = self.requests.why_none("sample").filter(|_| self.wants_requests && *samples > 0) {
            writeln!(out, "  no requests        no sample is known to serve one: {why}")?;
        } else if let Some(why) = self.requests.why_no_routes("sample").filter(|_| self.wants_routes && *samples > 0) {
            writeln!(out, "  no routes          no sample is known to take one: {why}")?;
        } else if let Some(why) = self.why_no_trace_ids() {
            writeln!(out, "  no trace IDs       no sample is known to have one: {why}")?;
        }
        if let Some(why) = &self.why_threads {
            writeln!(
                out,
                "  events on threads  each context switch costs the process more, since CPUs could have none: {why}"
            )?;
        }
        if let Some(traces) = &self.traces {
            out.push_str(traces);
        }
        for line in written(files) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

impl Summary {
    /// Why no sample has a trace ID, if the user asked for them.
    fn why_no_trace_ids(&self) -> Option<String> {
        let is_asked = self.wants_trace_ids && self.tally.samples > 0;
        self.requests.trace_ids.as_ref().filter(|_| is_asked)?.why_none("sample")
    }

    /// The number of samples whose request is known, if there are any.
    fn write_requests(&self, out: &mut String) -> std::fmt::Result {
        // Fibers may run C code alone.
        let all = self.tally.with_lua.max(self.requests.total());
        self.requests.write_counts(|count| share(count, all), out)
    }
}

/// The state, in words for users who do not know the VM's names.
pub fn describe_state(state: VmState) -> &'static str {
    match state {
        VmState::Interp => "interpreter",
        VmState::Lfunc => "Lua, interpreted",
        VmState::Ffunc => "library functions",
        VmState::Cfunc => "C functions",
        VmState::Gc => "garbage collector",
        VmState::Exit => "leaving traces",
        VmState::Record => "recording traces",
        VmState::Opt => "optimizing traces",
        VmState::Asm => "assembling traces",
        VmState::Trace => "Lua, compiled",
    }
}

fn share(part: u64, whole: u64) -> String {
    let percent = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    format!("{part} ({percent:.2}%)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let tally = Tally {
            samples: 200,
            with_lua: 100,
            lua_complete: 90,
            both_ends: 9,
            left_out: 9 * 2000,
            native_complete: 200,
            states: [(VmState::Lfunc, 60), (VmState::Trace, 40)].into(),
            unresolved: [("no reason".to_owned(), 1)].into(),
            ..Tally::default()
        };
        Summary {
            pid: 7,
            rate: 100,
            duration: Duration::from_secs(2),
            tally,
            lost: Vec::new(),
            noted: Vec::new(),
            left_out: 0,
            cost: Cost {
                seconds: 0.001,
                switching: 0.0,
                share: Some(0.0005),
                events: 200,
                event: "sample",
                measured: true,
            },
            used: Some(2.0),
            others: Some(0.0012),
            lowered_to: None,
            allowed_rate: None,
            why_threads: None,
            requests: RequestTally::default(),
            wants_requests: false,
            wants_routes: false,
            wants_trace_ids: false,
            traces: None,
            off_cpu: None,
            facts: None,
        }
    }

    #[test]
    fn numbers_are_shares_of_what_they_belong_to() {
        let text = summary().text("stopped", &["a.svg".into()], Verbosity::Full);
        for line in [
            "stopped: recorded 2.0 s, 200 samples, 2.00 s of CPU time",
            "  cost to it         0.001 s, 0.05% of its CPU time (5.00 us a sample)",
            "  cost to all others 0.120% of each CPU",
            "  hit Lua            100 (50.00%)",
            "  Lua complete       90 (90.00%)",
            "  both ends of Lua   9 (9.00%)",
            "  left out between   2000 Lua frames of each, on average",
            "  Lua, compiled      40 (20.00%)",
            "  [unknown: no reason] 1 (0.50%)",
            "wrote a.svg: open it in a browser",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn cpu_time_that_has_no_samples_is_told() {
        let of = |used, lost, lowered_to| {
            let lost = vec![("lost", lost)];
            Summary { used: Some(used), lost, lowered_to, ..summary() }.without_samples()
        };
        // 200 samples stand for 2 s.
        assert_eq!(of(2.2, 0, None), None);
        assert_eq!(of(6.0, 0, None), Some(4.0));
        assert_eq!(of(6.0, 400, None), None);
        // With so few samples, it may be chance.
        assert_eq!(of(6.0, 0, Some((0.8, 128))), None);
    }

    #[test]
    fn what_used_cpu_time_and_was_not_hit_is_told() {
        let none = Tally::default();
        let of = |used| Summary { tally: none.clone(), used, ..summary() }.text("stopped", &[], Verbosity::Full);
        for (used, said) in [
            (Some(0.03), "No sample hit it: it used 0.030 s of CPU time, in which 3.0 are taken on average at 100 Hz."),
            (Some(0.0), "The process used no CPU time"),
            (None, "The process used no CPU time"),
        ] {
            assert!(of(used).contains(said), "{}", of(used));
        }
    }

    #[test]
    fn one_is_no_plural() {
        let tally = Tally { samples: 1, ..summary().tally };
        let text =
            Summary { tally, duration: Duration::from_millis(300), ..summary() }.text("finished", &[], Verbosity::Full);
        assert!(text.starts_with("finished: recorded 0.3 s, 1 sample, 0.01 s of CPU time\n"), "{text}");
    }

    #[test]
    fn losses_come_first() {
        let summary = Summary { lost: vec![("samples lost: the ring buffer was full", 3)], ..summary() };
        let text = summary.text("stopped", &[], Verbosity::Full);
        assert!(text.starts_with("LOST: 3 samples lost: the ring buffer was full\n"), "{text}");
    }
}
