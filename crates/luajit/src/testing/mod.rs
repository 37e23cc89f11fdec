//! Test helpers for code that reads a VM: hand-made memory, and layouts by the name of their build.

pub mod hostile;

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

    /// Changes bytes of it.
    ///
    /// # Panics
    /// If it has none at `address`.
    pub fn put(&mut self, address: u64, bytes: &[u8]) {
        self.bytes[(address - self.start) as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

impl ReadMemory for Saved {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        plain_at(&self.bytes, address.wrapping_sub(self.start)).ok_or(Unreadable)
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
