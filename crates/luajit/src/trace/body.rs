//! A whole trace: its header, intermediate code, snapshots and machine code.
//!
//! LuaJIT's sources: [`SnapShot`].
//!
//! [`SnapShot`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L180-L188

use lj_trace_common::layout::{ABSENT, VmLayout};
use lj_trace_common::memory::ReadMemory;

use super::ir::{BIAS, IrCode};
use crate::object::{field, read_bytes};
use crate::{Trace, Vm, trace_at};

/// A snapshot (`SnapShot`, `lj_jit.h`): how to leave the trace from a part of its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSnapshot {
    /// Index of its first entry in the trace's snapshot map.
    pub map: u32,
    /// Number of its entries; its PC and links follow them.
    pub entries: u8,
    /// Reference of the first IR instruction that it belongs to.
    pub at: u16,
    /// Offset of its first machine instruction, in [`MCODE_UNIT`](crate::arch::MCODE_UNIT)s; builds before March 2021
    /// do not store it.
    pub mcode: Option<u16>,
}

/// A trace, with everything that does not change while it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceBody {
    /// Its header.
    pub trace: Trace,
    /// Its intermediate code.
    pub code: IrCode,
    /// Its snapshots, in order.
    pub snapshots: Vec<TraceSnapshot>,
    /// The snapshot map: the entries of all snapshots.
    pub map: Vec<u32>,
    /// Its machine code at the time of reading: LuaJIT patches exits when it compiles side traces.
    pub mcode: Vec<u8>,
}

/// Why a trace cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It does not exist any more, or changed while it was read.
    #[error("the trace was flushed before it could be read")]
    Gone,
    /// Its fields contradict each other.
    #[error("the trace is malformed")]
    Malformed,
    /// The layout of snapshots is not known for this build yet.
    #[error("the layout of traces is not decided")]
    Undecided,
}

/// The most snapshot entries: 65536 snapshots of 255 slots would be absurd; `maxsnap` is 500 by default.
const MAX_MAP: u32 = 1 << 20;

/// The most bytes of machine code: more than one area holds.
const MAX_MCODE: u64 = 1 << 24;

impl TraceBody {
    /// Reads everything of the trace whose header is `trace`.
    ///
    /// # Errors
    /// [`BodyError`]; if the trace was flushed or replaced before all was read, it is [`BodyError::Gone`].
    pub fn read<M: ReadMemory>(memory: &M, vm: &Vm, trace: Trace) -> Result<Self, BodyError> {
        let layout = &vm.layout;
        let count = trace.nsnap.ok_or(BodyError::Undecided)?;
        if layout.sizeof_snap == ABSENT || layout.tr_nsnapmap == ABSENT || layout.snap_nent == ABSENT {
            return Err(BodyError::Undecided);
        }
        let map_length = map_length(memory, layout, &trace)?;
        let (first, end) = (u16::try_from(trace.nk), u16::try_from(trace.nins));
        let (Ok(first), Ok(end)) = (first, end) else { return Err(BodyError::Malformed) };
        let length = trace.mcode.end - trace.mcode.start;
        if first > BIAS || end < BIAS || map_length > MAX_MAP || length > MAX_MCODE {
            return Err(BodyError::Malformed);
        }
        let words = |address, count: usize| read_bytes(memory, address, count).map_err(|_| BodyError::Gone);
        let code = words(trace.ir.wrapping_add(8 * u64::from(first)), 8 * usize::from(end - first))?;
        let (code, _) = code.as_chunks();
        let snapshots = words(trace.snap, usize::from(layout.sizeof_snap) * usize::from(count))?;
        let snapshots = snapshots.chunks_exact(usize::from(layout.sizeof_snap));
        let snapshots: Option<Vec<_>> = snapshots.map(|bytes| snapshot(layout, bytes)).collect();
        let map = words(trace.snapmap, 4 * map_length as usize)?;
        let (map, _) = map.as_chunks();
        let body = Self {
            code: IrCode::new(first, code.iter().map(|word| u64::from_le_bytes(*word)).collect()),
            snapshots: snapshots.ok_or(BodyError::Malformed)?,
            map: map.iter().map(|word| u32::from_le_bytes(*word)).collect(),
            mcode: words(trace.mcode.start, length as usize)?,
            trace,
        };
        // The data belong together only if the trace is still the same.
        if trace_at(memory, vm, body.trace.address).is_none_or(|now| !body.trace.is_same(&now)) {
            return Err(BodyError::Gone);
        }
        let increasing = body.snapshots.is_sorted_by(|a, b| a.at <= b.at && a.map <= b.map);
        let end = |snapshot: &TraceSnapshot| snapshot.map.saturating_add(u32::from(snapshot.entries));
        let within = body.snapshots.iter().all(|snapshot| end(snapshot) < map_length);
        if increasing && within { Ok(body) } else { Err(BodyError::Malformed) }
    }

    /// Size of the data that were read, in bytes.
    pub fn size(&self) -> usize {
        let code = self.code.references();
        8 * code.len() + size_of::<TraceSnapshot>() * self.snapshots.len() + 4 * self.map.len() + self.mcode.len()
    }

    /// The words of a snapshot: its entries, and the words after them.
    pub fn snapshot_words(&self, index: usize) -> Option<(&[u32], &[u32])> {
        let snapshot = self.snapshots.get(index)?;
        let start = snapshot.map as usize;
        let end = self.snapshots.get(index + 1).map_or(self.map.len(), |next| next.map as usize);
        self.map.get(start..end)?.split_at_checked(usize::from(snapshot.entries))
    }

    /// Index of the snapshot that an IR instruction belongs to.
    pub fn snapshot_of(&self, at: u16) -> usize {
        self.snapshots.partition_point(|snapshot| snapshot.at <= at).saturating_sub(1)
    }
}

fn map_length<M: ReadMemory>(memory: &M, layout: &VmLayout, trace: &Trace) -> Result<u32, BodyError> {
    let at = field(trace.address, layout.tr_nsnapmap);
    // Snapshots of 8 bytes have 16-bit offsets into the snapshot map.
    let length = if layout.sizeof_snap == 8 { memory.read::<u16>(at).map(u32::from) } else { memory.read::<u32>(at) };
    length.map_err(|_| BodyError::Gone)
}

/// `mapofs` and `ref` come first, in either width of `mapofs`; the rest is in the layout.
fn snapshot(layout: &VmLayout, bytes: &[u8]) -> Option<TraceSnapshot> {
    let half = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
    let (map, at) = if layout.sizeof_snap == 8 {
        (u32::from(half(0)?), half(2)?)
    } else {
        (u32::from_le_bytes(*bytes.first_chunk()?), half(4)?)
    };
    let mcode = if layout.snap_mcofs == ABSENT { None } else { Some(half(usize::from(layout.snap_mcofs))?) };
    Some(TraceSnapshot { map, at, mcode, entries: *bytes.get(usize::from(layout.snap_nent))? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::InterpreterText;
    use crate::testing::hostile::{Dice, Hostile, Tampering};
    use crate::testing::{Saved, x64_layout};
    use crate::trace::ir::{IrOp, Numbering};
    use crate::trace::{Sought, Traces};
    use lj_trace_common::layout::gct;
    use lj_trace_common::trace::TraceIdentity;
    use lj_trace_process::Maps;

    const GLOBAL: u64 = 0x4000;
    const ARRAY: u64 = 0x6000;
    const TRACE: u64 = 0x6100;
    const CODE: u64 = 0x7000;
    const SNAPSHOTS: u64 = 0x7800;
    const MAP: u64 = 0x7900;
    const MCODE: u64 = 0x7a00;
    const CONSTANTS: u32 = 40;
    const INSTRUCTIONS: u32 = 40;

    /// A VM with one trace. Its instructions do nothing, and its constants are small numbers.
    fn with_a_trace(random: &mut Dice) -> (Saved, Vm) {
        // Snapshots of 8 and of 12 bytes.
        let layout = x64_layout(["2.1b3", "Debian"][random.below(2) as usize], "x64gc64");
        let text = InterpreterText { range: 0..0, exact: true, edges: lj_trace_unwind::vm_edges::Edges::default() };
        let vm = Vm { global: GLOBAL, main_thread: 0, layout, builds: Vec::new(), undecided: Vec::new(), text };
        let mut memory = Saved::new(GLOBAL, vec![0; 0x4000]);
        let state = vm.jit_state().unwrap();
        memory.put(field(state, layout.j_trace), &ARRAY.to_le_bytes());
        memory.put(field(state, layout.j_sizetrace), &2_u32.to_le_bytes());
        memory.put(ARRAY + 8, &TRACE.to_le_bytes());
        memory.put(TRACE + 9, &[gct::TRACE]);
        let first = u32::from(BIAS) - CONSTANTS;
        let mut word = |offset: u16, word: u64| memory.put(field(TRACE, offset), &word.to_le_bytes());
        word(layout.tr_ir, CODE.wrapping_sub(8 * u64::from(first)));
        word(layout.tr_snap, SNAPSHOTS);
        word(layout.tr_snapmap, MAP);
        word(layout.tr_mcode, MCODE);
        let mut half = |offset: u16, half: u32| memory.put(field(TRACE, offset), &half.to_le_bytes());
        half(layout.tr_nk, first);
        half(layout.tr_nins, u32::from(BIAS) + INSTRUCTIONS);
        half(layout.tr_szmcode, 64);
        let is_short = layout.sizeof_snap == 8;
        memory.put(field(TRACE, layout.tr_nsnapmap), &32_u32.to_le_bytes()[..if is_short { 2 } else { 4 }]);
        memory.put(field(TRACE, layout.tr_nsnap), &4_u16.to_le_bytes());
        memory.put(field(TRACE, layout.tr_traceno), &1_u16.to_le_bytes());
        // Instructions with any operands.
        let is_nop = |number: &u8| Numbering::ALL[0].opcode(*number).is_some_and(|opcode| opcode.op == IrOp::NOP);
        let number = u64::from((0..u8::MAX).find(is_nop).unwrap());
        for at in 0..u64::from(CONSTANTS + INSTRUCTIONS) {
            let operands = random.below(1 << 32);
            let word = if at < u64::from(CONSTANTS) { operands % 1024 } else { number << 40 | operands };
            memory.put(CODE + 8 * at, &word.to_le_bytes());
        }
        for (number, at) in (0_u32..4).zip((SNAPSHOTS..).step_by(layout.sizeof_snap.into())) {
            memory.put(at, &(8 * number).to_le_bytes());
            memory.put(at + if is_short { 2 } else { 4 }, &(BIAS + 8 * number as u16).to_le_bytes());
            memory.put(field(at, layout.snap_nent), &[5]);
        }
        for entry in 0..32 {
            let constant = u32::from(BIAS) - 1 - random.below(CONSTANTS.into()) as u32;
            memory.put(MAP + 4 * u64::from(entry), &((entry % 8) << 24 | constant).to_le_bytes());
        }
        (memory, vm)
    }

    #[test]
    fn whatever_a_program_does_to_a_trace_reading_it_ends() {
        let mut random = Dice::new(1);
        let mut read = 0;
        for seed in 0..600 {
            let (memory, vm) = with_a_trace(&mut random);
            let trace = trace_at(&memory, &vm, TRACE).unwrap();
            let body = TraceBody::read(&memory, &vm, trace.clone());
            assert_eq!(body.as_ref().map(|body| body.snapshots.len()), Ok(4));
            let mut odd = memory.clone();
            odd.put(SNAPSHOTS + 3 * u64::from(vm.layout.sizeof_snap), &u32::MAX.to_le_bytes());
            assert_eq!(TraceBody::read(&odd, &vm, trace.clone()), Err(BodyError::Malformed));
            let harm = Tampering::some(&mut random, 40);
            let hostile = Hostile::new(&memory, harm, seed, 1 << 18);
            if let Ok(found) = TraceBody::read(&hostile, &vm, trace)
                && harm.only_hides()
            {
                assert_eq!(Ok(found), body);
            }
            for memory in [hostile, Hostile::new(&memory, harm, seed + 1, 1 << 18)] {
                let running = TraceIdentity::default();
                let found = Traces::default().find(&memory, &vm, Sought::Number(1), &running, || Some(Maps::default()));
                let Ok(found) = found else { continue };
                read += 1;
                for index in 0..found.exits() + 1 {
                    let _ = found.snapshot(&memory, &vm.layout, index);
                    let _ = found.body.snapshot_words(index);
                }
                for numbering in Numbering::ALL {
                    crate::trace::ancestors::prototypes_above(&memory, &vm, &found.body, numbering);
                }
            }
        }
        assert!(read > 100, "{read}");
    }
}
