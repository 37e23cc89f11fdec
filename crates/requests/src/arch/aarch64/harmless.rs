//! Tells whether the rest of a function changes any memory.

/// The most instructions to look at.
const MOST_INSTRUCTIONS: usize = 64;

/// `ret`, by the link register.
const RET: u32 = 0xd65f_03c0;

/// Whether a function of which this is the rest returns without a write to memory and without a call, whichever way it goes.
/// Instructions that are not known count as writes.
pub fn only_reads_on(code: &[u8]) -> bool {
    let (words, _) = code.as_chunks::<4>();
    let mut seen = Vec::new();
    let mut to_do = vec![0_i64];
    while let Some(at) = to_do.pop() {
        if seen.contains(&at) {
            continue;
        }
        seen.push(at);
        let word = usize::try_from(at).ok().and_then(|at| words.get(at));
        let Some(word) = word.filter(|_| seen.len() <= MOST_INSTRUCTIONS) else { return false };
        let word = u32::from_le_bytes(*word);
        match word {
            RET => {}
            _ if word >> 26 == 0b00_0101 => to_do.push(at + field(word, 0, 26)),
            // b.cond; cbz and cbnz; tbz and tbnz
            _ if word & 0xff00_0010 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => {
                to_do.extend([at + 1, at + field(word, 5, 19)]);
            }
            _ if word & 0x7e00_0000 == 0x3600_0000 => to_do.extend([at + 1, at + field(word, 5, 14)]),
            _ if computes(word) || loads(word) => to_do.push(at + 1),
            _ => return false,
        }
    }
    true
}

/// The signed field of so many bits.
const fn field(word: u32, from: u32, bits: u32) -> i64 {
    ((word << (32 - from - bits)).cast_signed() >> (32 - bits)) as i64
}

/// Whether the instruction only computes with registers and constants: the groups of data processing, and hints.
const fn computes(word: u32) -> bool {
    matches!(word >> 25 & 0b1111, 0b1000 | 0b1001 | 0b0101 | 0b1101 | 0b0111 | 0b1111)
        || word & 0xffff_f01f == 0xd503_201f
}

/// Whether the instruction loads general registers: `ldr` and its kin with an unsigned offset, `ldp`.
const fn loads(word: u32) -> bool {
    (word & 0x3f00_0000 == 0x3900_0000 && word & 0x00c0_0000 != 0) || word & 0x7e40_0000 == 0x2840_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_writes_calls_or_leaves_is_told() {
        let only_reads = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            only_reads_on(&code)
        };
        // sdiv w2, w0, w1; msub w0, w2, w1, w0; cbz w0, +8; add w0, w0, w1; ret
        assert!(only_reads(&[0x1ac1_0c02, 0x1b01_8040, 0x3400_0040, 0x0b01_0000, RET]));
        let cases: [(&[u32], bool); 16] = [
            // ldr x0, [x0, #8]
            (&[0xf940_0400, RET], true),
            // ldp x29, x30, [sp], #16
            (&[0xa8c1_7bfd, RET], true),
            // b.eq +8; nop; ret
            (&[0x5400_0040, 0xd503_201f, RET], true),
            // tbz w0, #0, +8; nop; ret
            (&[0x3600_0040, 0xd503_201f, RET], true),
            // b to itself
            (&[0x1400_0000], true),
            // fmov d0, d1
            (&[0x1e60_4020, RET], true),
            // str x0, [x0, #8]
            (&[0xf900_0400, RET], false),
            // strb w0, [x0]
            (&[0x3900_0000, RET], false),
            // stp x29, x30, [sp, #-16]!
            (&[0xa9bf_7bfd, RET], false),
            // str q0, [x0]
            (&[0x3d80_0000, RET], false),
            // ldadd w0, w1, [x2]
            (&[0xb820_0041, RET], false),
            // dc zva, x0
            (&[0xd50b_7420, RET], false),
            // bl +4
            (&[0x9400_0001, RET], false),
            // br x0
            (&[0xd61f_0000], false),
            // b -4, to what was before
            (&[0x17ff_ffff], false),
            // svc #0
            (&[0xd400_0001, RET], false),
        ];
        for (words, wanted) in cases {
            assert_eq!(only_reads(words), wanted, "{words:x?}");
        }
        assert!(!only_reads(&[0xd503_201f; 100]) && !only_reads(&[]));
    }
}
