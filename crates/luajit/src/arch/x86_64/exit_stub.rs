//! Exit stubs: the few instructions through which a trace is left. They lie at the start of an area of machine code,
//! outside of its traces. They push the number of the exit, low byte first, and jump to the VM's exit handler
//! ([`asm_exitstub_gen`]), which is [`vm_exit_handler`] ([`vm_exit_handler` without GC64]).
//!
//! [`asm_exitstub_gen`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_x86.h#L9-L48
//! [`vm_exit_handler`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2447-L2463
//! [`vm_exit_handler` without GC64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x86.dasc#L2850-L2874

use lj_trace_common::memory::ReadMemory;

/// `push imm8`.
const PUSH: u8 = 0x6a;
/// `jmp rel8`, from a stub to the end of its group.
const JUMP: u8 = 0xeb;

/// The exit that the stub at `pc` leads to; [`None`] if there is no stub, or its exit is not known. `stack` has the
/// words at the stack pointer, the newest one first.
pub fn exit_at<M: ReadMemory>(memory: &M, pc: u64, stack: [Option<u64>; 2]) -> Option<u16> {
    let code = |at: u64| memory.read::<[u8; 2]>(at).ok();
    let [newest, before] = stack.map(|word| pushed(word?));
    let (low, high) = match code(pc)? {
        [PUSH, byte] => match high_byte(memory, pc) {
            // The end of the group.
            Some(high) => (newest?, high),
            None => (byte, after_low(memory, pc.wrapping_add(2))?),
        },
        [JUMP, _] => (newest?, after_low(memory, pc)?),
        // After the push, or after the instruction that follows it.
        _ if newest.is_some() && [2, 10].iter().any(|back| high_byte(memory, pc.wrapping_sub(*back)) == newest) => {
            (before?, newest?)
        }
        _ => return None,
    };
    Some(u16::from(low) | u16::from(high) << 8)
}

/// The lowest byte of the exit whose stub begins at `address`.
pub fn exit_byte_at<M: ReadMemory>(memory: &M, address: u64) -> Option<u8> {
    let [code, exit]: [u8; 2] = memory.read(address).ok()?;
    (code == PUSH).then_some(exit)
}

/// The exit that the exit handler works on. The trace has `spadjust` bytes of the stack for itself, in the C frame at
/// `cframe`. Its stub has pushed the low byte of the number, then the high byte, each sign-extended. The handler first
/// keeps them there, later in the register whose value is `kept` (`vm_exit_handler`, `vm_x64.dasc`, `vm_x86.dasc`).
pub fn exit_in_handler((cframe, spadjust): (u64, u16), stack: impl Fn(u64) -> Option<u64>, kept: u64) -> Option<u16> {
    let slot = cframe.checked_sub(24 + u64::from(spadjust))?;
    let byte = |slot: u64| pushed(stack(slot)?);
    Some(match (byte(slot), byte(slot - 8)) {
        (Some(low), Some(high)) => u16::from(low) | u16::from(high) << 8,
        _ => kept as u16,
    })
}

/// Whether a trace that ends has released its part of the stack; `distance` is from the stack pointer up to the C
/// frame, in bytes. Two saved registers may lie between.
pub fn has_left_its_frame(distance: u64) -> bool {
    matches!(distance, 0 | 16)
}

/// The byte that `push imm8` has sign-extended to this word.
fn pushed(word: u64) -> Option<u8> {
    i8::try_from(word as i64).ok().map(|byte| byte as u8)
}

/// The exit's high byte, if the code continues at `pc` after the low byte was pushed.
fn after_low<M: ReadMemory>(memory: &M, pc: u64) -> Option<u8> {
    match memory.read::<[u8; 2]>(pc).ok()? {
        [JUMP, distance] => high_byte(memory, pc.wrapping_add(2 + u64::from(distance))),
        // The last stub of a group runs into its end.
        _ => high_byte(memory, pc),
    }
}

/// The byte that the end of a group pushes, if it begins at `pc`.
fn high_byte<M: ReadMemory>(memory: &M, pc: u64) -> Option<u8> {
    let [push, byte]: [u8; 2] = memory.read(pc).ok()?;
    (push == PUSH && is_end(memory, pc.wrapping_add(2))).then_some(byte)
}

/// Whether the code at `pc` is what remains after both bytes are pushed.
fn is_end<M: ReadMemory>(memory: &M, pc: u64) -> bool {
    let code: Result<[u8; 4], _> = memory.read(pc);
    // `mov dword [rsp+16], imm32` without GC64, `jmp rel32`, `jmp [rip+rel32]`.
    matches!(code, Ok([0xc7, 0x44, 0x24, 0x10] | [0xe9, ..] | [0xff, 0x25, ..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Saved;

    const START: u64 = 0x1000;
    const PER_GROUP: u64 = 32;

    /// A group of stubs as LuaJIT generates it, with the code after the pushes.
    fn group(number: u64, end: &[u8]) -> Saved {
        let first = number * PER_GROUP;
        let mut code = vec![PUSH, first as u8];
        for index in 1..PER_GROUP {
            code.extend([JUMP, (4 * (PER_GROUP - index) - 2) as u8, PUSH, (first + index) as u8]);
        }
        code.extend([PUSH, (first >> 8) as u8]);
        code.extend(end);
        Saved::new(START, code)
    }

    const ENDS: [&[u8]; 3] = [
        &[0xe9, 1, 2, 3, 4, 0, 0, 0],
        &[0xff, 0x25, 1, 2, 3, 4, 0, 0],
        &[0xc7, 0x44, 0x24, 0x10, 1, 2, 3, 4, 0xe9, 1, 2, 3, 4, 0, 0, 0],
    ];

    /// The word that `push imm8` pushes.
    fn word(byte: u64) -> Option<u64> {
        Some(byte as u8 as i8 as i64 as u64)
    }

    #[test]
    fn every_instruction_of_every_stub_tells_its_exit() {
        for (number, end) in (0..16).flat_map(|number| ENDS.map(|end| (number, end))) {
            let memory = group(number, end);
            for index in 0..PER_GROUP {
                let exit = number * PER_GROUP + index;
                let (low, high) = (word(exit & 0xff), word(exit >> 8));
                let at = START + 4 * index;
                let unknown = Some(0x7f00_1234_5678);
                let mut found = vec![
                    exit_at(&memory, at, [unknown, unknown]),
                    exit_at(&memory, at + 2, [low, unknown]),
                    exit_at(&memory, START + 4 * PER_GROUP - 2, [low, unknown]),
                    exit_at(&memory, START + 4 * PER_GROUP, [high, low]),
                ];
                if end[0] == 0xc7 {
                    found.push(exit_at(&memory, START + 4 * PER_GROUP + 8, [high, low]));
                }
                assert!(found.iter().all(|found| *found == Some(exit as u16)), "exit {exit}, {end:x?}: {found:?}");
            }
        }
    }

    #[test]
    fn other_code_tells_nothing() {
        let memory = group(0, ENDS[0]);
        let (low, high) = (word(1), word(0));
        assert_eq!(exit_at(&memory, START + 1, [low, high]), None, "in the middle of an instruction");
        assert_eq!(exit_at(&memory, START + 4 * PER_GROUP, [None, low]), None, "a stack that was not copied");
        assert_eq!(exit_at(&memory, START + 4 * PER_GROUP, [Some(0x1234), low]), None, "no byte");
        assert_eq!(exit_at(&memory, START - 64, [low, high]), None, "no memory");
        assert_eq!(exit_at(&group(0, &[0xc3; 8]), START, [low, high]), None, "no stub");
    }
}
