//! The trait of code that observes allocations during a recording.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use lj_trace_profile::memory::sources::SourceLine;
use lj_trace_streams::memprof::{Event, Source};

/// Observes allocation events besides the outputs of a recording.
pub trait AllocationListener {
    /// Takes an event of the VM with this number. The symbols that the event needs are events, too, and come before it.
    fn event(&mut self, vm: usize, event: &Event);

    /// Takes the Lua line of a source on a trace, before the first event with that source.
    fn line(&mut self, vm: usize, source: Source, line: SourceLine);

    /// Takes the name of a function in lines that came without it.
    fn name_function(&mut self, vm: usize, proto: u64, name: &Arc<str>);

    /// Notes that a prototype of a VM was freed. Its address may belong to another function later.
    fn forget_prototype(&mut self, vm: usize, proto: u64);

    /// Forgets all calls of [`line`](Self::line) for a VM.
    fn forget_lines(&mut self, vm: usize);
}

/// The listener of the live view. It needs the first symbols of each VM, so it must exist before the probes are attached.
pub type SharedListener = Rc<RefCell<dyn AllocationListener>>;
