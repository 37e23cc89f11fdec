//! Learns where native stacks end. What unwinding finds in one sample lets the kernel half copy less in the next.

use std::collections::HashMap;

use lj_trace_common::event::{SAMPLE_STACK_END_KNOWN, SampleHeader, reg};
use lj_trace_common::stack_end::{MAX_STACK_ENDS, StackEnd};

use lj_trace_unwind::{NativeStack, UnwindEnd};

/// The saving in bytes below which copying less is not worth it.
const LITTLE: u64 = 512;

/// How often the known end of a page may be wrong before the page is given up.
const MAX_WRONG: u8 = 3;

/// What is known about a page.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    end: Option<StackEnd>,
    /// How often the known end was wrong.
    wrong: u8,
}

/// The stack ends that are known so far.
#[derive(Debug, Default)]
pub struct StackEnds {
    /// The known ends, by page.
    known: HashMap<u64, Known>,
    /// The ends that the kernel half does not know yet.
    news: Vec<(u64, Option<StackEnd>)>,
}

impl StackEnds {
    /// Learns from a sample.
    pub fn note(&mut self, header: &SampleHeader, native: &NativeStack) {
        let sp = header.registers[reg::SP];
        if header.flags & SAMPLE_STACK_END_KNOWN != 0 {
            if matches!(native.end, UnwindEnd::StackNotCaptured { .. }) {
                self.set(StackEnd::page(header.process, sp), None);
            }
        } else if let Some(end) = end_of(header, native) {
            for page in StackEnd::page(header.process, sp)..=StackEnd::page(header.process, end.slot) {
                self.set(page, Some(end));
            }
        }
    }

    fn set(&mut self, page: u64, end: Option<StackEnd>) {
        if self.known.len() >= 2 * MAX_STACK_ENDS as usize {
            self.known.clear();
        }
        let known = self.known.entry(page).or_default();
        if known.end != end && known.wrong < MAX_WRONG {
            known.end = end;
            known.wrong += u8::from(end.is_none());
            self.news.push((page, end));
        }
    }

    /// The stack ends that were found since the last call.
    pub fn take(&mut self) -> Vec<(u64, Option<StackEnd>)> {
        std::mem::take(&mut self.news)
    }
}

/// The end of the stack of a sample, if it is certain and if the sample needs much less of the stack than was copied.
fn end_of(header: &SampleHeader, native: &NativeStack) -> Option<StackEnd> {
    let sp = header.registers[reg::SP];
    let copied = sp..sp.saturating_add(header.stack_size.into());
    let outermost = native.frames.last().filter(|frame| native.end.is_entry() && frame.is_return && frame.pc != 0)?;
    // A signal handler may have a stack of its own.
    let is_one = native.frames.iter().all(|frame| frame.sp >= sp) && native.frames.is_sorted_by_key(|frame| frame.sp);
    let slot = outermost.sp.checked_sub(8).filter(|slot| is_one && *slot >= sp)?;
    let end = native.reach.max(outermost.sp);
    (copied.contains(&end) && copied.end - end > LITTLE).then_some(StackEnd { slot, return_address: outermost.pc, end })
}

#[cfg(test)]
mod tests {
    use lj_trace_unwind::{NativeFrame, NativeKind};

    use super::*;

    const SP: u64 = 0x7000_1f00;

    fn header(flags: u32, stack_size: u32) -> SampleHeader {
        let mut header = SampleHeader { flags, stack_size, ..SampleHeader::default() };
        header.registers[reg::SP] = SP;
        header
    }

    fn stack(sps: &[u64], end: UnwindEnd) -> NativeStack {
        let frame = |(index, &sp): (usize, &u64)| NativeFrame {
            pc: 0x40_0000 + index as u64,
            is_return: index != 0,
            sp,
            kind: NativeKind::Native,
        };
        NativeStack { frames: sps.iter().enumerate().map(frame).collect(), end, reach: 0x7000_2410 }
    }

    const WHOLE: [u64; 3] = [SP, 0x7000_2000, 0x7000_2400];
    const END: StackEnd = StackEnd { slot: 0x7000_23f8, return_address: 0x40_0002, end: 0x7000_2410 };

    #[test]
    fn an_end_counts_for_all_pages_up_to_it_and_is_told_once() {
        let mut ends = StackEnds::default();
        ends.note(&header(0, 0x8000), &stack(&WHOLE, UnwindEnd::Entry));
        assert_eq!(ends.take(), [(0x7_0001, Some(END)), (0x7_0002, Some(END))]);
        ends.note(&header(0, 0x8000), &stack(&WHOLE, UnwindEnd::Entry));
        ends.note(&header(SAMPLE_STACK_END_KNOWN, 0x510), &stack(&WHOLE, UnwindEnd::Entry));
        assert_eq!(ends.take(), []);
    }

    #[test]
    fn an_end_that_is_wrong_again_and_again_is_forgotten_for_good() {
        let mut ends = StackEnds::default();
        let beyond = UnwindEnd::StackNotCaptured { address: 0x7000_3000 };
        for _ in 0..MAX_WRONG {
            ends.note(&header(0, 0x8000), &stack(&WHOLE, UnwindEnd::Entry));
            assert_eq!(ends.take().first(), Some(&(0x7_0001, Some(END))));
            ends.note(&header(SAMPLE_STACK_END_KNOWN, 0x510), &stack(&WHOLE, beyond));
            assert_eq!(ends.take(), [(0x7_0001, None)]);
        }
        ends.note(&header(0, 0x8000), &stack(&WHOLE, UnwindEnd::Entry));
        assert_eq!(ends.take(), []);
    }

    #[test]
    fn stacks_that_show_no_end_teach_nothing() {
        let none = |header: &SampleHeader, stack: &NativeStack| assert_eq!(end_of(header, stack), None);
        let whole = stack(&WHOLE, UnwindEnd::Entry);
        assert_eq!(end_of(&header(0, 0x8000), &whole), Some(END));
        none(&header(0, 0x8000), &stack(&WHOLE, UnwindEnd::Limit));
        none(&header(0, 0x600), &whole);
        none(&header(0, 0x8000), &stack(&[SP], UnwindEnd::Entry));
        // On a signal stack, above or below the thread's own.
        none(&header(0, 0x8000), &stack(&[SP, 0x7000_5000, 0x7000_2400], UnwindEnd::Entry));
        none(&header(0, 0x8000), &stack(&[SP, 0x6000_0000, 0x7000_2400], UnwindEnd::Entry));
        none(&header(0, 0x8000), &stack(&[SP, 0x7fff_0000_0000], UnwindEnd::Entry));
    }
}
