//! A session: the processes that are recorded at once, and those whose recordings are over.

mod children;
mod exits;
mod memory_limit;
mod observer;
mod per_request;
mod run;
mod stopping;
mod totals;
mod turns;
mod watch;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::programs::KeptPrograms;
use lj_trace_probes::sample_buffer::SampleBuffer;
use lj_trace_process::sandbox::bounded;
use lj_trace_process::{Exit, Process, sandbox};
use lj_trace_text::Room;

pub use children::NewChildren;
pub use observer::Observer;
pub use run::SessionControl;
pub use stopping::Stopping;
pub use totals::Totals;

use crate::cpu::{CpuReports, Looks, SampleListener, Verbosity, answer};
use crate::error::{EngineError, Failure};
use crate::options::{Options, Scope};
use crate::output::pieces::now_in_names;
use crate::output::{self, OutputFiles, written_so_far};
use crate::recording::budget::{self, Budget};
use crate::recording::stop::Stop;
use crate::recording::{Recording, Summaries, poll_interval, title};
use crate::target::RecordTarget;
use exits::Exits;
use totals::SoFar;
use watch::Watch;

/// Everything that one run of lj-trace records.
pub struct Session<'a> {
    options: &'a Options,
    running: Vec<Running>,
    finished: Vec<Finished>,
    /// Sums over finished recordings, if a whole host is recorded.
    over: Totals,
    /// The reports of CPU time that cover all processes; [`None`] if one process is recorded.
    common: Option<CpuReports>,
    /// When buffered data of the streams was last written.
    flushed: Option<Instant>,
    /// When the session ends; [`None`] without a limit.
    deadline: Option<Instant>,
    exits: Exits,
    /// The loaded programs, if a whole host is recorded: its processes come and go, and for some time there may be none.
    kept: Option<KeptPrograms>,
    /// The start time of the current files, formatted for file names, if each piece of the recording has files of its own.
    piece: Option<String>,
}

/// The longest time that data stays unwritten. A run that is killed loses no more than that.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// On a host, a process without samples is drained at this interval.
const REST_ON_HOST: Duration = Duration::from_millis(200);

/// A process under recording.
struct Running {
    target: RecordTarget,
    recording: Recording,
    began: Instant,
    watch: Watch,
    /// Becomes readable when the process exits, if the kernel supports that.
    exit: Option<OwnedFd>,
    /// When lj-trace last checked that the process runs the same program.
    program_looked_at: Instant,
    /// Why this recording cannot go on, if the others do.
    failed: Option<EngineError>,
}

impl Running {
    /// Whether the recording continues in another program that the process executes: it does as long as no VM was seen.
    fn is_followed(&self) -> bool {
        self.target.vms.is_empty() && self.recording.vms_so_far() == 0
    }

    fn begin(&mut self, deadline: Option<Instant>) -> Result<(), EngineError> {
        self.began = Instant::now();
        self.recording.begin()?;
        deadline.map_or(Ok(()), |deadline| self.recording.end_at(deadline))
    }
}

/// A finished recording.
struct Finished {
    name: String,
    stop: Stop,
    outcome: Result<Summaries, EngineError>,
}

impl<'a> Session<'a> {
    /// Begins to record `targets`. `started` is when lj-trace began to look for them.
    ///
    /// # Errors
    /// A target cannot be recorded, or an output cannot be written.
    pub fn start(
        options: &'a Options,
        targets: Vec<RecordTarget>,
        observer: &dyn Observer,
        started: Instant,
    ) -> Result<Self, EngineError> {
        let piece = options.rotate.map(|_| now_in_names());
        let common = common_reports(options, piece.as_deref())?;
        let (running, finished) = (Vec::new(), Vec::new());
        let (over, exits) = (Totals::default(), Exits::new());
        let mut session =
            Self { options, running, finished, over, common, exits, flushed: None, deadline: None, kept: None, piece };
        let processes = targets.len();
        for target in targets {
            let new = session.prepare(target, processes)?;
            session.running.push(new);
        }
        // Start all recordings at once, no matter how long it took to attach to the last target.
        let deadline = options.duration.and_then(|duration| Instant::now().checked_add(duration));
        session.running.iter_mut().try_for_each(|new| new.begin(deadline))?;
        session.deadline = deadline;
        let attach = started.elapsed();
        session.running.iter().for_each(|own| observer.announce(options, &own.target, &own.recording, attach));
        session.look_after_targets();
        observer.ready(&session);
        Ok(session)
    }

    fn prepare(&mut self, target: RecordTarget, processes: usize) -> Result<Running, EngineError> {
        if let Some(common) = &mut self.common {
            common.describe(&target.process);
        }
        let recording = Recording::prepare(&target, processes, self.piece.as_deref())?;
        // A recording of allocations alone has programs of its own.
        if matches!(self.options.scope, Scope::Host)
            && let Some(kept) = recording.keep_programs()
        {
            self.kept = Some(kept);
        }
        let watch = Watch::new(&target, self.options.quiet, processes);
        let exit = match target.process.exit() {
            Exit::Event(fd) => Some(fd).filter(|fd| self.exits.watch(target.process.pid(), fd)),
            Exit::Gone | Exit::Untold => None,
        };
        let now = Instant::now();
        Ok(Running { target, recording, began: now, watch, exit, program_looked_at: now, failed: None })
    }

    /// Adds a process to the session. If it cannot be recorded, lj-trace warns of that, and the others go on.
    pub fn add(&mut self, target: RecordTarget, observer: &dyn Observer) {
        let pid = target.options.pid;
        if let Err(error) = self.try_add(target, observer) {
            let text = format!("lj-trace: process {pid} is not recorded: {}", error.message);
            say(Priority::Warning, &text);
        }
    }

    /// Adds a process to the session.
    ///
    /// # Errors
    /// The process cannot be recorded. The others go on.
    pub fn try_add(&mut self, target: RecordTarget, observer: &dyn Observer) -> Result<(), EngineError> {
        let started = Instant::now();
        let mut new = self.prepare(target, self.running.len() + 1)?;
        new.begin(self.deadline)?;
        observer.announce(self.options, &new.target, &new.recording, started.elapsed());
        self.running.push(new);
        Ok(())
    }

    /// The options of the session.
    pub fn options(&self) -> &'a Options {
        self.options
    }

    /// When the session ends, if its duration is limited.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether any process is still being recorded.
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// The recordings under way.
    pub fn recordings(&self) -> impl Iterator<Item = &Recording> + Clone {
        self.running.iter().map(|own| &own.recording)
    }

    /// The sums over all recordings of a whole host, finished or under way.
    pub fn totals(&self) -> Totals {
        let mut totals = self.over.clone();
        for own in &self.running {
            totals.processes += u64::from(own.recording.has_time());
            totals.samples += own.recording.samples().unwrap_or(0);
            totals.lose(&own.recording.lost());
        }
        totals
    }

    /// The same, with what recordings under way have cost so far, which takes some system calls for each.
    pub fn totals_with_cost(&mut self) -> Totals {
        let mut totals = self.totals();
        self.running.iter_mut().for_each(|own| totals.spend(own.recording.seconds_so_far()));
        totals
    }

    /// The hottest Lua function so far, and its share of the samples.
    pub fn hottest(&self) -> Option<(String, f64)> {
        match &self.common {
            Some(common) => common.hottest(),
            None => self.recordings().find_map(Recording::hottest),
        }
    }

    /// The number of bytes by which the tables of all recordings grow with the next step.
    pub fn next_growth(&self) -> u64 {
        self.recordings().map(Recording::next_growth).sum()
    }

    /// How long to wait between two calls of [`Self::drain`].
    pub fn interval(&self) -> Duration {
        let of_none = match self.options.scope {
            Scope::Host => poll_interval::LONGEST_OF_HOST,
            _ => poll_interval::SHORTEST,
        };
        Recording::until_next_poll(self.recordings()).unwrap_or(of_none)
    }

    /// Takes the data that is ready from each recording.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn drain(&mut self) -> Result<(), EngineError> {
        let (budget, mut left) = (Budget::new(budget::LOOK), self.running.len());
        let of_few = match self.options.scope {
            Scope::Host => REST_ON_HOST,
            _ => poll_interval::SHORTEST,
        };
        let rest = turns::interval(self.running.len(), of_few);
        self.hand_out_samples();
        let now = Instant::now();
        self.all(|recording, common| {
            if !recording.is_due(now, rest) {
                left -= 1;
                return Ok(());
            }
            let share = budget.share(left);
            left -= 1;
            recording.drain(common, share).map(drop)
        })?;
        // One that has changed how often events tick did so for all that share them, and most of them were not drained.
        self.all(|recording, _| recording.keep_up())?;
        if self.flushed.is_none_or(|flushed| flushed.elapsed() >= FLUSH_INTERVAL) {
            self.flushed = Some(Instant::now());
            self.all(|recording, _| recording.flush())?;
        }
        let ended = self.running.iter_mut().flat_map(|own| own.recording.take_ended()).collect::<Vec<_>>();
        self.say_written(&ended);
        Ok(())
    }

    /// Sorts the samples in shared buffers by process, once for each buffer.
    fn hand_out_samples(&self) {
        let mut last: Option<&SampleBuffer> = None;
        for buffer in self.recordings().filter_map(Recording::sample_buffer) {
            if last.is_none_or(|last| !last.shares_with(buffer)) {
                buffer.hand_out();
            }
            last = Some(buffer);
        }
    }

    /// Ends all files and begins the next ones. Returns false if it is too early: the new files would have the same names.
    ///
    /// # Errors
    /// A file cannot be written. Files that were not ended are ended by [`Self::finish`].
    pub fn rotate(&mut self) -> Result<bool, EngineError> {
        let piece = now_in_names();
        if self.piece.as_ref() == Some(&piece) {
            return Ok(false);
        }
        let mut written = Vec::new();
        self.all(|recording, _| recording.rotate(&piece).map(|files| written.extend(files)))?;
        if let Some(common) = &mut self.common {
            // The streams say which process has lost samples.
            common.prepare(&piece)?;
            written.extend(common.end_interval(&[])?);
        }
        self.piece = Some(piece);
        self.say_written(&written);
        Ok(true)
    }

    /// Reports which files are complete while others are still being written. A long recording has many files.
    fn say_written(&self, files: &[PathBuf]) {
        if !self.options.quiet {
            written_so_far(files).iter().for_each(|line| say(Priority::Info, line));
        }
    }

    /// Reports what has happened to the recorded processes.
    pub fn look_after_targets(&mut self) {
        let now = Instant::now();
        self.running.iter_mut().for_each(|own| own.watch.look(now));
    }

    /// Continues recordings in the programs that their processes have executed, if no VM was seen before.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn follow(&mut self) -> Result<(), EngineError> {
        for own in &mut self.running {
            if !own.is_followed() || !own.target.process.has_become_another_program() {
                continue;
            }
            // If the process has exited since, other code notices that.
            let Ok(process) = Process::open(own.target.process.pid()) else { continue };
            own.recording.follow(&process)?;
            own.target.process = process;
            own.watch = Watch::new(&own.target, self.options.quiet, 1);
        }
        Ok(())
    }

    /// Whether a recorded process now runs another program, and its recording does not continue there.
    pub fn is_replaced(&self) -> bool {
        // A followed process may have executed yet another program after the last look.
        self.running.iter().any(|own| !own.is_followed() && own.target.process.has_become_another_program())
    }

    /// Writes the outputs so far.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<(), EngineError> {
        let mut paths = Vec::new();
        self.all(|recording, _| recording.write_interim().map(|written| paths.extend(written)))?;
        if let Some(common) = &mut self.common {
            paths.extend(common.show()?);
        }
        let named = paths.iter().filter(|path| *path != Path::new("-")).map(|path| path.display().to_string());
        let named: Vec<String> = named.collect();
        if !self.options.quiet {
            let text = match named.join(", ") {
                none if none.is_empty() => "SIGUSR1: standard output has all that there is so far".to_owned(),
                files => format!("SIGUSR1: wrote what there is so far: {files}"),
            };
            say(Priority::Info, &text);
        }
        Ok(())
    }

    /// Lowers the sampling rate of all processes, so that each sample counts for more. Returns the new rate; [`None`] if
    /// the rate would fall below `least` samples per second.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn lower_rates(&mut self, least: u32) -> Result<Option<f64>, EngineError> {
        let mut rate = None;
        self.all(|recording, _| recording.lower_rate(least).map(|lowered| rate = lowered.or(rate)))?;
        Ok(rate)
    }

    /// Raises the sampling rate of all processes again, if it was lowered. Returns the new rate if it has changed.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn raise_rates(&mut self) -> Result<Option<f64>, EngineError> {
        let mut rate = None;
        self.all(|recording, _| recording.raise_rate().map(|raised| rate = raised.or(rate)))?;
        Ok(rate)
    }

    /// Ends the recordings of all processes that are not `wanted`.
    pub fn end_unless(&mut self, wanted: impl Fn(&Process) -> bool) {
        let ended = self.running.extract_if(.., |own| !wanted(&own.target.process)).collect();
        self.end(ended, Stop::Signal);
    }

    /// Ends the recordings of allocations alone of all processes that are not `wanted`.
    pub fn end_allocations_unless(&mut self, wanted: impl Fn(&Process) -> bool) {
        let is_ended = |own: &mut Running| !own.recording.has_time() && !wanted(&own.target.process);
        let ended = self.running.extract_if(.., is_ended).collect();
        self.end(ended, Stop::Signal);
    }

    /// Whether all recordings have stopped because they cost too much.
    pub fn is_over(&self) -> bool {
        self.running.iter().all(|own| own.recording.is_over())
    }

    /// Ends the recordings of processes that have exited or executed another program, and recordings that cost too much.
    /// Their files are then complete.
    pub fn end_over(&mut self) {
        // Nearly always, no recording has to end.
        let interval = turns::interval(self.running.len(), Duration::ZERO);
        let (exited, now) = (self.exits.happened(), Instant::now());
        let goes_on = |own: &mut Running| {
            let has_exited = exited.contains(&own.target.process.pid());
            // Only which program it runs has to be checked. A check of all processes each time would cost more, the more
            // there are.
            let is_known =
                own.exit.is_some() && !has_exited && now.saturating_duration_since(own.program_looked_at) < interval;
            if !is_known {
                own.program_looked_at = now;
            }
            let is_same = is_known || own.target.process.runs_same_program();
            is_same && own.failed.is_none() && !own.recording.is_over()
        };
        let going_on = self.running.iter_mut().map(goes_on).filter(|goes_on| *goes_on).count();
        if going_on == self.running.len() {
            return;
        }
        let failed = self.running.extract_if(.., |own| own.failed.is_some()).collect();
        self.end(failed, Stop::Failed);
        let (replaced, running): (Vec<_>, Vec<_>) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|own| own.target.process.has_become_another_program());
        let (running, over): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|own| own.target.process.is_alive() && !own.recording.is_over());
        self.running = running;
        let (over_budget, exited) = over.into_iter().partition(|own| own.recording.is_over());
        self.end(replaced, Stop::TargetReplaced);
        self.end(over_budget, Stop::OverBudget);
        self.end(exited, Stop::TargetExited);
    }

    /// Ends all recordings and prints the summary, unless the options say to be quiet.
    ///
    /// # Errors
    /// The first error. All outputs that can be written are written all the same.
    pub fn finish(mut self, stop: Result<Stop, EngineError>, observer: &dyn Observer) -> Result<(), EngineError> {
        let stop = match stop {
            Err(error) if error.failure == Failure::ReaderGone => Ok(Stop::ReaderGone),
            other => other,
        };
        if let Ok(stop) = &stop {
            observer.stopping(stop.describe());
        }
        self.running.iter_mut().for_each(|own| own.recording.detach());
        let running = std::mem::take(&mut self.running);
        self.end(running, *stop.as_ref().unwrap_or(&Stop::Signal));
        observer.finish();
        let summaries = || self.finished.iter().flat_map(|finished| &finished.outcome);
        let lost: Vec<_> = summaries().flat_map(Summaries::lost_samples).copied().collect();
        let mut facts = None;
        let written = self.common.take().map_or(Ok(Vec::new()), |mut common| {
            facts = common.facts();
            common.finish(&lost)
        });
        stop?;
        let mut told = Vec::new();
        for Finished { name, stop, outcome } in self.finished {
            match outcome {
                Err(error) if error.failure == Failure::ReaderGone => say(Priority::Info, &error.message),
                outcome => told.push((name, stop, outcome?)),
            }
        }
        let written: Vec<PathBuf> = written?;
        for file in bounded::refused() {
            let text =
                format!("lj-trace: {file} is larger than lj-trace reads: names or unwinding of its code are missing");
            say(Priority::Warning, &text);
        }
        for file in sandbox::unread() {
            say(Priority::Warning, &format!("lj-trace: {file}"));
        }
        if !self.options.quiet {
            let verbosity = if self.options.verbose { Verbosity::Full } else { Verbosity::Brief };
            for (name, stop, summaries) in &told {
                if self.options.is_of_several() {
                    say(Priority::Info, &format!("{name}:"));
                }
                say_summary(&summaries.text(stop.describe(), verbosity));
            }
            output::written(&written).iter().for_each(|line| say(Priority::Info, line));
            let all: Vec<_> = told.iter().map(|(name, _, summaries)| (name.as_str(), summaries)).collect();
            let summaries: Vec<_> = all.iter().filter_map(|(name, own)| Some((*name, own.cpu()?))).collect();
            let room = Room::of(&std::io::stderr());
            let facts = facts.as_ref().or_else(|| summaries.iter().find_map(|(_, summary)| summary.facts.as_ref()));
            if let Some(facts) = facts {
                let looks = Looks { seen: observer.seen(), queued: observer.queued() };
                say_summary(&answer(facts, &summaries, looks, room));
            }
            say_summary(&per_request::lines(self.options, facts, &all, room));
        }
        Ok(())
    }

    /// Takes the remaining data of `ended` recordings, and ends their outputs.
    fn end(&mut self, ended: Vec<Running>, stop: Stop) {
        let (budget, mut left) = (Budget::new(budget::END), ended.len());
        for Running { target, mut recording, began, mut watch, failed, .. } in ended {
            recording.detach();
            watch.end();
            let duration = began.elapsed();
            let drained = recording.drain_all(listener(&mut self.common), budget.share(left));
            left -= 1;
            let (name, is_second) = (recording.name().to_owned(), !recording.has_time());
            let so_far = SoFar {
                samples: recording.samples().unwrap_or(0),
                lost: recording.lost(),
                seconds: recording.seconds_so_far(),
            };
            let finished = recording.finish(&target.options, duration);
            let outcome = failed.map_or(drained, Err).and(finished);
            if self.options.scope != Scope::Host {
                self.finished.push(Finished { name, stop, outcome });
                continue;
            }
            self.over.add(outcome.as_ref().ok(), &so_far, is_second);
            if let Err(error) = outcome {
                say(Priority::Warning, &format!("lj-trace: {name} is recorded no more: {}", error.message));
            }
        }
    }

    /// Calls a function for all recordings, even if it fails for one of them.
    fn all(
        &mut self,
        mut action: impl FnMut(&mut Recording, Option<&mut dyn SampleListener>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut outcome = Ok(());
        let survives = self.options.scope == Scope::Host;
        for Running { recording, failed, .. } in self.running.iter_mut().filter(|own| own.failed.is_none()) {
            match action(recording, listener(&mut self.common)) {
                Err(error) if survives => *failed = Some(error),
                done => outcome = outcome.and(done),
            }
        }
        outcome
    }
}

/// A summary lists losses first, in capitals.
fn say_summary(text: &str) {
    for line in text.lines() {
        let is_loss = line.starts_with("LOST") || line.starts_with("NOT ACCOUNTED FOR");
        let line = if line.is_empty() { "\n" } else { line };
        say(if is_loss { Priority::Warning } else { Priority::Info }, line);
    }
}

/// The reports of all processes, as a listener for samples.
fn listener(common: &mut Option<CpuReports>) -> Option<&mut dyn SampleListener> {
    common.as_mut().map(|common| common as &mut dyn SampleListener)
}

/// The reports of CPU time that cover all processes; [`None`] if one process is recorded.
fn common_reports(options: &Options, piece: Option<&str>) -> Result<Option<CpuReports>, EngineError> {
    if !options.is_of_several() {
        return Ok(None);
    }
    let [cpu, allocations] = [&options.cpu_files, &options.allocation_files];
    // Only reports of CPU time can cover several processes in one file.
    let takes_several = |files: &OutputFiles| files.streams.iter().any(|path| path == Path::new("-"));
    if takes_several(cpu) || takes_several(allocations) || allocations.has_standard_output() {
        let message = "standard output cannot take the files of several processes: name a file with --output, and each \
                       gets its process id";
        return Err(EngineError::usage(message));
    }
    let Some(kind) = options.kinds.time() else { return Ok(None) };
    let of = match &options.scope {
        Scope::These { what, .. } => what.clone(),
        Scope::One | Scope::Children => format!("children of process {}", options.pid),
        Scope::Host => "all LuaJIT processes".to_owned(),
    };
    let title = format!("{of}, {}", title(kind, options.rate));
    let mut reports = CpuReports::open(&options.common_reports(), &title, (kind, options.rate), piece)?;
    if !options.quiet {
        reports.keep_answer();
    }
    Ok(Some(reports))
}
