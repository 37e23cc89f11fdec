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

/// Bytes per unit of `SnapShot.mcofs`: it counts instructions.
pub const MCODE_UNIT: u32 = 4;

/// Names of this processor's layouts. There are none without GC64, so both entries are the same.
pub const MODE: [&str; 2] = ["arm64", "arm64"];

/// Offset of the return address in a C frame. Since September 2021 it is at the end of the frame. Before, it was in the
/// second word, and the coroutine came after the saved registers ([the C frame], [before]).
///
/// [the C frame]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L108-L124
/// [before]: https://github.com/LuaJIT/LuaJIT/blob/28440544ba7fc494ecc822c37750991a101e41cd/src/vm_arm64.dasc#L82-L97
pub const fn cframe_return_slot(layout: &VmLayout) -> u16 {
    if layout.cframe_l < 100 { layout.cframe_size.wrapping_sub(8) } else { 8 }
}

/// The trace that is being left, and the exit, while the exit stubs or the beginning of the handler run; [`None`] if
/// neither is known. `stack` reads the native stack.
pub fn left_by<M: ReadMemory>(
    memory: &M,
    registers: &SampledRegisters,
    stack: impl Fn(u64) -> Option<u64>,
) -> Option<ExitStub> {
    let [pc, sp, link] = [Register::Pc, Register::Sp, Register::X30].map(|register| registers[register as usize]);
    exit_stub::left_by(memory, (pc, sp, link), stack)
}

/// The return address in a trace that called a helper of the VM's own code, while a sample is in that helper.
pub fn called_at<M: ReadMemory>(memory: &M, registers: &SampledRegisters) -> Option<u64> {
    let [pc, link] = [Register::Pc, Register::X30].map(|register| registers[register as usize]);
    exit_stub::called_at(memory, pc, link)
}
