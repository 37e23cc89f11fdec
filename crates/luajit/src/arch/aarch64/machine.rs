//! The machine code of traces.
//!
//! LuaJIT's sources: [`emit_lsptr`].
//!
//! [`emit_lsptr`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_emit_arm64.h#L338-L347

use lj_trace_common::layout::VmLayout;

use crate::arch::instruction::Machine;

/// The machine code of a trace is not told apart on this processor yet: where in a trace the processor is shows which trace it
/// is, and no line of it.
pub fn decode(_address: u64, _code: &[u8]) -> Vec<Machine> {
    Vec::new()
}

/// `str xN, [x22, #offset]`, without N and the offset.
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

    #[test]
    fn finds_stores_of_jit_base() {
        let layout = VmLayout { g_jit_base: 368, ..VmLayout::default() };
        // str x19, [x22, #368]; ldr x19, [x22, #368]; str w19, [x22, #184]; str x3, [x22, #368]; str x3, [x22, #376]
        let code = [0xf900_bad3_u32, 0xf940_bad3, 0xb900_bad3, 0xf900_bac3, 0xf900_bec3];
        let bytes: Vec<u8> = code.iter().flat_map(|instruction| instruction.to_le_bytes()).collect();
        assert_eq!(base_stores(&bytes, 0, &layout), [4, 16]);
        assert_eq!(base_stores(&bytes[..3], 0, &layout), [0; 0]);
    }
}
