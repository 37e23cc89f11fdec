//! Code that the unwind table does not cover, or describes wrongly.
//!
//! LuaJIT's sources: [`vm_ffi_call`], [its unwind entry].
//!
//! [`vm_ffi_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L2330-L2380
//! [its unwind entry]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L4166-L4260

use crate::arch::a64::{RET, is_hint, is_return, word};
use crate::registers::Register;
use crate::row::{CfaRule, SavedRule, UnwindRow};

/// How many bytes of code [`row_by_code`] looks at.
pub const CODE_LENGTH: usize = 24;

/// The size of the frame of `vm_ffi_call`.
const FFI_CALL_FRAME: i64 = 32;

/// Whether the row of an address near the interpreter's end belongs to `vm_ffi_call`, which has its own unwind entry.
/// The entry of the interpreter saves all callee-saved registers, the entry of `vm_ffi_call` only two; and at the edges of
/// `vm_ffi_call` its row is one of [`ffi_call_row`].
pub fn is_ffi_call(row: &UnwindRow) -> bool {
    match row.cfa {
        CfaRule::Offset(Register::Sp, size) => [0, FFI_CALL_FRAME].contains(&size),
        _ => is_by_frame_pointer(row) && !row.saved.iter().any(|(register, _)| *register == Register::X28),
    }
}

/// Whether the row belongs to a function with a frame pointer whose frame ends right above its frame record.
pub fn is_by_frame_pointer(row: &UnwindRow) -> bool {
    matches!(row.cfa, CfaRule::Offset(Register::X29, 16))
}

/// The row of `vm_ffi_call` at its edges, where its unwind entry, `row`, is wrong: `code` begins `offset` bytes into the
/// function.
pub fn ffi_call_row(offset: u64, code: &[u8], row: &UnwindRow) -> Option<UnwindRow> {
    /// Hints, two stores and the addition that sets the frame pointer: no later instruction belongs to the prologue.
    const PROLOGUE: u64 = 16;
    let word = word(code, 0)?;
    let is_record = |register: Register| matches!(register, Register::X29 | Register::Pc);
    let with = |is_saved: &dyn Fn(Register) -> bool| UnwindRow {
        cfa: CfaRule::Offset(Register::Sp, FFI_CALL_FRAME),
        saved: row.saved.iter().filter(|(register, _)| is_saved(*register)).cloned().collect(),
        signal: false,
    };
    match word {
        // Hints sign the return address before anything else, and check it after everything else.
        word if is_return(word) || is_hint(word) => Some(in_register()),
        // `ldp x20, x19, [sp], #32`, in either order: the frame record is in its registers again.
        0xa8c2_4ff4 | 0xa8c2_53f3 => Some(with(&|register| !is_record(register))),
        _ if offset > PROLOGUE => None,
        // `stp x20, x19, [sp, #-32]!`, in either order
        0xa9be_4ff4 | 0xa9be_53f3 => Some(in_register()),
        // `stp x29, x30, [sp, #16]`
        0xa901_7bfd => Some(with(&|register| !is_record(register))),
        // `add x29, sp, #16`
        0x9100_43fd => Some(with(&|_| true)),
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

    /// Runs the prologue and the epilogue, and compares each row with where things are.
    #[test]
    fn ffi_calls_have_edges() {
        let saved = [(Register::X19, -24), (Register::X20, -32), (Register::X29, -16), (Register::Pc, -8)];
        let table = UnwindRow {
            cfa: CfaRule::Offset(Register::X29, 16),
            saved: saved.map(|(register, at)| (register, SavedRule::AtCfa(at))).into(),
            signal: false,
        };
        let (all, pair) = (4, 2);
        let sp = |size| CfaRule::Offset(Register::Sp, size);
        let body = || (CfaRule::Offset(Register::X29, 16), all);
        let plain = vec![
            (0xa9be_4ff4, (sp(0), 0)),
            (0xa901_7bfd, (sp(32), pair)),
            (0x9100_43fd, (sp(32), all)),
            (0xaa00_03f3, body()),
            (0x3940_3269, body()),
            (0xd63f_0160, body()),
            (0xd100_43bf, body()),
            (0x6d02_8e62, body()),
            (0xa941_7bfd, body()),
            (0xa8c2_4ff4, (sp(32), pair)),
            (RET, (sp(0), 0)),
        ];
        // `paciasp`, and what checks that.
        let mut signed = vec![(0xd503_233f, (sp(0), 0))];
        signed.extend(plain.clone());
        signed.insert(signed.len() - 1, (0xd503_23bf, (sp(0), 0)));
        // `retaa` checks the address, too.
        let mut returning = signed.clone();
        returning.truncate(signed.len() - 2);
        returning.push((0xd65f_0bff, (sp(0), 0)));
        for function in [plain, signed, returning] {
            for (index, (word, expected)) in function.into_iter().enumerate() {
                let row = ffi_call_row(4 * index as u64, &u32::to_le_bytes(word), &table);
                let row = row.unwrap_or_else(|| table.clone());
                assert!(is_ffi_call(&row), "{index}: {word:#x}");
                assert_eq!((row.cfa, row.saved.len()), expected, "{index}: {word:#x}");
            }
        }
    }
}
