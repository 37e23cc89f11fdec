//! x86-64.

use lj_trace_common::layout::VmLayout;

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
