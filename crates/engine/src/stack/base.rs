//! Determines the innermost Lua frame of a sample, with the help of native unwinding.
//!
//! The kernel half takes BASE and PC from the registers only if the sampled instruction belongs to the interpreter. If the
//! interpreter has called a C function, they are known once that function is unwound: PC is in a callee-saved register, and
//! the code after the call shows where BASE is kept.

use lj_trace_common::config::MAX_FRAMES;
use lj_trace_common::event::{
    FrameRecord, NO_POSITION, RecordKind, SAMPLE_BASE_IN_REGISTERS, SAMPLE_BASE_OF_CALLER, SAMPLE_BASE_UNCERTAIN,
    SAMPLE_ON_TRACE, reg,
};
use lj_trace_common::frame::{self, Coroutine, Walk, WalkEnd};
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memo::Memo;
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use lj_trace_probes::sample::Sample;
use lj_trace_process::ProcessMemory;
use lj_trace_unwind::{BaseAfterCall, NativeFrame, NativeKind, NativeStack, Register, Registers, Unwinder, VmCode};

/// The result for the innermost Lua frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettledTop {
    /// The frame that the kernel half saw is right.
    Certain,
    /// The frame is certain, but the kernel half had begun at another one. The coroutine was walked again, so there may be
    /// C frames that were not known before.
    Rewalked,
    /// The frame could not be determined.
    Uncertain,
}

/// Corrects the innermost Lua frames of `sample`.
pub fn fix_innermost_frame(
    sample: &mut Sample<'_>,
    native: &NativeStack,
    layout: &VmLayout,
    code: &VmCode,
    unwinder: &mut Unwinder,
    memory: &ProcessMemory,
) -> SettledTop {
    let flags = sample.header.flags;
    if flags & (SAMPLE_BASE_IN_REGISTERS | SAMPLE_ON_TRACE) != 0 || sample.header.cframe == 0 {
        return SettledTop::Certain;
    }
    let uncertain = flags & SAMPLE_BASE_UNCERTAIN != 0;
    let given_up = if uncertain { SettledTop::Uncertain } else { SettledTop::Certain };
    // If the interpreter itself was interrupted and its registers made no sense, it was right after such a call and before
    // it restored BASE.
    let Some((frame, registers)) = innermost_vm_frame(native).filter(|(frame, _)| frame.is_return || uncertain) else {
        return given_up;
    };
    // An FFI callback that is being entered or left: the C code has left the coroutine as it is, or will find it so.
    if uncertain && frame.is_return && matches!(frame.kind, NativeKind::Vm { cframe: None, .. }) {
        return SettledTop::Certain;
    }
    // A C frame that is not linked yet, or not any more. The C code around it has set `L->base` for the coroutine that runs
    // in the next C frame: the one that resumes, or the one that is yielded to.
    if uncertain
        && !frame.is_return
        && matches!(frame.kind, NativeKind::Vm { cframe: None, .. })
        && unwinder.is_at_edge(code, frame.pc)
    {
        return SettledTop::Certain;
    }
    let value = |register| {
        let value = registers.get(register)?;
        Some(if layout.is_gc64() { value } else { value & 0xffff_ffff })
    };
    let Some(pc) = value(Register::BYTECODE_PC) else { return given_up };
    let mut base = sample.header.thread_base;
    if uncertain {
        let kept = match unwinder.base_after_call(code, frame.pc, u64::from(layout.l_base)) {
            BaseAfterCall::LuaState => Some(base),
            BaseAfterCall::Register(register) => value(register),
            BaseAfterCall::Unknown => None,
        };
        match kept {
            Some(kept) => base = kept,
            None => return SettledTop::Uncertain,
        }
    }
    if base == sample.header.thread_base && flags & SAMPLE_BASE_OF_CALLER != 0 {
        return SettledTop::Certain;
    }
    if base == sample.header.thread_base {
        // The kernel half began at the right frame, but could not know PC.
        if let Some(top) = sample.frames.first_mut().filter(|top| top.kind == RecordKind::Lua as u8) {
            let bytecode = top.code.wrapping_add(u64::from(layout.sizeof_pt));
            top.position = frame::position(memory, layout, bytecode, top.size_bc, pc);
        }
        return SettledTop::Certain;
    }
    let (frames, end) = rewalk(memory, layout, sample, base, pc);
    let outer = sample.frames.split_off((sample.header.inner_frames as usize).min(sample.frames.len()));
    sample.header.inner_frames = frames.len() as u32;
    sample.header.walk_end = end as u32;
    sample.frames = frames;
    sample.frames.extend(outer);
    SettledTop::Rewalked
}

fn innermost_vm_frame(native: &NativeStack) -> Option<(&NativeFrame, &Registers)> {
    native.frames.iter().find_map(|frame| match &frame.kind {
        NativeKind::Vm { registers, .. } => Some((frame, registers)),
        NativeKind::Native | NativeKind::Missing(_) => None,
    })
}

/// Walks the innermost coroutine again from `base`, in the memory that the sample copied, until it meets a frame of the
/// kernel half's walk. Below that frame both walks are the same, and the kernel half's was made at the moment of the
/// sample.
fn rewalk(
    live: &ProcessMemory,
    layout: &VmLayout,
    sample: &Sample<'_>,
    base: u64,
    pc: u64,
) -> (Vec<FrameRecord>, WalkEnd) {
    let header = &sample.header;
    let memory = SampleMemory {
        live,
        copies: [
            Copy { start: header.registers[reg::SP], bytes: sample.stack },
            Copy { start: header.lua_copy_start, bytes: sample.lua_stack },
        ],
        lua_stack: header.lua_stack..header.lua_stack_end,
    };
    let coroutine = Coroutine { thread: header.thread, stack: header.lua_stack, stack_end: header.lua_stack_end };
    let inner = &sample.frames[..(header.inner_frames as usize).min(sample.frames.len())];
    let (mut walk, mut memo) = (Walk::default(), Memo::default());
    let mut frames = Vec::new();
    if let Err(end) = walk.start(&memory, layout, &coroutine, header.cframe, (base, pc), &mut memo) {
        return (frames, end);
    }
    // Every step moves down by a slot at least, or up the C stack. The bound is only a safety net.
    for _ in 0..2 * MAX_FRAMES {
        let mut record = FrameRecord { vm: header.vm as u16, ..FrameRecord::default() };
        match walk.step(&memory, layout, (&mut record, &mut memo)) {
            Ok(frame::WalkStep::Emitted) if is_proven(&record, inner) => frames.push(record),
            Ok(frame::WalkStep::Emitted) => return (frames, WalkEnd::BadLink),
            Ok(frame::WalkStep::Skipped) => continue,
            Err(end) => return (frames, end),
        }
        if let Some(index) = same_frame(inner, &frames) {
            frames.extend_from_slice(&inner[index + 1..]);
            return (frames, WalkEnd::from_u32(header.walk_end).unwrap_or(WalkEnd::NoLua));
        }
    }
    (frames, WalkEnd::TooDeep)
}

/// Whether a frame's function is certain to be the one that ran. Its address is from the sample, but its memory is read
/// some milliseconds later: if the closure was collected meanwhile, another one may be there. For a Lua function, the
/// position proves it, since the PC is in no other function; or the kernel half has read the function at the moment of the
/// sample.
fn is_proven(record: &FrameRecord, kernel: &[FrameRecord]) -> bool {
    let is_the_same = |seen: &FrameRecord| seen.function == record.function && seen.code == record.code;
    record.kind != RecordKind::Lua as u8 || record.position != NO_POSITION || kernel.iter().any(is_the_same)
}

/// The index in the kernel half's frames of the last one of `frames`. Both walks must have crossed the same number of C
/// frames by then: the kernel half may have begun at a lower frame, and taken the innermost C frame for that frame's.
fn same_frame(kernel: &[FrameRecord], frames: &[FrameRecord]) -> Option<usize> {
    let is_cframe = |record: &&FrameRecord| record.kind == RecordKind::CFrame as u8;
    let last = frames.last().filter(|last| !is_cframe(last))?;
    let is_it =
        |record: &FrameRecord| record.kind == last.kind && record.base == last.base && record.function == last.function;
    let crossed = |records: &[FrameRecord]| records.iter().filter(is_cframe).count();
    kernel.iter().position(is_it).filter(|&index| crossed(&kernel[..index]) == crossed(frames))
}

/// The target's memory at the time of the sample: the copied parts of the C stack and the Lua stack, and live memory for
/// data that does not change while a function runs (functions, prototypes, bytecode).
struct SampleMemory<'a> {
    live: &'a ProcessMemory,
    copies: [Copy<'a>; 2],
    lua_stack: std::ops::Range<u64>,
}

struct Copy<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl ReadMemory for SampleMemory<'_> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        for copy in &self.copies {
            if let Some(offset) = address.checked_sub(copy.start)
                && let Some(bytes) = usize::try_from(offset).ok().and_then(|offset| copy.bytes.get(offset..))
                && bytes.len() >= size_of::<T>()
            {
                // SAFETY: the slice has at least as many bytes as the value, and `Pod` makes every pattern valid.
                return Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() });
            }
        }
        // A part of the Lua stack that was not copied may have changed since the sample.
        if self.lua_stack.contains(&address) { Err(Unreadable) } else { self.live.read(address) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: RecordKind, base: u64) -> FrameRecord {
        FrameRecord { kind: kind as u8, base, function: base, ..FrameRecord::default() }
    }

    #[test]
    fn what_was_read_later_is_proven_by_its_position_or_by_the_kernel() {
        let lua = |position, code| FrameRecord { position, code, ..frame(RecordKind::Lua, 0x100) };
        assert!(is_proven(&lua(7, 0x10), &[]));
        // Another closure may be at this address by now.
        assert!(!is_proven(&lua(NO_POSITION, 0x10), &[]));
        assert!(!is_proven(&lua(NO_POSITION, 0x10), &[lua(NO_POSITION, 0x20)]));
        assert!(is_proven(&lua(NO_POSITION, 0x10), &[lua(7, 0x10)]));
        assert!(is_proven(&frame(RecordKind::Fast, 0x100), &[]));
    }

    #[test]
    fn walks_meet_in_the_same_c_frame_only() {
        let lua = |base| frame(RecordKind::Lua, base);
        let cframe = frame(RecordKind::CFrame, 0);
        // A comparator that `table.sort` has called, and the chunk that has called `table.sort`.
        let rewalked = [lua(30), cframe, lua(20)];
        assert_eq!(same_frame(&[lua(40), lua(30), cframe, lua(20), lua(10)], &rewalked), Some(3));
        assert_eq!(same_frame(&[lua(40), lua(30), cframe, lua(20), lua(10)], &rewalked[..1]), Some(1));
        // The kernel half began at `table.sort`, as if the comparator's C frame belonged to it.
        assert_eq!(same_frame(&[lua(20), lua(10), cframe], &rewalked), None);
        assert_eq!(same_frame(&[lua(30), cframe], &rewalked[..2]), None, "a C frame tells nothing");
    }
}
