//! The few instructions through which a trace is left. Its exit stubs lie behind its code, one `bl` for each exit; what tells
//! the exit is the link register ([`asm_exitstub_setup`], [`vm_exit_handler`]).
//!
//! Traces that are being left are named by no sample of this processor yet, so nothing asks for their exits.
//!
//! [`asm_exitstub_setup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_arm64.h#L51-L77
//! [`vm_exit_handler`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L2033-L2085

use lj_trace_common::memory::ReadMemory;

/// The exit that the stub at an address leads to: not known.
pub fn exit_at<M: ReadMemory>(_memory: &M, _pc: u64, _stack: [Option<u64>; 2]) -> Option<u16> {
    None
}

/// The lowest byte of the exit whose stub begins at an address: stubs hold no numbers.
pub fn exit_byte_at<M: ReadMemory>(_memory: &M, _address: u64) -> Option<u8> {
    None
}

/// The exit that the trace exit handler works on: not known.
pub fn exit_in_handler(_frame: (u64, u16), _stack: impl Fn(u64) -> Option<u64>, _kept: u64) -> Option<u16> {
    None
}

/// Whether a trace that ends has no part of the stack any more, the stack pointer being `distance` bytes below the C frame.
pub const fn has_left_its_frame(distance: u64) -> bool {
    distance == 0
}
