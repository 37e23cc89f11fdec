//! The order of samples in time.

use std::time::SystemTime;

use super::StackId;

/// Samples in the order of time, and numbers that change over time.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    points: Vec<Point>,
    /// There were more samples than can be kept in order.
    overflow: bool,
    /// The wall-clock time at which it begins, if known.
    pub started: Option<SystemTime>,
    /// Other values that were measured over time.
    pub counters: Vec<CounterSeries>,
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// Its stack, including its labels.
    pub stack: StackId,
}

/// A value that changes over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSeries {
    /// The name of the value.
    pub name: String,
    /// Times, in nanoseconds of `CLOCK_MONOTONIC`, with the value in bytes.
    pub values: Vec<(u64, u64)>,
}

/// The most samples to keep: 64 MiB of them. Timeline viewers give up earlier.
const MAX_POINTS: usize = 1 << 22;

impl Timeline {
    /// Adds a sample.
    pub fn add(&mut self, point: Point) {
        if self.overflow {
            return;
        }
        if self.points.len() >= MAX_POINTS {
            self.overflow = true;
            self.points = Vec::new();
            return;
        }
        self.points.push(point);
    }

    /// Replaces stack numbers: `moved` has the new number for each old one.
    pub fn renumber(&mut self, moved: &[StackId]) {
        for point in &mut self.points {
            if let Some(stack) = moved.get(point.stack.index()) {
                point.stack = *stack;
            }
        }
    }

    /// Adds a value to the series of that name.
    pub fn count(&mut self, name: &str, time: u64, value: u64) {
        let index = self.counters.iter().position(|series| series.name == name).unwrap_or_else(|| {
            self.counters.push(CounterSeries { name: name.to_owned(), values: Vec::new() });
            self.counters.len() - 1
        });
        self.counters[index].values.push((time, value));
    }

    /// The time of the first sample or value, in nanoseconds of `CLOCK_MONOTONIC`; 0 if there is none.
    pub fn start(&self) -> u64 {
        let counters = self.counters.iter().filter_map(|series| series.values.first()).map(|value| value.0);
        self.points.iter().map(|point| point.time).chain(counters).min().unwrap_or(0)
    }

    /// All samples, in the order in which they came; `None` if there were too many to keep.
    pub fn points(&self) -> Option<&[Point]> {
        (!self.overflow).then_some(&self.points)
    }
}
