//! The Lua lines that allocate on traces, told from the machine code that calls the allocator.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lj_trace_common::allocation::on_trace::TracePlace;
use lj_trace_common::trace::TraceIdentity;

use super::definitions::Definitions;
use super::memory::Meaning;
use super::trace_table::SampledTrace;
use crate::report::Frame;
use crate::report::frame::chunk_name;
use crate::stream::memprof::Source;
use crate::target::ProcessMemory;
use crate::trace::attribution::Chain;
use crate::trace::stacks::NOWHERE;
use crate::trace::{KnownTrace, Sought, Traces, identity};
use crate::vm::{Vm, trace_by_number};

/// The lines of a VM's traces that allocate.
#[derive(Debug, Default)]
pub struct TraceLines {
    traces: Traces,
    /// What is known of places, and of which trace.
    known: HashMap<TracePlace, (TraceIdentity, Source)>,
    /// Places of which nothing could be told a moment ago.
    missed: HashSet<TracePlace>,
    /// Which traces have numbers and machine code now; none where they are gone. After a flush another trace may get
    /// the number and the place of one.
    now: HashMap<(u64, u64), Option<TraceIdentity>>,
    /// The traces themselves, by number and machine code; none for those that were gone.
    sampled: HashMap<(u64, u64), (Option<TraceIdentity>, Option<SampledTrace>)>,
}

/// A line on a trace.
#[derive(Clone, Debug)]
pub struct TraceLine {
    /// Its chunk, its function, and itself.
    pub frames: Vec<Frame>,
    /// The prototype that the trace starts in, which is all that light samples tell of it.
    pub entered: u64,
}

/// Places kept: more than traces call the allocator from.
const MAX_KNOWN: usize = 1 << 16;

impl TraceLines {
    /// Notes that time has passed: what could not be told may be told now.
    pub fn begin_batch(&mut self) {
        self.missed.clear();
        self.now.clear();
    }

    /// What reports show instead of a trace, if its line is certain. What it is comes along the first time.
    /// `definitions` tell what functions are called.
    pub fn line(
        &mut self,
        memory: &ProcessMemory,
        vm: &Vm,
        definitions: &Definitions,
        place: TracePlace,
    ) -> Option<(Source, Option<TraceLine>)> {
        let (mcode, offset) = place.at?;
        let identity = self.identity(memory, vm, place.number, mcode)?;
        if let Some((_, source)) = self.known.get(&place).filter(|(known, _)| *known == identity) {
            return Some((*source, None));
        }
        if self.missed.contains(&place) {
            return None;
        }
        let Some(line) = self.find(memory, vm, definitions, &identity, offset) else {
            self.missed.insert(place);
            return None;
        };
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        let source = Source::Trace { number: place.number, mcode: Some(mcode.wrapping_add(u64::from(offset))) };
        self.known.insert(place, (identity, source));
        Some((source, Some(line)))
    }

    /// The trace itself; [`None`] if it was gone when it was first asked for.
    pub fn trace(&mut self, memory: &ProcessMemory, vm: &Vm, place: TracePlace) -> Option<&SampledTrace> {
        let (mcode, _) = place.at?;
        if self.sampled.len() >= MAX_KNOWN {
            self.sampled.clear();
        }
        let identity = self.identity(memory, vm, place.number, mcode);
        let Self { traces, sampled, .. } = self;
        let of = (place.number, mcode);
        // Whoever is gone was the one that was there last.
        let changed = |known: &(Option<TraceIdentity>, _)| identity.is_some() && known.0 != identity;
        if sampled.get(&of).is_none_or(changed) {
            let trace = identity.and_then(|identity| known(traces, memory, vm, &identity)).map(SampledTrace::new);
            sampled.insert(of, (identity, trace));
        }
        sampled.get(&of)?.1.as_ref()
    }

    /// Which trace has this number and its machine code at `mcode` now.
    fn identity(&mut self, memory: &ProcessMemory, vm: &Vm, number: u64, mcode: u64) -> Option<TraceIdentity> {
        let read = || {
            let trace = trace_by_number(memory, vm, u16::try_from(number).ok()?)?;
            (trace.mcode.start == mcode).then(|| identity(&trace))
        };
        *self.now.entry((number, mcode)).or_insert_with(read)
    }

    fn find(
        &mut self,
        memory: &ProcessMemory,
        vm: &Vm,
        definitions: &Definitions,
        identity: &TraceIdentity,
        offset: u32,
    ) -> Option<TraceLine> {
        let trace = known(&mut self.traces, memory, vm, identity)?;
        // The call is before its return address.
        let span = trace.attribution.at(offset.checked_sub(1)?).filter(|span| span.certain)?;
        let frames = frames(&trace, &span.chain, definitions)?;
        Some(TraceLine { frames, entered: trace.body.trace.startpt })
    }
}

/// This trace, if it is still there.
fn known(traces: &mut Traces, memory: &ProcessMemory, vm: &Vm, identity: &TraceIdentity) -> Option<Arc<KnownTrace>> {
    let number = u16::try_from(identity.number).ok()?;
    traces.find(memory, vm, Sought::Number(number), identity, || None).ok()
}

/// The innermost Lua function of a chain: its file, the function, and the line.
fn frames(trace: &KnownTrace, chain: &Chain, definitions: &Definitions) -> Option<Vec<Frame>> {
    let lua = |(callee, position): &(crate::trace::Callee, u32)| {
        Some((trace.cast.prototype(callee.prototype()?)?, *position))
    };
    let (prototype, position) = chain.iter().rev().find_map(lua)?;
    let chunk: Arc<str> = chunk_name(prototype.chunkname.as_bytes()).into();
    let first_line = prototype.key.firstline;
    let meaning = Meaning::new(prototype.chunkname.as_bytes(), first_line);
    let name = definitions.name(prototype.key.address, meaning).map(Into::into);
    let mut frames = vec![
        Frame::Chunk { chunk: chunk.clone() },
        Frame::Lua { name, chunk: chunk.clone(), first_line, line: None, compiled: true },
    ];
    let line = (position != NOWHERE).then(|| prototype.line_at(position)).flatten();
    frames.extend(line.map(|line| Frame::Line { chunk, line }));
    Some(frames)
}
