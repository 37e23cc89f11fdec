//! Unwinds the VM's own native frames: the interpreter's and a trace's.
//!
//! Both keep the frame pointer: CFA = the C frame's address + 208, and the distance from the C frame to the frame
//! pointer follows from the layout of the frame ([`Era::pointer`]). If the frame pointer is not known, as in waiting
//! threads, `L->cframe` replaces it.

use super::vm_text::{Era, FRAME_SIZE, Position, VmText};
use crate::registers::{Register, Registers};
use crate::row::{CfaRule, SavedRule, UnwindRow};
use crate::vm_frame::{CFrame, VmCode, VmStep};
use crate::{StackCopy, UnwindEnd};

/// The most bytes that the trace exit handler and a trace use below the C frame: registers (512 bytes), two words, and
/// at most 255 slots.
const MOST_BELOW: u64 = 512 + 16 + 8 * 256;

/// The step from a frame in the interpreter to its caller. `cframes` are the C frames of VMs that run this code.
///
/// # Errors
/// [`UnwindEnd::NoCFrame`] if the code does not show how its frames are laid out.
pub fn unwind_interpreter(
    text: &VmText,
    vm: &VmCode,
    (registers, is_return): (&Registers, bool),
    _stack: &StackCopy<'_>,
    cframes: impl Iterator<Item = CFrame> + Clone,
) -> Result<VmStep, UnwindEnd> {
    let era = text.era().ok_or(UnwindEnd::NoCFrame { pc: registers.pc() })?;
    match text.position(registers.pc(), is_return) {
        Position::Partial { size, has_record, saved } => {
            return Ok(VmStep::Frame { cframe: None, row: partial(era, size, has_record, saved) });
        }
        // A helper touches none of the registers with the VM's state, BASE included. So it counts as part of the
        // interpreter's frame, if the interpreter has called it.
        Position::Helper if registers.get(Register::X30).is_some_and(|caller| !vm.in_text(caller)) => {
            let row = UnwindRow { cfa: CfaRule::Offset(Register::Sp, 0), saved: Box::default(), signal: false };
            return Ok(VmStep::Helper { row });
        }
        Position::Helper | Position::Body => {}
    }
    let sp = registers.sp();
    let known = |address: u64| cframes.clone().find(|cframe| cframe.address == address);
    let by_pointer = by_pointer(era, registers);
    let cframe = by_pointer.and_then(known).or_else(|| known(sp));
    let address = cframe.map(|cframe| cframe.address).or(by_pointer).unwrap_or(sp);
    Ok(VmStep::Frame { cframe, row: row(era, sp, address) })
}

/// The step from a frame in generated code to its caller: the C frame at the frame pointer, else the innermost C frame
/// of its VM, however far above the stack pointer.
///
/// # Errors
/// [`UnwindEnd::NoCFrame`] if no C frame was captured, or the code does not show how its frames are laid out.
pub fn unwind_trace(
    text: &VmText,
    _vm: &VmCode,
    registers: &Registers,
    cframes: impl Iterator<Item = CFrame> + Clone,
) -> Result<VmStep, UnwindEnd> {
    let none = UnwindEnd::NoCFrame { pc: registers.pc() };
    let era = text.era().ok_or(none)?;
    let sp = registers.sp();
    let named = by_pointer(era, registers).and_then(|address| cframes.clone().find(|cframe| cframe.address == address));
    let cframe = named.or_else(|| cframes.clone().find(|cframe| cframe.address >= sp)).ok_or(none)?;
    Ok(VmStep::Frame { cframe: Some(cframe), row: row(era, sp, cframe.address) })
}

/// The row of a C frame that unwinding did not reach: the frame's saved registers are those of its caller. If the code
/// does not show where they are, nothing is known.
pub fn leave_cframe(text: &VmText) -> UnwindRow {
    match text.era() {
        Some(era) => row(era, 0, 0),
        // Without a known layout, the frame pointer is not known.
        None => UnwindRow { cfa: CfaRule::Offset(Register::X29, 16), saved: Box::default(), signal: false },
    }
}

/// The C frame at the frame pointer, if there may be one.
fn by_pointer(era: Era, registers: &Registers) -> Option<u64> {
    let address = registers.get(Register::X29)?.checked_sub(era.pointer())?;
    let is_near = address.checked_sub(registers.sp()).is_some_and(|below| below <= MOST_BELOW);
    (is_near && address % 16 == 0).then_some(address)
}

/// The row of a frame whose C frame is at `cframe`.
fn row(era: Era, sp: u64, cframe: u64) -> UnwindRow {
    let cfa = CfaRule::Offset(Register::Sp, (cframe.wrapping_sub(sp) as i64).saturating_add(FRAME_SIZE as i64));
    let saved = era.saved().map(|(register, at)| (register, SavedRule::AtCfa(at)));
    UnwindRow { cfa, saved: saved.into(), signal: false }
}

/// The row of a frame that is being entered or left.
fn partial(era: Era, size: u64, has_record: bool, saved: usize) -> UnwindRow {
    let places = era.saved();
    let record = if has_record { &places[..2] } else { &[] };
    let kept = &places[2..2 + saved.min(places.len() - 2)];
    let saved = record.iter().chain(kept).map(|&(register, at)| (register, SavedRule::AtCfa(at)));
    UnwindRow { cfa: CfaRule::Offset(Register::Sp, size as i64), saved: saved.collect(), signal: false }
}

#[cfg(test)]
mod tests {
    use super::super::vm_text::testing;
    use super::*;

    const TEXT: u64 = 0xaaaa_0000_0000;
    const MCODE: u64 = 0xaaaa_0100_0000;
    const STACK: u64 = 0xffff_f000_0000;
    const FRAME: u64 = STACK + 0x400;

    fn vm() -> VmCode {
        let area = MCODE..MCODE + 0x1000;
        VmCode {
            text: TEXT..TEXT + 0x1000,
            mcode: vec![area],
            sampled: Vec::new(),
            cframe_size: FRAME_SIZE,
            gc64: true,
        }
    }

    /// A stack whose words hold their own addresses.
    fn stack() -> Vec<u8> {
        (STACK..STACK + 0x800).step_by(8).flat_map(u64::to_le_bytes).collect()
    }

    fn at(pc: u64, sp: u64, pointer: Option<u64>) -> Registers {
        let mut registers = Registers::all([0xdead; Register::COUNT]);
        registers.set(Register::Pc, Some(pc));
        registers.set(Register::Sp, Some(sp));
        registers.set(Register::X29, pointer);
        registers
    }

    /// The C frame and the caller's registers after a step.
    fn caller(step: VmStep, registers: &Registers) -> (Option<u64>, Registers) {
        let bytes = stack();
        let copy = StackCopy { start: STACK, bytes: &bytes };
        match step {
            VmStep::Frame { cframe, row } => (cframe.map(|cf| cf.address), row.apply(registers, &copy).unwrap()),
            VmStep::Helper { row } => (None, row.apply(registers, &copy).unwrap()),
        }
    }

    /// Where the caller's registers are in a frame of each layout: return address, `x29`, `x19`, `x28`.
    const PLACES: [(Era, [u64; 4]); 3] = [
        (Era::RecordFirst, [8, 0, 16, 88]),
        (Era::PointerElsewhere, [200, 192, 184, 112]),
        (Era::RecordLast, [200, 192, 184, 112]),
    ];

    #[test]
    fn a_trace_is_left_by_its_frame_pointer_or_the_innermost_c_frame() {
        let inner = STACK + 0x100;
        let cframes = [CFrame::new(inner, 0), CFrame::new(FRAME, 0)];
        for (era, places) in PLACES {
            let text = VmText::new(TEXT, testing::prologue(era), FRAME_SIZE);
            let sp = FRAME - 16 - 64;
            // The remains of an inner frame lie further down.
            for (pointer, known) in [(Some(FRAME + era.pointer()), &cframes[..]), (None, &cframes[1..])] {
                let registers = at(MCODE + 8, sp, pointer);
                let step = unwind_trace(&text, &vm(), &registers, known.iter().copied()).unwrap();
                let (cframe, caller) = caller(step, &registers);
                assert_eq!((cframe, caller.sp()), (Some(FRAME), FRAME + FRAME_SIZE), "{era:?}");
                let found = [Register::Pc, Register::X29, Register::X19, Register::X28].map(|r| caller.get(r).unwrap());
                assert_eq!(found, places.map(|place| FRAME + place), "{era:?}");
            }
            let outside = unwind_trace(&text, &vm(), &at(MCODE, STACK + 0x700, None), cframes.into_iter());
            assert_eq!(outside, Err(UnwindEnd::NoCFrame { pc: MCODE }));
        }
    }

    #[test]
    fn a_frame_whose_layout_is_not_known_is_not_left() {
        let text = VmText::new(TEXT, vec![0; 64], FRAME_SIZE);
        let registers = at(TEXT, FRAME, Some(FRAME + 192));
        let bytes = stack();
        let copy = StackCopy { start: STACK, bytes: &bytes };
        let cframes = [CFrame::new(FRAME, 0)];
        let step = unwind_interpreter(&text, &vm(), (&registers, false), &copy, cframes.into_iter());
        assert_eq!(step, Err(UnwindEnd::NoCFrame { pc: TEXT }));
        let left = leave_cframe(&text).apply(&Registers::only(0, FRAME), &copy);
        assert!(matches!(left, Err(UnwindEnd::RegisterLost { .. })), "{left:?}");
    }

    #[test]
    fn every_instruction_that_makes_or_leaves_a_frame_has_a_caller() {
        for (era, places) in PLACES {
            let (code, steps) = testing::life(era);
            let text = VmText::new(TEXT, code, FRAME_SIZE);
            let bytes = stack();
            let copy = StackCopy { start: STACK, bytes: &bytes };
            for testing::Step { offset, made, record, saved } in steps {
                let sp = if made { FRAME } else { FRAME + FRAME_SIZE };
                let pointer = if record { FRAME + era.pointer() } else { 0xf9 };
                let registers = at(TEXT + offset, sp, Some(pointer));
                let step = unwind_interpreter(&text, &vm(), (&registers, false), &copy, std::iter::empty()).unwrap();
                let (_, caller) = caller(step, &registers);
                let expected =
                    |is_saved: bool, place: usize, own: u64| if is_saved { FRAME + places[place] } else { own };
                let wanted = [
                    FRAME + FRAME_SIZE,
                    expected(record, 0, 0xdead),
                    expected(record, 1, 0xf9),
                    expected(saved > 0, 2, 0xdead),
                    expected(saved > 9, 3, 0xdead),
                ];
                let found = [Register::Sp, Register::Pc, Register::X29, Register::X19, Register::X28];
                assert_eq!(found.map(|r| caller.get(r).unwrap()), wanted, "{era:?} at {offset}");
            }
        }
    }

    #[test]
    fn a_helper_belongs_to_whoever_called_it() {
        let mut code = testing::prologue(Era::RecordLast);
        let helper = code.len() as u64;
        // cbz x0, .+8; add x0, x0, #1; ret
        code.extend([0xb400_0040_u32, 0x9100_0400, 0xd65f_03c0].iter().flat_map(|word| word.to_le_bytes()));
        let text = VmText::new(TEXT, code, FRAME_SIZE);
        let bytes = stack();
        let copy = StackCopy { start: STACK, bytes: &bytes };
        for offset in [0, 4, 8] {
            let from = |link: u64, sp: u64| {
                let mut registers = at(TEXT + helper + offset, sp, Some(FRAME + 192));
                registers.set(Register::X30, Some(link));
                let cframes = [CFrame::new(FRAME, 0)].into_iter();
                let step = unwind_interpreter(&text, &vm(), (&registers, false), &copy, cframes).unwrap();
                let (cframe, caller) = caller(step, &registers);
                (cframe, caller.pc(), caller.sp())
            };
            assert_eq!(from(TEXT + 0x800, FRAME), (Some(FRAME), FRAME + 200, FRAME + 208));
            assert_eq!(from(MCODE + 0x80, FRAME - 48), (None, MCODE + 0x80, FRAME - 48));
        }
    }
}
