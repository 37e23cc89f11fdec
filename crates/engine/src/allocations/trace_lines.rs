//! The Lua lines that allocate in traces, derived from the machine code that calls the allocator.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lj_trace_common::allocation::on_trace::TracePlace;
use lj_trace_common::trace::TraceIdentity;
use lj_trace_luajit::Vm;
use lj_trace_luajit::trace::attribution::Chain;
use lj_trace_luajit::trace::stacks::NOWHERE;
use lj_trace_luajit::trace::{Allowance, KnownTrace, Sought, Traces};
use lj_trace_process::ProcessMemory;
use lj_trace_profile::Frame;
use lj_trace_streams::memprof::Source;
use lj_trace_text::chunk_name;

use super::definitions::Definitions;
use super::events::Meaning;
use crate::resolve::SampledTrace;

/// The lines of a VM's traces that allocate.
#[derive(Debug)]
pub struct TraceLines {
    traces: Traces,
    /// What is known of places: offsets in the machine code of traces.
    known: HashMap<(TraceIdentity, u32), TraceLine>,
    /// Which trace the last line was of that reports know a place by: another may have come to the same place.
    shown: HashMap<Source, TraceIdentity>,
    /// Whether that was forgotten since somebody has asked.
    has_forgotten: bool,
    /// Places of which nothing could be told a moment ago.
    missed: HashSet<(TraceIdentity, u32)>,
    /// The traces themselves; none for those that were gone.
    sampled: HashMap<TraceIdentity, Option<SampledTrace>>,
}

/// A line on a trace.
#[derive(Clone, Debug)]
pub struct TraceLine {
    /// Its chunk, its function, and itself.
    pub frames: Vec<Frame>,
    /// The prototype that the trace starts in, which is all that light samples tell of it.
    pub entered: u64,
}

/// Places kept: more than traces call the allocator from, unless they come and go all the time.
const MAX_KNOWN: usize = 1 << 13;

impl Default for TraceLines {
    fn default() -> Self {
        Self {
            traces: Traces::within(&Allowance::new()),
            known: HashMap::new(),
            shown: HashMap::new(),
            has_forgotten: false,
            missed: HashSet::new(),
            sampled: HashMap::new(),
        }
    }
}

impl TraceLines {
    /// Notes that time has passed: what could not be told may be told now.
    pub fn begin_batch(&mut self) {
        self.missed.clear();
    }

    /// Forgets which lines reports know, and what functions are called in them.
    pub fn forget(&mut self) {
        self.known.clear();
        self.shown.clear();
    }

    /// What reports show instead of a trace, if its line is certain. What it is comes along the first time.
    /// `definitions` tell what functions are called.
    pub fn line(
        &mut self,
        memory: &ProcessMemory,
        vm: &Vm,
        definitions: &mut Definitions,
        identity: &TraceIdentity,
        place: TracePlace,
    ) -> Option<(Source, Option<TraceLine>)> {
        let (mcode, offset) = place.at.filter(|(mcode, _)| *mcode == identity.mcode)?;
        let key = (*identity, offset);
        let source = Source::Trace { number: place.number, mcode: Some(mcode.wrapping_add(u64::from(offset))) };
        if self.shown.get(&source) == Some(identity) {
            return Some((source, None));
        }
        if self.missed.contains(&key) {
            return None;
        }
        if !self.known.contains_key(&key) {
            let Some(line) = self.find(memory, vm, definitions, identity, offset) else {
                self.missed.insert(key);
                return None;
            };
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert(key, line);
        }
        if self.shown.len() >= MAX_KNOWN {
            self.shown.clear();
            self.has_forgotten = true;
        }
        self.shown.insert(source, *identity);
        Some((source, self.known.get(&key).cloned()))
    }

    /// Whether it was forgotten which lines reports know, since the last call: they are to forget them too.
    pub fn has_forgotten(&mut self) -> bool {
        std::mem::take(&mut self.has_forgotten)
    }

    /// The trace itself; [`None`] if it was gone when it was first asked for.
    pub fn trace(&mut self, memory: &ProcessMemory, vm: &Vm, identity: &TraceIdentity) -> Option<&SampledTrace> {
        if self.sampled.len() >= MAX_KNOWN {
            self.sampled.clear();
        }
        let Self { traces, sampled, .. } = self;
        let read = || known(traces, memory, vm, identity).map(SampledTrace::new);
        sampled.entry(*identity).or_insert_with(read).as_ref()
    }

    fn find(
        &mut self,
        memory: &ProcessMemory,
        vm: &Vm,
        definitions: &mut Definitions,
        identity: &TraceIdentity,
        offset: u32,
    ) -> Option<TraceLine> {
        let trace = known(&mut self.traces, memory, vm, identity)?;
        // The call is before its return address.
        let span = trace.attribution.at(offset.checked_sub(1)?).filter(|span| span.certain)?;
        let frames = frames(memory, vm, &trace, &span.chain, definitions)?;
        Some(TraceLine { frames, entered: trace.body.trace.startpt })
    }
}

/// This trace, if it is still there.
fn known(traces: &mut Traces, memory: &ProcessMemory, vm: &Vm, identity: &TraceIdentity) -> Option<Arc<KnownTrace>> {
    let number = u16::try_from(identity.number).ok()?;
    traces.find(memory, vm, Sought::Number(number), identity, || None).ok()
}

/// The innermost Lua function of a chain: its file, the function, and the line.
fn frames(
    memory: &ProcessMemory,
    vm: &Vm,
    trace: &KnownTrace,
    chain: &Chain,
    definitions: &mut Definitions,
) -> Option<Vec<Frame>> {
    let lua = |(callee, position): &(lj_trace_luajit::trace::Callee, u32)| {
        Some((trace.functions.prototype(callee.prototype()?)?, *position))
    };
    let (prototype, position) = chain.iter().rev().find_map(lua)?;
    let chunk: Arc<str> = chunk_name(prototype.chunkname.as_bytes()).into();
    let first_line = prototype.key.firstline;
    let meaning = Meaning::new(prototype.chunkname.as_bytes(), first_line);
    let name = definitions.name_in_line(memory, vm, prototype.key.address, meaning);
    let mut frames = vec![
        Frame::Chunk { chunk: chunk.clone() },
        Frame::Lua { name, chunk: chunk.clone(), first_line, line: None, compiled: true },
    ];
    let line = (position != NOWHERE).then(|| prototype.line_at(position)).flatten();
    frames.extend(line.map(|line| Frame::Line { chunk, line }));
    Some(frames)
}
