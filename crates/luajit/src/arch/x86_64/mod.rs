//! x86-64.

use lj_trace_common::event::SampledRegisters;
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use crate::arch::instruction::ExitStub;

mod exit_stub;
mod machine;

pub use exit_stub::{exit_at, exit_byte_at, exit_in_handler, has_left_its_frame};
pub use machine::{base_stores, decode};

/// Machine code is counted in bytes.
pub const MCODE_UNIT: u32 = 1;

/// What layouts are called: without GC64, and with it.
pub const MODE: [&str; 2] = ["x64", "x64gc64"];

/// Where a C frame has its return address, counted from its beginning: the call has put it at the frame's end.
pub const fn cframe_return_slot(layout: &VmLayout) -> u16 {
    layout.cframe_size.wrapping_sub(8)
}

/// The trace and the exit that it is being left by: the state names the trace here, and [`exit_at`] tells the exit.
pub fn left_by<M: ReadMemory>(
    _memory: &M,
    _registers: &SampledRegisters,
    _stack: impl Fn(u64) -> Option<u64>,
) -> Option<ExitStub> {
    None
}

/// Where in a trace a function of the VM's own code was called, which a sample is in: its return address is on the stack,
/// where unwinding finds it.
pub fn called_at<M: ReadMemory>(_memory: &M, _registers: &SampledRegisters) -> Option<u64> {
    None
}
