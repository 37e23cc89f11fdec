//! CPU samples from the ring buffer, and the other records that come with them.

use lj_trace_common::ends::{self, INNERMOST};
use lj_trace_common::event::{FrameRecord, NO_VM, RecordKind, SAMPLE_ALLOCATION, SAMPLE_WAIT, SampleHeader};
use lj_trace_common::memory::Pod;
use lj_trace_common::trace::{TRACE_COPY, TraceCopy};
use lj_trace_common::turn::{EndedTurn, TURN_ENDED};

use super::places::Places;

/// A record from the sampler.
#[expect(clippy::large_enum_variant, reason = "one exists at a time, and most are samples")]
#[derive(Clone, Debug)]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// A piece of a trace that the next samples are in, with its bytes.
    Trace(TraceCopy, &'a [u8]),
    /// The end of a turn of an event loop that was too long. Its samples came before.
    Turn(EndedTurn),
}

impl<'a> Record<'a> {
    /// Parses a record; [`None`] if its sizes do not add up.
    pub fn parse(record: &'a [u8]) -> Option<Self> {
        if record.first_chunk().is_some_and(|mark| u64::from_ne_bytes(*mark) == TRACE_COPY) {
            let (head, rest) = record.split_at_checked(size_of::<TraceCopy>())?;
            let head: TraceCopy = plain(head)?;
            // The record is larger than the piece: the rest is unused.
            return Some(Self::Trace(head, rest.get(..usize::try_from(head.piece.size).ok()?)?));
        }
        if record.first_chunk().is_some_and(|mark| u64::from_ne_bytes(*mark) == TURN_ENDED) {
            return plain(record.get(..size_of::<EndedTurn>())?).map(Self::Turn);
        }
        Sample::parse(record).map(Self::Sample)
    }

    /// How many ticks of the clock the record stands for.
    pub fn weight(&self) -> u64 {
        match self {
            Self::Sample(sample) => sample.weight(),
            Self::Trace(..) => 0,
            Self::Turn(_) => 1,
        }
    }

    /// The same record, with VM numbers as its process counts them; [`None`] if a VM belongs to another process.
    pub(super) fn renumbered(mut self, process: u32, places: &Places) -> Option<Self> {
        let number = |vm: u32| places.owner(vm).filter(|owner| owner.process == process).map(|owner| owner.vm);
        match &mut self {
            Self::Trace(copy, _) => copy.vm = number(copy.vm)?,
            Self::Turn(_) => {}
            Self::Sample(sample) => {
                if sample.header.vm != NO_VM {
                    sample.header.vm = number(sample.header.vm)?;
                }
                for frame in sample.frames.iter_mut().filter(|frame| frame.kind != RecordKind::LeftOut as u8) {
                    frame.vm = u16::try_from(number(frame.vm.into())?).ok()?;
                }
            }
        }
        Some(self)
    }
}

/// One CPU sample. See [`SampleHeader`] for the shape of the record.
#[derive(Clone, Debug)]
pub struct Sample<'a> {
    /// The fixed part of the record.
    pub header: SampleHeader,
    /// The C stack from the stack pointer upward.
    pub stack: &'a [u8],
    /// The Lua frames and the C frames between them, innermost first. Where frames are left out, a
    /// [`LeftOut`](RecordKind::LeftOut) record gives their number. `header.inner_frames` counts these records.
    pub frames: Vec<FrameRecord>,
    /// The Lua stack from `header.lua_copy_start`, where the reader needs it.
    pub lua_stack: &'a [u8],
    /// The kernel's frames, innermost first, if they were requested and the thread was in the kernel.
    pub kernel: Vec<u64>,
}

impl<'a> Sample<'a> {
    /// How many ticks of the clock the sample stands for.
    pub fn weight(&self) -> u64 {
        u64::from(self.header.weight.max(1))
    }

    /// Whether it was taken at a tick of the clock, and not at an allocation or at the end of a wait.
    pub fn is_of_tick(&self) -> bool {
        self.header.flags & (SAMPLE_ALLOCATION | SAMPLE_WAIT) == 0
    }

    /// Parses a record; `None` if its sizes do not add up.
    pub fn parse(record: &'a [u8]) -> Option<Self> {
        let (header, rest) = record.split_at_checked(size_of::<SampleHeader>())?;
        let mut header: SampleHeader = plain(header)?;
        let (stack, rest) = rest.split_at_checked(header.stack_size as usize)?;
        let frames_size = (header.frame_count as usize).checked_mul(size_of::<FrameRecord>())?;
        let (frames, rest) = rest.split_at_checked(frames_size)?;
        let mut frames: Vec<_> = frames.chunks_exact(size_of::<FrameRecord>()).map(plain).collect::<Option<_>>()?;
        if header.left_out != 0 {
            if !ends::put_in_order(&mut frames, header.left_out) {
                return None;
            }
            let kept = frames.iter().filter(|record| record.kind == RecordKind::CFrame as u8).count();
            let crossings = header.crossings.saturating_sub(kept as u32);
            let left_out = header.left_out.saturating_sub(crossings);
            frames.insert(INNERMOST as usize, FrameRecord::left_out(u64::from(left_out)));
            header.inner_frames = match header.inner_frames.checked_sub(INNERMOST) {
                None => header.inner_frames,
                // The innermost coroutine ends within the left-out frames, or after them.
                Some(further) => INNERMOST + 1 + further.saturating_sub(header.left_out),
            };
        }
        let (lua_stack, rest) = rest.split_at_checked(header.lua_copy_size as usize)?;
        let (kernel, _) = rest.get(..header.kernel_size as usize)?.as_chunks::<8>();
        let kernel = kernel.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some(Self { header, stack, frames, lua_stack, kernel })
    }
}

/// Reads a plain value from bytes of its size.
pub(super) fn plain<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the bytes are exactly as many as the value has, and `Pod` makes every pattern valid.
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
    fn the_ends_of_a_deep_stack_are_in_order() {
        use lj_trace_common::config::MAX_FRAMES;

        let left_out = 300;
        let all = MAX_FRAMES + left_out;
        // Every tenth is a C frame.
        let is_cframe = |number: u32| number.is_multiple_of(10);
        let cframes = |numbers: std::ops::Range<u32>| numbers.filter(|number| is_cframe(*number)).count() as u32;
        let parse = |frame_count, left_out, inner_frames| {
            let crossings = cframes(0..frame_count + left_out);
            let header = SampleHeader { frame_count, left_out, crossings, inner_frames, ..SampleHeader::default() };
            let mut records = vec![FrameRecord::EMPTY; MAX_FRAMES as usize];
            let mut kept = 0;
            for number in 0..frame_count + left_out {
                let kind = if is_cframe(number) { RecordKind::CFrame } else { RecordKind::Lua };
                records[ends::place(kept, number - kept) as usize] =
                    FrameRecord { base: u64::from(number), kind: kind as u8, ..FrameRecord::EMPTY };
                kept = (kept + 1).min(MAX_FRAMES);
            }
            records.truncate(frame_count as usize);
            let mut bytes = vec![0; size_of::<SampleHeader>() + size_of_val(&records[..])];
            let (head, payload) = bytes.split_at_mut(size_of::<SampleHeader>());
            // SAFETY: both have room for what is written.
            unsafe {
                head.as_mut_ptr().cast::<SampleHeader>().write_unaligned(header);
                payload.as_mut_ptr().copy_from(records.as_ptr().cast(), payload.len());
            }
            let sample = Sample::parse(&bytes)?;
            Some((sample.header.inner_frames, sample.frames))
        };
        let (_, frames) = parse(MAX_FRAMES, left_out, all).unwrap();
        let mark = INNERMOST as usize;
        let counted = left_out - cframes(INNERMOST..INNERMOST + left_out);
        assert_eq!((frames[mark].kind, frames[mark].function), (RecordKind::LeftOut as u8, u64::from(counted)));
        let numbers = |frames: &[FrameRecord]| frames.iter().map(|frame| frame.base as u32).collect::<Vec<_>>();
        assert_eq!(numbers(&frames[..mark]), (0..INNERMOST).collect::<Vec<_>>());
        assert_eq!(numbers(&frames[mark + 1..]), (INNERMOST + left_out..all).collect::<Vec<_>>());
        // A coroutine that ends among the innermost frames, in what is left out, and after it.
        for (inner, records) in [
            (5, 5),
            (INNERMOST + 7, INNERMOST + 1),
            (INNERMOST + left_out, INNERMOST + 1),
            (INNERMOST + left_out + 3, INNERMOST + 4),
            (all, MAX_FRAMES + 1),
        ] {
            assert_eq!(parse(MAX_FRAMES, left_out, inner).unwrap().0, records, "{inner}");
        }
        assert!(parse(MAX_FRAMES - 1, 1, 5).is_none(), "there was room for it");
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
    fn tells_turns_from_samples() {
        let turn = EndedTurn { mark: TURN_ENDED, number: 7, began: 5, ended: 9, ..EndedTurn::default() };
        let mut bytes = vec![0; size_of::<EndedTurn>()];
        // SAFETY: the vector is as long as the record.
        unsafe { bytes.as_mut_ptr().cast::<EndedTurn>().write_unaligned(turn) };
        assert!(matches!(Record::parse(&bytes), Some(Record::Turn(own)) if own == turn && own.length() == 4));
        assert!(Record::parse(&bytes[1..]).is_none(), "it lacks a byte");
    }

    #[test]
    fn vms_get_the_numbers_that_they_have_among_those_of_their_process() {
        use crate::places::Owner;

        let mut places = Places::new(8);
        let own = (0..3).map(|vm| places.add_vm(Owner { process: vm % 2, vm: vm / 2 }).unwrap()).collect::<Vec<_>>();
        let sample = |vm: u32, of_frame: u32| {
            let header = SampleHeader { vm, ..SampleHeader::default() };
            let frames = vec![FrameRecord { vm: of_frame as u16, ..FrameRecord::EMPTY }, FrameRecord::left_out(7)];
            Record::Sample(Sample { header, stack: &[], frames, lua_stack: &[], kernel: Vec::new() })
        };
        let numbers = |record: Record<'_>| match record.renumbered(0, &places)? {
            Record::Sample(sample) => Some((sample.header.vm, sample.frames[0].vm)),
            Record::Trace(copy, _) => Some((copy.vm, 0)),
            Record::Turn(_) => None,
        };
        assert_eq!(numbers(sample(own[2], own[0])), Some((1, 0)));
        assert_eq!(numbers(sample(NO_VM, own[2])), Some((NO_VM, 1)));
        assert_eq!(numbers(sample(own[1], own[0])), None, "that is another process");
        assert_eq!(numbers(sample(own[0], 7)), None, "that is nobody's");
        let trace = |vm| Record::Trace(TraceCopy { vm, ..TraceCopy::default() }, &[]);
        assert_eq!((numbers(trace(own[2])), numbers(trace(own[1]))), (Some((1, 0)), None));
    }

    #[test]
    fn refuses_sizes_that_do_not_add_up() {
        assert!(Sample::parse(&record(16, 2, 8, 16 + 96 + 7)).is_none());
        assert!(Sample::parse(&record(u32::MAX, u32::MAX, u32::MAX, 4)).is_none());
        assert!(Sample::parse(&[0; 10]).is_none());
    }
}
