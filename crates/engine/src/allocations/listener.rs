//! The trait of those that observe allocations while they are recorded.

use std::cell::RefCell;
use std::rc::Rc;

use lj_trace_profile::Frame;
use lj_trace_streams::memprof::{Event, Source};

/// Takes in allocation events beside the outputs of a recording.
pub trait AllocationListener {
    /// An event of the VM with this number. The symbols that its events need are events too, and come before them.
    fn event(&mut self, vm: usize, event: &Event);

    /// Which Lua line a source on a trace is, before the first event that has it.
    fn line(&mut self, vm: usize, source: Source, frames: Vec<Frame>);

    /// A prototype of a VM was freed: its address may mean something else later.
    fn forget_prototype(&mut self, vm: usize, proto: u64);

    /// Nothing of what [`line`](Self::line) said of a VM is taken for known any more.
    fn forget_lines(&mut self, vm: usize);
}

/// The live view's ear: it hears the symbols that a VM begins with, so it must be there before the probes are.
pub type SharedListener = Rc<RefCell<dyn AllocationListener>>;
