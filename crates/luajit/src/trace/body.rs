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
        let within = body.snapshots.iter().all(|snapshot| snapshot.map + u32::from(snapshot.entries) < map_length);
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
