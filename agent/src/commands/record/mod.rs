//! `lj-trace record`: attach, record until told to stop, write the results, say what was found.

mod args;
mod memory;
mod newcomers;
pub(super) mod priority;
mod progress;
pub(super) mod recording;
pub(super) mod stopping;
pub(super) mod targets;

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub use args::{Mode, RecordArgs};
pub(super) use args::{parse_address, parse_duration};
use progress::Progress;
use recording::Recording;
use stopping::{Stop, Stopping};
use targets::{RecordTarget, targets};

use super::exit::CommandError;
use crate::record::outputs::OutputFiles;
use crate::record::{CpuReports, SampleListener};
use crate::service::journal::{Priority, say};

/// How often the ring buffers are looked at: often enough that a function is named before it can be collected, and
/// that a burst of allocations does not fill the buffer.
pub(super) const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &RecordArgs) -> Result<(), CommandError> {
    let started = Instant::now();
    args.check_standard_output()?;
    priority::raise();
    let targets = targets(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::internal(&error))?;
    let signals = Signals::listen(&runtime, &targets)?;
    let mut common = common_reports(args)?;
    if let Some(common) = &mut common {
        targets.iter().for_each(|target| common.describe(&target.process));
    }
    let mut recordings =
        targets.iter().map(|target| Recording::start(target, targets.len())).collect::<Result<Vec<_>, _>>()?;
    let mut progress = Progress::new(args, &targets, &recordings, started.elapsed());

    let began = Instant::now();
    let stop = runtime.block_on(record(args, signals, &mut recordings, common.as_mut(), &mut progress));
    if let Ok(stop) = &stop {
        progress.stopping(stop.describe());
    }
    recordings.iter_mut().for_each(Recording::detach);
    let duration = began.elapsed();
    // What was recorded is worth having, whatever has gone wrong meanwhile: the first error is told at the end.
    let drained = all(&mut recordings, |recording| recording.drain_all(listener(&mut common.as_mut())));
    progress.finish();
    let names: Vec<String> = recordings.iter().map(|recording| recording.name().to_owned()).collect();
    let finished: Vec<_> = recordings
        .into_iter()
        .zip(&targets)
        .map(|(recording, target)| recording.finish(&target.args, duration))
        .collect();
    let lost: Vec<_> = finished.iter().flatten().flat_map(|summaries| summaries.lost_samples()).copied().collect();
    let written = common.map_or(Ok(Vec::new()), |common| common.finish(&lost));
    let stop = stop?;
    drained?;
    let summaries = finished.into_iter().collect::<Result<Vec<_>, _>>()?;
    let written = written?;
    if !args.quiet {
        for (name, summaries) in names.iter().zip(&summaries) {
            if args.children {
                say(Priority::Info, &format!("{name}:"));
            }
            for line in summaries.text(stop.describe()).lines() {
                // What is missing comes first, in capitals.
                let is_loss = line.starts_with("LOST") || line.starts_with("NOT ACCOUNTED FOR");
                say(if is_loss { Priority::Warning } else { Priority::Info }, line);
            }
        }
        let written = written.iter().filter(|path| *path != Path::new("-"));
        written.for_each(|path| say(Priority::Info, &format!("wrote {}", path.display())));
    }
    Ok(())
}

/// The reports of CPU time that hold all children; [`None`] if one process is recorded.
fn common_reports(args: &RecordArgs) -> Result<Option<CpuReports>, CommandError> {
    if !args.children {
        return Ok(None);
    }
    let standard_output = |output: &String| output == "-" || output.ends_with(":-");
    if args.output.iter().any(standard_output) && (args.mode != Mode::Sysprof || args.output.iter().any(|o| o == "-")) {
        let message = "standard output cannot take the files of several processes: name a file with --output, and each \
                       gets its process id";
        return Err(CommandError::usage(message));
    }
    if args.mode == Mode::Memprof {
        return Ok(None);
    }
    let files = OutputFiles::parse(&args.outputs("sysprof"), Path::new(""))?;
    let title = format!("children of process {}, CPU time at {} Hz", args.pid, args.rate);
    CpuReports::open(&files.reports, &title, args.rate).map(Some)
}

/// The reports of all processes, as those who look on.
fn listener<'a>(common: &'a mut Option<&mut CpuReports>) -> Option<&'a mut dyn SampleListener> {
    common.as_deref_mut().map(|common| common as &mut dyn SampleListener)
}

/// Does something to all recordings, even if it fails for one of them.
fn all(
    recordings: &mut [Recording],
    mut action: impl FnMut(&mut Recording) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let mut outcome = Ok(());
    for recording in recordings {
        outcome = outcome.and(action(recording));
    }
    outcome
}

/// What may happen while a recording runs.
struct Signals {
    stopping: Stopping,
    /// Somebody wants to see what there is so far.
    interim: Signal,
}

impl Signals {
    fn listen(runtime: &Runtime, targets: &[RecordTarget]) -> Result<Self, CommandError> {
        let _runtime = runtime.enter();
        let stopping = Stopping::new(targets.iter().map(|target| &target.process))?;
        let interim = signal(SignalKind::user_defined1()).map_err(|error| CommandError::internal(&error))?;
        Ok(Self { stopping, interim })
    }
}

/// Records until something ends it.
async fn record(
    args: &RecordArgs,
    Signals { mut stopping, mut interim }: Signals,
    recordings: &mut [Recording],
    mut common: Option<&mut CpuReports>,
    progress: &mut Progress,
) -> Result<Stop, CommandError> {
    let began = Instant::now();
    let deadline = args.duration.and_then(|duration| began.checked_add(duration));
    let mut tick = tokio::time::interval(DRAIN_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            reason = stopping.next(deadline) => break Ok(reason),
            _ = interim.recv() => {
                all(recordings, Recording::write_interim)?;
                common.as_ref().map_or(Ok(()), |common| common.write_interim())?;
            }
            _ = tick.tick() => {
                all(recordings, |recording| recording.drain(listener(&mut common)).map(drop))?;
                progress.update(recordings, began.elapsed());
            }
        }
    }
}
