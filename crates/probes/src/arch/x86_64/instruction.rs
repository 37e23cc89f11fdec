//! Decoded instructions.

use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
};

use lj_trace_common::arch::Register;

use crate::arch::effects::{Control, Effects};

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub struct MachineInstruction(iced_x86::Instruction);

impl MachineInstruction {
    /// The instruction at the start of `bytes`, at this address; [`None`] if the bytes are no instruction.
    pub fn decode(bytes: &[u8], address: u64) -> Option<Self> {
        let decoded = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        (!bytes.is_empty() && !decoded.is_invalid()).then_some(Self(decoded))
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Its mnemonic.
    pub fn name(&self) -> String {
        format!("{:?}", self.0.mnemonic()).to_lowercase()
    }

    /// Where control goes after it.
    pub fn control(&self) -> Control {
        let instruction = &self.0;
        let is_near = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
        let target = instruction.near_branch_target();
        match instruction.flow_control() {
            FlowControl::Next => Control::Next,
            FlowControl::Call | FlowControl::IndirectCall => Control::Call(is_near.then_some(target)),
            FlowControl::UnconditionalBranch if is_near => Control::Jump(target),
            FlowControl::ConditionalBranch if is_near => Control::Branch(target),
            // A fixed slot of the global offset table: another function, in position-independent code without PLT.
            FlowControl::IndirectBranch if instruction.memory_base() == iced_x86::Register::RIP => Control::TableJump,
            FlowControl::IndirectBranch => Control::ComputedJump,
            FlowControl::Return => Control::Return,
            FlowControl::Exception => Control::Nowhere,
            _ => Control::Unusual,
        }
    }

    /// Its effects on registers.
    pub fn effects(&self) -> Effects {
        let instruction = &self.0;
        let mut factory = InstructionInfoFactory::new();
        let written = factory.info(instruction).used_registers().iter().filter(|used| writes(used.access()));
        Effects {
            written: written.filter_map(|used| general(used.register())).fold(0, |bits, r| bits | 1 << r as u32),
            copies: copied_register(instruction)
                .and_then(|source| Some((general(instruction.op0_register())?, source))),
            moves_stack: moves_rsp(instruction),
            is_call: matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall),
            changes_flags: instruction.rflags_modified() != 0,
            tests: compares_with_zero(instruction),
        }
    }

    /// For a conditional branch on the zero flag: whether it is taken if the flag is set (true) or if it is clear
    /// (false). [`None`] for all others.
    pub fn taken_if_zero(&self) -> Option<bool> {
        match self.0.condition_code() {
            ConditionCode::e => Some(true),
            ConditionCode::ne => Some(false),
            _ => None,
        }
    }
}

/// The source of a `mov` between two 64-bit registers.
fn copied_register(instruction: &iced_x86::Instruction) -> Option<Register> {
    let is_copy = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register;
    is_copy.then(|| general(instruction.op1_register())).flatten()
}

/// The 64-bit register whose being 0 the zero flag shows afterwards.
fn compares_with_zero(instruction: &iced_x86::Instruction) -> Option<Register> {
    let operand = instruction.op0_register();
    let zero = match instruction.mnemonic() {
        Mnemonic::Test => instruction.op1_kind() == OpKind::Register && instruction.op1_register() == operand,
        Mnemonic::Cmp => is_immediate(instruction) && instruction.immediate(1) == 0,
        _ => false,
    };
    (zero && instruction.op0_kind() == OpKind::Register && operand.is_gpr64()).then(|| general(operand)).flatten()
}

/// By how many bytes the instruction moves `rsp`, if the instruction itself says so.
fn moves_rsp(instruction: &iced_x86::Instruction) -> Option<i64> {
    use iced_x86::Register::RSP;
    let on_rsp =
        instruction.op_count() == 2 && instruction.op0_kind() == OpKind::Register && instruction.op0_register() == RSP;
    match instruction.mnemonic() {
        // The return address of a call is gone again when the next instruction runs.
        Mnemonic::Call => Some(0),
        Mnemonic::Push => Some(i64::from(instruction.stack_pointer_increment())),
        Mnemonic::Pop if instruction.op0_kind() == OpKind::Register && instruction.op0_register() != RSP => {
            Some(i64::from(instruction.stack_pointer_increment()))
        }
        Mnemonic::Add if on_rsp && is_immediate(instruction) => Some(instruction.immediate(1) as i64),
        Mnemonic::Sub if on_rsp && is_immediate(instruction) => (instruction.immediate(1) as i64).checked_neg(),
        _ => None,
    }
}

fn is_immediate(instruction: &iced_x86::Instruction) -> bool {
    matches!(
        instruction.op1_kind(),
        OpKind::Immediate8 | OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate8to32
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// The general register that contains this register.
fn general(register: iced_x86::Register) -> Option<Register> {
    /// Registers in the order of their encoding, which iced-x86 uses, with their DWARF names.
    const ENCODED: [Register; 8] = {
        use Register::*;
        [Rax, Rcx, Rdx, Rbx, Rsp, Rbp, Rsi, Rdi]
    };
    let full = register.full_register();
    if !full.is_gpr64() {
        return None;
    }
    let number = full.number();
    ENCODED.get(number).copied().or_else(|| u16::try_from(number).ok().and_then(Register::from_dwarf))
}
