//! The traces that samples have hit. Each is read and attributed once.
//!
//! LuaJIT's sources: [`asm_loop`], [`lj_asm_trace`].
//!
//! [`asm_loop`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm.c#L1686-L1692
//! [`lj_asm_trace`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm.c#L2584-L2592

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;
use lj_trace_common::trace::{TraceCopy, TraceIdentity};
use lj_trace_process::Maps;

use super::ancestors::prototypes_above;
use super::attribution::{Attribution, Attributor, Chain, LowerFrames};
use super::body::{BodyError, TraceBody};
use super::effort::{Allowance, Effort};
use super::exit_frames::ExitFrame;
use super::frames::{SnapshotFrame, snapshot_frames};
use super::functions::TraceFunctions;
use super::ir::{FIRST, IrOp, Numbering};
use super::live_vm::LiveVm;
use super::stacks::NOWHERE;
use super::trace_copy::{Copied, CopiedTrace, identity};
use crate::arch::base_stores;
use crate::page_cache::PageCache;
use crate::{FunctionNames, Prototype, Prototypes, Trace, Vm, read_traces, trace_at, trace_by_number};

/// A trace and the attribution of its code.
#[derive(Debug)]
pub struct KnownTrace {
    /// The data of the trace.
    pub body: TraceBody,
    /// Its functions.
    pub functions: TraceFunctions,
    /// The attribution of its machine code.
    pub attribution: Attribution,
    /// The effort that was spent on the attribution, if it was not enough.
    pub unfinished: Option<Effort>,
    /// The lower frames that it returns to.
    lower_frames: LowerFrames,
    /// Whether one of its functions may be replaced by a tail call.
    pub calls_in_tails: bool,
    /// Whether the trace was gone when its functions were read: others may be at their addresses.
    pub is_outlived: bool,
    numbering: Numbering,
    /// The snapshot at the beginning of its loop.
    loop_snapshot: Option<usize>,
}

impl KnownTrace {
    fn read<M: ReadMemory>(
        memory: &M,
        vm: &Vm,
        prototypes: &mut Prototypes,
        names: Arc<FunctionNames>,
        (body, exists): (TraceBody, &dyn Fn() -> bool),
        numbering: Numbering,
        effort: Effort,
    ) -> Self {
        let above = prototypes_above(memory, vm, &body, numbering);
        let functions = TraceFunctions::read(memory, vm, prototypes, &body, numbering, names, &above);
        // A trace holds its functions alive.
        let is_outlived = !exists();
        // The same bytecode and exit stubs are read again and again.
        let memory = &PageCache::new(memory);
        let live = LiveVm { memory, vm, trace: &body.trace };
        let base_stores = base_stores(&body.mcode, vm.global, &vm.layout);
        let lower_frames = LowerFrames::read(&vm.layout, &body, &functions, numbering, base_stores);
        let attributor = Attributor {
            memory,
            layout: &vm.layout,
            body: &body,
            numbering,
            functions: &functions,
            queries: &live,
            exit_at: &|address| live.exit_at(address),
            metatypes: live.has_metatypes(),
            text: &vm.text,
            lower_frames: &lower_frames,
        };
        let (attribution, is_finished) = attributor.attribute(effort);
        let unfinished = (!is_finished).then_some(effort);
        let is_loop =
            |at: &u16| numbering.opcode(body.code.ins(*at).number()).is_some_and(|opcode| opcode.op == IrOp::LOOP);
        let loop_snapshot = (FIRST..body.code.end()).find(is_loop).map(|at| body.snapshot_of(at));
        let calls_in_tails = functions.calls_in_tails(crate::bytecode_set(&vm.layout));
        Self {
            body,
            functions,
            attribution,
            unfinished,
            lower_frames,
            calls_in_tails,
            is_outlived,
            numbering,
            loop_snapshot,
        }
    }

    /// The frames of one of its snapshots, from the frame in which the trace runs inward; [`None`] if they are not known.
    pub fn snapshot<M: ReadMemory>(&self, memory: &M, layout: &VmLayout, index: usize) -> Option<Chain> {
        let frames = self.exit_frames(memory, layout, index)?;
        Some(frames.iter().map(|frame| (frame.callee, frame.position)).collect())
    }

    /// The same frames, each with its place on the Lua stack.
    pub fn exit_frames<M: ReadMemory>(&self, memory: &M, layout: &VmLayout, index: usize) -> Option<Vec<ExitFrame>> {
        let frames = snapshot_frames(memory, layout, &self.body, &self.functions, index).ok()?;
        let innermost = frames.first()?.base;
        let position = |frame: &SnapshotFrame| {
            let prototype = self.functions.prototype(frame.callee?.prototype()?)?;
            let next = self.functions.position(prototype, frame.pc)?;
            // Callers have executed their call; the innermost frame is at its next bytecode.
            Some(if frame.base == innermost { next } else { next.wrapping_sub(1) })
        };
        let frame = |frame: &SnapshotFrame| {
            let position = position(frame).unwrap_or(NOWHERE);
            Some(ExitFrame { callee: frame.callee?, position, base: frame.base })
        };
        frames.iter().rev().map(frame).collect()
    }

    /// The function in which it starts, and the line.
    pub fn start(&self) -> Option<(&Arc<Prototype>, u32)> {
        let trace = &self.body.trace;
        let prototype = self.functions.prototype(trace.startpt)?;
        let line = prototype.line_at(self.functions.position(prototype, trace.startpc)?)?;
        Some((prototype, line))
    }

    /// Whether, at `offset` in the code, `jit_base` belongs to the trace that follows: then all frames are on the Lua stack.
    pub fn has_moved(&self, offset: u32) -> bool {
        self.lower_frames.moved().is_some_and(|moved| offset >= moved)
    }

    /// Whether a Lua function of this prototype can have its base in `jit_base` at `offset` in the code.
    pub fn may_be_base(&self, offset: u32, prototype: u64) -> bool {
        // A frame to which the trace has returned is on the Lua stack as it was called.
        self.lower_frames.base_at(offset).is_none_or(|base| base.prototype() == Some(prototype))
    }

    /// Index of the snapshot at which the code at `offset` runs the garbage collector: the start of the trace or of its
    /// loop (`asm_loop`, `lj_asm_trace`, `lj_asm.c`).
    pub fn collecting_snapshot(&self, offset: u32) -> usize {
        self.loop_snapshot.filter(|_| offset >= self.body.trace.mcloop).unwrap_or(0)
    }

    /// Approximate memory use in bytes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.body.size() + self.attribution.size() + self.functions.size()
    }

    /// Number of its exits.
    pub fn exits(&self) -> usize {
        self.body.snapshots.len()
    }
}

/// The most traces that are kept, and the most bytes of memory for them. Traces that are dropped but still exist are
/// read again.
const MAX_KNOWN: usize = 1 << 13;
const MAX_BYTES: usize = 32 << 20;

/// Searches of all traces for an unknown one take at most one part in this many of the time.
const BETWEEN_SCANS: u32 = 10;

/// The traces of one VM.
#[derive(Debug, Default)]
pub struct Traces {
    known: HashMap<TraceIdentity, Known>,
    /// Traces that were copied, but not attributed yet.
    copies: HashMap<TraceIdentity, CopiedTrace>,
    /// Both kinds, by the address of their machine code, without those whose place another trace has taken.
    by_code: BTreeMap<u64, TraceIdentity>,
    /// Memory use of all known and copied traces, in bytes.
    bytes: usize,
    /// The headers of all traces at the last search.
    listed: Vec<Trace>,
    /// When the last search ended, and how long it took.
    scanned: Option<(Instant, Duration)>,
    prototypes: Prototypes,
    /// The names of library functions.
    names: Option<Arc<FunctionNames>>,
    /// Numberings that do not fit some trace.
    excluded: Vec<Numbering>,
    allowance: Allowance,
    /// How many traces were not attributed to the end.
    unfinished: u64,
}

/// A known trace, and how often it was hit.
#[derive(Debug)]
struct Known {
    trace: Arc<KnownTrace>,
    hits: u32,
}

/// What identifies the trace to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// An address in its machine code, and its number if that is known.
    Address(u64, Option<u16>),
    /// Its number.
    Number(u16),
}

impl Sought {
    /// Whether this is the trace with that identity.
    pub(super) fn is(self, identity: &TraceIdentity) -> bool {
        match self {
            Self::Address(address, _) => holds(identity, address),
            Self::Number(number) => identity.number == u32::from(number),
        }
    }
}

/// Whether the VM has this trace now.
fn exists<M: ReadMemory>(memory: &M, vm: &Vm, sought: &TraceIdentity) -> bool {
    let number = u16::try_from(sought.number).ok();
    number.and_then(|number| trace_by_number(memory, vm, number)).is_some_and(|now| identity(&now) == *sought)
}

fn holds(identity: &TraceIdentity, address: u64) -> bool {
    address.checked_sub(identity.mcode).is_some_and(|offset| offset < u64::from(identity.szmcode))
}

impl Traces {
    /// Traces whose attribution takes its time from a shared allowance. The default has no such limit.
    pub fn within(allowance: &Allowance) -> Self {
        Self { allowance: allowance.clone(), ..Self::default() }
    }

    /// How many traces were not attributed to the end, because that takes too much work: some of their code is marked.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Adds a piece of a trace that the BPF programs have copied.
    pub fn add_copy(&mut self, copy: &TraceCopy, bytes: &[u8]) {
        self.make_room();
        let trace = self.copies.entry(copy.identity).or_default();
        self.bytes -= trace.size();
        trace.add(copy, bytes);
        self.bytes += trace.size();
        if trace.is_whole() {
            self.register(copy.identity);
        }
    }

    /// The trace that is sought, as it was at the sample; `running` is the sample's own information about it.
    ///
    /// # Errors
    /// [`BodyError`] if there is no such trace, or it cannot be read.
    pub fn find<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        sought: Sought,
        running: &TraceIdentity,
        maps: impl FnOnce() -> Option<Maps>,
    ) -> Result<Arc<KnownTrace>, BodyError> {
        if running.address != 0 && sought.is(running) {
            if let Some(found) = self.remembered(memory, vm, running)? {
                return Ok(found);
            }
            let number = u16::try_from(running.number).map_err(|_| BodyError::Malformed)?;
            let trace = trace_by_number(memory, vm, number).filter(|trace| identity(trace) == *running);
            return self.read(memory, vm, trace.ok_or(BodyError::Gone)?);
        }
        let address = match sought {
            Sought::Number(number) => {
                let trace = trace_by_number(memory, vm, number).ok_or(BodyError::Gone)?;
                return self.read(memory, vm, trace);
            }
            Sought::Address(address, _) => address,
        };
        if let Some(found) = self.by_address(memory, vm, address)? {
            return Ok(found);
        }
        self.scan(memory, vm, address, maps)
    }

    /// A known or copied trace with this address in its code.
    fn by_address<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        address: u64,
    ) -> Result<Option<Arc<KnownTrace>>, BodyError> {
        let before = self.by_code.range(..=address).next_back();
        let Some(candidate) = before.map(|(_, candidate)| *candidate).filter(|candidate| holds(candidate, address))
        else {
            return Ok(None);
        };
        // The trace may be gone, but no other trace may be at its place: then it would not be known which one was hit.
        let now = u16::try_from(candidate.number).ok().and_then(|number| trace_by_number(memory, vm, number));
        if now.is_some_and(|now| now.mcode.contains(&address) && identity(&now) != candidate) {
            return Ok(None);
        }
        self.remembered(memory, vm, &candidate)
    }

    /// Searches all live traces for the one with `address` in its code.
    fn scan<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        address: u64,
        maps: impl FnOnce() -> Option<Maps>,
    ) -> Result<Arc<KnownTrace>, BodyError> {
        let listed = |traces: &[Trace]| traces.iter().find(|trace| trace.mcode.contains(&address)).map(|t| t.number);
        let is_it = |trace: &Trace| trace.mcode.contains(&address);
        if let Some(number) = listed(&self.listed)
            && let Some(trace) = trace_by_number(memory, vm, number).filter(is_it)
        {
            return self.read(memory, vm, trace);
        }
        if self.scanned.is_none_or(|(end, took)| end.elapsed() > BETWEEN_SCANS * took) {
            let start = Instant::now();
            if let Some(maps) = maps() {
                self.listed = read_traces(memory, &maps, vm);
            }
            self.scanned = Some((Instant::now(), start.elapsed()));
        }
        let number = listed(&self.listed).ok_or(BodyError::Gone)?;
        let trace = trace_by_number(memory, vm, number).filter(is_it).ok_or(BodyError::Gone)?;
        self.read(memory, vm, trace)
    }

    /// A known or copied trace.
    fn remembered<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        identity: &TraceIdentity,
    ) -> Result<Option<Arc<KnownTrace>>, BodyError> {
        if let Some(known) = self.hit(memory, vm, identity) {
            return known.map(Some);
        }
        let Some(copy) = self.copies.get(identity).filter(|copy| copy.is_whole()).cloned() else { return Ok(None) };
        let exists = || exists(memory, vm, identity);
        let memory = Copied { memory, trace: &copy };
        let trace = trace_at(&memory, vm, identity.address).ok_or(BodyError::Malformed)?;
        let body = TraceBody::read(&memory, vm, trace)?;
        let known = self.attribute(&memory, vm, body, None, &exists)?;
        self.copies.remove(identity);
        self.bytes = self.bytes.saturating_sub(copy.size());
        Ok(Some(known))
    }

    /// The trace with this header, which was read just before.
    fn read<M: ReadMemory>(&mut self, memory: &M, vm: &Vm, trace: Trace) -> Result<Arc<KnownTrace>, BodyError> {
        let identity = identity(&trace);
        if self.known.get(&identity).is_some_and(|known| known.trace.body.trace.is_same(&trace))
            && let Some(known) = self.hit(memory, vm, &identity)
        {
            return known;
        }
        let body = TraceBody::read(memory, vm, trace)?;
        self.attribute(memory, vm, body, None, &|| exists(memory, vm, &identity))
    }

    /// A trace that was read before. It is attributed again if its numbering has turned out to be wrong, or it is worth
    /// more effort.
    fn hit<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        identity: &TraceIdentity,
    ) -> Option<Result<Arc<KnownTrace>, BodyError>> {
        let Known { trace, hits } = self.known.get_mut(identity)?;
        *hits += 1;
        let more = trace.unfinished.and_then(|effort| self.allowance.effort(Some((effort, *hits))));
        if more.is_none() && !self.excluded.contains(&trace.numbering) {
            return Some(Ok(trace.clone()));
        }
        let body = trace.body.clone();
        Some(self.attribute(memory, vm, body, more, &|| exists(memory, vm, identity)))
    }

    /// Attributes the code of a trace. If no effort is given, it depends on the time that is left.
    fn attribute<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        body: TraceBody,
        effort: Option<Effort>,
        exists: &dyn Fn() -> bool,
    ) -> Result<Arc<KnownTrace>, BodyError> {
        let unfit = Numbering::ALL.into_iter().filter(|numbering| !numbering.fits(&body.code));
        for numbering in unfit {
            if !self.excluded.contains(&numbering) {
                self.excluded.push(numbering);
            }
        }
        let fits = |numbering: &Numbering| !self.excluded.contains(numbering);
        let numbering = Numbering::ALL.into_iter().find(fits).ok_or(BodyError::Malformed)?;
        self.make_room();
        let identity = identity(&body.trace);
        let names = self.names.get_or_insert_with(|| Arc::new(FunctionNames::read(memory, vm))).clone();
        let effort = effort.or_else(|| self.allowance.effort(None)).unwrap_or(Effort::LEAST);
        let began = Instant::now();
        let prototypes = &mut self.prototypes;
        let known = Arc::new(KnownTrace::read(memory, vm, prototypes, names, (body, exists), numbering, effort));
        self.allowance.spend(began.elapsed());
        self.bytes += known.size();
        self.unfinished += u64::from(known.unfinished.is_some());
        let hits = self.known.get(&identity).map_or(0, |before| before.hits);
        if let Some(before) = self.known.insert(identity, Known { trace: known.clone(), hits }) {
            self.bytes = self.bytes.saturating_sub(before.trace.size());
            self.unfinished -= u64::from(before.trace.unfinished.is_some());
        }
        self.register(identity);
        Ok(known)
    }

    /// Notes the place of a trace's code. Other traces that were there do not exist any more.
    fn register(&mut self, identity: TraceIdentity) {
        let end = identity.mcode.saturating_add(u64::from(identity.szmcode));
        let reaches_into =
            |(_, other): &(&u64, &TraceIdentity)| other.mcode.saturating_add(u64::from(other.szmcode)) > identity.mcode;
        while let Some((&start, _)) = self.by_code.range(..end).next_back().filter(reaches_into) {
            self.by_code.remove(&start);
        }
        self.by_code.insert(identity.mcode, identity);
    }

    fn make_room(&mut self) {
        if self.known.len() + self.copies.len() >= MAX_KNOWN || self.bytes >= MAX_BYTES {
            self.known.clear();
            self.copies.clear();
            self.by_code.clear();
            self.prototypes.clear();
            self.bytes = 0;
        }
    }
}
