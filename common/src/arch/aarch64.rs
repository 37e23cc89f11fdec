//! AArch64 (arm64).
//!
//! LuaJIT's sources: [registers], [the C frame], [the C frame before September 2021], [`BC_JLOOP`], [`vm_exit_handler`],
//! [exit stubs].
//!
//! [registers]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L33-L50
//! [the C frame]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L108-L124
//! [the C frame before September 2021]: https://github.com/LuaJIT/LuaJIT/blob/28440544ba7fc494ecc822c37750991a101e41cd/src/vm_arm64.dasc#L82-L97
//! [`BC_JLOOP`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L3996-L4020
//! [`vm_exit_handler`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L2033-L2085
//! [exit stubs]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_arm64.h#L51-L77

use crate::memory::{ReadMemory, Unreadable};
use Register::{
    Pc, Sp, X0, X1, X2, X3, X4, X5, X6, X7, X8, X9, X10, X11, X12, X13, X14, X15, X16, X17, X18, X19, X20, X21, X22,
    X23, X24, X25, X26, X27, X28, X29, X30,
};

/// Number of registers in a sample.
pub const REGISTERS: usize = 33;

/// A general register, in DWARF's numbering (DWARF for the Arm 64-bit Architecture, section 4.1): the program counter
/// is number 32 there, too.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the registers' own names")]
pub enum Register {
    X0 = 0,
    X1 = 1,
    X2 = 2,
    X3 = 3,
    X4 = 4,
    X5 = 5,
    X6 = 6,
    X7 = 7,
    X8 = 8,
    X9 = 9,
    X10 = 10,
    X11 = 11,
    X12 = 12,
    X13 = 13,
    X14 = 14,
    X15 = 15,
    X16 = 16,
    X17 = 17,
    X18 = 18,
    X19 = 19,
    X20 = 20,
    X21 = 21,
    X22 = 22,
    X23 = 23,
    X24 = 24,
    X25 = 25,
    X26 = 26,
    X27 = 27,
    X28 = 28,
    X29 = 29,
    X30 = 30,
    Sp = 31,
    Pc = 32,
}

impl Register {
    /// All registers, in DWARF's order.
    pub const ALL: [Self; REGISTERS] = [
        X0, X1, X2, X3, X4, X5, X6, X7, X8, X9, X10, X11, X12, X13, X14, X15, X16, X17, X18, X19, X20, X21, X22, X23,
        X24, X25, X26, X27, X28, X29, X30, Sp, Pc,
    ];

    /// Whether a function must preserve the register (AAPCS64, 6.1.1).
    pub const fn is_callee_saved(self) -> bool {
        matches!(self, X19 | X20 | X21 | X22 | X23 | X24 | X25 | X26 | X27 | X28 | X29)
    }
}

/// Registers by role, as indices into [`SampledRegisters`](crate::event::SampledRegisters).
pub mod reg {
    use super::Register::{Pc, Sp, X0, X1, X2, X3, X17, X19, X21, X22, X29, X30};

    /// The program counter.
    pub const PC: usize = Pc as usize;
    /// The stack pointer.
    pub const SP: usize = Sp as usize;
    /// The frame pointer.
    pub const FP: usize = X29 as usize;
    /// The link register: calls leave the return address there.
    pub const LINK: Option<usize> = Some(X30 as usize);
    /// BASE.
    pub const BASE: usize = X19 as usize;
    /// PC, the address of the next bytecode.
    pub const BYTECODE_PC: usize = X21 as usize;
    /// GL, the `global_State` itself.
    pub const GLOBAL_STATE: usize = X22 as usize;
    /// RB: calls keep the caller's BASE there while they move BASE. C functions preserve BASE itself.
    pub const KEPT_BASE: usize = X17 as usize;
    /// CARG3: `BC_RET` keeps BASE there, less the size of a frame's header, while it moves BASE.
    pub const LEFT_BASE: usize = X2 as usize;
    /// CARG4: `cont_dispatch` copies BASE there before it restores the caller's BASE.
    pub const CONTINUED: usize = X3 as usize;
    /// The first four argument registers (AAPCS64, 6.8.2).
    pub const ARGUMENTS: [usize; 4] = [X0 as usize, X1 as usize, X2 as usize, X3 as usize];
    /// `vm_exit_handler` has the number here after it has computed it from the address that the stub left in `lr`.
    pub const EXIT_NUMBER: usize = X0 as usize;
    /// `__builtin_eh_return_data_regno(0)`.
    pub const HANDLER_DATA: usize = X0 as usize;
}

/// True: the interpreter moves the stack pointer only where it makes and drops its C frame. There the registers are those
/// of C code.
pub const STACK_AT_FRAME: bool = true;

/// Distance from [`reg::LEFT_BASE`] to BASE: a frame's header has two slots.
pub const LEFT_BASE_OFFSET: u64 = 16;

/// First address that no program has: user space has 48 bits, unless a program asks for more (52, where the kernel has them).
pub const ADDRESS_END: u64 = 1 << 48;

/// `brk #5`: `BRK64_OPCODE_UPROBES` of the kernel (`arch/arm64/include/asm/debug-monitors.h`).
pub const BREAKPOINT: [u8; 4] = [0xa0, 0x00, 0x20, 0xd4];

/// False: `BC_JLOOP` stores 0, and the heads of traces store nothing.
pub const STATE_NAMES_TRACE: bool = false;

/// False: [`vm_arm64.dasc`](https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/vm_arm64.dasc#L415)
/// has `ST_INTERP` for all functions but those in C, as in LuaJIT's own builds.
pub const STATE_NAMES_KIND: bool = false;

/// Offset of the coroutine in a C frame (`CFRAME_OFS_L`) since September 2021; all builds use GC64.
pub const CFRAME_L: [usize; 2] = [16, 16];

/// In older builds the offset is 176 bytes. The layout of a VM says which one applies (`cframe_l`).
pub const CFRAME_L_VARIES: bool = true;

/// How many words of a C frame are read: all, because old builds have the important fields at its end.
pub const C_FRAME_WORDS: usize = 26;

/// The return address of the C function that the interpreter called in the C frame at `cframe`, or a trace at its stack pointer. Here calls leave it in
/// a register, and the called function may save it anywhere.
///
/// # Errors
/// Always [`Unreadable`].
#[inline(always)]
pub fn return_address_below(_memory: &impl ReadMemory, _cframe: u64) -> Result<u64, Unreadable> {
    Err(Unreadable)
}

/// How many bytes of the stack every trace has for itself: four slots ([`SPS_FIXED`]).
///
/// [`SPS_FIXED`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_target_arm64.h#L89
const TRACE_STACK: u64 = 16;

/// The stack pointer of a trace that runs in the C frame at `cframe` and has `spadjust` bytes of the stack for itself, besides
/// those that every trace has.
#[inline(always)]
pub const fn trace_stack_pointer(cframe: u64, spadjust: u32) -> u64 {
    cframe.wrapping_sub(TRACE_STACK + spadjust as u64)
}

/// How many bytes of the exit stubs of a trace are read: one instruction for each exit, after six others.
const EXIT_STUBS: u64 = 4096;

/// Offset in a C frame of the address to which the call returns by which the coroutine was resumed. The frame's record is at its
/// end, or at its beginning where `SAVE_L` is behind the saved registers.
#[inline(always)]
pub const fn resume_return_slot(_cframe_size: u16, cframe_l: u16) -> Option<u16> {
    if cframe_l == 16 { Some(200) } else { Some(8) }
}

/// The exit stubs of a trace, as address and size: they follow right after its `code`, which is also given as address and size.
#[inline(always)]
pub const fn exit_stubs(_area: (u64, u64), (code, size): (u64, u64)) -> (u64, u64) {
    (code.wrapping_add(size), EXIT_STUBS)
}

/// A return address without its signature (`paciasp`), which is in the bits above the address. Bit 55 marks the
/// kernel's addresses, which no program returns to.
#[inline(always)]
pub const fn code_address(signed: u64) -> u64 {
    signed & (ADDRESS_END - 1)
}

/// True: `paciasp` signs return addresses in code built with `-mbranch-protection`.
pub const SIGNS_RETURNS: bool = true;
