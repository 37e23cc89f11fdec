//! Copies of traces that the BPF programs made when a sample hit each trace for the first time.

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};
use lj_trace_common::trace::{PIECES, TraceCopy, TraceIdentity};

use crate::Trace;
use crate::overlay::plain_at;

/// A trace in its state at the first sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiedTrace {
    /// Addresses and bytes of the pieces.
    pieces: [(u64, Vec<u8>); PIECES],
}

impl CopiedTrace {
    /// Adds one piece. It ignores invalid indices, and pieces with missing bytes.
    pub fn add(&mut self, copy: &TraceCopy, bytes: &[u8]) {
        let size = usize::try_from(copy.piece.size).ok();
        if let (Some(piece), Some(bytes)) =
            (self.pieces.get_mut(copy.index as usize), size.and_then(|size| bytes.get(..size)))
        {
            *piece = (copy.piece.address, bytes.to_vec());
        }
    }

    /// Whether the copy is complete: header, intermediate code and machine code.
    pub fn is_whole(&self) -> bool {
        self.pieces[1..].iter().all(|(_, bytes)| !bytes.is_empty())
    }

    /// Size of the copied bytes.
    pub fn size(&self) -> usize {
        self.pieces.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

/// A copied trace on top of the live memory.
pub struct Copied<'a, M> {
    /// The live memory.
    pub memory: &'a M,
    /// The copy.
    pub trace: &'a CopiedTrace,
}

impl<M: ReadMemory> ReadMemory for Copied<'_, M> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let within = |(start, bytes): &(u64, Vec<u8>)| plain_at(bytes, address.checked_sub(*start)?);
        match self.trace.pieces.iter().find_map(within) {
            Some(value) => Ok(value),
            None => self.memory.read(address),
        }
    }
}

/// The fields by which the BPF programs identify a trace.
pub fn identity(trace: &Trace) -> TraceIdentity {
    TraceIdentity {
        address: trace.address,
        mcode: trace.mcode.start,
        startpt: trace.startpt,
        startpc: trace.startpc,
        snapmap: trace.snapmap,
        szmcode: (trace.mcode.end - trace.mcode.start) as u32,
        nins: trace.nins,
        nk: trace.nk,
        number: u32::from(trace.number),
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_common::trace::Piece;

    use super::*;
    use crate::testing::Saved;

    fn piece(index: u32, address: u64, size: u64) -> TraceCopy {
        TraceCopy { index, piece: Piece { address, size }, ..TraceCopy::default() }
    }

    #[test]
    fn a_copy_hides_what_lies_there_now() {
        let mut trace = CopiedTrace::default();
        trace.add(&piece(1, 0x1000, 4), &[1, 2, 3, 4, 0, 0]);
        assert!(!trace.is_whole());
        trace.add(&piece(2, 0x2000, 2), &[5, 6]);
        assert_eq!((trace.is_whole(), trace.size()), (true, 6));
        let live = Saved::new(0x1000, vec![9; 8]);
        let memory = Copied { memory: &live, trace: &trace };
        assert_eq!(memory.read::<u32>(0x1000), Ok(0x0403_0201));
        assert_eq!(memory.read::<u16>(0x2000), Ok(0x0605));
        assert_eq!(memory.read::<u16>(0x1003), Ok(0x0909), "half outside: all of it from the live memory");
        assert_eq!(memory.read::<u32>(0x2000), Err(Unreadable));
    }

    #[test]
    fn pieces_that_do_not_add_up_are_left_out() {
        let mut trace = CopiedTrace::default();
        trace.add(&piece(1, 0x1000, 4), &[1, 2]);
        trace.add(&piece(PIECES as u32, 0x1000, 1), &[1]);
        trace.add(&piece(2, 0x1000, u64::MAX), &[1]);
        assert_eq!(trace, CopiedTrace::default());
    }
}
