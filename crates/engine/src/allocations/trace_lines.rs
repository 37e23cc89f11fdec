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
use lj_trace_profile::memory::sources::SourceLine;
use lj_trace_streams::memprof::Source;
use lj_trace_text::chunk_name;

use super::definitions::Definitions;
use super::events::Meaning;
use crate::resolve::SampledTrace;

/// The allocating lines in a VM's traces.
#[derive(Debug)]
pub struct TraceLines {
    traces: Traces,
    /// The known lines, by trace and offset in its machine code.
    known: HashMap<(TraceIdentity, u32), TraceLine>,
    /// The trace whose line reports last got for a source: another trace may have taken the same number and offset.
    shown: HashMap<Source, TraceIdentity>,
    /// Whether known lines were forgotten since the last call of `has_forgotten`.
    has_forgotten: bool,
    /// Places without a result in this batch.
    missed: HashSet<(TraceIdentity, u32)>,
    /// The traces; `None` for a trace that was gone.
    sampled: HashMap<TraceIdentity, Option<SampledTrace>>,
}

/// A line on a trace.
#[derive(Clone, Debug)]
pub struct TraceLine {
    /// Chunk, function, and line.
    pub line: SourceLine,
    /// The prototype in which the trace starts. Light samples show nothing else of a trace.
    pub entered: u64,
}

/// The most places to keep: more than traces call the allocator from, unless traces come and go all the time.
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
    /// Begins a batch: time has passed, so places without a result may have one now.
    pub fn begin_batch(&mut self) {
        self.missed.clear();
    }

    /// Forgets which lines reports know, and the names of functions in them.
    pub fn forget(&mut self) {
        self.known.clear();
        self.shown.clear();
    }

    /// The source that reports show instead of a trace, if its line is certain, with the line if it is new. `definitions`
    /// has the names of functions.
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

    /// Whether known lines were forgotten since the last call. Reports must then forget them, too.
    pub fn has_forgotten(&mut self) -> bool {
        std::mem::take(&mut self.has_forgotten)
    }

    /// The trace; [`None`] if it was already gone at the first call.
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
        // The call instruction is before its return address.
        let span = trace.attribution.at(offset.checked_sub(1)?).filter(|span| span.certain)?;
        let line = innermost_line(memory, vm, &trace, &span.chain, definitions)?;
        Some(TraceLine { line, entered: trace.body.trace.startpt })
    }
}

/// This trace, if it is still there.
fn known(traces: &mut Traces, memory: &ProcessMemory, vm: &Vm, identity: &TraceIdentity) -> Option<Arc<KnownTrace>> {
    let number = u16::try_from(identity.number).ok()?;
    traces.find(memory, vm, Sought::Number(number), identity, || None).ok()
}

/// The line of a chain's innermost Lua function: its file, the function, and the line.
fn innermost_line(
    memory: &ProcessMemory,
    vm: &Vm,
    trace: &KnownTrace,
    chain: &Chain,
    definitions: &mut Definitions,
) -> Option<SourceLine> {
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
    Some(SourceLine { frames, prototype: prototype.key.address })
}
