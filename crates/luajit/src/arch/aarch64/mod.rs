//! AArch64 (arm64).

use lj_trace_common::arch::Register;
use lj_trace_common::event::SampledRegisters;
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use crate::arch::instruction::ExitStub;

mod exit_stub;
mod machine;

pub use exit_stub::{exit_at, exit_byte_at, exit_in_handler, has_left_its_frame};
pub use machine::{base_stores, decode};

/// Machine code is counted in instructions.
pub const MCODE_UNIT: u32 = 4;

/// What layouts are called. There are none without GC64.
pub const MODE: [&str; 2] = ["arm64", "arm64"];

/// Where a C frame has its return address, counted from its beginning: at its end, since September 2021; before, in its second
/// word, and the coroutine behind the saved registers ([the C frame], [before]).
///
/// [the C frame]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L108-L124
/// [before]: https://github.com/LuaJIT/LuaJIT/blob/28440544ba7fc494ecc822c37750991a101e41cd/src/vm_arm64.dasc#L82-L97
pub const fn cframe_return_slot(layout: &VmLayout) -> u16 {
    if layout.cframe_l < 100 { layout.cframe_size.wrapping_sub(8) } else { 8 }
}

/// The trace and the exit that it is being left by, while its stubs or the beginning of the handler run; [`None`] if nothing
/// tells. `stack` reads the native stack.
pub fn left_by<M: ReadMemory>(
    memory: &M,
    registers: &SampledRegisters,
    stack: impl Fn(u64) -> Option<u64>,
) -> Option<ExitStub> {
    let [pc, sp, link] = [Register::Pc, Register::Sp, Register::X30].map(|register| registers[register as usize]);
    exit_stub::left_by(memory, (pc, sp, link), stack)
}

/// Where in a trace a function of the VM's own code was called, which a sample is in.
pub fn called_at<M: ReadMemory>(memory: &M, registers: &SampledRegisters) -> Option<u64> {
    let [pc, link] = [Register::Pc, Register::X30].map(|register| registers[register as usize]);
    exit_stub::called_at(memory, pc, link)
}
