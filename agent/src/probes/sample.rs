//! A CPU sample as it comes out of the ring buffer, and what comes along with samples.

use lj_trace_common::event::{FrameRecord, SampleHeader};
use lj_trace_common::memory::Plain;
use lj_trace_common::trace::{TRACE_COPY, TraceCopy};

/// What the sampler sends.
#[expect(clippy::large_enum_variant, reason = "one exists at a time, and most are samples")]
#[derive(Clone, Debug)]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// A piece of a trace that the next samples are in, and its bytes.
    Trace(TraceCopy, &'a [u8]),
}

impl<'a> Record<'a> {
    /// Takes a record apart; [`None`] if its sizes do not add up.
    pub fn parse(record: &'a [u8]) -> Option<Self> {
        if record.first_chunk().is_some_and(|mark| u64::from_ne_bytes(*mark) == TRACE_COPY) {
            let (head, rest) = record.split_at_checked(size_of::<TraceCopy>())?;
            let head: TraceCopy = plain(head)?;
            // The record is larger than its piece.
            return Some(Self::Trace(head, rest.get(..usize::try_from(head.piece.size).ok()?)?));
        }
        Sample::parse(record).map(Self::Sample)
    }
}

/// One CPU sample. See [`SampleHeader`] for the shape of the record.
#[derive(Clone, Debug)]
pub struct Sample<'a> {
    /// The fixed part.
    pub header: SampleHeader,
    /// The C stack from `rsp` upward.
    pub stack: &'a [u8],
    /// The Lua frames and the C frames between them, innermost first.
    pub frames: Vec<FrameRecord>,
    /// The Lua stack from `header.lua_copy_start`, where it was needed.
    pub lua_stack: &'a [u8],
    /// The kernel's frames, innermost first, where they were asked for and it was in the kernel.
    pub kernel: Vec<u64>,
}

impl<'a> Sample<'a> {
    /// Takes a record apart; `None` if its sizes do not add up.
    pub fn parse(record: &'a [u8]) -> Option<Self> {
        let (header, rest) = record.split_at_checked(size_of::<SampleHeader>())?;
        let header: SampleHeader = plain(header)?;
        let (stack, rest) = rest.split_at_checked(header.stack_size as usize)?;
        let frames_size = (header.frame_count as usize).checked_mul(size_of::<FrameRecord>())?;
        let (frames, rest) = rest.split_at_checked(frames_size)?;
        let frames = frames.chunks_exact(size_of::<FrameRecord>()).map(plain).collect::<Option<_>>()?;
        let (lua_stack, rest) = rest.split_at_checked(header.lua_copy_size as usize)?;
        let (kernel, _) = rest.get(..header.kernel_size as usize)?.as_chunks::<8>();
        let kernel = kernel.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some(Self { header, stack, frames, lua_stack, kernel })
    }
}

/// Reads a plain value from bytes of its size.
pub(super) fn plain<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the bytes are exactly as many as the value has, and `Plain` makes every pattern valid.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use lj_trace_common::trace::Piece;

    use super::*;

    fn record(stack: u32, frames: u32, lua: u32, payload: usize) -> Vec<u8> {
        let header =
            SampleHeader { stack_size: stack, frame_count: frames, lua_copy_size: lua, ..SampleHeader::default() };
        let mut bytes = vec![0; size_of::<SampleHeader>() + payload];
        // SAFETY: the vector is at least as long as the header.
        unsafe { bytes.as_mut_ptr().cast::<SampleHeader>().write_unaligned(header) };
        bytes
    }

    #[test]
    fn takes_a_record_apart() {
        let bytes = record(16, 2, 8, 16 + 96 + 8);
        let sample = Sample::parse(&bytes).unwrap();
        assert_eq!((sample.stack.len(), sample.frames.len(), sample.lua_stack.len()), (16, 2, 8));
    }

    #[test]
    fn tells_pieces_of_traces_from_samples() {
        let head = TraceCopy { mark: TRACE_COPY, piece: Piece { address: 0x1000, size: 3 }, ..TraceCopy::default() };
        let mut bytes = vec![7; size_of::<TraceCopy>() + 8];
        // SAFETY: the vector is at least as long as the head.
        unsafe { bytes.as_mut_ptr().cast::<TraceCopy>().write_unaligned(head) };
        assert!(matches!(Record::parse(&bytes), Some(Record::Trace(copy, [7, 7, 7])) if copy == head));
        assert!(Record::parse(&bytes[..size_of::<TraceCopy>() + 2]).is_none(), "it lacks a byte");
        assert!(matches!(Record::parse(&record(16, 0, 0, 16)), Some(Record::Sample(_))));
    }

    #[test]
    fn refuses_sizes_that_do_not_add_up() {
        assert!(Sample::parse(&record(16, 2, 8, 16 + 96 + 7)).is_none());
        assert!(Sample::parse(&record(u32::MAX, u32::MAX, u32::MAX, 4)).is_none());
        assert!(Sample::parse(&[0; 10]).is_none());
    }
}
