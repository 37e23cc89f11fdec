//! Code that the unwind table does not cover, or describes wrongly.
//!
//! LuaJIT's sources: [`vm_ffi_call`], [its unwind entry].
//!
//! [`vm_ffi_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L2330-L2380
//! [its unwind entry]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L4166-L4260

use super::code::{RET, is_hint, word};
use crate::registers::Register;
use crate::row::{CfaRule, SavedRule, UnwindRow};

/// How many bytes of code [`row_by_code`] looks at.
pub const CODE_LENGTH: usize = 24;

/// Whether the row of an address near the interpreter's end belongs to `vm_ffi_call`, which has its own unwind entry.
/// The entry of the interpreter saves all callee-saved registers, the entry of `vm_ffi_call` only two.
pub fn is_ffi_call(row: &UnwindRow) -> bool {
    is_by_frame_pointer(row) && !row.saved.iter().any(|(register, _)| *register == Register::X28)
}

/// Whether the row belongs to a function with a frame pointer whose frame ends right above its frame record.
pub fn is_by_frame_pointer(row: &UnwindRow) -> bool {
    matches!(row.cfa, CfaRule::Offset(Register::X29, 16))
}

/// The row of `vm_ffi_call` at its edges, where its unwind entry is wrong: `code` begins `offset` bytes into the function.
pub fn ffi_call_row(offset: u64, code: &[u8]) -> Option<UnwindRow> {
    /// Hints, two stores and the addition that sets the frame pointer: no later instruction belongs to the prologue.
    const PROLOGUE: u64 = 16;
    let word = word(code, 0)?;
    let own = |saved: &[(Register, i64)], size: i64| UnwindRow {
        cfa: CfaRule::Offset(Register::Sp, size),
        saved: saved.iter().map(|&(register, at)| (register, SavedRule::AtCfa(at))).collect(),
        signal: false,
    };
    const PAIR: [(Register, i64); 2] = [(Register::X19, -24), (Register::X20, -32)];
    const RECORD: [(Register, i64); 2] = [(Register::X29, -16), (Register::Pc, -8)];
    match word {
        RET => Some(own(&[], 0)),
        _ if offset > PROLOGUE => None,
        word if is_hint(word) => Some(own(&[], 0)),
        // `stp x20, x19, [sp, #-32]!`, in either order; `stp x29, x30, [sp, #-32]!`
        0xa9be_4ff4 | 0xa9be_53f3 | 0xa9be_7bfd => Some(own(&[], 0)),
        // `stp x29, x30, [sp, #16]`
        0xa901_7bfd => Some(own(&PAIR, 32)),
        // `add x29, sp, #16`
        0x9100_43fd => Some(own(&[PAIR, RECORD].concat(), 32)),
        _ => None,
    }
}

/// The row of code without unwind information, as far as the code itself shows it; `is_return` if a call returns there.
pub fn row_by_code(code: &[u8; CODE_LENGTH], is_return: bool) -> Option<UnwindRow> {
    signal_return(code).or_else(|| (!is_return && is_jump_stub(code)).then(in_register))
}

/// The row of code that uses no stack while the return address is still in the link register.
fn in_register() -> UnwindRow {
    UnwindRow { cfa: CfaRule::Offset(Register::Sp, 0), saved: Box::default(), signal: false }
}

/// Whether the code only jumps on through a table, as a PLT entry does, or returns.
fn is_jump_stub(code: &[u8]) -> bool {
    /// `br x17`.
    const JUMP: u32 = 0xd61f_0220;
    for offset in (0..code.len()).step_by(4) {
        match word(code, offset) {
            Some(JUMP | RET) => return true,
            // `adrp x16`, `ldr x17, [x16, #n]`, `add x16, x16, #n`
            Some(word)
                if word & 0x9f00_001f == 0x9000_0010
                    || word & 0xffc0_03ff == 0xf940_0211
                    || word & 0xffc0_03ff == 0x9100_0210
                    || is_hint(word) => {}
            _ => return false,
        }
    }
    false
}

/// The row of a signal frame, recognized by the code `mov x8, #139; svc #0` that ends it with a call of `rt_sigreturn`.
/// The stack pointer points to the kernel's `rt_sigframe`.
fn signal_return(code: &[u8]) -> Option<UnwindRow> {
    const RT_SIGRETURN: [u32; 2] = [0xd280_1168, 0xd400_0001];
    /// Offset of the registers `x0` to `x30`, `sp` and `pc`, in DWARF's order. Before them come `siginfo`, then in
    /// `struct ucontext` flags, link, stack and signal mask with its padding, aligned to 16 bytes, then the fault's
    /// address (Linux, `asm/ucontext.h`, `asm/sigcontext.h`).
    const REGISTERS: i64 = 128 + 176 + 8;
    let is_it = [word(code, 0)?, word(code, 4)?] == RT_SIGRETURN;
    is_it.then(|| UnwindRow {
        cfa: CfaRule::Offset(Register::Sp, 0),
        saved: Register::ALL
            .into_iter()
            .zip((REGISTERS..).step_by(8))
            .map(|(r, at)| (r, SavedRule::AtCfa(at)))
            .collect(),
        signal: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> [u8; CODE_LENGTH] {
        let mut code = [0; CODE_LENGTH];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        code.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        code
    }

    #[test]
    fn knows_code_without_unwind_information() {
        let stub = [0x9000_0110, 0xf940_0611, 0x9100_2210, 0xd61f_0220];
        for from in 0..4 {
            assert_eq!(row_by_code(&code(&stub[from..]), false), Some(in_register()));
            assert_eq!(row_by_code(&code(&stub[from..]), true), None, "nothing returns there");
        }
        assert_eq!(row_by_code(&code(&[0xd503_245f, RET]), false), Some(in_register()));
        assert_eq!(row_by_code(&code(&[0xa9bf_7bfd, RET]), false), None, "it uses the stack");
        let row = row_by_code(&code(&[0xd280_1168, 0xd400_0001]), true).unwrap();
        assert!(row.signal);
        assert_eq!(row.saved.last(), Some(&(Register::Pc, SavedRule::AtCfa(568))));
        assert_eq!(row_by_code(&code(&[0xd280_1188, 0xd400_0001]), true), None, "another system call");
    }

    #[test]
    fn ffi_calls_have_edges() {
        let at = |offset, word: u32| ffi_call_row(offset, &word.to_le_bytes()).map(|row| (row.cfa, row.saved.len()));
        let sp = |size| CfaRule::Offset(Register::Sp, size);
        assert_eq!(at(0, 0xa9be_4ff4), Some((sp(0), 0)));
        assert_eq!(at(4, 0xa901_7bfd), Some((sp(32), 2)));
        assert_eq!(at(8, 0x9100_43fd), Some((sp(32), 4)));
        assert_eq!(at(12, 0xaa00_03f3), None);
        assert_eq!(at(100, 0xa901_7bfd), None);
        assert_eq!(at(100, RET), Some((sp(0), 0)));
    }
}
