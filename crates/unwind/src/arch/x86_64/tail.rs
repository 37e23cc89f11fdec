//! Unwinds from the end of a function without unwind information (hand-written code, such as the coroutine switch of
//! libcoro that Tarantool's fibers use): the remaining instructions show where the caller's registers are.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};

use super::vm_text::general;
use crate::registers::Register;
use crate::row::{CfaRule, SavedRule, UnwindRow};

/// The most instructions to decode: more than any function needs to restore its registers.
const MAX_INSTRUCTIONS: usize = 12;

/// The row for an interrupted instruction, if from there on `code` only restores registers and returns, by `ret` or by
/// a jump to a popped address; [`None`] if it does anything else before.
pub fn row(code: &[u8]) -> Option<UnwindRow> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut popped: Vec<(Register, i64)> = Vec::new();
    let mut depth = 0_i64;
    for _ in 0..MAX_INSTRUCTIONS {
        let instruction = decoder.decode();
        let register = general(instruction.op0_register());
        match instruction.mnemonic() {
            Mnemonic::Pop => {
                popped.push((register.filter(|&register| register != Register::Rsp)?, depth));
                depth += 8;
            }
            Mnemonic::Ret if instruction.op_count() == 0 => {
                popped.push((Register::Rip, depth));
                return Some(from_pops(&popped, depth + 8));
            }
            Mnemonic::Jmp
                if instruction.flow_control() == FlowControl::IndirectBranch
                    && instruction.op0_kind() == OpKind::Register =>
            {
                let target = popped.iter_mut().rfind(|(popped, _)| Some(*popped) == register)?;
                target.0 = Register::Rip;
                return Some(from_pops(&popped, depth));
            }
            _ => return None,
        }
    }
    None
}

/// The row of a frame of `size` bytes whose registers are at these distances from `rsp`.
fn from_pops(popped: &[(Register, i64)], size: i64) -> UnwindRow {
    let saved = popped.iter().map(|&(register, at)| (register, SavedRule::AtCfa(at - size)));
    UnwindRow { cfa: CfaRule::Offset(Register::Rsp, size), saved: saved.collect(), signal: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_libcoros_switch() {
        // Tarantool 2.6.0, the end of coro_transfer: pop r15, r14, r13, r12, rbx, rbp, rcx; jmp *%rcx
        let code = [0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0x5d, 0x59, 0xff, 0xe1];
        let found = row(&code).unwrap();
        assert_eq!(found.cfa, CfaRule::Offset(Register::Rsp, 56));
        assert_eq!(found.saved[0], (Register::R15, SavedRule::AtCfa(-56)));
        assert_eq!(found.saved[6], (Register::Rip, SavedRule::AtCfa(-8)));
        let last = row(&code[10..]).unwrap();
        assert_eq!(
            (last.cfa, &last.saved[..]),
            (CfaRule::Offset(Register::Rsp, 8), &[(Register::Rip, SavedRule::AtCfa(-8))][..])
        );
        // The return address is in a register already: nothing shows where it came from.
        assert_eq!(row(&code[11..]), None);
    }

    #[test]
    fn only_ends_of_functions_have_a_row() {
        assert_eq!(row(&[0xc3]).unwrap(), UnwindRow::simple(Register::Rsp, 8, &[]));
        assert_eq!(row(&[0x48, 0x8b, 0x26, 0xc3]), None);
        assert_eq!(row(&[0x5b; 40]), None);
        assert_eq!(row(&[]), None);
    }
}
