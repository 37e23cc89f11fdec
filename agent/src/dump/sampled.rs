//! Running threads as samples show them: a few samples, at a rate that hits a running thread within milliseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lj_trace_engine::cpu::SampleListener;
use lj_trace_engine::recording::budget::{self, Budget};
use lj_trace_engine::resolve::{Resolved, ResolvedFrame};
use lj_trace_engine::{EngineError, Options, RecordTarget, Recording};
use lj_trace_luajit::Vm;
use lj_trace_process::Process;
use lj_trace_profile::Frame as Named;

use super::{DumpedKind, FrameDump};

/// Ticks per second on each CPU.
pub const RATE: u32 = 999;

/// After this time without a sample, a thread counts as not running.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long to wait for the next samples.
const PAUSE: Duration = Duration::from_millis(1);

/// Of this many samples of a thread, the first one with a complete stack is taken.
const TRIES: usize = 5;

/// A thread at the moment of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledThread {
    /// Its frames, innermost first.
    pub frames: Vec<FrameDump>,
    /// The index of the VM that ran on it, if any did.
    pub vm: Option<usize>,
}

/// Takes a sample of each running thread among `wanted`. `options` are those of a CPU profile that is not written
/// anywhere, at [`RATE`].
///
/// # Errors
/// [`EngineError`] if no samples can be taken: mostly for lack of privileges.
pub fn sample(
    process: &Process,
    vms: &[Vm],
    options: &Options,
    wanted: &[u32],
) -> Result<BTreeMap<u32, SampledThread>, EngineError> {
    let target = RecordTarget {
        options: options.clone(),
        process: process.clone(),
        maps: process.maps()?,
        vms: vms.to_vec(),
        may_have_more: false,
        only: None,
        live: None,
    };
    let mut recording = Recording::start(&target, 1)?;
    let mut hits = Hits { wanted: wanted.iter().copied().collect(), seen: BTreeMap::new() };
    let began = Instant::now();
    while !hits.are_all() && began.elapsed() < PATIENCE && process.is_alive() {
        std::thread::sleep(PAUSE);
        recording.drain(Some(&mut hits), Budget::new(budget::LOOK))?;
    }
    recording.detach();
    Ok(hits.seen.into_iter().filter_map(|(tid, hit)| Some((tid, hit.best?))).collect())
}

/// What the samples have shown so far.
struct Hits {
    wanted: BTreeSet<u32>,
    seen: BTreeMap<u32, Hit>,
}

/// What the samples have shown of one thread.
#[derive(Default)]
struct Hit {
    count: usize,
    best: Option<SampledThread>,
}

impl Hit {
    fn is_enough(&self) -> bool {
        self.count >= TRIES || self.best.as_ref().is_some_and(SampledThread::is_whole)
    }
}

impl Hits {
    fn are_all(&self) -> bool {
        self.wanted.iter().all(|tid| self.seen.get(tid).is_some_and(Hit::is_enough))
    }
}

impl SampleListener for Hits {
    fn sample(&mut self, sample: &Resolved, _root: Named) {
        let hit = self.seen.entry(sample.tid).or_default();
        if self.wanted.contains(&sample.tid) && !hit.is_enough() {
            hit.count += 1;
            let new = SampledThread::of(sample);
            if hit.best.is_none() || new.is_whole() {
                hit.best = Some(new);
            }
        }
    }
}

impl SampledThread {
    fn of(sample: &Resolved) -> Self {
        let trace = sample.trace.as_ref().map(|trace| trace.number());
        Self { frames: sample.frames.iter().filter_map(|frame| dumped(frame, trace)).collect(), vm: sample.vm }
    }

    /// Whether no frames are missing.
    fn is_whole(&self) -> bool {
        self.frames.iter().all(|frame| frame.kind != DumpedKind::Unresolved)
    }
}

/// A frame in the form of dumps.
fn dumped(frame: &ResolvedFrame, number: Option<u16>) -> Option<FrameDump> {
    let mut dump = FrameDump {
        kind: DumpedKind::Native,
        function: frame.named.to_string(),
        source: None,
        line: None,
        module: None,
        trace: None,
        locals: None,
    };
    match &*frame.named {
        Named::Lua { chunk, line, compiled, .. } => {
            (dump.kind, dump.source, dump.line) = (DumpedKind::Lua, Some(chunk.to_string()), *line);
            if *compiled {
                dump.trace = number;
                let plain = dump.function.strip_suffix("_[j]").map(str::to_owned);
                dump.function = plain.unwrap_or(dump.function);
            }
        }
        Named::FastFunction { .. } => dump.kind = DumpedKind::Builtin,
        Named::C { module, .. } => dump.module = module.as_ref().map(|module| module.to_string()),
        Named::Kernel { .. } => {}
        Named::Trace { .. } => dump.kind = DumpedKind::Trace,
        Named::Vm(_) | Named::Internal => dump.kind = DumpedKind::Vm,
        Named::LeftOut { .. } | Named::Rare | Named::Unresolved { .. } => dump.kind = DumpedKind::Unresolved,
        Named::Root { .. } | Named::Chunk { .. } | Named::Line { .. } => return None,
    }
    Some(dump)
}

#[cfg(test)]
mod tests {
    use lj_trace_engine::resolve::{Code, SampleRequest};

    use super::*;

    fn sample(tid: u32, frames: Vec<Named>) -> Resolved {
        let frame = |named: Named| ResolvedFrame { named: named.into(), code: Code::Name };
        Resolved {
            state: None,
            vm: Some(0),
            tid,
            thread_name: None,
            time: 0,
            allocation: None,
            request: SampleRequest::default(),
            wait: None,
            turn: 0,
            entry: None,
            trace: None,
            frames: frames.into_iter().map(frame).collect(),
        }
    }

    #[test]
    fn the_first_whole_sample_counts() {
        let mut hits = Hits { wanted: [7].into(), seen: BTreeMap::new() };
        let lua = |line| Named::lua(Some("f".into()), b"@a.lua", 1, Some(line));
        let torn = Named::Unresolved { reason: "torn".into() };
        hits.sample(&sample(7, vec![lua(2), torn.clone()]), Named::vm(0));
        hits.sample(&sample(8, vec![lua(3)]), Named::vm(0));
        assert!(!hits.are_all());
        for line in [4, 5] {
            hits.sample(&sample(7, vec![lua(line).compiled()]), Named::vm(0));
        }
        assert!(hits.are_all());
        let frame = &hits.seen[&7].best.as_ref().unwrap().frames[0];
        assert_eq!((&*frame.function, frame.line, frame.kind), ("f@a.lua:1", Some(4), DumpedKind::Lua));
        assert!(hits.seen[&8].best.is_none(), "nobody asked for it");
        // A stack with a marked gap is better than none.
        let mut hits = Hits { wanted: [7].into(), seen: BTreeMap::new() };
        (0..TRIES).for_each(|_| hits.sample(&sample(7, vec![lua(2), torn.clone()]), Named::vm(0)));
        assert!(hits.are_all() && hits.seen[&7].best.is_some());
    }
}
