//! Time off the CPU of one process: from the first context switch to the sums at the end.

use std::collections::BTreeMap;

use lj_trace_common::config::Counter;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::off_cpu::OffCpu;
use lj_trace_probes::programs::Programs;
use lj_trace_process::Process;

use super::under_way::{KnownVms, WaitUnderWay};
use crate::cpu::{OffCpuSummary, SchedAccount};
use crate::error::EngineError;
use crate::resolve::Pipeline;
use crate::sample_clock::now;

/// The counters of lost wait time, in nanoseconds.
const LOST: [(Counter, &str); 4] = [
    (Counter::WaitTimeUnscheduled, "of waits lost: the kernel had no room for the walk"),
    (Counter::WaitTimeBusy, "of waits lost: the CPU's working memory was in use"),
    (Counter::WaitTimeUnsent, "of waits lost: the ring buffer was full"),
    (Counter::TimeUnseen, "not known to be waits: the kernel did not show that threads came back to a CPU"),
];

/// The most bytes of native stacks of waits that are under way at the end: enough for a thousand threads or more.
const MOST_STACKS: usize = 64 << 20;

/// A recording of time off the CPU.
pub struct OffCpuRecording {
    probes: OffCpu,
    has_cpu_time: bool,
    at_begin: SchedAccount,
    /// The state at the end of the recording; [`None`] until then.
    end: Option<End>,
    /// Waits that were under way at the end and have not been taken yet.
    under_way: Vec<WaitUnderWay>,
}

/// The state at the end of a recording.
#[derive(Default)]
struct End {
    threads: u64,
    all_the_time: u64,
    /// How often the threads that existed at the end had been off the CPU, and for how many nanoseconds, including waits
    /// under way.
    waits: u64,
    waited: u64,
    checked: Option<(u64, u64)>,
}

impl OffCpuRecording {
    /// Prepares to record `process`.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(programs: &mut Programs, process: &Process, has_cpu_time: bool) -> Result<Self, EngineError> {
        programs.tell_stack_start(process)?;
        let probes = OffCpu::attach(programs, process)?;
        Ok(Self { probes, has_cpu_time, at_begin: SchedAccount::default(), end: None, under_way: Vec::new() })
    }

    /// Begins to record.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn begin(&mut self, process: &Process) -> Result<(), EngineError> {
        self.at_begin = SchedAccount::read(process);
        Ok(self.probes.begin(now())?)
    }

    /// Ends the recording, and walks the stacks of threads whose waits are under way, unless it has already ended.
    pub fn end(&mut self, process: &Process, pipeline: &Pipeline) {
        if self.end.is_some() {
            return;
        }
        self.probes.end();
        let ended = now();
        let at_end = SchedAccount::read(process);
        let mut end = End { threads: at_end.threads(), ..End::default() };
        let sums = self.probes.waited();
        (end.waits, end.waited) = sums.values().fold((0, 0), |(waits, time), own| (waits + own.0, time + own.1));
        let mut waited: BTreeMap<u32, u64> = sums.into_iter().map(|(tid, (_, time))| (tid, time)).collect();
        let under_way = self.probes.under_way().unwrap_or_else(|error| {
            let text = format!("lj-trace: waits that were under way at the end are missing: {error:#}");
            say(Priority::Warning, &text);
            Vec::new()
        });
        let vms = KnownVms::new(pipeline.known_vms());
        let mut room = MOST_STACKS;
        for wait in under_way {
            let nanoseconds = ended.saturating_sub(wait.since);
            end.waits += 1;
            end.waited += nanoseconds;
            end.all_the_time += u64::from(wait.all_the_time);
            *waited.entry(wait.task.tid).or_default() += nanoseconds;
            // Include the time of earlier waits whose stack walks did not happen.
            let told = nanoseconds.saturating_add(wait.pending);
            let wait = WaitUnderWay::look(process, &vms, &wait.task, (told, ended), room).in_turn(wait.turn);
            room -= wait.size();
            self.under_way.push(wait);
        }
        let length = ended.saturating_sub(self.probes.began());
        let ran = self.at_begin.until(&at_end);
        let mut sums = (0, 0);
        for (tid, ran) in &ran {
            sums.0 += waited.get(tid).copied().unwrap_or(0);
            sums.1 += length.saturating_sub(*ran);
        }
        end.checked = (!ran.is_empty()).then_some(sums);
        self.end = Some(end);
    }

    /// The waits that were under way at the end of the recording. The second call returns none.
    pub fn take_under_way(&mut self) -> Vec<WaitUnderWay> {
        std::mem::take(&mut self.under_way)
    }

    /// The sums at the end. The samples account for `told` nanoseconds.
    pub fn summary(&self, programs: &Programs, told: u64) -> OffCpuSummary {
        let none = End::default();
        let end = self.end.as_ref().unwrap_or(&none);
        let lost = LOST.iter().map(|(counter, reason)| (*reason, programs.count(*counter)));
        OffCpuSummary {
            waits: programs.count(Counter::Waits) + end.waits,
            waited: programs.count(Counter::WaitTime) + end.waited,
            told,
            all_the_time: end.all_the_time,
            threads: end.threads,
            lost: lost.filter(|(_, time)| *time != 0).collect(),
            has_cpu_time: self.has_cpu_time,
            threshold: self.probes.threshold(),
            checked: end.checked,
        }
    }
}
