//! What a compiled function refers to, in the order of its code.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use crate::references::References;

/// Smaller constants occur everywhere: flags, sizes, numbers of registers.
const SMALLEST_CONSTANT: u64 = 0x100;

/// The references in the code of a function that begins at `start`.
pub fn references(code: &[u8], start: u64) -> References {
    let mut found = References::default();
    let end = start.wrapping_add(code.len() as u64);
    for instruction in &mut Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
        match instruction.flow_control() {
            // Conditional jumps out of the function lead to its cold part, so they do not count.
            FlowControl::Call | FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                let is_call = instruction.flow_control() == FlowControl::Call;
                if is_call || !(start..end).contains(&target) {
                    found.calls.push(target);
                }
            }
            FlowControl::IndirectCall | FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
                found.calls.push(References::THROUGH_SLOT);
            }
            FlowControl::Next => next(&instruction, &mut found),
            _ => {}
        }
    }
    found.constants.sort_unstable();
    found.constants.dedup();
    found
}

fn next(instruction: &Instruction, found: &mut References) {
    if instruction.code() == Code::Lea_r64_m && instruction.is_ip_rel_memory_operand() {
        found.addresses.push(instruction.ip_rel_memory_address());
        return;
    }
    if instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP {
        return;
    }
    for operand in 0..instruction.op_count() {
        let value = match instruction.op_kind(operand) {
            OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64 => instruction.immediate(operand),
            _ => continue,
        };
        // The caller decides whether the constant is an address.
        let is_move = matches!(instruction.code(), Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 | Code::Mov_rm32_imm32);
        if is_move {
            found.addresses.push(value & 0xffff_ffff);
        }
        if value >= SMALLEST_CONSTANT {
            found.constants.push(value as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_calls_jumps_out_and_addresses() {
        let code = [
            0xe8, 0x00, 0x01, 0x00, 0x00, // call 0x1105
            0x48, 0x8d, 0x3d, 0x10, 0x00, 0x00, 0x00, // lea rdi, [rip+16]: 0x101c
            0x74, 0xf2, // je 0x1000
            0xff, 0x15, 0, 0, 0, 0, // call [rip]
            0xbe, 0x78, 0x56, 0x34, 0x12, // mov esi, 0x12345678
            0x81, 0xfa, 0x00, 0x01, 0x00, 0x00, // cmp edx, 0x100
            0x48, 0x81, 0xec, 0x00, 0x10, 0x00, 0x00, // sub rsp, 0x1000
            0xe9, 0x00, 0x02, 0x00, 0x00, // jmp
        ];
        let found = references(&code, 0x1000);
        let end = 0x1000 + code.len() as u64;
        assert_eq!(found.calls, [0x1105, References::THROUGH_SLOT, end + 0x200]);
        assert_eq!(found.addresses, [0x101c, 0x1234_5678]);
        assert_eq!(found.constants, [0x100, 0x1234_5678]);
    }

    #[test]
    fn any_bytes_are_code() {
        let mut seed = 1_u64;
        let bytes: Vec<_> = (0..1 << 14)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        for start in [0, 0x1000, u64::MAX - 100] {
            references(&bytes, start);
        }
    }
}
