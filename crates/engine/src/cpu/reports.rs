//! A CPU profile over all VMs of one or several processes, and the sinks that take it.

use std::path::PathBuf;
use std::time::SystemTime;

use lj_trace_process::Process;
use lj_trace_profile::answer::CpuFacts;
use lj_trace_profile::model::{Labels, Unit, labels::ThreadLabel};
use lj_trace_profile::profile::SampleInfo;
use lj_trace_profile::{CpuProfile, Format, Frame as Named, Profile as _, ProfileKind};
use lj_trace_streams::VmState;

use super::about_process;
use crate::error::EngineError;
use crate::output::ReportFile;
use crate::resolve::Resolved;
use crate::sample_clock;
use crate::sink::{Interval, Sink, end_all, show_all};

/// A CPU profile, and the sinks that take it when an interval ends.
pub struct CpuReports {
    profile: CpuProfile,
    /// The kind of the profile.
    kind: ProfileKind,
    sinks: Vec<Box<dyn Sink>>,
    began: SystemTime,
    /// The samples of rare stacks in earlier intervals.
    folded: u64,
    /// Whether a caller will ask for the facts.
    has_answer: bool,
    /// The merged profile of earlier intervals, for the facts.
    over: Option<CpuProfile>,
}

impl CpuReports {
    /// Opens the files. If the recording is written in pieces, `piece` is the time at which the first piece begins.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn open(
        names: &[(Format, PathBuf)],
        title: &str,
        (kind, rate): (ProfileKind, u32),
        piece: Option<&str>,
    ) -> Result<Self, EngineError> {
        let mut reports = Self::new(title, (kind, rate));
        if names.iter().any(|(format, _)| format.shows_time()) {
            reports.profile.keep_times();
        }
        reports.sinks = ReportFile::open_all(names, piece)?;
        Ok(reports)
    }

    /// An empty profile of samples at `rate` Hz, without sinks.
    fn new(title: &str, (kind, rate): (ProfileKind, u32)) -> Self {
        let mut profile = CpuProfile::new(title);
        profile.rate = (kind != ProfileKind::OffCpu).then_some(rate);
        if kind != ProfileKind::Cpu {
            profile.unit = Unit::Nanoseconds;
            profile.has_cpu_time = kind == ProfileKind::Wall;
        }
        Self { profile, kind, sinks: Vec::new(), began: SystemTime::now(), folded: 0, has_answer: false, over: None }
    }

    /// Adds sinks.
    pub fn add_sinks(&mut self, sinks: Vec<Box<dyn Sink>>) {
        self.sinks.extend(sinks);
    }

    /// Keeps a profile for [`facts`](Self::facts), even if no sink takes it.
    pub fn keep_answer(&mut self) {
        self.has_answer = true;
    }

    /// The facts of all intervals, if they were kept.
    pub fn facts(&mut self) -> Option<CpuFacts> {
        let Self { profile, over, has_answer, .. } = self;
        let over = over.as_mut().map(|over| {
            over.absorb(profile);
            &*over
        });
        has_answer.then(|| CpuFacts::of(over.unwrap_or(profile)))
    }

    /// The hottest Lua function of the current interval and its share of the samples, if a profile is kept.
    pub fn hottest(&self) -> Option<(String, f64)> {
        let (name, samples) = CpuFacts::hottest(&self.profile)?;
        Some((name, samples as f64 / self.profile.samples().max(1) as f64))
    }

    /// Prepares for the interval that begins at `next`, as [`Sink::prepare`] does.
    ///
    /// # Errors
    /// A sink cannot take it. The current interval goes on.
    pub fn prepare(&mut self, next: &str) -> Result<(), EngineError> {
        self.sinks.iter_mut().try_for_each(|sink| sink.prepare(next))
    }

    /// Ends the interval, and begins the next one with an empty profile. Returns the paths of the written files.
    ///
    /// # Errors
    /// A sink cannot take the interval. Its data is kept.
    pub fn end_interval(&mut self, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, EngineError> {
        lost.iter().for_each(|(reason, count)| self.profile.lose(reason, *count));
        let written = end_all(&mut self.sinks, &Interval::until_now(self.kind, &self.profile, self.began))?;
        self.folded += self.profile.folded();
        if self.has_answer {
            let over = self.over.get_or_insert_default();
            (over.unit, over.has_cpu_time) = (self.profile.unit, self.profile.has_cpu_time);
            over.absorb(&self.profile);
            over.keep_within(ANSWER_STACKS);
        }
        self.profile.begin_anew();
        self.began = SystemTime::now();
        Ok(written)
    }

    /// Reads facts about the recorded process, or about the first of several.
    pub fn describe(&mut self, process: &Process) {
        if self.sinks.is_empty() || self.profile.pid.is_some() {
            return;
        }
        self.profile.pid = Some(process.pid());
        self.profile.sources = about_process::source_code(process);
        self.profile.modules = about_process::native_modules(process);
        self.profile.started_now();
    }

    /// Reads the libraries of a process again, because more may have been loaded. A process without samples needs none.
    pub fn add_modules(&mut self, process: &Process) {
        if !self.sinks.is_empty() && self.profile.total() > 0 {
            self.profile.modules.extend(about_process::native_modules(process));
        }
    }

    /// Whether a format shows how memory changes over time.
    pub fn shows_time(&self) -> bool {
        self.profile.timeline().is_some()
    }

    /// Adds the current sizes of the heap and of the process, in bytes.
    pub fn measure_memory(&mut self, heap: Option<u64>, resident: Option<u64>) {
        let now = sample_clock::now();
        for (name, bytes) in [("GC heap", heap), ("Resident memory", resident)] {
            if let Some(bytes) = bytes {
                self.profile.count_bytes(name, now, bytes);
            }
        }
    }

    /// Adds a sample. `root` is the frame of its process or VM, if there may be several.
    pub fn add(&mut self, sample: &Resolved, root: Option<Named>) {
        if self.sinks.is_empty() && !self.has_answer {
            return;
        }
        let nanoseconds = match (self.kind, sample.wait) {
            (ProfileKind::Cpu, _) => 0,
            (_, Some(nanoseconds)) => nanoseconds,
            (_, None) => self.profile.rate.map_or(0, |rate| 1_000_000_000 / u64::from(rate.max(1))),
        };
        if sample.request.group.is_some() {
            self.profile.show_roots();
        }
        self.profile.add_sample(info(sample, [1, nanoseconds]), rooted(sample, root));
        self.profile.keep_within(if self.sinks.is_empty() { ANSWER_STACKS } else { STACKS });
    }

    /// The number of samples whose stacks were too rare to have entries of their own.
    pub fn folded(&self) -> u64 {
        self.folded + self.profile.folded()
    }

    /// Shows the profile so far; returns the paths of the written files.
    ///
    /// # Errors
    /// A sink cannot show it.
    pub fn show(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        show_all(&mut self.sinks, &Interval::until_now(self.kind, &self.profile, self.began))
    }

    /// Ends the last interval; returns the paths of the written files. `lost` are the numbers of samples that never
    /// arrived, by reason.
    ///
    /// # Errors
    /// The error of the first sink that could not take it. The other sinks take it all the same.
    pub fn finish(mut self, lost: &[(&'static str, u64)]) -> Result<Vec<PathBuf>, EngineError> {
        lost.iter().for_each(|(reason, count)| self.profile.lose(reason, *count));
        end_all(&mut self.sinks, &Interval::until_now(self.kind, &self.profile, self.began))
    }
}

/// The bytes of memory for stacks: enough for about thirty thousand stacks of thirty frames.
pub(crate) const STACKS: usize = 16 << 20;

/// The same if only the answer at the end uses the stacks: the hottest functions are in the heaviest stacks.
const ANSWER_STACKS: usize = 4 << 20;

/// The data of a sample besides its frames.
pub(crate) fn info(sample: &Resolved, weights: [u64; 2]) -> SampleInfo {
    let thread = ThreadLabel { tid: sample.tid, name: sample.thread_name.clone() };
    let trace = sample.trace.as_ref().map(|trace| u64::from(trace.number()));
    SampleInfo {
        // Code outside of any VM counts as a C function in streams.
        state: sample.state.unwrap_or(VmState::Cfunc),
        labels: Labels {
            thread: Some(thread),
            state: None,
            trace,
            request: sample.request.labels.clone(),
            fiber_id: sample.request.fiber_id,
        },
        time: Some(sample.time),
        weights,
    }
}

/// The frames of a sample, root first.
pub(crate) fn rooted(sample: &Resolved, root: Option<Named>) -> impl Iterator<Item = Named> {
    root.into_iter()
        .chain(sample.request.group.clone())
        .chain(sample.frames.iter().rev().map(|frame| (*frame.named).clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::{Taken, Totals};

    #[test]
    fn what_intervals_hold_is_what_was_recorded() {
        let taken = Taken::default();
        let mut reports = CpuReports::new("luajit (pid 7)", (ProfileKind::Cpu, 99));
        reports.sinks.push(Box::new(Totals(taken.clone())));
        for (samples, piece) in [(3, "a"), (0, "b"), (5, "c")] {
            for _ in 0..samples {
                reports.profile.add(VmState::Interp, []);
            }
            reports.prepare(piece).unwrap();
            reports.end_interval(&[]).unwrap();
        }
        reports.profile.add(VmState::Interp, []);
        reports.finish(&[("lost", 9)]).unwrap();
        assert_eq!(*taken.borrow(), [3, 0, 5, 1].map(|samples| (ProfileKind::Cpu, samples)));
    }

    #[test]
    fn each_interval_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let named = |piece: &str| folder.path().join(format!("a.{piece}.folded"));
        let files = [(Format::Folded, folder.path().join("a.folded"))];
        let mut reports = CpuReports::open(&files, "luajit (pid 7)", (ProfileKind::Cpu, 99), Some("1")).unwrap();
        let frame = |name: &str| [Named::FastFunction { name: name.into() }];
        reports.profile.add(VmState::Cfunc, frame("first"));
        assert_eq!(reports.show().unwrap(), [named("1")]);
        assert_eq!(std::fs::read_to_string(named("1")).unwrap(), "first 1\n");
        reports.prepare("2").unwrap();
        assert_eq!(reports.end_interval(&[]).unwrap(), [named("1")]);
        reports.profile.add(VmState::Cfunc, frame("second"));
        // The next file cannot be opened, so the current one goes on.
        std::fs::create_dir(named("3")).unwrap();
        assert!(reports.prepare("3").is_err());
        reports.profile.add(VmState::Cfunc, frame("second"));
        assert_eq!(reports.finish(&[]).unwrap(), [named("2")]);
        assert_eq!(std::fs::read_to_string(named("2")).unwrap(), "second 2\n");
        assert_eq!(std::fs::read_to_string(named("1")).unwrap(), "first 1\n");
    }
}
