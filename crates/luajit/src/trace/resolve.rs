//! The Lua frames of a sample that hit a trace: the frames inside the trace, above the frames on the Lua stack.
//!
//! LuaJIT's sources: [`trace_exit_cp`], [`BC_JLOOP`], [`vm_exit_interp`].
//!
//! [`trace_exit_cp`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L835-L844
//! [`BC_JLOOP`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L4749-L4756
//! [`vm_exit_interp`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2499-L2528

use std::sync::Arc;

use lj_trace_common::event::{FrameRecord, NO_POSITION, RecordKind, SAMPLE_ON_TRACE, SampleHeader, reg};
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::{ReadMemory, Unreadable};
use lj_trace_common::vm::VmState;
use lj_trace_process::Maps;
use lj_trace_unwind::{NativeFrame, NativeKind, NativeStack, Region, StackCopy};

use super::attribution::Chain;
use super::body::BodyError;
use super::cache::{KnownTrace, Sought, Traces};
use super::exit_frames::{NotKnown, restored};
use super::functions::{Callee, TraceFunctions};
use super::stacks::NOWHERE;
use crate::arch::{ExitStub, called_at, exit_at, exit_in_handler, has_left_its_frame, left_by};
use crate::object::field;
use crate::{PrototypeKey, Vm};

/// What is known about the frames within a trace.
#[derive(Clone, Debug)]
pub struct OnTrace {
    /// The trace.
    pub trace: Arc<KnownTrace>,
    /// Its frames, innermost first. The last one replaces the innermost frame of the Lua stack.
    pub frames: Vec<FrameRecord>,
    /// Whether the innermost frame is certain. If not, another function may have been inlined into it.
    pub certain: bool,
}

/// Why the frames within a trace are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoTrace {
    /// The trace was not found, or is gone.
    Gone,
    /// The trace that was found does not fit the sample: it is a later trace at the same place.
    Mismatch,
    /// It could not be read.
    Unreadable,
    /// The layout of the VM's snapshots is not known yet.
    Undecided,
    /// The sample hit one of the few instructions that leave a trace.
    Leaving,
    /// The native stack could not be unwound up to the trace's machine code, which called a C function.
    NotReached,
}

impl NoTrace {
    /// The reason in a few words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Gone => "the trace was flushed before it could be read",
            Self::Mismatch => "the trace does not fit the Lua stack",
            Self::Unreadable => "the trace could not be read",
            Self::Undecided => "the layout of traces is not decided yet",
            Self::Leaving => "between a trace and the interpreter",
            Self::NotReached => "the native stack does not reach the trace",
        }
    }
}

impl From<BodyError> for NoTrace {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Gone => Self::Gone,
            BodyError::Malformed => Self::Unreadable,
            BodyError::Undecided => Self::Undecided,
        }
    }
}

/// The place of a sample in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    /// In its machine code, or in a function that this code called.
    Code(u64),
    /// At an exit with this number.
    Exit(u16),
    /// On the way to the VM's exit handler, or at its beginning.
    Handler,
    /// After its end.
    End,
}

/// The parts of a sample that are needed here.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// The sample's fixed part.
    pub header: &'a SampleHeader,
    /// Its native stack.
    pub native: &'a NativeStack,
    /// The Lua frames that the kernel walked.
    pub frames: &'a [FrameRecord],
    /// The copied part of the Lua stack, and its address.
    pub lua_stack: (&'a [u8], u64),
    /// The copy of the native stack.
    pub stack: StackCopy<'a>,
}

impl Hit<'_> {
    /// Index of the Lua frame in which the trace runs: the innermost frame, or, while the trace is being left, the
    /// frame below the C frame of `trace_exit_cp` (`lj_trace.c`).
    pub fn bottom(&self) -> Option<usize> {
        let index = usize::from(self.is_being_restored());
        self.frames.get(index).filter(|frame| frame.kind == RecordKind::Lua as u8).map(|_| index)
    }

    /// Whether `trace_exit_cp` is running, which restores the frames of an exit onto the Lua stack.
    fn is_being_restored(&self) -> bool {
        let is_cframe = |frame: &FrameRecord| frame.kind == RecordKind::CFrame as u8;
        self.header.flags & SAMPLE_ON_TRACE == 0 && self.frames.first().is_some_and(is_cframe)
    }
}

/// Whether the sample hit a trace at all.
pub fn is_on_trace(vm: &Vm, header: &SampleHeader, native: &NativeStack) -> bool {
    let state = VmState::from_raw(vm.layout.states(), header.vmstate);
    if header.flags & SAMPLE_ON_TRACE == 0 {
        return header.trace_exit != 0 && state == VmState::Exit;
    }
    // The interpreter sets `jit_base` before it jumps to a trace (`BC_JLOOP`): all frames are still on the stack.
    !(state.is_interpreting()
        && innermost(native).is_some_and(|(frame, region)| region == Region::Interpreter && !frame.is_return))
}

/// The innermost frame of the VM's own code, if no frame is missing before it: one further out says nothing of the trace.
fn innermost(native: &NativeStack) -> Option<(&NativeFrame, Region)> {
    let mut reached = native.frames.iter().take_while(|frame| !matches!(frame.kind, NativeKind::Missing(_)));
    reached.find_map(|frame| match frame.kind {
        NativeKind::Vm { region, .. } => Some((frame, region)),
        _ => None,
    })
}

/// The frames within the trace that a sample hit.
///
/// # Errors
/// [`NoTrace`], with the reason.
pub fn resolve<M: ReadMemory>(
    traces: &mut Traces,
    memory: &M,
    vm: &Vm,
    hit: Hit<'_>,
    maps: impl FnOnce() -> Option<Maps>,
) -> Result<OnTrace, NoTrace> {
    let (sought, spot) = locate(memory, &hit)?;
    let trace = traces.find(memory, vm, sought, &hit.header.trace.identity, maps)?;
    let spot = match spot {
        Spot::Handler => Spot::Exit(exit_number(&hit, &trace).ok_or(NoTrace::Leaving)?),
        spot => spot,
    };
    let bottom = hit.bottom().and_then(|bottom| hit.frames.get(bottom)).ok_or(NoTrace::Mismatch)?;
    let layout = &vm.layout;
    match spot {
        Spot::Code(pc) => {
            let offset = (pc - trace.body.trace.mcode.start) as u32;
            if trace.has_moved(offset) {
                return at_end(memory, layout, trace, bottom);
            }
            let state = VmState::from_raw(layout.states(), hit.header.vmstate);
            if state == VmState::Gc
                && let Some(chain) = trace.snapshot(memory, layout, trace.collecting_snapshot(offset))
            {
                return fitting(memory, vm, &trace, &chain, true, bottom);
            }
            let span = trace.attribution.at(offset);
            let (chain, certain) = span.map_or((&[][..], false), |span| (&span.chain[..], span.certain));
            if !trace.may_be_base(offset, bottom.code) {
                return Err(NoTrace::Mismatch);
            }
            fitting(memory, vm, &trace, chain, certain, bottom)
        }
        Spot::End | Spot::Handler => at_end(memory, layout, trace, bottom),
        Spot::Exit(exit) => {
            let frames = trace.exit_frames(memory, layout, usize::from(exit)).ok_or(NoTrace::Mismatch)?;
            let chain: Vec<_> = frames.iter().map(|frame| (frame.callee, frame.position)).collect();
            let records = hit.frames.get(hit.bottom().unwrap_or(0)..).unwrap_or_default();
            match restored(&frames, records, hit.is_being_restored()) {
                Ok(count) if count == frames.len() => on_the_stack(trace, &chain, bottom),
                Ok(count) => fitting(memory, vm, &trace, &chain[count - 1..], true, bottom),
                // A tail call has replaced the function on the stack.
                Err(NotKnown::Nothing) if trace.calls_in_tails && bottom.code == trace.body.trace.startpt => {
                    fitting(memory, vm, &trace, &chain, true, bottom)
                }
                Err(_) => Err(NoTrace::Leaving),
            }
        }
    }
}

/// The trace, and the place in it.
fn locate<M: ReadMemory>(memory: &M, hit: &Hit<'_>) -> Result<(Sought, Spot), NoTrace> {
    let header = hit.header;
    let number = u16::try_from(header.vmstate).ok().filter(|&number| number != 0);
    if header.flags & SAMPLE_ON_TRACE == 0 {
        let (trace, exit) = (header.trace_exit as u16, (header.trace_exit >> 16) as u16);
        return Ok((Sought::Number(trace), Spot::Exit(exit)));
    }
    let Some((frame, region)) = innermost(hit.native) else { return Err(NoTrace::NotReached) };
    if number.is_none()
        && !frame.is_return
        && let Some(ExitStub { code, number, exit }) =
            left_by(memory, &header.registers, |address| hit.stack.read(address).ok())
    {
        return Ok((Sought::Address(code, Some(number)), Spot::Exit(exit)));
    }
    match region {
        Region::Jit => {
            let pc = frame.lookup_address();
            let running = &hit.header.trace.identity;
            // Code outside of all traces may be the start of the next trace, or an exit of this one.
            if let Some(number) = number.filter(|_| !frame.is_return && !Sought::Address(pc, None).is(running))
                && let Some(exit) = exit_at(memory, pc, [0, 8].map(|at| hit.stack.read(frame.sp + at).ok()))
            {
                return Ok((Sought::Number(number), Spot::Exit(exit)));
            }
            Ok((Sought::Address(pc, number), Spot::Code(pc)))
        }
        // `vm_exit_interp`, in which a trace ends: its stack slots are released already.
        Region::Interpreter => match (number, header.cframe.checked_sub(frame.sp)) {
            (Some(number), Some(distance)) if !frame.is_return && has_left_its_frame(distance) => {
                Ok((Sought::Number(number), Spot::End))
            }
            (Some(number), Some(_)) if !frame.is_return => Ok((Sought::Number(number), Spot::Handler)),
            (None, Some(distance)) if !frame.is_return && !has_left_its_frame(distance) => {
                let pc = called_at(memory, &header.registers).ok_or(NoTrace::Leaving)?;
                Ok((Sought::Address(pc, None), Spot::Code(pc)))
            }
            _ => Err(NoTrace::Leaving),
        },
    }
}

/// The exit through which a trace is being left, while the exit handler runs.
fn exit_number(hit: &Hit<'_>, trace: &KnownTrace) -> Option<u16> {
    let word = |address: u64| hit.stack.read(address).ok();
    let kept = hit.header.registers[reg::EXIT_NUMBER];
    let exit = exit_in_handler((hit.header.cframe, trace.body.trace.spadjust), word, kept)?;
    (usize::from(exit) < trace.body.snapshots.len()).then_some(exit)
}

/// The frames within the trace, checked against the frame in which the trace runs.
fn fitting<M: ReadMemory>(
    memory: &M,
    vm: &Vm,
    trace: &Arc<KnownTrace>,
    chain: &[(Callee, u32)],
    certain: bool,
    bottom: &FrameRecord,
) -> Result<OnTrace, NoTrace> {
    let Some((outermost, _)) = chain.first() else {
        // Only the frame on the stack is known, and not even that if a tail call may have replaced it.
        let frame = FrameRecord { position: NO_POSITION, ..*bottom };
        let replaced = FrameRecord { code: 0, function: 0, chunkname: 0, first_line: 0, size_bc: 0, ..frame };
        let frames = vec![if trace.calls_in_tails { replaced } else { frame }];
        return Ok(OnTrace { trace: trace.clone(), frames, certain: false });
    };
    let fits = outermost.prototype() == Some(bottom.code);
    if !fits && !trace.functions.may_start_in(bottom.code) {
        return Err(NoTrace::Mismatch);
    }
    let mut frames: Vec<FrameRecord> = Vec::with_capacity(chain.len());
    for &(callee, position) in chain.iter().rev() {
        frames.push(record(memory, &vm.layout, &trace.functions, callee, position).map_err(|_| NoTrace::Gone)?);
    }
    // What was at the addresses when they were read need not be what ran: of what runs, the sample itself has the key of one.
    let at_sample = PrototypeKey::of(bottom);
    let is_lua = |frame: &&FrameRecord| frame.kind == RecordKind::Lua as u8;
    let mut read = frames.iter().filter(is_lua).map(PrototypeKey::of);
    let is_other = |key: PrototypeKey| key != at_sample && (trace.is_outlived || key.address == at_sample.address);
    if read.any(is_other) {
        return Err(NoTrace::Gone);
    }
    if let Some(last) = frames.last_mut() {
        (last.base, last.vm) = (bottom.base, bottom.vm);
        if fits {
            last.function = bottom.function;
        }
    }
    frames.iter_mut().for_each(|frame| frame.vm = bottom.vm);
    Ok(OnTrace { trace: trace.clone(), frames, certain })
}

/// After the end of the trace, all its frames are on the stack, and its last snapshot has their positions.
fn at_end<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    trace: Arc<KnownTrace>,
    bottom: &FrameRecord,
) -> Result<OnTrace, NoTrace> {
    let last = trace.body.snapshots.len().saturating_sub(1);
    let chain = trace.snapshot(memory, layout, last).unwrap_or_default();
    on_the_stack(trace, &chain, bottom)
}

/// The case that the innermost frame of the stack is also the innermost one of the trace.
fn on_the_stack(trace: Arc<KnownTrace>, chain: &Chain, bottom: &FrameRecord) -> Result<OnTrace, NoTrace> {
    let innermost = chain.last().filter(|(callee, _)| callee.prototype() == Some(bottom.code));
    let position = innermost.map(|(_, position)| *position).filter(|position| *position < bottom.size_bc);
    let frame = FrameRecord { position: position.unwrap_or(NO_POSITION), ..*bottom };
    Ok(OnTrace { trace, frames: vec![frame], certain: true })
}

/// A frame in the form that the walker of the Lua stack gives.
fn record<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    functions: &TraceFunctions,
    callee: Callee,
    position: u32,
) -> Result<FrameRecord, Unreadable> {
    let position = if position == NOWHERE { NO_POSITION } else { position };
    Ok(match callee {
        Callee::Lua { prototype, function } => {
            let key = functions.prototype(prototype).ok_or(Unreadable)?.key;
            FrameRecord {
                function: function.unwrap_or(0),
                code: key.address,
                chunkname: key.chunkname,
                first_line: key.firstline,
                size_bc: key.sizebc,
                position,
                kind: RecordKind::Lua as u8,
                ..FrameRecord::EMPTY
            }
        }
        Callee::Native { function, ffid } => FrameRecord {
            function,
            code: memory.read(field(function, layout.fn_c))?,
            position: NO_POSITION,
            kind: if ffid == 1 { RecordKind::C } else { RecordKind::Fast } as u8,
            ffid,
            ..FrameRecord::EMPTY
        },
    })
}
