//! The effects of an instruction on the allocator's arguments and on control flow.

use lj_trace_common::arch::Register;

/// Where control goes after an instruction. Targets are addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// To the next instruction.
    Next,
    /// To a function, and then to the next instruction. The target is known if the instruction names it.
    Call(Option<u64>),
    /// To this address.
    Jump(u64),
    /// To this address, or to the next instruction.
    Branch(u64),
    /// To the address in a fixed slot of memory: to another function.
    TableJump,
    /// To the address in a register, or in a computed place.
    ComputedJump,
    /// To the caller.
    Return,
    /// Nowhere: the program ends here.
    Nowhere,
    /// Unknown.
    Unusual,
}

/// What an instruction does to registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The general registers that it writes, as bits by register number, except registers that a call overwrites.
    pub written: u64,
    /// If the instruction only copies a whole register: the target, then the source.
    pub copies: Option<(Register, Register)>,
    /// By how many bytes it moves the stack pointer, if the instruction itself says so.
    pub moves_stack: Option<i64>,
    /// Whether the instruction calls a function.
    pub is_call: bool,
    /// Whether the instruction may change the zero flag.
    pub changes_flags: bool,
    /// The register, with all its bits, whose being 0 the zero flag shows afterwards.
    pub tests: Option<Register>,
}
