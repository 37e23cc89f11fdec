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
use crate::probes::allocator::{AllocationProbes, AllocatorError, Handlers};
use crate::probes::programs::{ProbeError, Programs, Wanted};
use crate::probes::sampler::{SampleBuffer, Sampler};
use crate::record::{
    CallAccounts, MemoryEvents, MemoryOutputOptions, MemoryOutputs, MemorySummary, MemoryTally, Outputs, Pipeline,
    Summary,
};
use crate::report::Weight;
use crate::target::{Maps, Process, TargetError};
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

    /// Stop after this time, such as 30s, 5m or 500ms [default: at Ctrl-C, SIGTERM, or the exit of the process]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Samples per second of CPU time of each thread
    #[arg(short, long, value_name = "HZ", default_value_t = 99)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,

    /// Where to write; may be given several times, `-` is standard output
    ///
    /// The ending picks the format: `.svg` a flame graph, `.folded` folded stacks, `.txt` a summary, `.bin` a stream,
    /// from which `lj-trace report` makes all of these later. `svg:FILE` forces one. A process with several VMs gets a
    /// stream for each, numbered. Default: lj-trace-PID.sysprof.bin or .memprof.bin in $STATE_DIRECTORY or the current
    /// folder. SIGUSR1 writes what there is so far.
    #[arg(short, long, value_name = "[FORMAT:]FILE")]
    pub output: Vec<String>,

    /// What .folded and .svg of a memory profile weigh by [default: allocated]
    #[arg(long, value_enum)]
    pub weight: Option<Weight>,

    /// Version of the memprof stream: 3, or what an older Tarantool reads
    #[arg(long, value_name = "1|2|3", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    pub stream_version: u8,

    /// With a memory profile: .folded and .svg show the whole Lua and native stack of every Nth allocation, in place of
    /// the line alone of every event
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub alloc_stacks: Option<u32>,

    /// Put probes on the allocator that do nothing: the benchmark compares with them
    #[arg(long, hide = true)]
    pub empty_probes: bool,

    /// Say more about what is done: where the probes on the allocator are, and why there
    #[arg(short, long)]
    pub verbose: bool,

    /// Show no progress and no summary
    #[arg(short, long)]
    pub quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace --pid 1234                            until Ctrl-C, into lj-trace-1234.sysprof.bin
  sudo lj-trace --pid 1234 -d 30s -o cpu.svg          30 seconds, as a flame graph
  sudo lj-trace --pid 1234 -r 999 -o cpu.bin -o cpu.folded
  sudo lj-trace --pid 1234 -d 5s -o folded:- -q       folded stacks on standard output
  sudo lj-trace --pid 1234 -m memprof -d 10s          every allocation, into lj-trace-1234.memprof.bin
  sudo lj-trace --pid 1234 -m memprof -o mem.bin -o mem.svg
                                                      and a flame graph of the bytes allocated by each line
  sudo lj-trace --pid 1234 -m memprof --weight held -o leak.svg -d 10m
                                                      who holds what was allocated in ten minutes
  sudo lj-trace --pid 1234 -m all -d 10s              both, into two files";

/// What to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Where the CPU time goes
    #[value(alias = "cpu")]
    Sysprof,
    /// What allocates memory: every allocation, reallocation and free
    #[value(alias = "mem")]
    Memprof,
    /// Both at once, into two files
    All,
}

impl RecordArgs {
    fn wanted(&self) -> Wanted {
        let memory = self.mode != Mode::Sysprof;
        let stack_every = self.alloc_stacks.filter(|_| memory).unwrap_or(0);
        Wanted { cpu: self.mode != Mode::Memprof, memory, stack_every }
    }

    /// The outputs for one kind of profile: if both are recorded, each name gets the kind before its ending.
    fn outputs(&self, kind: &str) -> Vec<String> {
        let named = |output: &String| match output.rsplit_once('.') {
            Some((stem, ending)) => format!("{stem}.{kind}.{ending}"),
            None => format!("{output}.{kind}"),
        };
        if self.mode == Mode::All { self.output.iter().map(named).collect() } else { self.output.clone() }
    }
}

/// How often the ring buffers are looked at: often enough that a function is named before it can be collected, and
/// that a burst of allocations does not fill the buffer.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// Events that are taken at once before anything else is looked after.
const BATCH: usize = 1 << 16;

/// The same for samples, which cost much more.
const SAMPLE_BATCH: usize = 1 << 10;

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &RecordArgs) -> Result<(), CommandError> {
    let started = Instant::now();
    let process = Process::open(args.pid).map_err(target_error)?;
    let maps = process.maps().map_err(target_error)?;
    let vms = find_vms(&process, &maps).map_err(find_error)?;
    let mut recording = Recording::start(args, &process, &maps, &vms)?;
    let progress = Progress::new(args, &process, &vms, &recording, started.elapsed());

    let began = Instant::now();
    let stop = record(args, &process, &mut recording, &progress);
    recording.detach();
    let duration = began.elapsed();
    // What was recorded is worth having, whatever has gone wrong meanwhile.
    let drained = recording.drain_all();
    progress.finish();
    let finished = recording.finish(args, duration);
    let stop = stop?;
    drained?;
    let summary = finished?;
    if !args.quiet {
        eprint!("{}", summary.text(stop.describe()));
    }
    Ok(())
}

/// Records until something ends it.
fn record(
    args: &RecordArgs,
    process: &Process,
    recording: &mut Recording,
    progress: &Progress,
) -> Result<Stop, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal_error)?;
    let began = Instant::now();
    runtime.block_on(async {
        let mut stopping = Stopping::new(process, args.duration)?;
        let mut interim = signal(SignalKind::user_defined1()).map_err(internal_error)?;
        let mut tick = tokio::time::interval(DRAIN_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                reason = stopping.next() => break Ok(reason),
                _ = interim.recv() => recording.write_interim()?,
                _ = tick.tick() => {
                    recording.drain()?;
                    progress.update(recording, began.elapsed());
                }
            }
        }
    })
}

/// What is being recorded.
struct Recording {
    programs: Programs,
    /// Where samples come from, and how they are resolved; none if there are only allocation events.
    samples: Option<(SampleBuffer, Pipeline)>,
    cpu: Option<CpuRecording>,
    memory: Option<MemoryRecording>,
}

struct CpuRecording {
    sampler: Sampler,
    outputs: Outputs,
}

struct MemoryRecording {
    probes: AllocationProbes,
    /// By VM.
    events: Vec<MemoryEvents>,
    outputs: MemoryOutputs,
}

/// What a finished recording says.
struct Summaries {
    cpu: Option<(Summary, Vec<PathBuf>)>,
    memory: Option<(MemorySummary, Vec<PathBuf>)>,
}

impl Summaries {
    fn text(&self, end: &str) -> String {
        let cpu = self.cpu.iter().map(|(summary, files)| summary.text(end, files));
        let memory = self.memory.iter().map(|(summary, files)| summary.text(end, files));
        cpu.chain(memory).collect()
    }
}

impl Recording {
    fn start(args: &RecordArgs, process: &Process, maps: &Maps, vms: &[Vm]) -> Result<Self, CommandError> {
        let wanted = args.wanted();
        if args.weight.is_some() && !wanted.memory {
            return Err(CommandError::usage("--weight is for memory profiles: add --mode memprof, or all"));
        }
        // Outputs first: what cannot be written is not worth a single probe.
        let outputs = wanted.cpu.then(|| {
            let title = format!("{} (pid {}), CPU time at {} Hz", process.command(), args.pid, args.rate);
            Outputs::open(&args.outputs("sysprof"), &default_output(args.pid, "sysprof"), &title, args.rate, vms.len())
        });
        let outputs = outputs.transpose()?;
        let memory_outputs = wanted.memory.then(|| open_memory(args, process, vms)).transpose()?;
        let configs: Vec<VmConfig> = vms.iter().map(Vm::config).collect();
        let mut programs = Programs::load(wanted, &configs).map_err(probe_error)?;
        let has_samples = wanted.cpu || wanted.stack_every != 0;
        let samples = has_samples.then(|| {
            let buffer = SampleBuffer::open(&mut programs).map_err(probe_error)?;
            Ok::<_, CommandError>((buffer, Pipeline::new(process, vms)))
        });
        let samples = samples.transpose()?;
        let cpu = outputs.map(|outputs| {
            let sampler = Sampler::attach(&mut programs, process, args.rate).map_err(probe_error)?;
            Ok::<_, CommandError>(CpuRecording { sampler, outputs })
        });
        let cpu = cpu.transpose()?;
        let memory = memory_outputs.map(|(events, outputs)| {
            let handlers = if args.empty_probes { Handlers::Empty } else { Handlers::Record };
            let probes = AllocationProbes::attach(&mut programs, process, maps, vms, handlers);
            let probes = probes.map_err(allocator_error)?;
            Ok::<_, CommandError>(MemoryRecording { probes, events, outputs })
        });
        let memory = memory.transpose()?;
        Ok(Self { programs, samples, cpu, memory })
    }

    fn detach(&mut self) {
        if let Some(cpu) = &mut self.cpu {
            cpu.sampler.detach();
        }
        if let Some(memory) = &mut self.memory {
            memory.probes.detach(&mut self.programs);
        }
    }

    /// Takes what is ready; false if there may be more already.
    fn drain(&mut self) -> Result<bool, CommandError> {
        let samples = self.drain_samples()?;
        Ok(self.memory.as_mut().map_or(Ok(true), MemoryRecording::drain)? && samples)
    }

    fn drain_samples(&mut self) -> Result<bool, CommandError> {
        let Some((buffer, pipeline)) = &mut self.samples else { return Ok(true) };
        pipeline.refresh();
        let mut outcome = Ok(());
        let taken = buffer.drain(SAMPLE_BATCH, |sample| {
            let resolved = pipeline.resolve(sample);
            match (resolved.allocation, &mut self.cpu, &mut self.memory) {
                (Some(size), _, Some(memory)) => memory.outputs.add_stack(&resolved, size),
                (None, Some(cpu), _) if outcome.is_ok() => outcome = cpu.outputs.add(&resolved),
                _ => {}
            }
        });
        outcome.map(|()| taken < SAMPLE_BATCH)
    }

    fn drain_all(&mut self) -> Result<(), CommandError> {
        while !self.drain()? {}
        Ok(())
    }

    fn write_interim(&mut self) -> Result<(), CommandError> {
        if let Some(cpu) = &mut self.cpu {
            cpu.outputs.write_interim()?;
        }
        if let Some(memory) = &mut self.memory {
            memory.outputs.write_interim()?;
        }
        Ok(())
    }

    fn finish(self, args: &RecordArgs, duration: Duration) -> Result<Summaries, CommandError> {
        let programs = self.programs;
        let counted = |counters: &[Counter]| counts(&programs, counters);
        let tally = self.samples.as_ref().map(|(_, pipeline)| pipeline.tally().clone()).unwrap_or_default();
        let cpu = self.cpu.map(|CpuRecording { outputs, .. }| {
            let lost = counted(&[Counter::RingBufferFull, Counter::NoScratch, Counter::NoRegisters]);
            let summary = Summary { pid: args.pid, rate: args.rate, duration, tally, lost };
            let files = outputs.finish(&summary)?;
            Ok::<_, CommandError>((summary, files))
        });
        let memory = self.memory.map(|MemoryRecording { events, outputs, .. }| {
            let tally = events.iter().fold(MemoryTally::default(), |sum, events| sum.plus(events.tally()));
            let sum = |counters: &[Counter]| counters.iter().map(|&counter| programs.count(counter)).sum();
            let accounts = CallAccounts {
                calls: sum(&[Counter::AllocatorCalls]),
                written: sum(&[Counter::AllocationsWritten]),
                lost: sum(&[Counter::AllocationsLost, Counter::PendingFull]),
                no_event: sum(&[Counter::AllocationsFailed, Counter::NothingFreed, Counter::UnknownVm]),
                received: tally.events,
            };
            let summary = MemorySummary {
                duration,
                tally,
                accounts,
                lost: counted(&[Counter::AllocationsLost, Counter::PendingFull, Counter::ScratchBusy]),
                noted: counted(&[Counter::UnknownVm, Counter::AllocationsFailed, Counter::NothingFreed]),
            };
            let files = outputs.finish(&summary.lost)?;
            Ok::<_, CommandError>((summary, files))
        });
        // Both are finished before either's error is reported.
        let (cpu, memory) = (cpu.transpose(), memory.transpose());
        Ok(Summaries { cpu: cpu?, memory: memory? })
    }
}

impl MemoryRecording {
    /// Takes the events that are ready, up to a batch of them; false if there may be more.
    fn drain(&mut self) -> Result<bool, CommandError> {
        let Self { probes, events, outputs } = self;
        events.iter_mut().for_each(MemoryEvents::begin_batch);
        let mut outcome = Ok(());
        let taken = probes.drain(BATCH, |event| {
            if outcome.is_ok()
                && let Some(events) = events.get_mut(usize::from(event.vm))
            {
                outcome = events.add(event, outputs);
            }
        });
        outcome.map(|()| taken < BATCH)
    }

    fn events(&self) -> u64 {
        self.events.iter().map(|events| events.tally().events).sum()
    }
}

/// Opens the outputs of a memory profile, and reads what the VMs have by now.
fn open_memory(
    args: &RecordArgs,
    process: &Process,
    vms: &[Vm],
) -> Result<(Vec<MemoryEvents>, MemoryOutputs), CommandError> {
    if args.alloc_stacks.is_some() && args.weight.is_some_and(|weight| weight != Weight::Allocated) {
        let message = "stacks of allocations (--alloc-stacks) can be weighed by --weight allocated only";
        return Err(CommandError::usage(message));
    }
    let mut outputs = MemoryOutputs::open(&MemoryOutputOptions {
        outputs: args.outputs("memprof"),
        default: default_output(args.pid, "memprof"),
        version: args.stream_version,
        vms: vms.len(),
        title: format!("{} (pid {})", process.command(), args.pid),
        weight: args.weight.unwrap_or_default(),
        stack_every: args.alloc_stacks,
    })?;
    let start = |(number, vm)| MemoryEvents::start(process, vm, number, args.stream_version, &mut outputs);
    let events = vms.iter().enumerate().map(start).collect::<Result<_, _>>()?;
    Ok((events, outputs))
}

/// The counters that have counted something.
fn counts(programs: &Programs, counters: &[Counter]) -> Vec<(&'static str, u64)> {
    let counted = counters.iter().map(|&counter| (counter.describe(), programs.count(counter)));
    counted.filter(|(_, count)| *count != 0).collect()
}

/// The stream's name if none is given: in systemd's `StateDirectory=` (systemd.exec(5)) where there is one.
fn default_output(pid: u32, kind: &str) -> PathBuf {
    let name = format!("lj-trace-{pid}.{kind}.bin");
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
        // After any other end, a signal that comes late is no second one: what was recorded is still written.
        if stop == Stop::Signal {
            exit_at_next_signal();
        }
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
    fn new(args: &RecordArgs, process: &Process, vms: &[Vm], recording: &Recording, attach: Duration) -> Self {
        let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        if !args.quiet {
            let until = match args.duration {
                Some(duration) => format!("for {duration:?}"),
                None => "until Ctrl-C".to_owned(),
            };
            let what = match &recording.cpu {
                Some(cpu) => format!("at {} Hz ({}) ", args.rate, cpu.sampler.clock().describe()),
                None => String::new(),
            };
            let memory = if recording.memory.is_some() { "with every allocation " } else { "" };
            let (pid, command, attach) = (args.pid, process.command(), attach.as_millis());
            eprintln!("recording process {pid} ({command}) {what}{memory}{until}; attached in {attach} ms");
            for vm in vms {
                eprintln!("VM at {:#x}: {}", vm.global, vm.describe());
            }
        }
        if args.verbose {
            for plan in recording.memory.iter().flat_map(|memory| memory.probes.plans()) {
                eprintln!("{plan}");
            }
        }
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { bar, rate: args.rate }
    }

    fn update(&self, recording: &Recording, elapsed: Duration) {
        if self.bar.is_hidden() {
            return;
        }
        let mut message = format!("{:.0} s", elapsed.as_secs_f64());
        if let (Some((_, pipeline)), Some(_)) = (&recording.samples, &recording.cpu) {
            let samples = pipeline.tally().samples;
            let seconds = samples as f64 / f64::from(self.rate);
            message.push_str(&format!(": {samples} samples, {seconds:.1} s of CPU time"));
        }
        if let Some(memory) = &recording.memory {
            message.push_str(&format!(": {} allocation events", memory.events()));
        }
        self.bar.set_message(message);
        self.bar.tick();
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
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

fn probe_error(error: ProbeError) -> CommandError {
    match error {
        ProbeError::Target(error) => target_error(error),
        ProbeError::NotPermitted { .. } => CommandError::new(ExitCode::PRIVILEGES, error.to_string()),
        error => CommandError::new(ExitCode::BUG, error.to_string()),
    }
}

fn allocator_error(error: AllocatorError) -> CommandError {
    match error {
        AllocatorError::Probe(error) => probe_error(error),
        error => CommandError::new(ExitCode::NO_LUAJIT, error.to_string()),
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
