//! `lj-trace blockers`: what has blocked the event loop of a process.

mod args;

use std::io::Write as _;
use std::time::{Duration, Instant};

use lj_trace_engine::options::Scope;
use lj_trace_engine::recording::budget::{self, Budget};
use lj_trace_engine::recording::poll_interval;
use lj_trace_engine::recording::stop::Stop;
use lj_trace_engine::session::{NewChildren, Stopping};
use lj_trace_engine::target::{selected, targets};
use lj_trace_engine::{EngineError, Options, RecordTarget, Recording};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::off_cpu;
use lj_trace_probes::programs::ProbeError;
use lj_trace_probes::turns::{self, TurnLimits};
use lj_trace_process::Process;
use lj_trace_process::privileges::{self, priority};
use lj_trace_text::untrusted::{Form, PlainWriter, Untrusted};

pub use args::BlockersArgs;
use args::live;

use super::record::interrupts::Interrupts;
use super::record::{LiveOptions, can_attach, give_up_privileges};
use crate::blockers::{BlockerWatch, BlockersReport, ProcessTurns, blocker_line, report_json};
use crate::exit::CommandError;

/// The lowest value of `--over`.
const LEAST_OVER: Duration = Duration::from_millis(1);

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &BlockersArgs) -> Result<(), CommandError> {
    if args.over < LEAST_OVER {
        return Err(CommandError::usage("--over is too short: turns of 1ms or longer are told"));
    }
    turns::check().map_err(|error| EngineError::from(ProbeError::NoTurns(error)))?;
    priority::raise();
    let unmeasured = match off_cpu::check() {
        Ok(()) if args.no_waits => Some("--no-waits".to_owned()),
        Ok(()) => None,
        Err(error) => Some(format!("{error:#}")),
    };
    if let Some(why) = &unmeasured {
        let text = format!("lj-trace: time off the CPU in turns is not measured, nor has it reasons: {why}");
        say(Priority::Warning, &text);
    }
    let LiveOptions { mut options, selector } = live(args, unmeasured.is_none())?;
    // Long turns are few.
    options.trace_ids = true;
    options.turns = Some(TurnLimits::over(u64::try_from(args.over.as_nanos()).unwrap_or(u64::MAX)));
    let (options, targets) = match selector {
        Some(selector) => selected(&selector, &options)?,
        None => {
            let targets = targets(&options)?;
            (options, targets)
        }
    };
    let mut all = Blocked { args, options, unmeasured, running: Vec::new(), ended: Vec::new() };
    all.start(targets)?;
    all.until_stopped()
}

/// A process whose event loop is watched.
struct LoopProcess {
    process: Process,
    recording: Recording,
    watch: BlockerWatch,
}

impl LoopProcess {
    /// Reads the records that are ready.
    fn drain(&mut self, budget: Budget) -> Result<(), CommandError> {
        self.recording.drain(Some(&mut self.watch), budget)?;
        Ok(())
    }

    /// Reads the last records.
    fn end(&mut self) -> Result<(), CommandError> {
        /// How long the last samples may take.
        const LAST: Duration = Duration::from_secs(2);
        self.recording.detach();
        self.recording.drain_all(Some(&mut self.watch), Budget::new(LAST))?;
        for turn in self.recording.turns_under_way() {
            self.watch.found(turn, false);
        }
        Ok(())
    }

    fn turns(&mut self) -> ProcessTurns {
        /// Samples that came after their turn was processed.
        const LATE: &str = "samples that were of no turn that is known";
        /// Turns whose records were lost.
        const UNTOLD: &str = "long turns that are not listed: the ring buffer was full";
        let lengths = self.recording.turn_lengths().unwrap_or(lj_trace_common::turn::TurnLengths::EMPTY);
        let mut lost = self.recording.lost();
        lost.extend(self.recording.lost_turns());
        lost.extend([(LATE, self.watch.lost()), (UNTOLD, lengths.lost)]);
        lost.retain(|(_, count)| *count != 0);
        ProcessTurns {
            pid: self.process.pid(),
            name: self.watch.name.clone(),
            lengths,
            count: self.watch.count,
            time: self.watch.time,
            longest: self.watch.longest.all().to_vec(),
            lost,
            sampling: self.recording.sampling(),
            turn_cost: self.recording.turn_cost().unwrap_or_default(),
        }
    }
}

/// All watched processes.
struct Blocked<'a> {
    args: &'a BlockersArgs,
    options: Options,
    unmeasured: Option<String>,
    running: Vec<LoopProcess>,
    ended: Vec<ProcessTurns>,
}

impl Blocked<'_> {
    fn start(&mut self, targets: Vec<RecordTarget>) -> Result<(), CommandError> {
        let count = targets.len();
        for target in targets {
            let new = self.prepare(&target, count)?;
            self.running.push(new);
        }
        self.running.iter_mut().try_for_each(|own| own.recording.begin())?;
        // Processes that come later need these privileges for attaching.
        let is_of_several = self.options.is_of_several();
        let attaches = if is_of_several { &privileges::TO_ATTACH[..] } else { &[] };
        give_up_privileges(&self.options, attaches, || {
            self.running.iter().all(|own| own.recording.is_in_reach()) && (!is_of_several || can_attach(&self.options))
        });
        for own in &self.running {
            let text = format!(
                "attached to {}: turns of its event loop of {} ms and longer; Ctrl-C ends it",
                Untrusted(&own.watch.name),
                self.args.over.as_secs_f64() * 1e3
            );
            say(Priority::Info, &text);
        }
        Ok(())
    }

    fn prepare(&self, target: &RecordTarget, processes: usize) -> Result<LoopProcess, CommandError> {
        let recording = Recording::prepare(target, processes, None)?;
        let after = self.options.turns.map(|limits| limits.after).filter(|_| self.unmeasured.is_some());
        let about = (target.process.pid(), target.name());
        let watch = BlockerWatch::new(about, self.args.rate, self.args.follow, after);
        Ok(LoopProcess { process: target.process.clone(), recording, watch })
    }

    /// Reads what is ready from each process, and prints new turns. Returns how long to rest then, and whether anybody
    /// still reads the output.
    fn drain(&mut self) -> Result<(Duration, bool), CommandError> {
        let budget = Budget::new(budget::LOOK);
        let mut left = self.running.len();
        for own in &mut self.running {
            own.drain(budget.share(left))?;
            left -= 1;
        }
        let goes_on = self.print_new()?;
        let interval = Recording::until_next_poll(self.running.iter().map(|own| &own.recording));
        Ok((interval.unwrap_or(poll_interval::SHORTEST), goes_on))
    }

    /// Prints the turns that have ended since; false if nobody reads the output any more.
    fn print_new(&mut self) -> Result<bool, CommandError> {
        if !self.args.follow {
            return Ok(true);
        }
        let mut out = PlainWriter::new(std::io::stdout().lock(), Form::Json);
        for own in &mut self.running {
            for blocker in own.watch.take_new() {
                let line = blocker_line(&own.watch.name, &blocker);
                match writeln!(out, "{line}").and_then(|()| out.flush()) {
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(false),
                    written => written.map_err(|error| CommandError::io("write standard output", &error))?,
                }
            }
        }
        Ok(true)
    }

    /// Drops processes that have exited, and adds new ones.
    fn follow_processes(&mut self, children: Option<&NewChildren>) -> Result<(), CommandError> {
        let new: Vec<RecordTarget> = children.into_iter().flat_map(|children| children.take(&self.options)).collect();
        for target in new {
            // If attaching fails, the process has mostly exited.
            if let Ok(mut new) = self.prepare(&target, self.running.len() + 1)
                && new.recording.begin().is_ok()
            {
                self.running.push(new);
            }
        }
        let is_over = |own: &LoopProcess| !own.process.is_alive() || own.process.has_become_another_program();
        if self.running.iter().any(is_over) {
            self.running.iter_mut().filter(|own| is_over(own)).try_for_each(LoopProcess::end)?;
            self.print_new()?;
            let over = self.running.extract_if(.., |own| is_over(own));
            self.ended.extend(over.map(|mut own| own.turns()));
        }
        Ok(())
    }

    /// Watches them until the user stops it, and reports.
    fn until_stopped(mut self) -> Result<(), CommandError> {
        /// How often to look for new and exited processes.
        const PROCESSES: Duration = Duration::from_secs(1);
        let is_of_several = self.options.scope != Scope::One;
        let known: Vec<Process> = self.running.iter().map(|own| own.process.clone()).collect();
        let children = is_of_several.then(|| NewChildren::watch(self.options.roots(), known.clone())).transpose()?;
        let began = Instant::now();
        let deadline = self.args.duration.and_then(|duration| began.checked_add(duration));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| CommandError::internal(&error))?;
        runtime.block_on(async {
            let interrupts = Interrupts::listen()?;
            let mut stopping = Stopping::new(interrupts.event()?, known.iter())?;
            let mut ticks = poll_interval::ticks();
            let mut looked = began;
            loop {
                tokio::select! {
                    stop = stopping.next(deadline) => match stop {
                        Stop::TargetExited if is_of_several => stopping.ignore_exits(),
                        _ => break,
                    },
                    _ = ticks.tick() => {}
                }
                let (interval, goes_on) = self.drain()?;
                if !goes_on {
                    break;
                }
                poll_interval::relax(&mut ticks, interval);
                if looked.elapsed() >= PROCESSES {
                    looked = Instant::now();
                    self.follow_processes(children.as_ref())?;
                    if self.running.is_empty() && !is_of_several {
                        break;
                    }
                }
            }
            Ok::<_, CommandError>(())
        })?;
        self.running.iter_mut().try_for_each(LoopProcess::end)?;
        self.report(began.elapsed())
    }

    fn report(mut self, duration: Duration) -> Result<(), CommandError> {
        if self.args.follow {
            return self.print_new().map(drop);
        }
        self.ended.extend(self.running.iter_mut().map(LoopProcess::turns));
        let report = BlockersReport {
            processes: self.ended,
            duration,
            over: u64::try_from(self.args.over.as_nanos()).unwrap_or(u64::MAX),
            unmeasured: self.unmeasured,
        };
        if self.args.json {
            let mut text = report_json(&report).to_string();
            text.push('\n');
            return super::print_plain(&text);
        }
        super::print_plain(&report.to_string())
    }
}
