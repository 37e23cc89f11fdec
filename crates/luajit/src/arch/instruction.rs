//! A machine instruction of a trace, reduced to the properties that show from which intermediate code it was assembled.

/// A machine instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its offset in the trace's code.
    pub offset: u32,
    /// What it does besides computing.
    pub action: MachineAction,
    /// The register that it writes, in LuaJIT's numbering (`lj_target_*.h`).
    pub writes: Option<u8>,
    /// The kind of operation.
    pub operation: MachineOperation,
    /// The register that an operation of two registers reads as its second operand.
    pub second: Option<u8>,
    /// Whether it only fills a floating-point register, from another register or with a constant.
    pub fills: bool,
}

/// Kinds of operations that show the origin of a machine instruction. The arithmetic ones are on floating-point numbers.
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
    /// Rounding to an integer.
    Round,
    /// The minimum of two numbers.
    Minimum,
    /// The maximum of two numbers.
    Maximum,
    /// `+`, `-` or `*` of integers, into a register other than the stack pointer.
    Integer,
    /// Reversal of the bytes of an integer.
    SwapBytes,
    /// A comparison of numbers or integers that only sets flags.
    Compare,
    /// A jump that is taken if one of the compared numbers is NaN.
    JumpIfUnordered,
    /// Anything else.
    Other,
}

/// The effect of a machine instruction besides computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineAction {
    /// No other effect.
    Compute,
    /// It may leave the trace.
    Guard {
        /// Address of the exit.
        target: u64,
    },
    /// It may jump within the trace.
    Branch,
    /// It calls a function.
    Call,
    /// It writes memory other than the native stack.
    Store,
    /// It always jumps: the end of the trace or of its loop.
    Jump,
}

/// The exit through which a trace is being left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStub {
    /// An address in the trace's code.
    pub code: u64,
    /// The number of the trace.
    pub number: u16,
    /// The number of the exit.
    pub exit: u16,
}

impl Machine {
    /// Whether it is the operation of an arithmetic IR instruction on numbers, which is assembled to one instruction
    /// (`asm_fparith`, `lj_asm_*.h`).
    pub fn is_arithmetic(&self) -> bool {
        matches!(
            self.operation,
            MachineOperation::Add | MachineOperation::Subtract | MachineOperation::Multiply | MachineOperation::Divide
        )
    }
}
