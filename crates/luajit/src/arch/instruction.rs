//! A machine instruction of a trace, reduced to what shows which intermediate code it was assembled from.

/// A machine instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its offset in the trace's code.
    pub offset: u32,
    /// What it does.
    pub action: MachineAction,
    /// The register that it writes, by LuaJIT's number (`lj_target_*.h`).
    pub writes: Option<u8>,
    /// The kind of operation.
    pub operation: MachineOperation,
    /// The register that an operation of two registers reads as its second operand.
    pub second: Option<u8>,
    /// Whether it only fills a floating-point register: with another one, or with a constant.
    pub fills: bool,
}

/// Operations that tell what a machine instruction was made from. Those of arithmetic are on floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineOperation {
    /// `+`.
    Add,
    /// `-`.
    Subtract,
    /// `*`.
    Multiply,
    /// `/`.
    Divide,
    /// A square root.
    SquareRoot,
    /// To an integer.
    Round,
    /// The smaller one of two.
    Minimum,
    /// The larger one of two.
    Maximum,
    /// `+`, `-` or `*` of integers, into a register other than the stack pointer.
    Integer,
    /// The bytes of an integer in the other order.
    SwapBytes,
    /// Sets flags, and nothing else: of numbers or integers.
    Compare,
    /// Jumps if one of the numbers that were compared is not a number.
    JumpIfUnordered,
    /// Anything else.
    Other,
}

/// What a machine instruction does beside computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineAction {
    /// Nothing else.
    Compute,
    /// It leaves the trace, or goes on.
    Guard {
        /// Where it leaves to.
        target: u64,
    },
    /// It jumps within the trace.
    Branch,
    /// It calls a function.
    Call,
    /// It writes memory other than the native stack.
    Store,
    /// It goes on elsewhere: the end of the trace or of its loop.
    Jump,
}

/// An exit by which a trace is being left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStub {
    /// An address in the trace's code.
    pub code: u64,
    /// The number of the trace.
    pub number: u16,
    /// The exit.
    pub exit: u16,
}

impl Machine {
    /// Whether it is the operation of an arithmetic instruction on numbers, which is assembled to one
    /// (`asm_fparith`, `lj_asm_*.h`).
    pub fn is_arithmetic(&self) -> bool {
        matches!(
            self.operation,
            MachineOperation::Add | MachineOperation::Subtract | MachineOperation::Multiply | MachineOperation::Divide
        )
    }
}
