//! `lj-trace record`: attach, record until told to stop, write the results, say what was found.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lj_trace_common::config::Counter;
use lj_trace_common::vm::VmConfig;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{CommandError, ExitCode};
use crate::probes::sampler::{Sampler, SamplerError};
use crate::record::{Outputs, Pipeline, Summary};
use crate::target::{Process, TargetError};
use crate::vm::{FindError, Vm, find_vms};

/// Options of `lj-trace record`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RecordArgs {
    /// The process to profile
    #[arg(short, long, value_name = "PID")]
    pub pid: u32,

    /// What to record
    #[arg(short, long, value_enum, default_value_t = Mode::Sysprof)]
    pub mode: Mode,

    /// Stop after this time, such as 30s, 5m or 500ms [default: at Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Samples per second of CPU time of each thread
    #[arg(short, long, value_name = "HZ", default_value_t = 99)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,

    /// Where to write: FILE, `-` for standard output, or FORMAT:FILE; may be given several times
    ///
    /// The ending picks the format: `.bin` a sysprof stream, `.folded` folded stacks, `.svg` a flame graph.
    /// Default: lj-trace-PID.sysprof.bin in $STATE_DIRECTORY or the current folder.
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<String>,

    /// Show no progress and no summary
    #[arg(short, long)]
    pub quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace --pid 1234                            until Ctrl-C, into lj-trace-1234.sysprof.bin
  sudo lj-trace --pid 1234 -d 30s -o cpu.svg          30 seconds, as a flame graph
  sudo lj-trace --pid 1234 -r 999 -o cpu.bin -o cpu.folded
  sudo lj-trace --pid 1234 -d 5s -o folded:- -q       folded stacks on standard output";

/// What to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Where the CPU time goes
    #[value(alias = "cpu")]
    Sysprof,
}

/// How often the ring buffer is looked at: often enough that a function is named before it can be collected.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &RecordArgs) -> Result<(), CommandError> {
    let started = Instant::now();
    let process = Process::open(args.pid).map_err(target_error)?;
    let maps = process.maps().map_err(target_error)?;
    let vms = find_vms(&process, &maps).map_err(find_error)?;
    let title = format!("{} (pid {}), CPU time at {} Hz", process.command(), args.pid, args.rate);
    let mut outputs = Outputs::open(&args.output, &default_output(args), &title, args.rate, vms.len())?;
    let configs: Vec<VmConfig> = vms.iter().map(Vm::config).collect();
    let mut sampler = Sampler::load(&configs).map_err(sampler_error)?;
    let mut pipeline = Pipeline::new(&process, &vms);
    sampler.attach(&process, args.rate).map_err(sampler_error)?;
    let progress = Progress::new(args, &process, &vms, sampler.clock().describe(), started.elapsed());

    let recording = Instant::now();
    let stop = record(args, &process, &mut sampler, &mut pipeline, &mut outputs, &progress);
    sampler.detach();
    let recorded = recording.elapsed();
    // What was recorded is worth having, whatever has gone wrong meanwhile.
    let drained = drain(&mut sampler, &mut pipeline, &mut outputs);
    progress.finish();
    let summary = Summary {
        pid: args.pid,
        rate: args.rate,
        duration: recorded,
        tally: pipeline.tally().clone(),
        lost: losses(&sampler),
    };
    let finished = outputs.finish(&summary);
    let stop = stop?;
    drained?;
    let files = finished?;
    if !args.quiet {
        eprint!("{}", summary.text(stop.describe(), &files));
    }
    Ok(())
}

/// Records until something ends it.
fn record(
    args: &RecordArgs,
    process: &Process,
    sampler: &mut Sampler,
    pipeline: &mut Pipeline,
    outputs: &mut Outputs,
    progress: &Progress,
) -> Result<Stop, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal_error)?;
    let recording = Instant::now();
    runtime.block_on(async {
        let mut stopping = Stopping::new(process, args.duration)?;
        let mut interim = signal(SignalKind::user_defined1()).map_err(internal_error)?;
        let mut tick = tokio::time::interval(DRAIN_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                reason = stopping.next() => break Ok(reason),
                _ = interim.recv() => outputs.write_interim()?,
                _ = tick.tick() => {
                    drain(sampler, pipeline, outputs)?;
                    progress.update(pipeline.tally().samples, recording.elapsed());
                }
            }
        }
    })
}

/// Takes all samples that are ready through the pipeline.
fn drain(sampler: &mut Sampler, pipeline: &mut Pipeline, outputs: &mut Outputs) -> Result<(), CommandError> {
    pipeline.refresh();
    let mut outcome = Ok(());
    sampler.drain(|sample| {
        let resolved = pipeline.resolve(sample);
        if outcome.is_ok() {
            outcome = outputs.add(&resolved);
        }
    });
    outcome
}

/// The stream's name if none is given: in systemd's `StateDirectory=` (systemd.exec(5)) where there is one.
fn default_output(args: &RecordArgs) -> PathBuf {
    let name = format!("lj-trace-{}.sysprof.bin", args.pid);
    match std::env::var("STATE_DIRECTORY") {
        // Several directories are separated by colons.
        Ok(folders) if !folders.is_empty() => PathBuf::from(folders.split(':').next().unwrap_or_default()).join(name),
        _ => PathBuf::from(name),
    }
}

/// Why recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Signal,
    Duration,
    TargetExited,
}

impl Stop {
    fn describe(self) -> &'static str {
        match self {
            Self::Signal => "stopped by a signal",
            Self::Duration => "the time is over",
            Self::TargetExited => "the process has exited",
        }
    }
}

/// Waits for whatever ends a recording.
struct Stopping {
    interrupt: Signal,
    terminate: Signal,
    exit: Option<AsyncFd<std::os::fd::OwnedFd>>,
    deadline: Option<tokio::time::Instant>,
}

impl Stopping {
    fn new(process: &Process, duration: Option<Duration>) -> Result<Self, CommandError> {
        let listen = |kind| signal(kind).map_err(internal_error);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            // SAFETY: an owned descriptor stays open, and the same, until the event drops it.
            exit: process.exit_event().and_then(|fd| unsafe { AsyncFd::register(fd) }.ok()),
            deadline: duration.map(|duration| tokio::time::Instant::now() + duration),
        })
    }

    async fn next(&mut self) -> Stop {
        let exit = async {
            match &self.exit {
                Some(fd) => drop(fd.readable().await),
                None => std::future::pending().await,
            }
        };
        let deadline = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let stop = tokio::select! {
            _ = self.interrupt.recv() => Stop::Signal,
            _ = self.terminate.recv() => Stop::Signal,
            () = exit => Stop::TargetExited,
            () = deadline => Stop::Duration,
        };
        exit_at_next_signal();
        stop
    }
}

/// From here on a second SIGINT or SIGTERM ends lj-trace at once.
fn exit_at_next_signal() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the default action is a valid disposition, and nothing of ours waits for these signals any more.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// What is shown while recording: a line that changes on a terminal, and a plain line at the start.
struct Progress {
    bar: ProgressBar,
    rate: u32,
}

impl Progress {
    fn new(args: &RecordArgs, process: &Process, vms: &[Vm], clock: &str, attach: Duration) -> Self {
        let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        if !args.quiet {
            let until = match args.duration {
                Some(duration) => format!("for {duration:?}"),
                None => "until Ctrl-C".to_owned(),
            };
            let (pid, rate, command, attach) = (args.pid, args.rate, process.command(), attach.as_millis());
            eprintln!("recording process {pid} ({command}) at {rate} Hz ({clock}) {until}; attached in {attach} ms");
            for vm in vms {
                eprintln!("VM at {:#x}: {}", vm.global, vm.describe());
            }
        }
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { bar, rate: args.rate }
    }

    fn update(&self, samples: u64, elapsed: Duration) {
        let cpu = samples as f64 / f64::from(self.rate);
        self.bar.set_message(format!("{:.0} s: {samples} samples, {cpu:.1} s of CPU time", elapsed.as_secs_f64()));
        self.bar.tick();
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// What the BPF programs say they lost, by reason.
fn losses(sampler: &Sampler) -> Vec<(&'static str, u64)> {
    [Counter::RingBufferFull, Counter::NoScratch, Counter::NoRegisters]
        .into_iter()
        .map(|counter| (counter.describe(), sampler.count(counter)))
        .filter(|(_, count)| *count != 0)
        .collect()
}

fn target_error(error: TargetError) -> CommandError {
    let code = match error {
        TargetError::NoSuchProcess(_) | TargetError::Zombie(_) => ExitCode::NO_PROCESS,
        TargetError::NotPermitted { .. } => ExitCode::PRIVILEGES,
        TargetError::KernelThread(_) => ExitCode::NO_LUAJIT,
        TargetError::Io { .. } => ExitCode::IO,
    };
    CommandError::new(code, error.to_string())
}

fn find_error(error: FindError) -> CommandError {
    match error {
        FindError::Target(error) => target_error(error),
        error => CommandError::new(ExitCode::NO_LUAJIT, error.to_string()),
    }
}

fn sampler_error(error: SamplerError) -> CommandError {
    match error {
        SamplerError::Target(error) => target_error(error),
        SamplerError::NotPermitted { .. } => CommandError::new(ExitCode::PRIVILEGES, error.to_string()),
        error => CommandError::new(ExitCode::BUG, error.to_string()),
    }
}

fn internal_error(error: std::io::Error) -> CommandError {
    CommandError::new(ExitCode::BUG, format!("cannot start: {error}"))
}

/// Reads a time such as `30s`, `1.5m` or `500ms`; a bare number counts seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit `{unit}`: use ms, s, m or h")),
    };
    let number: f64 = number.parse().map_err(|_| "expected a time such as 30s, 5m or 500ms".to_owned())?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("the time must be more than nothing, and fit".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("7"), Ok(Duration::from_secs(7)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "s", "0", "0s", "-1s", "5x", "1..2s", "99999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
