//! Unwinding the VM's own native frames: the interpreter's, and a trace's.
//!
//! `rbp` is a work register in both, so frame pointers mean nothing there, and the unwind table is only
//! right for part of the interpreter and absent for traces. The truth is the C frame: the VM stores the
//! address of its native frame's lowest byte in `L->cframe` when it is entered. CFA = that address +
//! `CFRAME_SIZE`, wherever below it `rsp` is by then.

use std::ops::Range;

use super::registers::{Register, Registers};
use super::row::{CfaRule, SavedRule, UnwindRow};
use super::vm_text::{FrameShape, Position, VmText};
use super::{StackCopy, UnwindEnd};

/// The machine code of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmCode {
    /// The interpreter (several VMs may share it). It may include `vm_ffi_call` at its end or not.
    pub text: Range<u64>,
    /// The areas of machine code that its JIT compiler has allocated.
    pub mcode: Vec<Range<u64>>,
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

    /// Whether `pc` is in a trace, an exit stub, or what else the JIT compiler generates.
    pub fn in_mcode(&self, pc: u64) -> bool {
        self.mcode.iter().any(|area| area.contains(&pc))
    }
}

/// A C frame of a VM on the sampled stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CFrame {
    /// Its lowest address: `L->cframe` without its flag bits.
    pub address: u64,
    /// The VM: an index into the list given along.
    pub vm: usize,
}

/// Which of the VM's code a frame runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The interpreter.
    Interpreter,
    /// Machine code that the JIT compiler generated.
    Jit,
}

/// How to get out of one of the VM's native frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmStep {
    /// By this row. `cframe` is the C frame that this native frame is, if it is (still, already) linked.
    Frame {
        /// The C frame.
        cframe: Option<CFrame>,
        /// The rule.
        row: UnwindRow,
    },
    /// A helper that a trace or a C function called, by this row.
    Helper {
        /// The rule.
        row: UnwindRow,
    },
}

/// The way out of a frame in the interpreter. `cframes` are the C frames of VMs that run this code.
///
/// # Errors
/// [`UnwindEnd::NoCFrame`] if the trace exit handler runs and no C frame was captured,
/// [`UnwindEnd::StackNotCaptured`] if the copy is empty.
pub fn unwind_interpreter(
    text: &VmText,
    vm: &VmCode,
    (registers, is_return): (&Registers, bool),
    stack: &StackCopy<'_>,
    cframes: impl Iterator<Item = CFrame> + Clone,
) -> Result<VmStep, UnwindEnd> {
    let rsp = registers.rsp();
    let shape = text.shape();
    let at = |address: u64| cframes.clone().find(|cframe| cframe.address == address);
    let by_rsp = |cframe| {
        let row = row(CfaRule::Offset(Register::Rsp, shape.size() as i64), shape, shape.saved.len(), &[]);
        VmStep::Frame { cframe, row }
    };
    Ok(match text.position(registers.rip(), is_return) {
        Position::Partial { pushed } => {
            let cfa = CfaRule::Offset(Register::Rsp, 8 + 8 * pushed as i64);
            VmStep::Frame { cframe: None, row: row(cfa, shape, pushed, &[]) }
        }
        Position::FrameAtRsp => by_rsp(at(rsp)),
        Position::FrameAtRdi => match registers.get(Register::Rdi).map(|rdi| rdi & !3) {
            Some(address) if address >= rsp => {
                let row = row(offset_from_rsp(rsp, address, shape), shape, shape.saved.len(), &[]);
                VmStep::Frame { cframe: at(address), row }
            }
            _ => return Err(UnwindEnd::NoCFrame { pc: registers.rip() }),
        },
        Position::TraceExit => unwind_trace(shape, vm, registers, cframes.clone())?,
        Position::Helper { size } => {
            // A helper touches none of the registers that the VM keeps its state in, BASE (`rdx`) included.
            let caller_rsp = rsp.wrapping_add(size);
            if vm.in_text(stack.read(caller_rsp.wrapping_sub(8))?) {
                let cfa = offset_from_rsp(rsp, caller_rsp, shape);
                VmStep::Frame { cframe: at(caller_rsp), row: row(cfa, shape, shape.saved.len(), &[]) }
            } else {
                VmStep::Helper { row: UnwindRow::simple(Register::Rsp, size as i64, &[]) }
            }
        }
        // Only around a trace's entry and exit is `rsp` lower, by the two words where traces keep registers.
        Position::Body => match cframes.clone().find(|cframe| cframe.address >= rsp) {
            Some(cframe) if cframe.address != rsp && cframe.address - rsp < shape.size() => {
                let cfa = offset_from_rsp(rsp, cframe.address, shape);
                VmStep::Frame { cframe: Some(cframe), row: row(cfa, shape, shape.saved.len(), &[]) }
            }
            _ => by_rsp(at(rsp)),
        },
    })
}

/// The way out of a frame in generated code: the innermost C frame of its VM, however far above `rsp`
/// (the trace's own stack slots, a helper's return address, and the exit stub's words lie between).
///
/// # Errors
/// [`UnwindEnd::NoCFrame`] if no C frame was captured.
pub fn unwind_trace(
    shape: &FrameShape,
    vm: &VmCode,
    registers: &Registers,
    mut cframes: impl Iterator<Item = CFrame>,
) -> Result<VmStep, UnwindEnd> {
    let innermost = cframes.find(|cframe| cframe.address >= registers.rsp());
    let cframe = innermost.ok_or(UnwindEnd::NoCFrame { pc: registers.rip() })?;
    // Traces also use r12 and r13, which BC_JLOOP saves: r12 in the C frame's first slot, r13 below it
    // (GC64) or above it.
    let lowest = -(shape.size() as i64);
    let r13 = lowest + if vm.gc64 { -8 } else { 8 };
    let extra = [(Register::R12, lowest), (Register::R13, r13)];
    let cfa = offset_from_rsp(registers.rsp(), cframe.address, shape);
    Ok(VmStep::Frame { cframe: Some(cframe), row: row(cfa, shape, shape.saved.len(), &extra) })
}

/// The registers in a C frame that was not reached by unwinding: those it saves are known to its caller.
pub fn leave_cframe(shape: &FrameShape) -> UnwindRow {
    row(CfaRule::Offset(Register::Rsp, shape.size() as i64), shape, shape.saved.len(), &[])
}

fn offset_from_rsp(rsp: u64, cframe: u64, shape: &FrameShape) -> CfaRule {
    CfaRule::Offset(Register::Rsp, (cframe.wrapping_sub(rsp) as i64).saturating_add(shape.size() as i64))
}

/// The row of a frame whose first `pushed` registers are on the stack.
fn row(cfa: CfaRule, shape: &FrameShape, pushed: usize, extra: &[(Register, i64)]) -> UnwindRow {
    let pushed = shape.saved.iter().take(pushed).enumerate();
    let saved = pushed.map(|(index, &register)| (register, SavedRule::AtCfa(FrameShape::slot(index))));
    let extra = extra.iter().map(|&(register, offset)| (register, SavedRule::AtCfa(offset)));
    let return_address = [(Register::Rip, SavedRule::AtCfa(-8))];
    UnwindRow { cfa, saved: saved.chain(extra).chain(return_address).collect(), signal: false }
}
