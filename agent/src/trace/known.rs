//! The traces of a VM that samples fell into, each read and attributed once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use super::around::Around;
use super::attribution::{Attribution, Attributor, Chain};
use super::body::{Body, BodyError};
use super::cast::Cast;
use super::frames::{SnapshotFrame, snapshot_frames};
use super::ir::{FIRST, Numbering, Op};
use super::machine::base_stores;
use super::stacks::NOWHERE;
use crate::target::Maps;
use crate::vm::{Prototype, Prototypes, Trace, Vm, read_traces, trace_by_number};

/// A trace and what its code belongs to.
#[derive(Debug)]
pub struct KnownTrace {
    /// Everything that was read of it.
    pub body: Body,
    /// Its functions.
    pub cast: Cast,
    /// What its machine code belongs to.
    pub attribution: Attribution,
    /// From this offset on `jit_base` is that of the trace it goes on with, and all frames are on the Lua stack.
    pub moved: Option<u32>,
    numbering: Numbering,
    /// The snapshot of its loop's beginning.
    loop_snapshot: Option<usize>,
}

impl KnownTrace {
    fn read<M: ReadMemory>(memory: &M, vm: &Vm, prototypes: &mut Prototypes, body: Body, numbering: Numbering) -> Self {
        let around = Around { memory, vm };
        let cast = Cast::read(memory, &vm.layout, prototypes, &body, numbering);
        let attribution = Attributor {
            memory,
            layout: &vm.layout,
            body: &body,
            numbering,
            cast: &cast,
            surroundings: &around,
            exit_at: &|address| around.exit_at(address),
        }
        .attribute();
        // Each return to a lower frame moves `jit_base` too; one more store is that of the trace's end.
        let is_return =
            |at: &u16| numbering.opcode(body.code.ins(*at).number()).is_some_and(|opcode| opcode.op == Op::RETF);
        let returns = (FIRST..body.code.end()).filter(is_return).count();
        let stores = base_stores(&body.mcode, vm.global, &vm.layout);
        let moved = stores.last().copied().filter(|_| stores.len() > returns);
        let is_loop =
            |at: &u16| numbering.opcode(body.code.ins(*at).number()).is_some_and(|opcode| opcode.op == Op::LOOP);
        let loop_snapshot = (FIRST..body.code.end()).find(is_loop).map(|at| body.snapshot_of(at));
        Self { body, cast, attribution, moved, numbering, loop_snapshot }
    }

    /// The frames of one of its snapshots, from the one in which it runs inward; [`None`] if they cannot be told.
    pub fn snapshot<M: ReadMemory>(&self, memory: &M, layout: &VmLayout, index: usize) -> Option<Chain> {
        let frames = snapshot_frames(memory, layout, &self.body, &self.cast, index).ok()?;
        let innermost = frames.first()?.base;
        let position = |frame: &SnapshotFrame| {
            let prototype = self.cast.prototype(frame.callee?.prototype()?)?;
            let next = self.cast.position(prototype, frame.pc)?;
            // Callers have executed their call, the innermost frame is at what comes next.
            Some(if frame.base == innermost { next } else { next.wrapping_sub(1) })
        };
        frames.iter().rev().map(|frame| Some((frame.callee?, position(frame).unwrap_or(NOWHERE)))).collect()
    }

    /// The function that it starts in, and the line.
    pub fn start(&self) -> Option<(&Arc<Prototype>, u32)> {
        let trace = &self.body.trace;
        let prototype = self.cast.prototype(trace.startpt)?;
        let line = prototype.line_at(self.cast.position(prototype, trace.startpc)?)?;
        Some((prototype, line))
    }

    /// The snapshot at which the code at `offset` runs the garbage collector: where the trace begins, or its loop
    /// (`asm_gc_check`, `lj_asm.c`).
    pub fn collecting_snapshot(&self, offset: u32) -> usize {
        self.loop_snapshot.filter(|_| offset >= self.body.trace.mcloop).unwrap_or(0)
    }

    /// How many exits it has.
    pub fn exits(&self) -> usize {
        self.body.snapshots.len()
    }
}

/// Traces kept: more than `maxtrace` by default (1000), and than most raise it to.
const MAX_KNOWN: usize = 1 << 13;

/// How often all traces are looked through for one that is not known.
const BETWEEN_SCANS: Duration = Duration::from_millis(20);

/// The traces of one VM.
#[derive(Debug, Default)]
pub struct Traces {
    known: HashMap<u16, Arc<KnownTrace>>,
    /// What the traces showed when they were last looked through.
    listed: Vec<Trace>,
    scanned: Option<Instant>,
    prototypes: Prototypes,
    /// Numberings that some trace does not fit.
    excluded: Vec<Numbering>,
}

/// Where to look for a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// An address in its machine code, and its number if that is known too.
    Address(u64, Option<u16>),
    /// Its number.
    Number(u16),
}

impl Traces {
    /// The trace that is sought, as it is now.
    ///
    /// # Errors
    /// [`BodyError`]: there is none, or it cannot be read.
    pub fn find<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        sought: Sought,
        maps: impl FnOnce() -> Option<Maps>,
    ) -> Result<Arc<KnownTrace>, BodyError> {
        let address = match sought {
            Sought::Number(number) => {
                let trace = trace_by_number(memory, vm, number).ok_or(BodyError::Gone)?;
                return self.read(memory, vm, trace);
            }
            Sought::Address(address, number) => {
                let trace = number.and_then(|number| trace_by_number(memory, vm, number));
                if let Some(trace) = trace.filter(|trace| trace.mcode.contains(&address)) {
                    return self.read(memory, vm, trace);
                }
                address
            }
        };
        let listed = |traces: &[Trace]| traces.iter().find(|trace| trace.mcode.contains(&address)).map(|t| t.number);
        let is_it = |trace: &Trace| trace.mcode.contains(&address);
        if let Some(number) = listed(&self.listed)
            && let Some(trace) = trace_by_number(memory, vm, number).filter(is_it)
        {
            return self.read(memory, vm, trace);
        }
        if self.scanned.is_none_or(|scanned| scanned.elapsed() > BETWEEN_SCANS)
            && let Some(maps) = maps()
        {
            self.listed = read_traces(memory, &maps, vm);
            self.scanned = Some(Instant::now());
        }
        let number = listed(&self.listed).ok_or(BodyError::Gone)?;
        let trace = trace_by_number(memory, vm, number).filter(is_it).ok_or(BodyError::Gone)?;
        self.read(memory, vm, trace)
    }

    /// The trace with this header, which was just read.
    fn read<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, trace: Trace) -> Result<Arc<KnownTrace>, BodyError> {
        if let Some(known) = self.known.get(&trace.number)
            && known.body.trace.is_same(&trace)
            && !self.excluded.contains(&known.numbering)
        {
            return Ok(known.clone());
        }
        let number = trace.number;
        let body = Body::read(memory, vm, trace)?;
        let unfit = Numbering::ALL.into_iter().filter(|numbering| !numbering.fits(&body.code));
        for numbering in unfit {
            if !self.excluded.contains(&numbering) {
                self.excluded.push(numbering);
            }
        }
        let fits = |numbering: &Numbering| !self.excluded.contains(numbering);
        let numbering = Numbering::ALL.into_iter().find(fits).ok_or(BodyError::Malformed)?;
        let known = Arc::new(KnownTrace::read(memory, vm, &mut self.prototypes, body, numbering));
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(number, known.clone());
        Ok(known)
    }
}
