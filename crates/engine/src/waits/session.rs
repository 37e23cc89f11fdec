//! Records where the coroutines of any number of processes wait, until something ends it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use lj_trace_probes::journal::{Priority, say};
use lj_trace_process::clocks::ClockId;
use lj_trace_profile::waits::WaitLook;
use lj_trace_profile::{ProfileKind, WaitProfile};

use super::pace::Pace;
use super::per_request;
use super::process_looks::ProcessLooks;
use super::summary::WaitSummary;
use super::vm_found::Doubts;
use crate::error::EngineError;
use crate::options::{Options, Scope};
use crate::output::pieces::{SinceThen, now_in_names};
use crate::output::{ReportFile, written_so_far};
use crate::recording::stop::Stop;
use crate::request_counter::EndedSummary;
use crate::resolve::RequestTally;
use crate::session::{NewChildren, SessionControl};
use crate::sink::{Interval, Sink, end_all, show_all};
use crate::target::RecordTarget;

/// The interval between two looks for new and for exited children.
const CHILDREN_INTERVAL: Duration = Duration::from_millis(200);

/// The interval between two reports of progress.
const TOLD_INTERVAL: Duration = Duration::from_millis(500);

/// Records waits.
pub struct WaitSession<'a> {
    options: &'a Options,
    processes: Vec<ProcessLooks>,
    profile: WaitProfile,
    sinks: Vec<Box<dyn Sink>>,
    pace: Pace,
    rng: fastrand::Rng,
    began: Instant,
    /// When the current interval began.
    interval_began: SystemTime,
    piece: Option<String>,
    deadline: Option<Instant>,
    /// CPU time of all looks.
    cost: Duration,
    /// The doubts about processes that are over, and the results of the current stretch's look for them.
    doubts: Doubts,
    requests: RequestTally,
    /// The requests that processes have ended, if they are counted, with the names of the processes.
    ended: Vec<(String, Result<EndedSummary, String>)>,
    left: WaitLook,
    told: SinceThen,
    was_slowed: bool,
}

impl<'a> WaitSession<'a> {
    /// Begins to watch `targets`.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn start(options: &'a Options, targets: Vec<RecordTarget>) -> Result<Self, EngineError> {
        per_request::check(options)?;
        let piece = options.rotate.map(|_| now_in_names());
        let files = options.files(ProfileKind::Waits);
        let title = match (&options.scope, targets.first()) {
            (Scope::One, Some(target)) => format!("{}, waits of coroutines", target.name()),
            (Scope::These { what, .. }, _) => format!("{what}, waits of coroutines"),
            _ => format!("children of process {}, waits of coroutines", options.pid),
        };
        let mut profile = WaitProfile::new(title);
        profile.pid = targets.first().map(|target| target.process.pid());
        let sinks = ReportFile::open_all(&files.reports, piece.as_deref())?;
        let now = Instant::now();
        let mut session = Self {
            options,
            processes: Vec::new(),
            profile,
            sinks,
            pace: Pace::new(options.wait_interval, now),
            rng: fastrand::Rng::new(),
            began: now,
            interval_began: SystemTime::now(),
            piece,
            deadline: options.duration.and_then(|duration| now.checked_add(duration)),
            cost: Duration::ZERO,
            doubts: Doubts::default(),
            requests: RequestTally::default(),
            ended: Vec::new(),
            left: WaitLook::default(),
            told: SinceThen::default(),
            was_slowed: false,
        };
        targets.iter().for_each(|target| session.add(target));
        Ok(session)
    }

    fn add(&mut self, target: &RecordTarget) {
        let looks = ProcessLooks::new(target, self.options.is_of_several(), Instant::now());
        if !self.options.quiet {
            let until = self.options.duration.map_or("until Ctrl-C".to_owned(), |duration| format!("for {duration:?}"));
            let text = format!(
                "looking at the coroutines of process {} ({}) {until}, every {:?}; attached",
                target.options.pid,
                target.process.command(),
                self.options.wait_interval
            );
            say(Priority::Info, &text);
        }
        self.processes.push(looks);
    }

    /// Whether there has been a VM so far.
    pub fn has_vm(&self) -> bool {
        self.processes.is_empty() || self.processes.iter().any(|process| process.vms().1 > 0)
    }

    /// Records until something ends it. Adds new processes from `children` as they come. Calls `tell` with the progress.
    ///
    /// # Errors
    /// An output cannot be written any more.
    pub async fn run(
        &mut self,
        SessionControl { mut stopping, mut interim }: SessionControl,
        children: Option<&NewChildren>,
        tell: &dyn Fn(&str),
    ) -> Result<Stop, EngineError> {
        let mut next_children = Instant::now();
        let mut next_told = Instant::now();
        let mut next_piece = self.options.rotate.and_then(|time| self.began.checked_add(time));
        let mut has_parent = true;
        loop {
            let mut next = self.pace.next().min(next_told);
            if children.is_some() {
                next = next.min(next_children);
            }
            if let Some(due) = next_piece {
                next = next.min(due);
            }
            tokio::select! {
                biased;
                reason = stopping.next(self.deadline) => match reason {
                    Stop::TargetExited if children.is_some() => {
                        has_parent = false;
                        stopping.ignore_exits();
                    }
                    reason => break Ok(reason),
                },
                _ = interim.recv() => self.show()?,
                () = tokio::time::sleep_until(next.into()) => {}
            }
            let now = Instant::now();
            self.go_on(now);
            if now >= next_told {
                next_told = now + TOLD_INTERVAL;
                tell(&self.progress());
                if self.end_over() && children.is_none() {
                    break Ok(Stop::TargetReplaced);
                }
            }
            if let Some(children) = children.filter(|_| now >= next_children) {
                next_children = now + CHILDREN_INTERVAL;
                self.end_over();
                for target in children.take(self.options) {
                    self.add(&target);
                }
                if !has_parent && self.processes.is_empty() {
                    break Ok(Stop::TargetExited);
                }
            }
            if let Some(time) = self.options.rotate
                && next_piece.is_some_and(|due| now >= due)
                && self.rotate()?
            {
                next_piece = now.checked_add(time);
            }
        }
    }

    /// The progress, in one line.
    fn progress(&self) -> String {
        let waiting: f64 = self.processes.iter().map(ProcessLooks::waiting).sum();
        let looks = self.profile.about().looks;
        let seconds = self.began.elapsed().as_secs();
        let most = self.profile.sentence().map_or_else(String::new, |sentence| format!("; {sentence}"));
        format!("{seconds} s: {looks} looks, {waiting:.0} coroutines wait now{most}")
    }

    /// Does what is due.
    fn go_on(&mut self, now: Instant) {
        if self.pace.is_due(now) {
            self.look();
        } else if self.pace.take_echo(now) {
            let began = cpu_time();
            let Self { processes, profile, rng, .. } = self;
            processes.iter_mut().for_each(|process| process.echo(profile, rng));
            self.cost += cpu_time().saturating_sub(began);
        }
        if let Some(stretch) = self.pace.end(Instant::now(), false) {
            self.close(stretch);
        }
    }

    /// Looks at all coroutines of all processes.
    fn look(&mut self) {
        let began = cpu_time();
        let Self { processes, profile, .. } = self;
        processes.iter_mut().for_each(|process| process.look(profile));
        let cost = cpu_time().saturating_sub(began);
        self.cost += cost;
        self.pace.looked(cost, Instant::now());
    }

    /// Adds the results of a stretch's look, after the stretch is over.
    fn close(&mut self, stretch: Duration) {
        let mut look = WaitLook { stretch, ..std::mem::take(&mut self.left) };
        self.processes.iter_mut().for_each(|process| process.take(&mut look));
        self.profile.add(&look);
        // At this point, no stored result has the old numbers of stacks.
        if let Some(moved) = self.profile.keep_within_room() {
            self.processes.iter_mut().for_each(|process| process.renumber(&moved));
        }
        if self.pace.is_slowed() && !self.was_slowed {
            self.was_slowed = true;
            let text = format!(
                "lj-trace: looks at so many coroutines cost more than 1% of a CPU if they come every {:?}: from now on they come \
                 every {:.1} s",
                self.options.wait_interval,
                self.pace.stretch().as_secs_f64()
            );
            say(Priority::Warning, &text);
        }
    }

    /// Ends the current stretch. If it has had no look, looks now.
    fn cut(&mut self) {
        if self.pace.has_no_look() {
            if !self.processes.iter().any(|process| process.process().is_alive()) {
                // A stretch without any look does not count.
                return;
            }
            self.look();
        }
        if let Some(stretch) = self.pace.end(Instant::now(), true) {
            self.close(stretch);
        }
    }

    /// Removes processes that have exited or run another program. Returns whether none is left.
    fn end_over(&mut self) -> bool {
        let Self { processes, doubts, requests, ended, left, .. } = self;
        for mut process in processes.extract_if(.., |process| !process.process().runs_same_program()) {
            doubts.add(process.doubts());
            process.requests().into_iter().for_each(|tally| requests.add(tally));
            ended.extend(ended_in(&mut process));
            process.take(left);
        }
        self.processes.is_empty()
    }

    fn all_doubts(&self) -> Doubts {
        let mut all = self.doubts;
        self.processes.iter().for_each(|process| all.add(process.doubts()));
        all
    }

    /// Adds the losses since the last call to the profile.
    fn tell_losses(&mut self) {
        let lost = self.told.take(&self.all_doubts().losses());
        lost.into_iter().for_each(|(reason, count)| self.profile.lose(reason, count));
    }

    /// Writes the outputs so far.
    fn show(&mut self) -> Result<(), EngineError> {
        self.profile.weigh();
        let interval = Interval::until_now(ProfileKind::Waits, &self.profile, self.interval_began);
        let files = show_all(&mut self.sinks, &interval)?;
        if !self.options.quiet {
            let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
            say(Priority::Info, &format!("SIGUSR1: wrote what there is so far: {}", names.join(", ")));
        }
        Ok(())
    }

    /// Ends all files, and begins the next ones. Returns false if it is too early: the new files would have the same names.
    fn rotate(&mut self) -> Result<bool, EngineError> {
        let piece = now_in_names();
        if self.piece.as_ref() == Some(&piece) {
            return Ok(false);
        }
        self.sinks.iter_mut().try_for_each(|sink| sink.prepare(&piece))?;
        self.cut();
        let written = self.end_interval()?;
        self.profile.begin_anew();
        self.interval_began = SystemTime::now();
        self.piece = Some(piece);
        if !self.options.quiet {
            written_so_far(&written).iter().for_each(|line| say(Priority::Info, line));
        }
        Ok(true)
    }

    fn end_interval(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        self.tell_losses();
        self.profile.weigh();
        end_all(&mut self.sinks, &Interval::until_now(ProfileKind::Waits, &self.profile, self.interval_began))
    }

    /// Ends the outputs and prints the summary, unless the options say to be quiet.
    ///
    /// # Errors
    /// The error in `stop`, or an output cannot be written.
    pub fn finish(mut self, stop: Result<Stop, EngineError>) -> Result<(), EngineError> {
        self.cut();
        let duration = self.began.elapsed();
        let Self { processes, ended, .. } = &mut self;
        ended.extend(processes.iter_mut().filter_map(ended_in));
        let files = self.end_interval();
        let stop = stop?;
        let files: Vec<PathBuf> = files?.into_iter().filter(|path| path != Path::new("-")).collect();
        if !self.options.quiet {
            let slowed_to = self.pace.is_slowed().then(|| self.pace.stretch());
            let mut requests = std::mem::take(&mut self.requests);
            self.processes.iter().filter_map(ProcessLooks::requests).for_each(|tally| requests.add(tally));
            let requests = self.options.wants_requests().then_some(requests);
            let summary = WaitSummary { end: stop.describe(), duration, slowed_to, cost: self.cost, files, requests };
            let text = summary.text(&self.profile, &self.all_doubts(), self.options.verbose);
            let text = text + &per_request::lines(self.options, &self.profile, &self.ended);
            for line in text.lines() {
                let is_loss = line.starts_with("LOST");
                say(if is_loss { Priority::Warning } else { Priority::Info }, line);
            }
        }
        Ok(())
    }
}

/// The requests that a process has ended, if they are counted, with its name.
fn ended_in(process: &mut ProcessLooks) -> Option<(String, Result<EndedSummary, String>)> {
    let name = format!("{} (pid {})", process.process().command(), process.process().pid());
    Some((name, process.take_ended()?))
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    ClockId::THIS_THREAD.read().unwrap_or_default()
}
