//! Decodes the machine code of a trace, as far as it shows from which intermediate code it was assembled.
//!
//! LuaJIT's sources: [`asm_fusemadd`], [`emit_lso`], [`emit_loadk`], [`asm_href`], [`emit_lsptr`].
//!
//! [`asm_fusemadd`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_arm64.h#L355-L378
//! [`emit_lso`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_emit_arm64.h#L149-L181
//! [`emit_loadk`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_emit_arm64.h#L248-L292
//! [`asm_href`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_arm64.h#L851-L960
//! [`emit_lsptr`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_emit_arm64.h#L299-L318

use lj_trace_common::layout::VmLayout;

use crate::arch::instruction::{Machine, MachineAction, MachineOperation};

/// Decodes the machine code of a trace that lies at `address`.
///
/// A store of two registers counts as two stores, each from one instruction of the intermediate code (`emit_lso`): both
/// have the same offset.
pub fn decode(address: u64, code: &[u8]) -> Vec<Machine> {
    let range = address..address + code.len() as u64;
    let words = code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).zip((0..).step_by(4));
    words.flat_map(|(word, offset)| std::iter::repeat_n(describe(word, offset, &range), stores(word).max(1))).collect()
}

/// The effect of one instruction. It reports no registers: arithmetic here has three operands, so no register has to be
/// filled before an operation.
fn describe(word: u32, offset: u32, range: &std::ops::Range<u64>) -> Machine {
    let action = match branch(word, range.start + u64::from(offset)) {
        Some(Branch::If(target)) if range.contains(&target) => MachineAction::Branch,
        Some(Branch::If(target)) => MachineAction::Guard { target },
        Some(Branch::Always) => MachineAction::Jump,
        Some(Branch::Call) => MachineAction::Call,
        None if stores(word) > 0 => MachineAction::Store,
        None => MachineAction::Compute,
    };
    Machine { offset, action, writes: None, operation: operation(word), second: None, fills: false }
}

/// The target of a branch.
enum Branch {
    /// A conditional branch to this address.
    If(u64),
    /// An unconditional branch.
    Always,
    /// A function call.
    Call,
}

fn branch(word: u32, at: u64) -> Option<Branch> {
    // `lowest` and `bits` are the lowest bit and the width of the distance.
    let target = |lowest: u32, bits: u32| {
        let distance = ((word << (32 - lowest - bits)) as i32 >> (32 - bits)) * 4;
        Branch::If(at.wrapping_add_signed(i64::from(distance)))
    };
    Some(match word {
        // `b.al`: a lookup that finds nothing jumps in this way (`asm_href`).
        _ if word & 0xff00_000e == 0x5400_000e => Branch::Always,
        _ if word & 0xff00_0010 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => target(5, 19),
        _ if word & 0x7e00_0000 == 0x3600_0000 => target(5, 14),
        _ if word & 0xfc00_0000 == 0x1400_0000 => Branch::Always,
        _ if word & 0xfc00_0000 == 0x9400_0000 => Branch::Call,
        // `blr`, `br`, `ret`
        _ if word & 0xffff_fc1f == 0xd63f_0000 => Branch::Call,
        _ if word & 0xff9f_fc1f == 0xd61f_0000 => Branch::Always,
        _ => return None,
    })
}

/// How many registers an instruction stores to memory, not counting the native stack.
fn stores(word: u32) -> usize {
    const SP: u32 = 31;
    let is_pair = word & 0x3a40_0000 == 0x2800_0000;
    // With an offset that is a number, or a register.
    let is_single = word & 0x3ac0_0000 == 0x3800_0000;
    match (is_pair, is_single) {
        _ if word >> 5 & 31 == SP => 0,
        (true, _) => 2,
        (_, true) => 1,
        _ => 0,
    }
}

/// The kind of an instruction. Additions of immediates also build constants (`emit_loadk`), so they count as `Other`.
fn operation(word: u32) -> MachineOperation {
    /// Mask for operations with two or three operands: everything but the registers.
    const TWO: u32 = 0xffe0_fc00;
    const THREE: u32 = 0xffe0_8000;
    // Sums and differences of registers, shifted or extended. A discarded result goes to register 31.
    let is_sum = word & 0x1f00_0000 == 0x0b00_0000;
    let (sets_flags, discards) = (word & 0x2000_0000 != 0, word & 31 == 31);
    match word {
        _ if word & TWO == 0x1e60_2800 || word & THREE == 0x1f40_0000 => MachineOperation::Add,
        // `fsub`, `fmsub`, `fnmsub`
        _ if word & TWO == 0x1e60_3800 || word & THREE == 0x1f40_8000 || word & THREE == 0x1f60_8000 => {
            MachineOperation::Subtract
        }
        _ if word & TWO == 0x1e60_0800 => MachineOperation::Multiply,
        _ if word & TWO == 0x1e60_1800 => MachineOperation::Divide,
        _ if word & 0xffff_fc00 == 0x1e61_c000 => MachineOperation::SquareRoot,
        // `frintp`, `frintm`, `frintz`
        _ if matches!(word & 0xffff_fc00, 0x1e64_c000 | 0x1e65_4000 | 0x1e65_c000) => MachineOperation::Round,
        // `fcmp`
        _ if word & 0xffe0_fc07 == 0x1e60_2000 => MachineOperation::Compare,
        // `cmp`, `cmn`, also with an immediate
        _ if (is_sum || word & 0x1f80_0000 == 0x1100_0000) && sets_flags && discards => MachineOperation::Compare,
        // `tst`
        _ if matches!(word & 0x7f80_0000, 0x7200_0000) && discards => MachineOperation::Compare,
        _ if word & 0x7f20_0000 == 0x6a00_0000 && discards => MachineOperation::Compare,
        _ if is_sum && !sets_flags && !discards => MachineOperation::Integer,
        // `mul`, `smull`
        _ if matches!(word & 0xffe0_fc00, 0x1b00_7c00 | 0x9b00_7c00 | 0x9b20_7c00) => MachineOperation::Integer,
        // `rev`
        _ if matches!(word & 0xffff_fc00, 0x5ac0_0800 | 0xdac0_0c00) => MachineOperation::SwapBytes,
        _ => MachineOperation::Other,
    }
}

/// `str xN, [x22, #offset]`, without the bits of N and the offset.
const STORE_BY_GLOBAL: u32 = 0xf900_0000 | 22 << 5;

/// Offsets of the instructions after those that store `global_State.jit_base`: `x22` is the `global_State`.
pub fn base_stores(code: &[u8], _global: u64, layout: &VmLayout) -> Vec<u32> {
    let wanted = STORE_BY_GLOBAL | u32::from(layout.g_jit_base / 8) << 10;
    let instructions = code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).zip((4..).step_by(4));
    instructions.filter(|(instruction, _)| instruction & !0x1f == wanted).map(|(_, after)| after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(code: &[u32]) -> Vec<u8> {
        code.iter().flat_map(|instruction| instruction.to_le_bytes()).collect()
    }

    #[test]
    fn finds_stores_of_jit_base() {
        let layout = VmLayout { g_jit_base: 368, ..VmLayout::default() };
        // str x19, [x22, #368]; ldr x19, [x22, #368]; str w19, [x22, #184]; str x3, [x22, #368]; str x3, [x22, #376]
        let code = bytes(&[0xf900_bad3_u32, 0xf940_bad3, 0xb900_bad3, 0xf900_bac3, 0xf900_bec3]);
        assert_eq!(base_stores(&code, 0, &layout), [4, 16]);
        assert_eq!(base_stores(&code[..3], 0, &layout), [0; 0]);
    }

    #[test]
    fn tells_what_instructions_do() {
        use MachineAction::{Branch, Call, Compute, Guard, Jump, Store};
        let at = 0x1000;
        let cases = [
            // b.ne +0x200; b.ls +8; cbz w0, +0x100; cbnz x1, -8; tbz w2, #3, +0x100; tbnz x3, #40, -0x1010
            (0x5400_1001, Guard { target: at + 0x200 }),
            (0x5400_0049, Branch),
            (0x3400_0800, Guard { target: at + 8 + 0x100 }),
            (0xb5ff_ffc1, Branch),
            (0x3618_0802, Guard { target: at + 16 + 0x100 }),
            (0xb747_7f83, Guard { target: at + 20 - 0x1010 }),
            // b.al +0x100; b +0x1000; bl -4; blr x8; br x30; ret
            (0x5400_080e, Jump),
            (0x1400_0400, Jump),
            (0x97ff_ffff, Call),
            (0xd63f_0100, Call),
            (0xd61f_03c0, Jump),
            (0xd65f_03c0, Jump),
            // str x0, [x1, #8]; str d0, [x1]; strb w0, [x1, x2]; stur w0, [x1, #-4]; str x0, [sp, #8]; ldr x0, [x1, #8]
            (0xf900_0420, Store),
            (0xfd00_0020, Store),
            (0x3822_6820, Store),
            (0xb81f_c020, Store),
            (0xf900_07e0, Compute),
            (0xf940_0420, Compute),
            // ldp x0, x1, [x2]; stp x0, x1, [sp]
            (0xa940_0440, Compute),
            (0xa900_07e0, Compute),
        ];
        let decoded = decode(at, &bytes(&cases.map(|(word, _)| word)));
        assert_eq!(decoded.len(), cases.len());
        for (index, (machine, (word, action))) in decoded.iter().zip(cases).enumerate() {
            assert_eq!((machine.offset as usize, machine.action), (4 * index, action), "{word:#x}");
        }
    }

    #[test]
    fn two_stores_may_be_one_instruction() {
        // stp x0, x1, [x2]; stp d0, d1, [x2, #16]; stp w0, w1, [x2]; fmov d0, d1
        let decoded = decode(0, &bytes(&[0xa900_0440, 0x6d01_0440, 0x2900_0440, 0x1e60_4020]));
        let stores = decoded.iter().filter(|machine| machine.action == MachineAction::Store);
        assert_eq!(stores.map(|machine| machine.offset).collect::<Vec<_>>(), [0, 0, 4, 4, 8, 8]);
        assert_eq!(decoded.len(), 7);
    }

    #[test]
    fn knows_operations() {
        use MachineOperation::{
            Add, Compare, Divide, Integer, Multiply, Other, Round, SquareRoot, Subtract, SwapBytes,
        };
        let cases = [
            (0x1e62_2820_u32, Add),    // fadd d0, d1, d2
            (0x1f42_0c20, Add),        // fmadd d0, d1, d2, d3
            (0x1e62_3820, Subtract),   // fsub d0, d1, d2
            (0x1f42_8c20, Subtract),   // fmsub d0, d1, d2, d3
            (0x1f62_8c20, Subtract),   // fnmsub d0, d1, d2, d3
            (0x1e62_0820, Multiply),   // fmul d0, d1, d2
            (0x1e62_1820, Divide),     // fdiv d0, d1, d2
            (0x1e61_c020, SquareRoot), // fsqrt d0, d1
            (0x1e65_4020, Round),      // frintm d0, d1
            (0x1e62_2020, Compare),    // fcmp d1, d2
            (0x1e60_2028, Compare),    // fcmp d1, #0.0
            (0xeb02_003f, Compare),    // cmp x1, x2
            (0x7100_043f, Compare),    // cmp w1, #1
            (0xb100_043f, Compare),    // cmn x1, #1
            (0x7200_003f, Compare),    // tst w1, #1
            (0x6a02_003f, Compare),    // tst w1, w2
            (0x0b02_0020, Integer),    // add w0, w1, w2
            (0x8b22_4020, Integer),    // add x0, x1, w2, uxtw
            (0x4b02_0020, Integer),    // sub w0, w1, w2
            (0x1b02_7c20, Integer),    // mul w0, w1, w2
            (0x9b22_7c20, Integer),    // smull x0, w1, w2
            (0x9100_0420, Other),      // add x0, x1, #1
            (0x2b02_0020, Other),      // adds w0, w1, w2
            (0x5ac0_0820, SwapBytes),  // rev w0, w1
            (0xaa01_03e0, Other),      // mov x0, x1
            (0x1e60_4020, Other),      // fmov d0, d1
            (0x9a82_0020, Other),      // csel x0, x1, x2, eq
            (0xd280_0020, Other),      // mov x0, #1
        ];
        for (word, operation) in cases {
            let [machine] = decode(0, &word.to_le_bytes())[..] else { panic!("{word:#x}") };
            assert_eq!(machine.operation, operation, "{word:#x}");
        }
    }
}
