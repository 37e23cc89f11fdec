//! Unwinds the VM's own native frames: the interpreter's and a trace's.
//!
//! `rbp` is a work register in both, so there are no frame pointers, and the unwind table is only right for part of the
//! interpreter and absent for traces. The C frame is reliable: on entry, the VM stores the address of its native
//! frame's lowest byte in `L->cframe`. CFA = that address + `CFRAME_SIZE`, however far below it `rsp` is by then.

use super::vm_text::{FrameShape, Position, VmText};
use crate::registers::{Register, Registers};
use crate::row::{CfaRule, SavedRule, UnwindRow};
use crate::vm_frame::{CFrame, VmCode, VmStep};
use crate::{StackCopy, UnwindEnd};

/// The step from a frame in the interpreter to its caller. `cframes` are the C frames of VMs that run this code.
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
    let rsp = registers.sp();
    let shape = text.shape();
    let at = |address: u64| cframes.clone().find(|cframe| cframe.address == address);
    let below_cfa = |address: u64| {
        let cfa = offset_from_rsp(rsp, address, shape);
        VmStep::Frame { cframe: at(address), row: row(cfa, shape, shape.saved.len(), &[]) }
    };
    // Helpers call helpers, and around a trace's entry and exit `rsp` is lower by the two words where traces keep
    // registers: a C frame this close above `rsp` is the right one.
    const NEAR: u64 = 32;
    let by_rsp_from = |from: u64| {
        let near = cframes.clone().find(|cframe| cframe.address >= from && cframe.address - from < NEAR);
        below_cfa(near.map_or(from, |cframe| cframe.address))
    };
    Ok(match text.position(registers.pc(), is_return) {
        Position::Partial { pushed } => {
            let cfa = CfaRule::Offset(Register::Rsp, 8 + 8 * pushed as i64);
            VmStep::Frame { cframe: None, row: row(cfa, shape, pushed, &[]) }
        }
        Position::FrameAtRsp => below_cfa(rsp),
        Position::FrameAtRdi => match registers.get(Register::Rdi).map(|rdi| rdi & !3) {
            Some(address) if address >= rsp => below_cfa(address),
            _ => return Err(UnwindEnd::NoCFrame { pc: registers.pc() }),
        },
        Position::TraceExit => unwind_trace(text, vm, registers, cframes.clone())?,
        // A helper touches none of the registers with the VM's state, BASE (`rdx`) included. So it counts as part of
        // the interpreter's frame.
        Position::Helper { size } if !vm.in_text(stack.read(rsp.wrapping_add(size - 8))?) => {
            VmStep::Helper { row: UnwindRow::simple(Register::Rsp, size as i64, &[]) }
        }
        Position::Helper { size } => by_rsp_from(rsp.wrapping_add(size)),
        Position::Body => by_rsp_from(rsp),
    })
}

/// The step from a frame in generated code to its caller: the innermost C frame of its VM, however far above `rsp` (the
/// trace's own stack slots, a helper's return address, and the exit stub's words lie between).
///
/// # Errors
/// [`UnwindEnd::NoCFrame`] if no C frame was captured.
pub fn unwind_trace(
    text: &VmText,
    vm: &VmCode,
    registers: &Registers,
    mut cframes: impl Iterator<Item = CFrame>,
) -> Result<VmStep, UnwindEnd> {
    let shape = text.shape();
    let innermost = cframes.find(|cframe| cframe.address >= registers.sp());
    let cframe = innermost.ok_or(UnwindEnd::NoCFrame { pc: registers.pc() })?;
    // Traces also use r12 and r13, which BC_JLOOP saves: r12 in the C frame's first slot, r13 below it
    // (GC64) or above it.
    let lowest = -(shape.size() as i64);
    let r13 = lowest + if vm.gc64 { -8 } else { 8 };
    let extra = [(Register::R12, lowest), (Register::R13, r13)];
    let cfa = offset_from_rsp(registers.sp(), cframe.address, shape);
    Ok(VmStep::Frame { cframe: Some(cframe), row: row(cfa, shape, shape.saved.len(), &extra) })
}

/// The row of a C frame that unwinding did not reach: the frame's saved registers are those of its caller.
pub fn leave_cframe(text: &VmText) -> UnwindRow {
    let shape = text.shape();
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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: u64 = 0x5_0000;
    const MCODE: u64 = 0x6_0000;

    fn vm(gc64: bool) -> VmCode {
        let area = MCODE..MCODE + 0x1000;
        VmCode { text: TEXT..TEXT + 0x1000, mcode: vec![area], sampled: Vec::new(), cframe_size: 80, gc64 }
    }

    /// An interpreter whose code cannot be read.
    fn unread() -> VmText {
        VmText::new(TEXT, Vec::new(), 80)
    }

    /// A stack of 64 words from 0x1000 on; each word holds its own address, except the given ones.
    fn stack(words: &[(u64, u64)]) -> Vec<u8> {
        let value = |address| words.iter().find(|(at, _)| *at == address).map_or(address, |(_, value)| *value);
        (0x1000..0x1200).step_by(8).flat_map(|address| value(address).to_le_bytes()).collect()
    }

    fn caller(step: VmStep, registers: &Registers, bytes: &[u8]) -> (Option<u64>, Registers) {
        let copy = StackCopy { start: 0x1000, bytes };
        match step {
            VmStep::Frame { cframe, row } => (cframe.map(|cf| cf.address), row.apply(registers, &copy).unwrap()),
            VmStep::Helper { row } => (None, row.apply(registers, &copy).unwrap()),
        }
    }

    fn at(rip: u64, rsp: u64) -> Registers {
        let mut registers = Registers::all([0xdead; Register::COUNT]);
        registers.set(Register::Rip, Some(rip));
        registers.set(Register::Rsp, Some(rsp));
        registers
    }

    #[test]
    fn a_trace_is_left_through_the_innermost_c_frame() {
        let bytes = stack(&[]);
        let cframes = [0x1020, 0x1080, 0x1180].map(|address| CFrame::new(address, 0));
        // 64 bytes of spill slots and the two saved registers below the C frame at 0x1080.
        let registers = at(MCODE + 5, 0x1030);
        for (gc64, r13) in [(true, 0x1078), (false, 0x1088)] {
            let step = unwind_trace(&unread(), &vm(gc64), &registers, cframes.into_iter()).unwrap();
            let (cframe, caller) = caller(step, &registers, &bytes);
            assert_eq!((cframe, caller.sp(), caller.pc()), (Some(0x1080), 0x10d0, 0x10c8));
            let saved = [Register::Rbp, Register::Rbx, Register::R15, Register::R14, Register::R12, Register::R13];
            let saved = saved.map(|register| caller.get(register).unwrap());
            assert_eq!(saved, [0x10c0, 0x10b8, 0x10b0, 0x10a8, 0x1080, r13]);
        }
        let outside = unwind_trace(&unread(), &vm(true), &at(MCODE, 0x1190), cframes.into_iter());
        assert_eq!(outside, Err(UnwindEnd::NoCFrame { pc: MCODE }));
    }

    #[test]
    fn a_helper_belongs_to_whoever_called_it() {
        // A `ret` after the end of a bytecode.
        let text = VmText::new(TEXT, vec![0x41, 0xff, 0x24, 0xee, 0xc3], 80);
        let cframes = [CFrame::new(0x1080, 0)];
        let from = |rsp: u64, return_address: u64| {
            let bytes = stack(&[(rsp, return_address)]);
            let registers = at(TEXT + 4, rsp);
            let copy = StackCopy { start: 0x1000, bytes: &bytes };
            let step = unwind_interpreter(&text, &vm(true), (&registers, false), &copy, cframes.into_iter()).unwrap();
            let (cframe, caller) = caller(step, &registers, &bytes);
            (cframe, caller.pc(), caller.sp())
        };
        assert_eq!(from(0x1078, TEXT + 0x800), (Some(0x1080), 0x10c8, 0x10d0));
        assert_eq!(from(0x1040, MCODE + 0x80), (None, MCODE + 0x80, 0x1048));
        assert_eq!(from(0x1010, 0x1234), (None, 0x1234, 0x1018));
    }

    #[test]
    fn the_interpreter_is_left_at_rsp_unless_a_trace_is_near() {
        let text = VmText::new(TEXT, vec![0x90, 0x41, 0xff, 0x24, 0xee], 80);
        let cframes = [CFrame::new(0x1080, 0)];
        let bytes = stack(&[]);
        let copy = StackCopy { start: 0x1000, bytes: &bytes };
        for (rsp, cframe, cfa) in
            [(0x1080, Some(0x1080), 0x10d0), (0x1070, Some(0x1080), 0x10d0), (0x1008, None, 0x1058)]
        {
            let registers = at(TEXT, rsp);
            let step = unwind_interpreter(&text, &vm(true), (&registers, false), &copy, cframes.into_iter()).unwrap();
            let (found, caller) = caller(step, &registers, &bytes);
            assert_eq!((found, caller.sp()), (cframe, cfa), "rsp {rsp:#x}");
        }
    }
}
