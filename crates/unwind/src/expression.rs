//! DWARF expressions in unwind tables; PLT stubs and signal frames use them.

use gimli::{Encoding, EndianSlice, EvaluationResult, Format, LittleEndian, Location, Value};

use super::registers::{Register, Registers};
use super::{StackCopy, UnwindEnd};

/// The bytecode of an expression.
pub type Expression = Box<[u8]>;

/// The encoding of unwind expressions with 64-bit addresses.
const ENCODING: Encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 5 };

/// The most operations: more than any real expression takes. A loop in a damaged expression ends here.
const MAX_OPERATIONS: u32 = 256;

/// The value of an expression. `initial` is pushed onto its stack first (the CFA, for a register's rule).
///
/// # Errors
/// [`UnwindEnd::StackNotCaptured`] if it reads memory outside of the copy, [`UnwindEnd::RegisterLost`] if it needs a
/// register that is not known, [`UnwindEnd::BadUnwindInfo`] for anything that makes no sense here.
pub fn evaluate(
    code: &[u8],
    initial: Option<u64>,
    registers: &Registers,
    stack: &StackCopy<'_>,
) -> Result<u64, UnwindEnd> {
    let bad = || UnwindEnd::BadUnwindInfo { pc: registers.pc() };
    let mut evaluation = gimli::Evaluation::new(EndianSlice::new(code, LittleEndian), ENCODING);
    evaluation.set_max_iterations(MAX_OPERATIONS);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    let mut result = evaluation.evaluate();
    loop {
        result = match result.map_err(|_| bad())? {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = Register::from_dwarf(register.0).and_then(|register| registers.get(register));
                let value = value.ok_or(UnwindEnd::RegisterLost { pc: registers.pc() })?;
                evaluation.resume_with_register(Value::Generic(value))
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let mask = if size >= 8 { u64::MAX } else { (1 << (u32::from(size) * 8)) - 1 };
                evaluation.resume_with_memory(Value::Generic(stack.read(address)? & mask))
            }
            _ => return Err(bad()),
        };
    }
    match evaluation.as_result() {
        [piece] => match piece.location {
            Location::Address { address } => Ok(address),
            Location::Value { value } => value.to_u64(u64::MAX).map_err(|_| bad()),
            _ => Err(bad()),
        },
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_STACK: StackCopy<'static> = StackCopy { start: 0, bytes: &[] };

    /// What GNU ld writes for `.plt`: `rsp + 8 + ((rip & 15 >= 11) << 3)`.
    const PLT: &[u8] = &[0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];

    #[test]
    fn knows_the_plt_stub_before_and_after_its_push() {
        assert_eq!(evaluate(PLT, None, &Registers::only(0x401_026, 0x1000), &NO_STACK), Ok(0x1008));
        assert_eq!(evaluate(PLT, None, &Registers::only(0x401_02b, 0x1000), &NO_STACK), Ok(0x1010));
    }

    #[test]
    fn reads_the_stack_and_starts_from_the_cfa() {
        let copy = StackCopy { start: 0x1000, bytes: &7_u64.to_le_bytes() };
        let registers = Registers::only(1, 0x1000);
        // DW_OP_breg7(0), DW_OP_deref, DW_OP_plus
        assert_eq!(evaluate(&[0x77, 0x00, 0x06, 0x22], Some(0x10), &registers, &copy), Ok(0x17));
        let missing = evaluate(&[0x77, 0x08, 0x06], None, &registers, &copy);
        assert_eq!(missing, Err(UnwindEnd::StackNotCaptured { address: 0x1008 }));
    }

    #[test]
    fn damaged_expressions_end() {
        let registers = Registers::only(1, 0x1000);
        let bad = Err(UnwindEnd::BadUnwindInfo { pc: 1 });
        assert_eq!(evaluate(&[0xff], None, &registers, &NO_STACK), bad);
        assert_eq!(evaluate(&[], None, &registers, &NO_STACK), bad);
        // DW_OP_skip(-3): an endless loop.
        assert_eq!(evaluate(&[0x2f, 0xfd, 0xff], None, &registers, &NO_STACK), bad);
        // DW_OP_breg3: rbx is not known.
        assert_eq!(evaluate(&[0x73, 0], None, &registers, &NO_STACK), Err(UnwindEnd::RegisterLost { pc: 1 }));
    }
}
