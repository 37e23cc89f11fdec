//! x86-64.

use lj_trace_common::event::SampledRegisters;
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use crate::arch::instruction::ExitStub;

mod exit_stub;
mod machine;

pub use exit_stub::{exit_at, exit_byte_at, exit_in_handler, has_left_its_frame};
pub use machine::{base_stores, decode};

/// Bytes per unit of `SnapShot.mcofs`: it counts bytes.
pub const MCODE_UNIT: u32 = 1;

/// Names of this processor's layouts: without GC64, and with it.
pub const MODE: [&str; 2] = ["x64", "x64gc64"];

/// Offset of the return address in a C frame: the call has pushed it at the frame's end.
pub const fn cframe_return_slot(layout: &VmLayout) -> u16 {
    layout.cframe_size.wrapping_sub(8)
}

/// The trace that is being left, and the exit. Not needed here: the VM's state names the trace, and [`exit_at`] the exit.
pub fn left_by<M: ReadMemory>(
    _memory: &M,
    _registers: &SampledRegisters,
    _stack: impl Fn(u64) -> Option<u64>,
) -> Option<ExitStub> {
    None
}

/// The return address in a trace that called a helper of the VM's own code. Here it is on the stack, where unwinding finds it.
pub fn called_at<M: ReadMemory>(_memory: &M, _registers: &SampledRegisters) -> Option<u64> {
    None
}
