//! Simulates programs in virtual time, and recordings of them, to test estimates.

use std::collections::VecDeque;

use super::random::Random;
use super::{Estimate, Estimator};
use crate::observation::{ActivityId, CpuSample, Made, Nanos, Part, Reading, SourceId, Window, WindowSample};

/// The cost of a probed allocator call, in nanoseconds.
const PROBED: f64 = 1000.0;

/// The number of calls at the beginning of a window that count less.
const RAMP: f64 = 1000.0;

/// Some work that a program does: a function that runs for a while and allocates.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    activity: u32,
    /// The duration without probes, in nanoseconds.
    time: f64,
    /// The line, bytes and calls.
    made: [(u32, f64, f64); 2],
    /// Bytes that the work frees explicitly.
    freed: f64,
}

impl Work {
    const fn new(activity: u32, time: f64, made: [(u32, f64, f64); 2], freed: f64) -> Self {
        Self { activity, time, made, freed }
    }

    fn bytes(&self) -> f64 {
        self.made[0].1 + self.made[1].1
    }

    fn calls(&self) -> f64 {
        self.made[0].2 + self.made[1].2
    }
}

const JSON: Work = Work::new(0, 60e3, [(0, 24e3, 300.0), (1, 9e3, 90.0)], 0.0);
const CLOSURES: Work = Work::new(1, 40e3, [(2, 12e3, 250.0), (2, 0.0, 0.0)], 0.0);
const BUFFERS: Work = Work::new(2, 50e3, [(3, 41e3, 5.0), (3, 0.0, 0.0)], 8e3);
const CONCAT: Work = Work::new(3, 45e3, [(4, 15e3, 120.0), (5, 4e3, 60.0)], 0.0);
const COMPUTE: Work = Work::new(4, 80e3, [(6, 80.0, 1.0), (6, 0.0, 0.0)], 0.0);
const TIGHT: Work = Work::new(5, 20e3, [(7, 25e3, 800.0), (8, 12e3, 20.0)], 2e3);
const CHURN: Work = Work::new(6, 60e3, [(3, 90e3, 12.0), (3, 0.0, 0.0)], 90e3);
/// One of a thousand objects that [`JSON`] makes.
const LEAK: Work = Work::new(0, 60e3, [(0, 24e3, 300.0), (9, 80.0, 0.33)], 0.0);

/// The program, as its activities over its own time in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    Steady,
    /// Two kinds of work in turns of 0.3 s.
    Phases,
    /// 30 ms of nothing but allocations in every 200 ms.
    Bursts,
    Leak,
    /// Turns of 0.3 s in which everything that is allocated is also freed explicitly.
    Churn,
}

impl Program {
    fn work(self, now: f64, random: &mut Random) -> Work {
        let any = |choice: &[Work], random: &mut Random| choice[random.below(choice.len())];
        match self {
            Self::Steady => any(&[JSON, CLOSURES, BUFFERS, CONCAT, COMPUTE, COMPUTE], random),
            Self::Phases if now % 600e6 < 300e6 => any(&[JSON, CLOSURES], random),
            Self::Phases => any(&[BUFFERS, CONCAT, COMPUTE, COMPUTE], random),
            Self::Bursts if now % 200e6 < 30e6 => TIGHT,
            Self::Bursts => any(&[JSON, COMPUTE, COMPUTE], random),
            Self::Churn if now % 600e6 < 300e6 => any(&[CHURN, COMPUTE], random),
            Self::Churn => any(&[JSON, CLOSURES], random),
            Self::Leak => any(&[LEAK, CONCAT, COMPUTE], random),
        }
    }
}

/// The settings of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The duration in nanoseconds.
    pub time: f64,
    /// The time that has one window, in nanoseconds.
    pub period: f64,
    pub window: f64,
    /// Samples per second.
    pub rate: f64,
    /// Whether the VM counts all allocated bytes.
    pub gross: bool,
    /// Whether other processes have the CPU most of the time, some milliseconds at a time. Nothing is read then either.
    pub starved: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { time: 20e9, period: 80e6, window: 3e6, rate: 999.0, gross: false, starved: false }
    }
}

/// The true allocations of a program: bytes and calls by line.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub lines: [(f64, f64); 10],
    pub gross: f64,
    pub net: f64,
}

/// A simulated recording.
#[derive(Debug)]
pub struct Simulated {
    pub estimate: Estimate,
    pub truth: Truth,
    /// Bytes by line, in all windows.
    pub pooled: [f64; 10],
    /// How much slower the program was than without windows.
    pub slowdown: f64,
}

impl Simulated {
    /// The true share of a line, from 0 to 1.
    pub fn share(&self, line: u32) -> f64 {
        self.truth.lines[line as usize].0 / self.truth.gross
    }

    /// The largest error of any line's share, in points.
    pub fn worst(&self) -> f64 {
        let error = |line| (self.estimated(line) - self.share(line)).abs() * 100.0;
        (0..10).map(error).fold(0.0, f64::max)
    }

    /// The estimated share of a line.
    pub fn estimated(&self, line: u32) -> f64 {
        self.estimate.lines.iter().find(|other| other.source.0 == line).map_or(0.0, |line| line.share.value)
    }

    /// The largest error of shares that come from adding up the windows.
    pub fn worst_pooled(&self) -> f64 {
        let all: f64 = self.pooled.iter().sum();
        (0..10).map(|i| (self.pooled[i as usize] / all - self.share(i)).abs() * 100.0).fold(0.0, f64::max)
    }
}

/// Runs a program and records it.
pub fn record(program: Program, setup: &Setup, seed: u64) -> Simulated {
    Recording::new(setup, seed).run(program)
}

struct Recording<'a> {
    setup: &'a Setup,
    random: Random,
    estimator: Estimator,
    truth: Truth,
    /// The wall-clock time, and the program's own time.
    now: f64,
    worked: f64,
    next_reading: f64,
    next_sample: f64,
    /// When other processes get the CPU next.
    next_pause: f64,
    /// How long they have had it.
    paused: f64,
    /// When the next window opens, or the open one closes.
    edge: f64,
    periods: f64,
    opened: Option<f64>,
    /// What the open window has seen: bytes and calls by line, and freed bytes.
    seen: [(f64, f64); 10],
    freed: f64,
    /// The same with the first calls counting less.
    sampled: [(f64, f64); 10],
    freed_sampled: f64,
    /// Windows on their way to the estimator, and when they arrive.
    closed: VecDeque<(f64, Window)>,
    pooled: [f64; 10],
}

impl<'a> Recording<'a> {
    fn new(setup: &'a Setup, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let edge = random.unit() * (setup.period - setup.window);
        let mut estimator = Estimator::new();
        estimator.set_sampling(setup.rate);
        Self {
            setup,
            random,
            estimator,
            truth: Truth::default(),
            now: 0.0,
            worked: 0.0,
            next_reading: 0.0,
            next_sample: 0.5e6,
            next_pause: if setup.starved { 0.0 } else { f64::INFINITY },
            paused: 0.0,
            edge,
            periods: 0.0,
            opened: None,
            seen: Default::default(),
            freed: 0.0,
            sampled: Default::default(),
            freed_sampled: 0.0,
            closed: VecDeque::new(),
            pooled: Default::default(),
        }
    }

    fn run(mut self, program: Program) -> Simulated {
        while self.now < self.setup.time {
            let mut work = program.work(self.worked, &mut self.random);
            let size = 0.5 + self.random.unit();
            scale(&mut work, size);
            self.perform(work);
        }
        if let Some(opened) = self.opened.take() {
            self.close(opened, self.now as Nanos);
        }
        while let Some((_, window)) = self.closed.pop_front() {
            self.estimator.window(window);
        }
        let slowdown = (self.now - self.paused) / self.worked;
        Simulated { estimate: self.estimator.estimate(), truth: self.truth, pooled: self.pooled, slowdown }
    }

    /// Other processes run: on average, for twice the time of the program's next turn.
    fn pause(&mut self) {
        let time = 16e6 * self.random.unit();
        self.now += time;
        self.paused += time;
        // Samples are taken in CPU time.
        self.next_sample += time;
        self.next_pause = self.now + 8e6 * self.random.unit();
    }

    /// Performs some work, in as many parts as the clock requires.
    fn perform(&mut self, work: Work) {
        let mut left = 1.0;
        while left > 1e-9 {
            if self.now >= self.next_pause {
                self.pause();
            }
            let probed = if self.opened.is_some() { PROBED * work.calls() } else { 0.0 };
            let whole = work.time + probed;
            let until = self.next_reading.min(self.next_sample).min(self.edge).min(self.next_pause);
            let part = (((until - self.now) / whole).max(0.0)).min(left);
            self.now += whole * part;
            self.worked += work.time * part;
            left -= part;
            self.account(&work, part);
            if self.now >= until - 1e-3 {
                self.tick(work.activity);
            }
        }
    }

    fn account(&mut self, work: &Work, part: f64) {
        self.truth.gross += work.bytes() * part;
        self.truth.net += (work.bytes() - work.freed) * part;
        let calls: f64 = self.seen.iter().map(|seen| seen.1).sum();
        let weight = ((calls + 0.5 * work.calls() * part) / RAMP).min(1.0);
        for (line, bytes, calls) in work.made {
            let line = line as usize;
            self.truth.lines[line].0 += bytes * part;
            self.truth.lines[line].1 += calls * part;
            if self.opened.is_some() {
                self.seen[line].0 += bytes * part;
                self.seen[line].1 += calls * part;
                self.sampled[line].0 += bytes * part * weight;
                self.sampled[line].1 += calls * part * weight;
            }
        }
        if self.opened.is_some() {
            self.freed += work.freed * part;
            self.freed_sampled += work.freed * part * weight;
        }
    }

    /// Performs what is due now.
    fn tick(&mut self, activity: u32) {
        let now = self.now + 1e-3;
        let at = now as Nanos + 1;
        if now >= self.next_reading {
            let gross = self.setup.gross.then_some(self.truth.gross as u64);
            self.estimator.reading(Reading { at, net: self.truth.net as u64, gross, ..Reading::default() });
            self.next_reading = self.next_reading.max(now - 1e6) + 0.9e6 + 0.2e6 * self.random.unit();
            while self.closed.front().is_some_and(|(due, _)| *due <= now) {
                self.estimator.window(self.closed.pop_front().unwrap_or_default().1);
            }
        }
        if now >= self.next_sample {
            self.estimator.sample(CpuSample { at, activity: ActivityId(activity) });
            self.next_sample += 1e9 / self.setup.rate;
        }
        if now >= self.edge {
            match self.opened.take() {
                None => {
                    self.opened = Some(self.now);
                    self.edge = self.now + self.setup.window;
                }
                Some(opened) => self.close(opened, at),
            }
        }
    }

    fn close(&mut self, opened: f64, closed: Nanos) {
        let made = self.seen.iter().enumerate().filter(|(_, seen)| seen.0 > 0.0);
        let made: Vec<Made> = made
            .map(|(line, seen)| Made {
                source: SourceId(line as u32),
                bytes: seen.0 as u64,
                count: seen.1.round() as u64,
            })
            .collect();
        for (pooled, seen) in self.pooled.iter_mut().zip(&self.seen) {
            *pooled += seen.0;
        }
        let events = made.iter().map(|made| made.count).sum();
        let sampled = (0..).zip(&self.sampled).filter(|(_, sampled)| sampled.0 > 0.0);
        let parts = sampled.map(|(line, &(bytes, count))| Part { source: SourceId(line), bytes, count }).collect();
        let window = Window {
            opened: opened as Nanos,
            closed,
            cost: PROBED * events as f64,
            events,
            freed: self.freed as u64,
            made,
            sample: WindowSample { freed: self.freed_sampled, parts },
            blocks: Vec::new(),
        };
        self.closed.push_back((self.now + 0.7e9, window));
        (self.seen, self.freed) = Default::default();
        (self.sampled, self.freed_sampled) = Default::default();
        self.periods += 1.0;
        let room = (self.setup.period - self.setup.window).max(0.0);
        self.edge = (self.periods * self.setup.period + self.random.unit() * room).max(self.now);
    }
}

/// Scales some work.
fn scale(work: &mut Work, by: f64) {
    work.time *= by;
    work.freed *= by;
    for made in &mut work.made {
        made.1 *= by;
        made.2 *= by;
    }
}
