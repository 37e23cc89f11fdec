//! x86-64.
//!
//! LuaJIT's sources: [`BASE` and `PC`], [`BASE` and `PC` without GC64], [`BC_JLOOP`], [`BC_JLOOP` without GC64],
//! [`spadjust`], [`CFRAME_OFS_L`], [`asm_exitstub_gen`], [`cont_dispatch`], [`vm_exit_handler`].
//!
//! [`CFRAME_OFS_L`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L158-L180
//! [`BASE` and `PC`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L21-L31
//! [`BASE` and `PC` without GC64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x86.dasc#L28-L44
//! [`BC_JLOOP`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L4749-L4781
//! [`BC_JLOOP` without GC64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x86.dasc#L5604-L5637
//! [`spadjust`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L273
//! [`asm_exitstub_gen`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_x86.h#L9-L48
//! [`cont_dispatch`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L690-L719
//! [`vm_exit_handler`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2447-L2463

use crate::memory::{ReadMemory, Unreadable};
use Register::{R8, R9, R10, R11, R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rip, Rsi, Rsp};

/// Number of registers in a sample.
pub const REGISTERS: usize = 17;

/// A general register, in DWARF's numbering (System V psABI, figure 3.36). The last one is the instruction pointer (in
/// DWARF, the return address column).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the registers' own names")]
pub enum Register {
    Rax = 0,
    Rdx = 1,
    Rcx = 2,
    Rbx = 3,
    Rsi = 4,
    Rdi = 5,
    Rbp = 6,
    Rsp = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
    R11 = 11,
    R12 = 12,
    R13 = 13,
    R14 = 14,
    R15 = 15,
    Rip = 16,
}

impl Register {
    /// All registers, in DWARF's order.
    pub const ALL: [Self; REGISTERS] =
        [Rax, Rdx, Rcx, Rbx, Rsi, Rdi, Rbp, Rsp, R8, R9, R10, R11, R12, R13, R14, R15, Rip];

    /// Whether a function must preserve the register (System V psABI, 3.2.1).
    pub const fn is_callee_saved(self) -> bool {
        matches!(self, Rbx | Rbp | R12 | R13 | R14 | R15)
    }
}

/// Registers by role, as indices into [`SampledRegisters`](crate::event::SampledRegisters).
///
/// `vm_x64.dasc` and `vm_x86.dasc` (LuaJIT 2.0 to 2.1 of August 2026, OpenResty, Tarantool) agree on the interpreter's
/// registers.
pub mod reg {
    use super::Register::{R14, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rip, Rsi, Rsp};

    /// The program counter.
    pub const PC: usize = Rip as usize;
    /// The stack pointer.
    pub const SP: usize = Rsp as usize;
    /// The frame pointer of functions that have one: LuaJIT's code has none.
    pub const FP: usize = Rbp as usize;
    /// None: calls push the return address onto the stack.
    pub const LINK: Option<usize> = None;
    /// BASE.
    pub const BASE: usize = Rdx as usize;
    /// PC, the address of the next bytecode.
    pub const BYTECODE_PC: usize = Rbx as usize;
    /// DISPATCH, which is at a fixed distance from the `global_State`.
    pub const GLOBAL_STATE: usize = R14 as usize;
    /// RB.
    pub const KEPT_BASE: usize = Rbp as usize;
    /// BASE: `BC_RET` moves it at once, when the results are in their places.
    pub const LEFT_BASE: usize = BASE;
    /// RB: `cont_dispatch` copies BASE there before it restores the caller's BASE.
    pub const CONTINUED: usize = Rbp as usize;
    /// The first four argument registers (System V psABI, 3.2.3).
    pub const ARGUMENTS: [usize; 4] = [Rdi as usize, Rsi as usize, Rdx as usize, Rcx as usize];
    /// The register of the exit number in `vm_exit_handler`.
    pub const EXIT_NUMBER: usize = Rax as usize;
    /// `__builtin_eh_return_data_regno(0)`.
    pub const HANDLER_DATA: usize = Rax as usize;
}

/// False: helpers use the stack, and are called while BASE is in its register.
pub const STACK_AT_FRAME: bool = false;

/// Distance from [`reg::LEFT_BASE`] to BASE.
pub const LEFT_BASE_OFFSET: u64 = 0;

/// First address that no program has: user space has 47 bits, unless a program asks for more.
pub const ADDRESS_END: u64 = 1 << 47;

/// `int3`.
pub const BREAKPOINT: [u8; 1] = [0xcc];

/// True: `BC_JLOOP` and the heads of traces store the number.
pub const STATE_NAMES_TRACE: bool = true;

/// True: [`vm_x64.dasc`](https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/vm_x64.dasc#L350-L380).
pub const STATE_NAMES_KIND: bool = true;

/// Offset of the coroutine in a C frame (`CFRAME_OFS_L`): without GC64, and with it.
pub const CFRAME_L: [usize; 2] = [24, 16];

/// False: all builds have the same offset.
pub const CFRAME_L_VARIES: bool = false;

/// How many words of a C frame are read: the frame has 80 bytes, 96 in Tarantool.
pub const C_FRAME_WORDS: usize = 8;

/// How many bytes of the stack every trace has, not counting its own area (`spadjust`): two saved registers (`BC_JLOOP`,
/// `vm_x64.dasc` and `vm_x86.dasc`).
const TRACE_STACK: u64 = 16;

/// Size of the range with the exit stubs, in bytes: they are at the beginning of an area of machine code, where only
/// constants come before them (`asm_exitstub_gen`, `lj_asm_x86.h`).
const EXIT_STUBS: u64 = 4096;

/// The return address of the C function that the interpreter called in the C frame at `cframe`: the call has pushed it
/// right below the frame.
///
/// # Errors
/// [`Unreadable`] if the stack cannot be read.
#[inline(always)]
pub fn return_address_below(memory: &impl ReadMemory, cframe: u64) -> Result<u64, Unreadable> {
    memory.read::<u64>(cframe.wrapping_sub(8))
}

/// The stack pointer of a trace that runs in the C frame at `cframe` and has `spadjust` bytes of the stack for itself, besides
/// those that every trace has.
#[inline(always)]
pub const fn trace_stack_pointer(cframe: u64, spadjust: u32) -> u64 {
    cframe.wrapping_sub(TRACE_STACK + spadjust as u64)
}

/// Offset in a C frame of the address to which the call returns by which the coroutine was resumed: `vm_resume` pushes what it
/// saves right below that. The frame has `cframe_size` bytes.
#[inline(always)]
pub const fn resume_return_slot(cframe_size: u16, _cframe_l: u16) -> Option<u16> {
    cframe_size.checked_sub(8)
}

/// The exit stubs of a trace, as address and size. `area` is the newest area of machine code, `code` the trace's own
/// machine code, both also as address and size.
#[inline(always)]
pub const fn exit_stubs((area, area_size): (u64, u64), _code: (u64, u64)) -> (u64, u64) {
    (area, if area_size < EXIT_STUBS { area_size } else { EXIT_STUBS })
}

/// A return address without its signature. Here no return address is signed.
#[inline(always)]
pub const fn code_address(signed: u64) -> u64 {
    signed
}

/// False: return addresses are not signed.
pub const SIGNS_RETURNS: bool = false;
