//! What has blocked the event loop of a process: collected during the run, shown as text and as JSON.

mod json;
mod lengths;
mod report;
mod text;

pub use json::{blocker_line, report_json};
pub use report::{BlockersReport, ProcessTurns};

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lj_trace_common::turn::EndedTurn;
use lj_trace_engine::blockers::{Blocker, Gathered, Longest, TurnSamples, TurnStack};
use lj_trace_engine::cpu::SampleListener;
use lj_trace_engine::resolve::Resolved;
use lj_trace_engine::sample_clock;
use lj_trace_profile::Frame;

/// How many of the longest turns to show.
const SHOWN: usize = 20;

/// Collects the long turns of one process.
pub struct BlockerWatch {
    pid: u32,
    /// The name by which people know it.
    pub name: String,
    gathered: Gathered,
    /// The longest turns so far.
    pub longest: Longest,
    /// The number of long turns.
    pub count: u64,
    /// Their total length, in nanoseconds.
    pub time: u64,
    /// Turns that nobody has taken yet, if the caller takes them.
    new: Option<Vec<Blocker>>,
    /// How many nanoseconds a tick stands for.
    tick: u64,
    /// [`None`] if time off the CPU is measured. Otherwise samples have to show it; these begin after this many
    /// nanoseconds of a turn.
    unmeasured_after: Option<u64>,
}

impl BlockerWatch {
    /// For a process whose clock ticks `rate` times a second. `follows` says whether the caller takes each turn as it
    /// ends. If time off the CPU is not measured, samples begin after `unmeasured_after` nanoseconds of a turn.
    pub fn new((pid, name): (u32, String), rate: u32, follows: bool, unmeasured_after: Option<u64>) -> Self {
        Self {
            pid,
            name,
            gathered: Gathered::default(),
            longest: Longest::new(SHOWN),
            count: 0,
            time: 0,
            new: follows.then(Vec::new),
            tick: 1_000_000_000 / u64::from(rate.max(1)),
            unmeasured_after,
        }
    }

    /// The turns since the last call.
    pub fn take_new(&mut self) -> Vec<Blocker> {
        self.new.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The number of samples that belong to no turn.
    pub fn lost(&self) -> u64 {
        self.gathered.lost
    }

    /// Adds a turn that was too long, or that is already too long but has not ended.
    pub fn found(&mut self, mut turn: EndedTurn, has_ended: bool) {
        let samples = self.gathered.take(turn.tid, turn.number);
        if let Some(after) = self.unmeasured_after {
            turn.waited = estimated_wait(&turn, &samples, after);
        }
        let blocker = Blocker::new(self.pid, turn, has_ended, &samples);
        self.count += 1;
        self.time += turn.length();
        if let Some(new) = &mut self.new {
            new.push(blocker.clone());
        }
        self.longest.add(blocker);
    }
}

impl SampleListener for BlockerWatch {
    fn sample(&mut self, sample: &Resolved, _root: Frame) {
        if sample.turn == 0 {
            return;
        }
        let frames: Vec<Arc<Frame>> = sample.frames.iter().map(|frame| frame.named.clone()).collect();
        let (weight, request) = (sample.wait.unwrap_or(self.tick), sample.request.labels.clone());
        self.gathered.add((sample.tid, sample.turn), TurnStack { entry: sample.entry, weight, frames, request });
    }

    fn turn(&mut self, turn: &EndedTurn) {
        self.found(*turn, turn.exited == 0);
    }
}

/// How long a turn was off the CPU, as far as ticks that hit the turn can show.
fn estimated_wait(turn: &EndedTurn, samples: &TurnSamples, after: u64) -> u64 {
    let sampled = turn.length().saturating_sub(after).max(1);
    let share = (samples.weight() as f64 / sampled as f64).min(1.0);
    (turn.length() as f64 * (1.0 - share)) as u64
}

/// The time of day at this time of the monotonic clock.
pub fn time_of_day(monotonic: u64) -> SystemTime {
    let ago = sample_clock::now().saturating_sub(monotonic);
    SystemTime::now().checked_sub(Duration::from_nanos(ago)).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
