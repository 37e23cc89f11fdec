//! The target's memory without the area below its stack. Kernels before Linux 6.5 treat a read there like one of the
//! program itself, so that the stack grows. Later kernels refuse it, with a warning in their log (`gup_vma_lookup`,
//! `mm/gup.c`). A block that is read as a whole may lie on both sides of the stack's lowest page.

use std::ops::Range;

use lj_trace_process::{Maps, ProcessMemory};

use super::blocks::ReadSome;

/// The memory of a process with one stack that grows: the stack of its first thread.
#[derive(Debug)]
pub struct NotOnStack<M = ProcessMemory> {
    memory: M,
    below: Range<u64>,
}

impl<M: ReadSome> NotOnStack<M> {
    /// The memory of a process with these mappings.
    pub fn new(memory: M, maps: &Maps) -> Self {
        let mut below = 0..0;
        let mut previous = 0;
        for mapping in maps.iter() {
            if mapping.path == "[stack]" {
                below = previous..mapping.start;
            }
            previous = mapping.end;
        }
        Self { memory, below }
    }
}

impl<M: ReadSome> ReadSome for NotOnStack<M> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        if self.below.contains(&address) {
            return 0;
        }
        let length = match self.below.start.checked_sub(address) {
            Some(left) if !self.below.is_empty() => usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len()),
            _ => buffer.len(),
        };
        self.memory.read_some(address, &mut buffer[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::tests::Ranges;

    const MAPS: &str = "\
00001000-00003000 rw-p 00000000 00:00 0 
00009000-0000a000 rw-p 00000000 00:00 0                                  [stack]
0000b000-0000c000 rw-p 00000000 00:00 0 
";

    #[test]
    fn nothing_is_read_below_the_stack() {
        let memory = Ranges { ranges: vec![(0, (0..=255).cycle().take(0xc000).collect())], ..Ranges::default() };
        let stack = NotOnStack::new(&memory, &Maps::parse(MAPS));
        assert_eq!(stack.below, 0x3000..0x9000);
        let read = |address, length| stack.read_some(address, &mut vec![0; length]);
        assert_eq!((read(0x1000, 0x800), read(0x2800, 0x8000)), (0x800, 0x800));
        assert_eq!((read(0x3000, 8), read(0x8fff, 8)), (0, 0));
        assert_eq!((read(0x9000, 0x1000), read(0xb000, 8)), (0x1000, 8));
        let all = NotOnStack::new(&memory, &Maps::parse("00001000-00003000 rw-p 00000000 00:00 0 \n"));
        assert_eq!(all.read_some(0x1000, &mut [0; 0x3000]), 0x3000);
    }
}
