//! Test helpers for code that reads a VM: hand-made memory, and layouts by the name of their build.

use std::cell::Cell;

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use crate::layouts::known_layouts;
use crate::overlay::plain_at;

/// One range of saved memory.
#[derive(Clone, Debug)]
pub struct Saved {
    start: u64,
    bytes: Vec<u8>,
}

impl Saved {
    /// Memory with these bytes at `start`.
    pub fn new(start: u64, bytes: Vec<u8>) -> Self {
        Self { start, bytes }
    }
}

impl ReadMemory for Saved {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        plain_at(&self.bytes, address.wrapping_sub(self.start)).ok_or(Unreadable)
    }
}

/// The memory of a process that exits after so many reads: from then on nothing can be read.
#[derive(Debug)]
pub struct Exiting<'m, M> {
    memory: &'m M,
    left: Cell<u64>,
    /// How many reads there were after that.
    refused: Cell<u64>,
}

impl<'m, M> Exiting<'m, M> {
    /// Memory that can be read so many times.
    pub fn after(reads: u64, memory: &'m M) -> Self {
        Self { memory, left: Cell::new(reads), refused: Cell::new(0) }
    }

    /// How many reads were refused.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }
}

impl<M: ReadMemory> ReadMemory for Exiting<'_, M> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        /// Whoever reads so often does not notice that the process is gone.
        const MOST: u64 = 1_000_000;
        if self.left.get() > 0 {
            self.left.set(self.left.get() - 1);
            return self.memory.read(address);
        }
        self.refused.set(self.refused.get() + 1);
        assert!(self.refused.get() < MOST, "it reads on and on after the process has exited");
        Err(Unreadable)
    }
}

/// The layout of a build.
///
/// # Panics
/// If the table has no such build.
pub fn x64_layout(build: &str, mode: &str) -> VmLayout {
    let row = known_layouts().iter().find(|row| row.builds.contains(build) && row.mode == mode);
    row.expect("a build of the table").layout
}
