//! A row of an unwind table: how to get from a frame to its caller at one instruction.

use lj_trace_common::arch::{code_address, reg};
use lj_trace_process::sandbox::wire::{Bytes, Wire, put_bytes, take_bytes};

use super::expression::{self, Expression};
use super::registers::{Register, Registers};
use super::{StackCopy, UnwindEnd};

/// How to find the canonical frame address (the stack pointer before the call instruction pushed the return address).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CfaRule {
    /// A register plus an offset.
    Offset(Register, i64),
    /// The result of a DWARF expression.
    Expression(Expression),
}

/// How to find the caller's value of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SavedRule {
    /// Nowhere. For the program counter this marks the outermost frame.
    Undefined,
    /// Still in the register.
    Same,
    /// In memory at CFA plus an offset.
    AtCfa(i64),
    /// The value CFA plus an offset.
    CfaPlus(i64),
    /// In another register.
    Register(Register),
    /// In memory at the address a DWARF expression gives.
    AtExpression(Expression),
    /// The value a DWARF expression gives.
    Expression(Expression),
}

/// How to unwind from one instruction. Registers without a rule follow the calling convention: the
/// callee-saved ones are the same in the caller, the stack pointer is the CFA, the others are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindRow {
    /// The canonical frame address.
    pub cfa: CfaRule,
    /// Where the caller's registers are.
    pub saved: Box<[(Register, SavedRule)]>,
    /// Whether this is a signal frame: the caller was interrupted and did not make a call.
    pub signal: bool,
}

impl UnwindRow {
    /// A row of a frame whose return address is right below its CFA, which is `register + offset`.
    pub fn simple(register: Register, offset: i64, saved: &[(Register, i64)]) -> Self {
        let saved = saved.iter().map(|&(register, at)| (register, SavedRule::AtCfa(at)));
        Self {
            cfa: CfaRule::Offset(register, offset),
            saved: saved.chain([(Register::PC, SavedRule::AtCfa(-8))]).collect(),
            signal: false,
        }
    }

    /// Whether this function may continue in an error's handler (`__builtin_eh_return`). Only such a function saves a
    /// register that calls need not preserve: the register with a handler's argument.
    pub fn may_throw(&self) -> bool {
        !self.signal && self.saved.iter().any(|(register, _)| *register == Register::HANDLER_DATA)
    }

    /// The canonical frame address, given the registers of the frame.
    ///
    /// # Errors
    /// Why the address is not known.
    pub fn cfa(&self, registers: &Registers, stack: &StackCopy<'_>) -> Result<u64, UnwindEnd> {
        let lost = UnwindEnd::RegisterLost { pc: registers.pc() };
        match &self.cfa {
            CfaRule::Offset(register, offset) => Ok(registers.get(*register).ok_or(lost)?.wrapping_add_signed(*offset)),
            CfaRule::Expression(expression) => expression::evaluate(expression, None, registers, stack),
        }
    }

    /// The caller's registers, given those of the frame.
    ///
    /// # Errors
    /// [`UnwindEnd::Entry`] if the row marks the outermost frame, else the reason why unwinding fails here.
    pub fn apply(&self, registers: &Registers, stack: &StackCopy<'_>) -> Result<Registers, UnwindEnd> {
        let cfa = self.cfa(registers, stack)?;
        // If the table has no rule for it, the return address is still where the call has put it.
        let link = reg::LINK.map(|link| registers.get(Register::ALL[link]));
        let is_in_link = |rule: Option<&(Register, SavedRule)>| rule.is_none_or(|(_, rule)| *rule == SavedRule::Same);
        if link == Some(None) && is_in_link(self.saved.iter().find(|(register, _)| *register == Register::PC)) {
            return Err(UnwindEnd::RegisterLost { pc: registers.pc() });
        }
        let link = link.flatten();
        let mut caller = registers.preserved_by_call(link.unwrap_or(0), cfa);
        for (register, rule) in &self.saved {
            let value = match rule {
                SavedRule::Undefined => None,
                SavedRule::Same if *register == Register::PC && link.is_some() => link,
                SavedRule::Same => registers.get(*register),
                SavedRule::AtCfa(offset) => {
                    let slot = cfa.wrapping_add_signed(*offset);
                    match stack.read(slot) {
                        Ok(value) => Some(value),
                        Err(end) if matches!(*register, Register::PC | Register::SP) => return Err(end),
                        // Epilogues leave the rule in place after the pop: by then the slot is below the stack pointer,
                        // and the register has its value back.
                        Err(_) if slot < registers.sp() && register.is_callee_saved() => registers.get(*register),
                        Err(_) => None,
                    }
                }
                SavedRule::CfaPlus(offset) => Some(cfa.wrapping_add_signed(*offset)),
                SavedRule::Register(other) => registers.get(*other),
                SavedRule::AtExpression(code) => {
                    Some(stack.read(expression::evaluate(code, Some(cfa), registers, stack)?)?)
                }
                SavedRule::Expression(code) => Some(expression::evaluate(code, Some(cfa), registers, stack)?),
            };
            caller.set(*register, value);
        }
        caller.set(Register::PC, Some(code_address(caller.pc())));
        // Undefined, or never set: this is the outermost frame. So is a frame that returns to address 0.
        if caller.pc() == 0 { Err(UnwindEnd::Entry) } else { Ok(caller) }
    }
}

/// The most bytes of an expression: no real program has a longer one.
const MAX_EXPRESSION: usize = 256;

fn take_expression(from: &mut Bytes<'_>) -> Option<Expression> {
    let bytes = take_bytes(from)?;
    (bytes.len() <= MAX_EXPRESSION).then(|| bytes.into())
}

impl Wire for CfaRule {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Offset(register, offset) => (0_u8, (*register, *offset)).put(out),
            Self::Expression(expression) => {
                1_u8.put(out);
                put_bytes(expression, out);
            }
        }
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(Self::Offset(Wire::take(from)?, Wire::take(from)?)),
            1 => Some(Self::Expression(take_expression(from)?)),
            _ => None,
        }
    }
}

impl Wire for SavedRule {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Undefined => 0_u8.put(out),
            Self::Same => 1_u8.put(out),
            Self::AtCfa(offset) => (2_u8, *offset).put(out),
            Self::CfaPlus(offset) => (3_u8, *offset).put(out),
            Self::Register(register) => (4_u8, *register).put(out),
            Self::AtExpression(expression) => {
                5_u8.put(out);
                put_bytes(expression, out);
            }
            Self::Expression(expression) => {
                6_u8.put(out);
                put_bytes(expression, out);
            }
        }
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        Some(match u8::take(from)? {
            0 => Self::Undefined,
            1 => Self::Same,
            2 => Self::AtCfa(Wire::take(from)?),
            3 => Self::CfaPlus(Wire::take(from)?),
            4 => Self::Register(Wire::take(from)?),
            5 => Self::AtExpression(take_expression(from)?),
            6 => Self::Expression(take_expression(from)?),
            _ => return None,
        })
    }
}

impl Wire for UnwindRow {
    fn put(&self, out: &mut Vec<u8>) {
        (self.cfa.clone(), (self.saved.to_vec(), self.signal)).put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let (cfa, (saved, signal)) = <(CfaRule, (Vec<(Register, SavedRule)>, bool))>::take(from)?;
        (saved.len() <= Register::ALL.len()).then(|| Self { cfa, saved: saved.into(), signal })
    }
}

// They name registers.
#[cfg(target_arch = "x86_64")]
#[cfg(test)]
mod tests {
    use super::*;

    fn stack(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn restores_saved_registers_and_keeps_the_others() {
        let bytes = stack(&[0, 0xb, 0xbb, 0x401_000]);
        let copy = StackCopy { start: 0x1000, bytes: &bytes };
        let mut registers = Registers::all([7; Register::COUNT]);
        registers.set(Register::Rsp, Some(0x1008));
        let row = UnwindRow::simple(Register::Rsp, 24, &[(Register::Rbx, -24), (Register::Rbp, -16)]);
        let caller = row.apply(&registers, &copy).unwrap();
        assert_eq!((caller.pc(), caller.sp()), (0x401_000, 0x1020));
        assert_eq!(caller.get(Register::Rbx), Some(0xb));
        assert_eq!(caller.get(Register::Rbp), Some(0xbb));
        assert_eq!(caller.get(Register::R12), Some(7));
        assert_eq!(caller.get(Register::Rax), None);
    }

    #[test]
    fn a_popped_register_is_where_it_belongs() {
        // `pop rbx` is done and `ret` comes next, but the compiler's row still says that rbx is at CFA - 16.
        let copy = StackCopy { start: 0x1000, bytes: &0x401_000_u64.to_le_bytes() };
        let mut registers = Registers::all([7; Register::COUNT]);
        registers.set(Register::Rsp, Some(0x1000));
        let caller = UnwindRow::simple(Register::Rsp, 8, &[(Register::Rbx, -16)]).apply(&registers, &copy).unwrap();
        assert_eq!((caller.get(Register::Rbx), caller.pc()), (Some(7), 0x401_000));
    }

    #[test]
    fn an_undefined_return_address_is_the_entry() {
        let copy = StackCopy { start: 0x1000, bytes: &[] };
        let row = UnwindRow {
            cfa: CfaRule::Offset(Register::Rsp, 8),
            saved: [(Register::Rip, SavedRule::Undefined)].into(),
            signal: false,
        };
        assert_eq!(row.apply(&Registers::only(1, 0x1000), &copy), Err(UnwindEnd::Entry));
    }

    #[test]
    fn a_word_that_was_not_captured_is_said_so() {
        let copy = StackCopy { start: 0x1000, bytes: &[0; 12] };
        let row = UnwindRow::simple(Register::Rsp, 16, &[]);
        let end = row.apply(&Registers::only(1, 0x1000), &copy);
        assert_eq!(end, Err(UnwindEnd::StackNotCaptured { address: 0x1008 }));
    }
}
