//! Code that the unwind table does not cover, or describes wrongly.

use super::tail;
use super::vm_text::{FrameShape, ffi_call_edge};
use crate::registers::Register;
use crate::row::{CfaRule, SavedRule, UnwindRow};

/// How many bytes of code [`row_by_code`] looks at.
pub const CODE_LENGTH: usize = 32;

/// Whether the row of an address near the interpreter's end belongs to `vm_ffi_call`, the only function there that
/// keeps a frame pointer and has its own unwind entry.
pub fn is_ffi_call(row: &UnwindRow) -> bool {
    match &row.cfa {
        CfaRule::Offset(Register::Rbp, _) => true,
        CfaRule::Offset(Register::Rsp, offset) => *offset <= 16,
        _ => false,
    }
}

/// Whether the row belongs to a function with a frame pointer.
pub fn is_by_frame_pointer(row: &UnwindRow) -> bool {
    matches!(row.cfa, CfaRule::Offset(Register::Rbp, 16))
}

/// The row of `vm_ffi_call` at its edges, where its unwind entry is wrong: `code` begins `offset` bytes into the
/// function.
pub fn ffi_call_row(offset: u64, code: &[u8], _row: &UnwindRow) -> Option<UnwindRow> {
    ffi_call_edge(offset, code).map(|pushed| {
        let saved = [(Register::Rbp, FrameShape::slot(0))];
        UnwindRow::simple(Register::Rsp, 8 + 8 * pushed as i64, &saved[..pushed.min(1)])
    })
}

/// The row of code without unwind information, as far as the code itself shows it; `is_return` if a call returns there.
pub fn row_by_code(code: &[u8; CODE_LENGTH], is_return: bool) -> Option<UnwindRow> {
    if !is_return && is_jump_stub(code) {
        return Some(UnwindRow::simple(Register::Rsp, 8, &[]));
    }
    signal_return(code).or_else(|| if is_return { None } else { tail::row(code) })
}

/// Whether the code only jumps on through a table: a PLT entry without unwind information.
fn is_jump_stub(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let code = code.strip_prefix(&[0xf2]).unwrap_or(code);
    code.starts_with(&[0xff, 0x25])
}

/// The row of a signal frame whose return code has no unwind information (musl): `mov $15, %rax; syscall`
/// calls `rt_sigreturn`, and `rsp` then points to the `ucontext` that the kernel has put there.
fn signal_return(code: &[u8]) -> Option<UnwindRow> {
    const RT_SIGRETURN: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];
    /// `uc_mcontext` in `struct ucontext`, and its registers in order (Linux, asm/sigcontext.h).
    const MCONTEXT: i64 = 40;
    const ORDER: [Register; 17] = {
        use Register::*;
        [R8, R9, R10, R11, R12, R13, R14, R15, Rdi, Rsi, Rbp, Rbx, Rdx, Rax, Rcx, Rsp, Rip]
    };
    code.starts_with(RT_SIGRETURN).then(|| UnwindRow {
        cfa: CfaRule::Offset(Register::Rsp, 0),
        saved: ORDER.into_iter().zip((MCONTEXT..).step_by(8)).map(|(r, at)| (r, SavedRule::AtCfa(at))).collect(),
        signal: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_code_without_unwind_information() {
        assert!(is_jump_stub(&[0xff, 0x25, 0, 0, 0, 0]));
        assert!(is_jump_stub(&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0, 0, 0, 0]));
        assert!(!is_jump_stub(&[0xff, 0xe0]));
        let row = signal_return(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]).unwrap();
        // gregs[REG_RIP] is the last of 17 words from offset 40 on.
        assert_eq!(row.saved.last(), Some(&(Register::Rip, SavedRule::AtCfa(40 + 16 * 8))));
        assert!(signal_return(&[0x48, 0xc7, 0xc0, 0x10, 0, 0, 0, 0x0f, 0x05]).is_none());
    }
}
