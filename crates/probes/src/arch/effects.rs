//! The effects of an instruction on the allocator's arguments and on control flow.

use lj_trace_common::arch::Register;

/// Where control goes after an instruction. Targets are addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// To the next one.
    Next,
    /// To a function, and then to the next one. The target is known if the instruction names it.
    Call(Option<u64>),
    /// To this one.
    Jump(u64),
    /// To this one, or to the next one.
    Branch(u64),
    /// To where a fixed place in memory says: to another function.
    TableJump,
    /// To where a register says, or a place that is computed.
    ComputedJump,
    /// To the caller.
    Return,
    /// Nowhere: the program ends.
    Nowhere,
    /// That cannot be said.
    Unusual,
}

/// What an instruction does to registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The general registers that it writes, as bits by their numbers; without those that are lost in a call.
    pub written: u64,
    /// If all it does is to copy a whole register: to this one, from that one.
    pub copies: Option<(Register, Register)>,
    /// By how many bytes it moves the stack pointer, if it says so itself.
    pub moves_stack: Option<i64>,
    /// Whether it calls a function.
    pub is_call: bool,
    /// Whether the zero flag may be another one afterwards.
    pub changes_flags: bool,
    /// The register whose being 0 the zero flag tells afterwards, all bits of it.
    pub tests: Option<Register>,
}
