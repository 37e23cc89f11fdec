//! Facts about a VM's own native frames: the interpreter's and a trace's. How to unwind them depends on the processor
//! ([`arch`](crate::arch)).
//!
//! LuaJIT's sources: [`vm_ffi_call`].
//!
//! [`vm_ffi_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L4985-L4999

use std::ops::Range;

use super::registers::Register;
use super::row::UnwindRow;

/// The machine code of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmCode {
    /// The interpreter (several VMs may share it). The range may or may not include `vm_ffi_call` at its end.
    pub text: Range<u64>,
    /// The areas of machine code that its JIT compiler has allocated.
    pub mcode: Vec<Range<u64>>,
    /// Further machine code that existed at a sample, and may have been freed since.
    pub sampled: Vec<Range<u64>>,
    /// Distance from a C frame's lowest address to its CFA.
    pub cframe_size: u64,
    /// Whether GC references are 64 bits wide.
    pub gc64: bool,
}

impl VmCode {
    /// Whether `pc` is in the interpreter.
    pub fn in_text(&self, pc: u64) -> bool {
        self.text.contains(&pc)
    }

    /// Whether `pc` is in a trace, an exit stub, or other code that the JIT compiler generates.
    pub fn in_mcode(&self, pc: u64) -> bool {
        self.mcode.iter().chain(&self.sampled).any(|area| area.contains(&pc))
    }
}

/// A C frame of a VM on the sampled stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CFrame {
    /// Its lowest address: `L->cframe` without its flag bits.
    pub address: u64,
    /// Index of the VM in the list that is passed along.
    pub vm: usize,
    /// Whether there may be unknown C frames before this one, because the walk of the Lua stack has left frames out.
    pub after_left_out: bool,
}

impl CFrame {
    /// The C frame at `address`. All C frames before it on the stack are known.
    pub const fn new(address: u64, vm: usize) -> Self {
        Self { address, vm, after_left_out: false }
    }
}

/// The shape of the C frames, read from an interpreter's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeFrame {
    /// Size of a C frame in bytes (`CFRAME_SIZE`).
    pub size: u64,
    /// Offset of the coroutine in a C frame, in bytes (`CFRAME_OFS_L`), if builds with the same size differ in it.
    pub l: Option<u64>,
}

impl CodeFrame {
    /// Whether C frames may have this size, and their coroutine at this offset.
    pub fn allows(&self, size: u16, l: u16) -> bool {
        self.size == u64::from(size) && self.l.is_none_or(|own| own == u64::from(l))
    }
}

/// The part of the VM's code that a frame runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The interpreter.
    Interpreter,
    /// Machine code that the JIT compiler generated.
    Jit,
}

/// How to get from one of the VM's native frames to its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmStep {
    /// A frame of the VM with this row. `cframe` is the C frame that this native frame is, if it is linked yet, or still.
    Frame {
        /// The C frame.
        cframe: Option<CFrame>,
        /// The row that leads to the caller.
        row: UnwindRow,
    },
    /// A helper that a trace or a C function called, with this row.
    Helper {
        /// The row that leads to the caller.
        row: UnwindRow,
    },
}

/// Where the interpreter keeps BASE while it calls a C function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseAfterCall {
    /// In a callee-saved register, from which the code restores it after the call.
    Register(Register),
    /// In `L->base`, from which the code loads it again.
    LuaState,
    /// The code after the call does not show it.
    Unknown,
}
