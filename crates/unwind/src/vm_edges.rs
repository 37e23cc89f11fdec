//! Places where the interpreter is in a C frame without a Lua frame: it has just entered, or is about to leave.
//! [`arch::edges`](crate::arch::edges) finds these places in its code.

use std::ops::Range;

/// The instructions at these places, as ranges of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    /// The C frame is linked, but its first Lua frame is not: `L->base` belongs to the C code that called.
    pub entering: Vec<Range<u64>>,
    /// The Lua frame is left, but `L->base` is not set yet: BASE has to be computed from PC's register.
    pub returning: Vec<Range<u64>>,
    /// `L->base` belongs to the C code again, but the C frame is not unlinked yet.
    pub leaving: Vec<Range<u64>>,
    /// An FFI callback has returned, and C code is about to be called that drops its C frame: BASE belongs to the Lua
    /// code that called C.
    pub callback_left: Vec<Range<u64>>,
    /// A metamethod or an FFI callback has returned, and BASE belongs to the Lua code around it already. The frame that has
    /// returned is at [`reg::CONTINUED`](lj_trace_common::arch::reg::CONTINUED). Its continuation is stored below that.
    pub continuing: Vec<Range<u64>>,
    /// Return addresses of the calls that enter and leave an FFI callback.
    pub callback_calls: Vec<u64>,
    /// C functions that the interpreter calls for FFI callbacks, while the callback's C frame has no Lua frame: `L->base`
    /// belongs to the Lua code that called C.
    pub callback_code: Vec<Range<u64>>,
    /// The instructions that store a new frame's link.
    pub links: Vec<u64>,
    /// Around calls of C functions: BASE's register holds an argument or a result, and `L->base` has the value of BASE.
    pub base_in_state: Vec<Range<u64>>,
    /// The same, but [`reg::KEPT_BASE`](lj_trace_common::arch::reg::KEPT_BASE) has the value of BASE.
    pub base_kept: Vec<Range<u64>>,
    /// A frame is left: its results may lie over its function and its link, which PC's register has.
    pub results_stored: Vec<Range<u64>>,
    /// The same, but BASE moves already. The frame's BASE is
    /// [`LEFT_BASE_OFFSET`](lj_trace_common::arch::LEFT_BASE_OFFSET) above
    /// [`reg::LEFT_BASE`](lj_trace_common::arch::reg::LEFT_BASE).
    pub frame_left: Vec<Range<u64>>,
    /// The frame at BASE is whole, but PC's register holds something else.
    pub pc_elsewhere: Vec<Range<u64>>,
    /// The state says that a trace runs, but the interpreter does, about to enter a trace or after its end: BASE and PC are in
    /// their registers.
    pub beside_traces: Vec<Range<u64>>,
    /// The same, but PC's register has the address of the next bytecode, which is not fetched yet.
    pub before_fetch: Vec<Range<u64>>,
}

impl Edges {
    /// The same places in code that lies `delta` bytes higher; a lower address is a `delta` that wraps around.
    #[must_use]
    pub fn moved_by(&self, delta: u64) -> Self {
        let ranges = |ranges: &[Range<u64>]| -> Vec<Range<u64>> {
            ranges.iter().map(|range| range.start.wrapping_add(delta)..range.end.wrapping_add(delta)).collect()
        };
        let addresses = |addresses: &[u64]| addresses.iter().map(|address| address.wrapping_add(delta)).collect();
        Self {
            entering: ranges(&self.entering),
            returning: ranges(&self.returning),
            leaving: ranges(&self.leaving),
            callback_left: ranges(&self.callback_left),
            continuing: ranges(&self.continuing),
            callback_calls: addresses(&self.callback_calls),
            callback_code: ranges(&self.callback_code),
            links: addresses(&self.links),
            base_in_state: ranges(&self.base_in_state),
            base_kept: ranges(&self.base_kept),
            results_stored: ranges(&self.results_stored),
            frame_left: ranges(&self.frame_left),
            pc_elsewhere: ranges(&self.pc_elsewhere),
            beside_traces: ranges(&self.beside_traces),
            before_fetch: ranges(&self.before_fetch),
        }
    }
}
