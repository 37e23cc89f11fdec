//! Numbers that are read from the process itself, once per interval.

use std::collections::VecDeque;

use lj_trace_luajit::Vm;
use lj_trace_luajit::status::trace_count;
use lj_trace_process::Process;

use lj_trace_engine::cpu::about_process;

/// The numbers at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// The size of all objects of all VMs (`gc.total`), in bytes.
    pub heap: u64,
    /// The process's resident memory, in bytes.
    pub rss: u64,
    /// The number of traces in its VMs.
    pub traces: usize,
    /// The number of VMs.
    pub vms: usize,
    /// Samples and events that never arrived, by reason.
    pub lost: Vec<(&'static str, u64)>,
}

impl Gauge {
    /// Reads the numbers of a process and of its VMs. Numbers that cannot be read any more are 0.
    pub fn read(process: &Process, vms: &[Vm], lost: Vec<(&'static str, u64)>) -> Self {
        let memory = process.memory();
        let (heap, rss) = about_process::memory(process, vms.iter());
        let traces = process.maps().map_or(0, |maps| vms.iter().map(|vm| trace_count(&memory, &maps, vm)).sum());
        Self { heap: heap.unwrap_or(0), rss: rss.unwrap_or(0), traces, vms: vms.len(), lost }
    }
}

/// The last readings, newest last.
#[derive(Clone, Debug)]
pub struct Gauges {
    length: usize,
    history: VecDeque<Gauge>,
}

impl Gauges {
    /// No readings yet; keeps at most `length`.
    pub fn new(length: usize) -> Self {
        Self { length, history: VecDeque::new() }
    }

    /// Adds the newest reading.
    pub fn push(&mut self, gauge: Gauge) {
        self.history.push_back(gauge);
        while self.history.len() > self.length {
            self.history.pop_front();
        }
    }

    /// The newest reading.
    pub fn last(&self) -> Option<&Gauge> {
        self.history.back()
    }

    /// The newest `count` values of a number, oldest first, as points of a graph: seconds before now, and the value.
    pub fn series(&self, count: usize, number: impl Fn(&Gauge) -> u64) -> Vec<(f64, f64)> {
        let newest = self.history.iter().rev().take(count).enumerate();
        let mut points: Vec<_> = newest.map(|(age, gauge)| (-(age as f64), number(gauge) as f64)).collect();
        points.reverse();
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest() {
        let mut gauges = Gauges::new(2);
        for heap in 1..=3 {
            gauges.push(Gauge { heap, ..Gauge::default() });
        }
        assert_eq!(gauges.series(10, |gauge| gauge.heap), [(-1.0, 2.0), (0.0, 3.0)]);
        assert_eq!(gauges.last().map(|gauge| gauge.heap), Some(3));
    }
}
