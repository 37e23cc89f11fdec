//! `lj-trace record`: attach, record until told to stop, write the results, say what was found.

mod args;
mod memory;
mod newcomers;
mod priority;
mod progress;
mod recording;
mod stopping;
mod targets;

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

pub use args::{Mode, RecordArgs};
use progress::Progress;
use recording::Recording;
use stopping::{Stop, Stopping};
use targets::{RecordTarget, targets};

use super::exit::CommandError;
use crate::record::CpuReports;
use crate::record::outputs::OutputFiles;

/// How often the ring buffers are looked at: often enough that a function is named before it can be collected, and
/// that a burst of allocations does not fill the buffer.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &RecordArgs) -> Result<(), CommandError> {
    let started = Instant::now();
    args.check_standard_output()?;
    priority::raise();
    let targets = targets(args)?;
    let mut common = common_reports(args)?;
    if let Some(common) = &mut common {
        targets.iter().for_each(|target| common.describe(&target.process));
    }
    let mut recordings =
        targets.iter().map(|target| Recording::start(target, targets.len())).collect::<Result<Vec<_>, _>>()?;
    let progress = Progress::new(args, &targets, &recordings, started.elapsed());

    let began = Instant::now();
    let stop = record(args, &targets, &mut recordings, common.as_mut(), &progress);
    recordings.iter_mut().for_each(Recording::detach);
    let duration = began.elapsed();
    // What was recorded is worth having, whatever has gone wrong meanwhile: the first error is told at the end.
    let drained = all(&mut recordings, |recording| recording.drain_all(common.as_mut()));
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
                eprintln!("{name}:");
            }
            eprint!("{}", summaries.text(stop.describe()));
        }
        written.iter().filter(|path| *path != Path::new("-")).for_each(|path| eprintln!("wrote {}", path.display()));
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

/// Records until something ends it.
fn record(
    args: &RecordArgs,
    targets: &[RecordTarget],
    recordings: &mut [Recording],
    mut common: Option<&mut CpuReports>,
    progress: &Progress,
) -> Result<Stop, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::internal(&error))?;
    let began = Instant::now();
    runtime.block_on(async {
        let mut stopping = Stopping::new(targets.iter().map(|target| &target.process), args.duration)?;
        let mut interim = signal(SignalKind::user_defined1()).map_err(|error| CommandError::internal(&error))?;
        let mut tick = tokio::time::interval(DRAIN_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                reason = stopping.next() => break Ok(reason),
                _ = interim.recv() => {
                    all(recordings, Recording::write_interim)?;
                    common.as_ref().map_or(Ok(()), |common| common.write_interim())?;
                }
                _ = tick.tick() => {
                    all(recordings, |recording| recording.drain(common.as_deref_mut()).map(drop))?;
                    progress.update(recordings, began.elapsed());
                }
            }
        }
    })
}
