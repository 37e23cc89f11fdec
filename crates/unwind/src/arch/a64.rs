//! A64 instructions, as far as lj-trace needs to know them. Each has four bytes.

/// `ret`.
pub const RET: u32 = 0xd65f_03c0;
/// The stack pointer, and the zero register, by number.
const SP: u32 = 31;

/// The instruction at `offset` bytes in `code`.
pub fn word(code: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*code.get(offset..)?.first_chunk()?))
}

/// Whether the instruction returns to the link register: `ret`, or `retaa` and `retab`, which check its signature.
pub const fn is_return(word: u32) -> bool {
    word == RET || word & !0x400 == 0xd65f_0bff
}

/// Whether the instruction is a hint: `nop`, `bti`, and those that sign addresses.
pub const fn is_hint(word: u32) -> bool {
    word & 0xffff_f01f == 0xd503_201f
}

/// Whether the instruction is a call: `bl`, `blr`, or an authenticating `blr`.
pub const fn is_call(word: u32) -> bool {
    word >> 26 == 0b10_0101 || word & 0xfeff_f000 == 0xd63f_0000
}

/// The distance of the jump of a `b`, in bytes.
pub const fn jump(word: u32) -> Option<i64> {
    if word >> 26 == 0b00_0101 { Some(((word << 6) as i32 >> 4) as i64) } else { None }
}

/// The distance of the call of a `bl`, in bytes.
pub const fn call(word: u32) -> Option<i64> {
    if word >> 26 == 0b10_0101 { Some(((word << 6) as i32 >> 4) as i64) } else { None }
}

/// Whether the instruction is a conditional branch: `b.cond`, `cbz`, `cbnz`, `tbz`, `tbnz`.
pub const fn is_branch(word: u32) -> bool {
    word & 0xff00_0000 == 0x5400_0000 || word & 0x7c00_0000 == 0x3400_0000
}

/// The distance of the jump of a conditional branch, in bytes.
pub const fn branch(word: u32) -> Option<i64> {
    if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
        Some((((word << 8) as i32 >> 13) << 2) as i64)
    } else if word & 0x7e00_0000 == 0x3600_0000 {
        Some((((word << 13) as i32 >> 18) << 2) as i64)
    } else {
        None
    }
}

/// Whether the instruction leaves straight-line code in another way: `br`, `blr`, `ret`, `eret` and the like, `svc`,
/// `brk`, `bl`.
pub const fn leaves(word: u32) -> bool {
    word & 0xfe00_0000 == 0xd600_0000 || word & 0xff00_0000 == 0xd400_0000 || word >> 26 == 0b10_0101
}

/// Whether the instruction may write the stack pointer: additions and subtractions of constants or extended registers,
/// moves, and loads and stores that write their address back.
pub const fn moves_stack(word: u32) -> bool {
    let (to, base) = (word & 31, word >> 5 & 31);
    // In instructions that set flags, this register number means the zero register.
    let adds = to == SP && (word & 0x3f80_0000 == 0x1100_0000 || word & 0x3fe0_0000 == 0x0b20_0000);
    let masks = to == SP && word & 0x1f80_0000 == 0x1200_0000 && word & 0x6000_0000 != 0x6000_0000;
    let pair_back = base == SP && word & 0x3a80_0000 == 0x2880_0000;
    let one_back = base == SP && word & 0x3b20_0400 == 0x3800_0400;
    adds || masks || pair_back || one_back
}

/// For `stp` of two 64-bit registers relative to the stack pointer: both registers, and the offset of the first.
pub const fn stored_pair(word: u32) -> Option<(u32, u32, i64)> {
    if word & 0xffc0_0000 == 0xa900_0000 && word >> 5 & 31 == SP {
        Some((word & 31, word >> 10 & 31, ((word << 10) as i32 >> 25) as i64 * 8))
    } else {
        None
    }
}

/// Whether the instruction is `ldp` of two 64-bit registers, general or floating-point, relative to the stack pointer.
pub const fn restores_pair(word: u32) -> bool {
    let load = word & 0xffc0_0000;
    (load == 0xa940_0000 || load == 0x6d40_0000) && word >> 5 & 31 == SP
}

/// Whether the instruction stores two floating-point registers relative to the stack pointer.
pub const fn stores_vectors(word: u32) -> bool {
    word & 0xffc0_0000 == 0x6d00_0000 && word >> 5 & 31 == SP
}

/// For `adrp`: the register, and the address of the page if the instruction is at `address`.
pub const fn page(word: u32, address: u64) -> Option<(u32, u64)> {
    if word & 0x9f00_0000 != 0x9000_0000 {
        return None;
    }
    let pages = ((word << 8) as i32 >> 13 << 2) as i64 | (word >> 29 & 3) as i64;
    Some((word & 31, (address & !0xfff).wrapping_add((pages << 12) as u64)))
}

/// For `ldr` of a 64-bit register with a constant offset: the register, its base, and the offset.
pub const fn load(word: u32) -> Option<(u32, u32, u64)> {
    if word & 0xffc0_0000 == 0xf940_0000 {
        Some((word & 31, word >> 5 & 31, (word >> 10 & 0xfff) as u64 * 8))
    } else {
        None
    }
}

/// For `str` of a 64-bit register with a constant offset: the register, its base, and the offset.
pub const fn store(word: u32) -> Option<(u32, u32, u64)> {
    if word & 0xffc0_0000 == 0xf900_0000 {
        Some((word & 31, word >> 5 & 31, (word >> 10 & 0xfff) as u64 * 8))
    } else {
        None
    }
}

/// For `ldr` of this register with a constant offset, or `ldp` with it first: the register with the address, and the
/// offset.
pub const fn load_of(word: u32, register: u32) -> Option<(u32, u64)> {
    if word & 31 != register {
        return None;
    }
    let base = word >> 5 & 31;
    if word & 0xffc0_0000 == 0xa940_0000 {
        return Some((base, (((word << 10) as i32 >> 25) as i64 * 8) as u64));
    }
    match load(word) {
        Some((_, _, offset)) => Some((base, offset)),
        None => None,
    }
}

/// Whether the instruction stores a 64-bit register, or a pair of them, at this constant offset from a register other
/// than the stack pointer.
pub const fn stores_field(word: u32, offset: u64) -> bool {
    let pair = word & 0xffc0_0000 == 0xa900_0000 && ((word << 10) as i32 >> 25) as i64 * 8 == offset as i64;
    let one = matches!(store(word), Some((_, _, at)) if at == offset);
    (pair || one) && word >> 5 & 31 != SP
}

/// Whether the instruction is a load or store with its address in this register, which it leaves alone: `ldr`, `str`,
/// `ldur`, `stur` and the like with a constant or a register as offset, `ldp`, `stp`.
pub const fn uses_as_address(word: u32, register: u32) -> bool {
    let base = word >> 5 & 31;
    let constant = word & 0x3b00_0000 == 0x3900_0000;
    let unscaled = word & 0x3b20_0c00 == 0x3800_0000;
    let indexed = word & 0x3b20_0c00 == 0x3820_0800;
    let pair = word & 0x3b80_0000 == 0x2900_0000;
    base == register && (constant || unscaled || indexed || pair)
}

/// Whether the instruction adds to this register, or subtracts from it, with the result in another: `add`, `sub` of a
/// constant or a shifted register, with or without flags.
pub const fn adds_to(word: u32, register: u32) -> bool {
    let constant = word & 0x9f80_0000 == 0x9100_0000;
    let shifted = word & 0x9f20_0000 == 0x8b00_0000;
    let other = shifted && word >> 16 & 31 == register;
    (constant || shifted) && (word >> 5 & 31 == register || other) && word & 31 != register
}

/// Whether the instruction may write this general register. Nearly all instructions have their destination in the same
/// bits. Stores and vector loads have not, and are told apart, as are branches, which write none (calls write `x30`);
/// comparisons have not, either.
pub const fn writes(word: u32, register: u32) -> bool {
    let (first, second, base) = (word & 31, word >> 10 & 31, word >> 5 & 31);
    let is_vector = word & 0x0400_0000 != 0;
    let (single, pair) = (word & 0x3a00_0000 == 0x3800_0000, word & 0x3a00_0000 == 0x2800_0000);
    let is_single_store = single && (is_vector || word & 0x00c0_0000 == 0);
    let is_pair_store = pair && (is_vector || word & 0x0040_0000 == 0);
    let writes_back = pair && word & 0x0080_0000 != 0 || single && word & 0x0120_0400 == 0x0000_0400;
    if is_branch(word) || jump(word).is_some() || is_call(word) {
        return is_call(word) && register == 30;
    }
    first == register && !is_single_store && !is_pair_store
        || second == register && pair && !is_pair_store
        || base == register && writes_back
}

/// For `mov xN, sp` and `add xN, sp, #1`: the number N.
pub const fn takes_stack_pointer(word: u32) -> Option<u32> {
    if word & 0xffff_fbe0 == 0x9100_03e0 { Some(word & 31) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_write_nothing() {
        // tbz w21, #2, .+8; cbnz x21, .+8; b.hi .+0; b with its bits; bl; and mov x21, x0; ldr x0, [x21], #8
        assert!(
            ![0x3610_0055, 0xb500_0055, 0x5400_0015, 0x1400_0015, 0x9400_0015].into_iter().any(|word| writes(word, 21))
        );
        assert!(writes(0x9400_0015, 30) && writes(0xaa00_03f5, 21) && writes(0xf840_86a0, 21));
    }

    #[test]
    fn instructions_are_told_apart() {
        // bl .+8; blr x8; blraaz x8; and not br x8; ret
        assert!([0x9400_0002, 0xd63f_0100, 0xd63f_091f].into_iter().all(is_call));
        assert!(![0xd61f_0100, RET, 0x1400_0002].into_iter().any(is_call));
        assert_eq!((jump(0x1400_0002), jump(0x17ff_ffff), jump(0x9400_0002)), (Some(8), Some(-4), None));
        // b.eq .+8; cbz x2, .+24; cbnz w0, .-4; tbz w1, #3, .+8; tbnz x8, #36, .-8
        let branches = [0x5400_0040, 0xb400_00c2, 0x35ff_ffe0, 0x3618_0041, 0xb727_ffc8].map(branch);
        assert_eq!(branches, [Some(8), Some(24), Some(-4), Some(8), Some(-8)]);
        assert_eq!((branch(0x1400_0002), store(0xf900_2ae8), store(0xf940_2ae8)), (None, Some((8, 23, 80)), None));
        // mov x8, sp; add x8, sp, #1; add x8, sp, #2
        assert_eq!([0x9100_03e8, 0x9100_07e8, 0x9100_0be8].map(takes_stack_pointer), [Some(8), Some(8), None]);
        // b.eq; cbz; cbnz; tbz; tbnz
        assert!([0x5400_0040, 0xb400_00c2, 0x3500_0000, 0x3600_0000, 0xb700_0000].into_iter().all(is_branch));
        assert!(![0x1400_0002, 0xd61f_0100, 0xf940_03e1].into_iter().any(is_branch));
        assert!([0xd61f_0100, RET, 0xd400_0001, 0xd420_0000, 0x9400_0002].into_iter().all(leaves));
        assert!(![0xf940_03e1, 0x1400_0002, 0xd503_201f].into_iter().any(leaves));
        // nop; bti c; paciasp; and not ret
        assert!([0xd503_201f, 0xd503_245f, 0xd503_233f].into_iter().all(is_hint) && !is_hint(RET));
        assert!([RET, 0xd65f_0bff, 0xd65f_0fff].into_iter().all(is_return) && !is_return(0xd65f_0020));
    }

    #[test]
    fn moves_of_the_stack_pointer_are_seen() {
        // sub sp, sp, #208; add sp, sp, #208; mov sp, x29; mov sp, x0; sub sp, sp, x8, uxtx; and sp, x0, #~3;
        // stp x29, x30, [sp, #-208]!; ldp x29, x30, [sp], #208; str x0, [sp, #-16]!; ldr x0, [sp], #16
        let moving = [
            0xd103_43ff,
            0x9103_43ff,
            0x9100_03bf,
            0x9100_001f,
            0xcb28_63ff,
            0x927e_f41f,
            0xa9b3_7bfd,
            0xa8cd_7bfd,
            0xf81f_0fe0,
            0xf841_07e0,
        ];
        for word in moving {
            assert!(moves_stack(word), "{word:#x}");
        }
        // add x29, sp, #192; stp x29, x30, [sp, #192]; ldr x0, [sp, #8]; ldur x0, [sp, #8]; cmp x0, #1; cmp x0, x1; nop
        let others = [0x9103_03fd, 0xa90c_7bfd, 0xf940_07e0, 0xf840_83e0, 0xf100_041f, 0xeb01_001f, 0xd503_201f];
        for word in others {
            assert!(!moves_stack(word), "{word:#x}");
        }
    }

    #[test]
    fn operands_are_read() {
        assert_eq!(stored_pair(0xa90c_7bfd), Some((29, 30, 192)));
        assert_eq!(stored_pair(0xa93f_7bfd), Some((29, 30, -16)));
        assert_eq!(stored_pair(0xa9b3_7bfd), None, "it moves the stack pointer");
        // stp d9, d8, [sp, #96]
        assert!(stores_vectors(0x6d06_23e9) && !stores_vectors(0xa90c_7bfd));
        // adrp x16, .+0x20000, at 0x6f30
        assert_eq!(page(0x9000_0110, 0x6f30), Some((16, 0x2_6000)));
        assert_eq!(page(0xf0ff_fff0, 0x6f30), Some((16, 0x5000)));
        // ldr x17, [x16, #8]
        assert_eq!(load(0xf940_0611), Some((17, 16, 8)));
    }
}
