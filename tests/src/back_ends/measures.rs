//! What is measured, as servers call it, and what each function has of it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use lj_trace_export::SinkKind;
use lj_trace_profile::ProfileKind;

use crate::consumers::Pprof;

/// A measure.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// The type of profile that a server has it in.
    pub at_server: &'static str,
    /// What pprof's tool calls it in what lj-trace writes.
    pub name: &'static str,
    /// Its unit there.
    pub unit: &'static str,
}

const fn measure(at_server: &'static str, name: &'static str, unit: &'static str) -> Measure {
    Measure { at_server, name, unit }
}

const PYROSCOPE_CPU: [Measure; 2] = [
    measure("process_cpu:samples:count:cpu:nanoseconds", "samples", "count"),
    measure("process_cpu:cpu:nanoseconds:cpu:nanoseconds", "cpu", "ns"),
];
const PYROSCOPE_MEMORY: [Measure; 4] = [
    measure("memory:alloc_objects:count:space:bytes", "alloc_objects", "count"),
    measure("memory:alloc_space:bytes:space:bytes", "alloc_space", "B"),
    measure("memory:inuse_objects:count:space:bytes", "inuse_objects", "count"),
    measure("memory:inuse_space:bytes:space:bytes", "inuse_space", "B"),
];
// All that has a duration is a delta to Parca, and of samples with a period in nanoseconds it answers the time.
const PARCA_CPU: [Measure; 2] = [
    measure("process_cpu:samples:count:cpu:nanoseconds:delta", "cpu", "ns"),
    measure("process_cpu:cpu:nanoseconds:cpu:nanoseconds:delta", "cpu", "ns"),
];
const PARCA_MEMORY: [Measure; 4] = [
    measure("memory:alloc_objects:count:space:bytes:delta", "alloc_objects", "count"),
    measure("memory:alloc_space:bytes:space:bytes:delta", "alloc_space", "B"),
    measure("memory:inuse_objects:count:space:bytes:delta", "inuse_objects", "count"),
    measure("memory:inuse_space:bytes:space:bytes:delta", "inuse_space", "B"),
];
// As Pyroscope makes them of OTLP.
const OTLP_CPU: [Measure; 1] = [measure("process_cpu:cpu:nanoseconds:cpu:nanoseconds", "cpu", "ns")];
const OTLP_MEMORY: [Measure; 4] = [
    measure("memory:alloc_objects:count:memory:bytes", "alloc_objects", "count"),
    measure("memory:alloc_space:bytes:memory:bytes", "alloc_space", "B"),
    measure("memory:inuse_objects:count:memory:bytes", "inuse_objects", "count"),
    measure("memory:inuse_space:bytes:memory:bytes", "inuse_space", "B"),
];

/// All that a sink of a kind brings of a kind of profile.
pub fn measures(sink: SinkKind, kind: ProfileKind) -> &'static [Measure] {
    match (sink, kind) {
        (SinkKind::Otlp, ProfileKind::Cpu) => &OTLP_CPU,
        (SinkKind::Otlp, ProfileKind::Allocations) => &OTLP_MEMORY,
        (SinkKind::Pyroscope, ProfileKind::Cpu) => &PYROSCOPE_CPU,
        (SinkKind::Pyroscope, ProfileKind::Allocations) => &PYROSCOPE_MEMORY,
        (SinkKind::Parca, ProfileKind::Cpu) => &PARCA_CPU,
        (SinkKind::Parca, ProfileKind::Allocations) => &PARCA_MEMORY,
        // Sinks are given neither.
        (_, ProfileKind::OffCpu | ProfileKind::Wall) => &[],
        // No agent records them.
        (_, ProfileKind::Waits) => &[],
    }
}

/// What all samples have of a measure, and of each function what is at the leaf and what is anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions {
    /// The sum of all samples.
    pub total: u64,
    /// By name.
    pub of: BTreeMap<String, (u64, u64)>,
}

impl Functions {
    /// Those of a profile in pprof's format.
    ///
    /// # Errors
    /// If pprof's tool does not understand it, or it has no such measure.
    pub fn of(pprof: &Pprof, file: &Path, measure: &str, unit: &str) -> Result<Self> {
        let totals = pprof.totals(file)?;
        let (_, total) =
            totals.iter().find(|(name, _)| name == measure).with_context(|| format!("no {measure} in {totals:?}"))?;
        let total = *total;
        if total == 0 {
            return Ok(Self::default());
        }
        let of = pprof.top(file, measure, unit)?.into_iter().filter(|(_, (_, all))| *all > 0).collect();
        Ok(Self { total, of })
    }

    /// Those of a profile with a single measure, as servers answer.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn of_answer(pprof: &Pprof, file: &Path, unit: &str) -> Result<Self> {
        let totals = pprof.totals(file)?;
        let (name, _) = totals.first().context("no measure")?;
        Self::of(pprof, file, name, unit)
    }

    /// So many times as much of each.
    pub fn times(self, times: u64) -> Self {
        let of = self.of.into_iter().map(|(name, (flat, all))| (name, (flat * times, all * times))).collect();
        Self { total: self.total * times, of }
    }
}
