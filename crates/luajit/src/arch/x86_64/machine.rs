//! Decodes the machine code of a trace, as far as it shows from which intermediate code it was assembled.
//!
//! LuaJIT's sources: [`asm_fparith`], [`emit_loadk64`], [`GPRDEF`], [`emit_setgl`], [`emit_rma`].
//!
//! [`asm_fparith`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_x86.h#L2080-L2102
//! [`emit_loadk64`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_emit_x86.h#L391-L431
//! [`GPRDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_target_x86.h#L11-L18
//! [`emit_setgl`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_emit_x86.h#L272-L276
//! [`emit_rma`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_emit_x86.h#L348-L388

use iced_x86::{
    Code as X86, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

use lj_trace_common::layout::VmLayout;

use crate::arch::instruction::{Machine, MachineAction, MachineOperation};

/// Decodes the machine code of a trace that lies at `address`.
pub fn decode(address: u64, code: &[u8]) -> Vec<Machine> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let mut instructions = Vec::new();
    let range = address..address + code.len() as u64;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.code() == X86::INVALID {
            break;
        }
        instructions.push(describe(&mut factory, &instruction, &range));
    }
    instructions
}

fn describe(factory: &mut InstructionInfoFactory, ins: &Instruction, range: &std::ops::Range<u64>) -> Machine {
    let info = factory.info(ins);
    let on_stack = |base: Register| matches!(base, Register::RSP | Register::ESP);
    let writes = |access| matches!(access, OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite);
    let stores = info.used_memory().iter().any(|used| writes(used.access()) && !on_stack(used.base()));
    // Constants are addressed relative to the dispatch table in `r14`, to the instruction, or directly (`emit_loadk64`).
    let is_constant = ins.op1_kind() == OpKind::Memory
        && ins.memory_index() == Register::None
        && matches!(ins.memory_base(), Register::None | Register::RIP | Register::R14);
    let is_filled = match ins.mnemonic() {
        Mnemonic::Movaps | Mnemonic::Movapd => ins.op1_kind() == OpKind::Register,
        Mnemonic::Movsd => is_constant || ins.op1_kind() == OpKind::Register,
        Mnemonic::Xorps => ins.op0_register() == ins.op1_register(),
        _ => false,
    };
    let is_lea = ins.mnemonic() == Mnemonic::Lea;
    let written = info
        .used_registers()
        .iter()
        .filter(|used| writes(used.access()) || used.access() == OpAccess::ReadCondWrite)
        .find_map(|used| number(used.register()));
    let action = match ins.flow_control() {
        FlowControl::ConditionalBranch => {
            let target = ins.near_branch_target();
            if range.contains(&target) { MachineAction::Branch } else { MachineAction::Guard { target } }
        }
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => MachineAction::Jump,
        FlowControl::Call | FlowControl::IndirectCall => MachineAction::Call,
        _ if stores && !is_lea => MachineAction::Store,
        _ => MachineAction::Compute,
    };
    let writes = if matches!(action, MachineAction::Compute) { written } else { None };
    let second = if ins.op1_kind() == OpKind::Register { number(ins.op1_register()) } else { None };
    Machine {
        offset: (ins.ip() - range.start) as u32,
        action,
        writes,
        operation: operation(ins),
        second,
        fills: is_filled && writes.is_some_and(|register| register >= 16),
    }
}

fn operation(ins: &Instruction) -> MachineOperation {
    let is_into_register = ins.op0_kind() == OpKind::Register && ins.op0_register().full_register() != Register::RSP;
    match ins.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Imul if is_into_register => MachineOperation::Integer,
        Mnemonic::Addsd => MachineOperation::Add,
        Mnemonic::Subsd => MachineOperation::Subtract,
        Mnemonic::Mulsd => MachineOperation::Multiply,
        Mnemonic::Divsd => MachineOperation::Divide,
        Mnemonic::Sqrtsd => MachineOperation::SquareRoot,
        Mnemonic::Roundsd => MachineOperation::Round,
        Mnemonic::Minsd => MachineOperation::Minimum,
        Mnemonic::Maxsd => MachineOperation::Maximum,
        Mnemonic::Bswap => MachineOperation::SwapBytes,
        Mnemonic::Cmp | Mnemonic::Ucomisd | Mnemonic::Test => MachineOperation::Compare,
        Mnemonic::Jp => MachineOperation::JumpIfUnordered,
        _ => MachineOperation::Other,
    }
}

/// LuaJIT's number of a register (`lj_target_x86.h`): 0 to 15, or 16 and more for `xmm0` and up.
fn number(register: Register) -> Option<u8> {
    let full = register.full_register();
    if full.is_gpr64() {
        u8::try_from(full as u32 - Register::RAX as u32).ok()
    } else if register.is_xmm() {
        u8::try_from(register as u32 - Register::XMM0 as u32 + 16).ok()
    } else if full.is_ymm() || full.is_zmm() {
        u8::try_from(full.number() + 16).ok()
    } else {
        None
    }
}

/// Offsets of the instructions after those that store `global_State.jit_base`. The assembler addresses it by its
/// distance from the dispatch table, or, without GC64, by its address (`emit_setgl`, `lj_emit_x86.h`).
pub fn base_stores(code: &[u8], global: u64, layout: &VmLayout) -> Vec<u32> {
    let jit_base = i64::from(layout.g_jit_base);
    let target = if layout.is_gc64() {
        (jit_base - i64::from(layout.g_to_dispatch)) as u64
    } else {
        global.wrapping_add(u64::from(layout.g_jit_base))
    };
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut stores = Vec::new();
    while decoder.can_decode() {
        let ins = decoder.decode();
        let base = if layout.is_gc64() { Register::R14 } else { Register::None };
        if ins.mnemonic() == Mnemonic::Mov
            && ins.op0_kind() == OpKind::Memory
            && ins.memory_base() == base
            && ins.memory_index() == Register::None
            && ins.memory_displacement64() == target
        {
            stores.push(ins.next_ip32());
        }
    }
    stores
}
