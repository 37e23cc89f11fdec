//! Instructions, and which of them the kernel simulates under a probe.

use lj_trace_common::arch::Register;
use lj_trace_unwind::arch::a64::{RET, branch, call, is_branch, is_call, is_hint, jump, moves_stack, writes};

use crate::arch::effects::{Control, Effects};

/// The number of the stack pointer.
const SP: u32 = 31;
/// The number of the link register.
const LINK: u32 = 30;

/// `retaa`, and with one more bit `retab`: `ret` after a check of the address's signature.
const RET_CHECKED: u32 = 0xd65f_0bff;

/// An instruction whose effects are known.
#[derive(Clone, Copy, Debug)]
pub struct MachineInstruction {
    word: u32,
    address: u64,
}

impl MachineInstruction {
    /// The instruction at the start of `bytes`, at this address; [`None`] if there is none, or its effects are not known.
    pub fn decode(bytes: &[u8], address: u64) -> Option<Self> {
        let word = u32::from_le_bytes(*bytes.first_chunk()?);
        has_known_effects(word).then_some(Self { word, address })
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        size_of_val(&self.word)
    }

    /// Its mnemonic, if it is one of those at which probes are cheap, or at which allocators begin.
    pub fn name(&self) -> String {
        let word = self.word;
        let name = match word {
            RET => "ret",
            _ if is_hint(word) => "hint",
            _ if copied(word).is_some() => "mov",
            _ if jump(word).is_some() => "b",
            _ if is_call(word) => "bl",
            _ if word & 0xff00_0000 == 0x5400_0000 => "b.cond",
            _ if word & 0x7f00_0000 == 0x3400_0000 => "cbz",
            _ if word & 0x7f00_0000 == 0x3500_0000 => "cbnz",
            _ if is_branch(word) => "tbz",
            _ if word & 0xffff_fc1f == 0xd61f_0000 => "br",
            _ if word & 0x1f00_0000 == 0x1000_0000 => "adr",
            _ => "other",
        };
        name.to_owned()
    }

    /// Where control goes after it.
    pub fn control(&self) -> Control {
        let word = self.word;
        let to = |distance: i64| self.address.wrapping_add_signed(distance);
        if let Some(distance) = jump(word) {
            Control::Jump(to(distance))
        } else if is_call(word) {
            Control::Call(call(word).map(to))
        } else if let Some(distance) = branch(word) {
            Control::Branch(to(distance))
        } else if word & 0xffff_fc1f == 0xd65f_0000 || word & 0xffff_fbff == RET_CHECKED {
            Control::Return
        } else if word & 0xfe00_0000 == 0xd600_0000 {
            Control::ComputedJump
        } else if word & 0xffe0_001f == 0xd420_0000 {
            // `brk`: `abort` of compilers.
            Control::Nowhere
        } else if word & 0xff00_0000 == 0xd400_0000 {
            Control::Unusual
        } else {
            Control::Next
        }
    }

    /// Its effects on registers.
    pub fn effects(&self) -> Effects {
        let word = self.word;
        let signs = is_hint(word) && !is_plain_hint(word);
        let general = (0..SP).filter(|&register| writes(word, register) && !is_hint(word));
        let mut written = general.fold(0, |bits, register| bits | 1 << register);
        if moves_stack(word) {
            written |= 1 << SP;
        }
        if signs {
            // It signs or checks an address: `x30`, or `x17`.
            written |= 1 << LINK | 1 << 17;
        }
        Effects {
            written,
            copies: copied(word),
            moves_stack: moved_by(word),
            is_call: is_call(word),
            // Only branches that test a register by themselves are understood.
            changes_flags: true,
            tests: tested(word),
        }
    }

    /// For a conditional branch on a register that is 0: true if it is taken then, false if otherwise.
    pub fn taken_if_zero(&self) -> Option<bool> {
        tested(self.word).map(|_| self.word & 0x0100_0000 == 0)
    }
}

/// Whether it is known which general registers the instruction may write. It is not for exclusive and atomic accesses,
/// for vector loads and stores of several elements, for scalable vectors, and for what is no instruction.
fn has_known_effects(word: u32) -> bool {
    let group = word >> 25 & 0xf;
    let is_access = group & 0b0101 == 0b0100;
    let is_exclusive = word & 0x3f00_0000 == 0x0800_0000;
    let is_atomic = word & 0x3b20_0c00 == 0x3820_0000;
    let is_structure = word & 0xbe00_0000 == 0x0c00_0000;
    // Tagged memory and copies of memory (`ldg`, `cpyfp`), and loads that check a signature (`ldraa`).
    let is_other = word & 0x3f00_0000 == 0x1900_0000 && word & 0x0020_0000 != 0 || word & 0xff20_0400 == 0xf820_0400;
    let is_defined = !matches!(group, 0b0000..=0b0011);
    is_defined && !(is_access && (is_exclusive || is_atomic || is_structure || is_other))
}

/// For a `mov` between two 64-bit registers: the target, and the source.
fn copied(word: u32) -> Option<(Register, Register)> {
    let (to, from) = (word & 31, word >> 16 & 31);
    if word & 0xffe0_ffe0 != 0xaa00_03e0 || to == SP || from == SP {
        return None;
    }
    Some((general(to)?, general(from)?))
}

/// The 64-bit register that a `cbz` or `cbnz` tests.
fn tested(word: u32) -> Option<Register> {
    let number = word & 31;
    if word & 0xfe00_0000 == 0xb400_0000 && number != SP { general(number) } else { None }
}

/// By how many bytes the instruction moves the stack pointer, if the instruction itself says so.
fn moved_by(word: u32) -> Option<i64> {
    let (to, from) = (word & 31, word >> 5 & 31);
    let constant = i64::from(word >> 10 & 0xfff);
    let constant = if word & 0x0040_0000 == 0 { constant } else { constant << 12 };
    match word & 0xff80_0000 {
        0x9100_0000 if (to, from) == (SP, SP) => Some(constant),
        0xd100_0000 if (to, from) == (SP, SP) => Some(-constant),
        // `stp` and `ldp` of 64-bit registers that write the address back; general or floating-point ones.
        0xa880_0000 | 0xa980_0000 | 0x6c80_0000 | 0x6d80_0000 if from == SP => {
            Some(i64::from((word << 10) as i32 >> 25) * 8)
        }
        // `str` and `ldr` of one register, in the same way.
        0xf800_0000 if from == SP && word & 0x0020_0400 == 0x0400 => Some(i64::from((word << 11) as i32 >> 23)),
        _ => None,
    }
}

/// Whether a hint changes no register: `nop`, `yield` and its neighbours, `bti`.
fn is_plain_hint(word: u32) -> bool {
    word & 0xffff_ff1f == 0xd503_201f && word != 0xd503_20ff || word & 0xffff_ff3f == 0xd503_241f
}

fn general(number: u32) -> Option<Register> {
    u16::try_from(number).ok().and_then(Register::from_dwarf)
}

/// Whether every kernel that lj-trace supports simulates the instruction with these bytes, instead of single-stepping
/// it (`arch/arm64/kernel/probes/decode-insn.c`): branches, and instructions that compute an address relative to
/// themselves. Only kernels of 2025 and later simulate `nop`, and the kernel refuses probes on PC-relative loads.
pub fn is_emulated(instruction: &[u8]) -> bool {
    let Ok(bytes) = <[u8; 4]>::try_from(instruction) else { return false };
    let word = u32::from_le_bytes(bytes);
    let is = |mask: u32, value: u32| word & mask == value;
    // B and BL; B.cond; CBZ and CBNZ; TBZ and TBNZ; ADR and ADRP; BR, BLR and RET.
    is(0x7c00_0000, 0x1400_0000)
        || is(0xff00_0010, 0x5400_0000)
        || is(0x7e00_0000, 0x3400_0000)
        || is(0x7e00_0000, 0x3600_0000)
        || is(0x1f00_0000, 0x1000_0000)
        || is(0xff9f_fc1f, 0xd61f_0000)
        || is(0xffff_fc1f, 0xd65f_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(word: u32) -> Effects {
        MachineInstruction { word, address: 0 }.effects()
    }

    /// The numbers of the registers that an instruction writes.
    fn written(word: u32) -> Vec<u32> {
        let written = effects(word).written;
        (0..64).filter(|number| written & 1 << number != 0).collect()
    }

    #[test]
    fn knows_what_is_written() {
        // mov x2, x3; cmp x3, #0; stp x29, x30, [sp, #-32]!; ldp x29, x30, [sp], #32; str x1, [x0]; ldr w5, [x1, #4]
        assert_eq!(written(0xaa03_03e2), [2]);
        assert_eq!(written(0xf100_007f), []);
        assert_eq!(written(0xa9be_7bfd), [31]);
        assert_eq!(written(0xa8c2_7bfd), [29, 30, 31]);
        assert_eq!(written(0xf900_0001), []);
        assert_eq!(written(0xb940_0425), [5]);
        // bl .+8; cbz x3, .+8; b .+8; nop; bti c; paciasp; autiasp; xpaclri
        assert_eq!(written(0x9400_0002), [30]);
        assert_eq!(written(0xb400_0043), []);
        assert_eq!(written(0x1400_0002), []);
        assert_eq!([0xd503_201f, 0xd503_245f].map(written), [[], []] as [[u32; 0]; 2]);
        assert_eq!([0xd503_233f, 0xd503_23bf, 0xd503_20ff].map(written), [[17, 30]; 3]);
    }

    #[test]
    fn knows_how_far_the_stack_pointer_moves() {
        let moved = |word| effects(word).moves_stack;
        // sub sp, sp, #16; add sp, sp, #1, lsl #12; stp x29, x30, [sp, #-32]!; ldp x29, x30, [sp], #32
        assert_eq!([0xd100_43ff, 0x9140_07ff].map(moved), [Some(-16), Some(4096)]);
        assert_eq!([0xa9be_7bfd, 0xa8c2_7bfd].map(moved), [Some(-32), Some(32)]);
        // stp d8, d9, [sp, #-16]!; str x30, [sp, #-16]!; ldr x30, [sp], #16
        assert_eq!([0x6dbf_27e8, 0xf81f_0ffe, 0xf841_07fe].map(moved), [Some(-16), Some(-16), Some(16)]);
        // sub sp, x1, #16; mov x0, sp; sub sp, sp, x1
        assert_eq!([0xd100_403f, 0x9100_03e0, 0xcb21_63ff].map(moved), [None; 3]);
        assert_eq!([0xd100_403f, 0xcb21_63ff].map(written), [[31]; 2]);
    }

    #[test]
    fn knows_where_control_goes() {
        let control = |word| MachineInstruction { word, address: 0x40 }.control();
        // b .+8; bl .-4; blr x8; cbz x3, .+8; tbz w1, #3, .+8; b.eq .+8; br x17; ret; ret x1; retaa; brk; svc; nop
        assert_eq!(control(0x1400_0002), Control::Jump(0x48));
        assert_eq!([0x97ff_ffff, 0xd63f_0100].map(control), [Control::Call(Some(0x3c)), Control::Call(None)]);
        assert_eq!([0xb400_0043, 0x3618_0041, 0x5400_0040].map(control), [Control::Branch(0x48); 3]);
        assert_eq!(control(0xd61f_0220), Control::ComputedJump);
        assert_eq!([RET, 0xd65f_0020, 0xd65f_0bff, 0xd65f_0fff].map(control), [Control::Return; 4]);
        assert_eq!(
            [0xd420_0000, 0xd400_0001, 0xd503_201f].map(control),
            [Control::Nowhere, Control::Unusual, Control::Next]
        );
        // Only whole registers show that an argument is 0: cbz x3; cbnz x3; cbz w3; cbz xzr; b.eq
        let taken = |word| MachineInstruction { word, address: 0 }.taken_if_zero();
        assert_eq!([0xb400_0043, 0xb500_0043].map(taken), [Some(true), Some(false)]);
        assert_eq!([0x3400_0043, 0xb400_005f, 0x5400_0040].map(taken), [None; 3]);
    }

    #[test]
    fn what_is_not_understood_is_no_instruction() {
        let is_known = |word: u32| MachineInstruction::decode(&word.to_le_bytes(), 0).is_some();
        // ldxr x0, [x1]; stxr w2, x0, [x1]; ldadd x1, x2, [x0]; swp x1, x2, [x0]; casp x0, x1, x2, x3, [x4]; ld1 {v0.16b}, [x0], #16;
        // ptrue p0.b; udf; ldraa x0, [x1]
        let unknown = [
            0xc85f_7c20_u32,
            0xc802_7c20,
            0xf821_0002,
            0xf821_8002,
            0x4820_7c82,
            0x4cdf_7000,
            0x2518_e3e0,
            0,
            0xf820_0420,
        ];
        assert!(!unknown.into_iter().any(is_known));
        // ldr q0, [x1]; str x2, [x0, x1]; fmov x0, d0; madd x0, x1, x2, x3; csel x0, x1, x2, eq
        assert!([0x3dc0_0020_u32, 0xf821_6802, 0x9e66_0000, 0x9b02_0c20, 0x9a82_0020].into_iter().all(is_known));
        assert!(MachineInstruction::decode(&[0, 0, 0], 0).is_none());
    }

    #[test]
    fn knows_what_every_kernel_simulates() {
        // cbz x2, .+0x18; cbnz w0, .; tbz x0, #0, .; b .+8; bl .+8; b.eq .; adr x1, .; adrp x1, .; br x8; blr x8; ret
        let simulated = [
            0xb400_00c2_u32,
            0x3500_0000,
            0x3600_0000,
            0x1400_0002,
            0x9400_0002,
            0x5400_0000,
            0x1000_0001,
            0x9000_0001,
            0xd61f_0100,
            0xd63f_0100,
            0xd65f_03c0,
        ];
        assert!(simulated.iter().all(|word| is_emulated(&word.to_le_bytes())));
        // nop; bti c; paciasp; mov x2, x3; stp x29, x30, [sp, #-16]!; sub sp, sp, #16; cmp x3, #0; ldr x1, .; ldr x1, [sp]
        let stepped = [
            0xd503_201f_u32,
            0xd503_245f,
            0xd503_233f,
            0xaa03_03e2,
            0xa9bf_7bfd,
            0xd100_43ff,
            0xf100_007f,
            0x5800_0001,
            0xf940_03e1,
        ];
        assert!(!stepped.iter().any(|word| is_emulated(&word.to_le_bytes())));
        assert!(!is_emulated(&[]) && !is_emulated(&[0, 0, 0, 0x14, 0]));
    }
}
