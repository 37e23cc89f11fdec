//! `lj-trace record`: attach, record until told to stop, write the results, say what was found.

mod args;
mod memory;
mod newcomers;
mod priority;
mod progress;
mod recording;
mod stopping;

use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

pub use args::{Mode, RecordArgs};
use progress::Progress;
use recording::Recording;
use stopping::{Stop, Stopping};

use super::exit::CommandError;
use crate::target::Process;
use crate::vm::find_vms;

/// How often the ring buffers are looked at: often enough that a function is named before it can be collected, and
/// that a burst of allocations does not fill the buffer.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &RecordArgs) -> Result<(), CommandError> {
    let started = Instant::now();
    priority::raise();
    let process = Process::open(args.pid)?;
    let maps = process.maps()?;
    let vms = find_vms(&process, &maps)?;
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::internal(&error))?;
    let began = Instant::now();
    runtime.block_on(async {
        let mut stopping = Stopping::new(process, args.duration)?;
        let mut interim = signal(SignalKind::user_defined1()).map_err(|error| CommandError::internal(&error))?;
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
