//! Which instruction of the intermediate code a machine instruction was assembled from (`lj_asm.c`,
//! `lj_asm_x86.h`).
//!
//! The assembler goes through the intermediate code backwards and puts machine code in front of machine code, so
//! both are in the same order. What fits what shows in guards (conditional jumps out of the trace), calls, stores,
//! the kind of an operation, and the register of the result, which the intermediate code still says.

use iced_x86::{
    Code as X86, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register,
};

use super::ir::{Effect, Ins, Op as Ir, Opcode, irt};
use lj_trace_common::layout::VmLayout;

/// A machine instruction, as far as it tells what it was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its offset in the trace's code.
    pub offset: u32,
    /// What it does.
    pub action: Action,
    /// The register that it writes: 0 to 15, or 16 and more for `xmm0` and on.
    pub writes: Option<u8>,
    /// The kind of operation.
    pub mnemonic: Mnemonic,
    /// Whether it reads memory other than the native stack.
    pub loads: bool,
}

/// What a machine instruction does beside computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing else.
    Compute,
    /// It leaves the trace, or goes on.
    Guard {
        /// Where it leaves to.
        target: u64,
    },
    /// It jumps within the trace.
    Branch,
    /// It calls a function.
    Call,
    /// It writes memory other than the native stack.
    Store,
    /// It goes on elsewhere: the end of the trace or of its loop.
    Jump,
}

impl Machine {
    /// Whether it is the operation of an arithmetic instruction on numbers, which is assembled to one
    /// (`asm_fparith`, `lj_asm_x86.h`).
    pub fn is_arithmetic(&self) -> bool {
        matches!(self.mnemonic, Mnemonic::Addsd | Mnemonic::Subsd | Mnemonic::Mulsd | Mnemonic::Divsd)
    }
}

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
    let loads = info
        .used_memory()
        .iter()
        .any(|used| matches!(used.access(), OpAccess::Read | OpAccess::ReadWrite) && !on_stack(used.base()));
    let is_lea = ins.mnemonic() == Mnemonic::Lea;
    let written = info
        .used_registers()
        .iter()
        .filter(|used| writes(used.access()) || used.access() == OpAccess::ReadCondWrite)
        .find_map(|used| number(used.register()));
    let action = match ins.flow_control() {
        FlowControl::ConditionalBranch => {
            let target = ins.near_branch_target();
            if range.contains(&target) { Action::Branch } else { Action::Guard { target } }
        }
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => Action::Jump,
        FlowControl::Call | FlowControl::IndirectCall => Action::Call,
        _ if stores && !is_lea => Action::Store,
        _ => Action::Compute,
    };
    let writes = if matches!(action, Action::Compute) { written } else { None };
    Machine {
        offset: (ins.ip() - range.start) as u32,
        action,
        writes,
        mnemonic: ins.mnemonic(),
        loads: loads && !is_lea,
    }
}

/// A register by LuaJIT's number (`lj_target_x86.h`).
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

/// Whether machine code was made from an instruction at all: others were dropped, sunk, or became an operand of
/// what uses them.
pub fn is_assembled(opcode: &Opcode, ins: Ins) -> bool {
    if ins.is_sunk() || matches!(opcode.op, Ir::NOP | Ir::USE | Ir::PHI | Ir::RENAME | Ir::PVAL | Ir::CARG) {
        return false;
    }
    // `ir_sideeff` (`lj_ir.h`): stores, and guards.
    opcode.op == Ir::BASE
        || opcode.effect == Effect::Store
        || ins.is_guard()
        || ins.register().is_some()
        || ins.is_spilled()
}

fn calls(ir: Ir) -> Option<bool> {
    match ir {
        Ir::CALLN
        | Ir::CALLA
        | Ir::CALLL
        | Ir::CALLS
        | Ir::CALLXS
        | Ir::SNEW
        | Ir::XSNEW
        | Ir::TNEW
        | Ir::TDUP
        | Ir::CNEW
        | Ir::CNEWI
        | Ir::TOSTR
        | Ir::STRTO
        | Ir::BUFPUT
        | Ir::BUFSTR
        | Ir::NEWREF
        | Ir::GCSTEP => Some(true),
        // The garbage collector's step stands where a trace or its loop begins (`asm_loop`).
        Ir::BASE
        | Ir::LOOP
        | Ir::FPMATH
        | Ir::POW
        | Ir::MOD
        | Ir::DIV
        | Ir::OBAR
        | Ir::LDEXP
        | Ir::ALEN
        | Ir::CONV
        | Ir::TBAR
        | Ir::BUFHDR
        | Ir::HIOP
        | Ir::MIN
        | Ir::MAX => None,
        _ => Some(false),
    }
}

/// How well a machine instruction fits an instruction of the intermediate code.
pub fn affinity(machine: &Machine, opcode: &Opcode, ins: Ins) -> f32 {
    let ir = opcode.op;
    let mut score = match machine.action {
        Action::Guard { .. } => {
            if ins.is_guard() || matches!(ir, Ir::GCSTEP | Ir::BASE) {
                4.0
            } else {
                -6.0
            }
        }
        Action::Call => match calls(ir) {
            Some(true) => 4.0,
            None => 1.0,
            Some(false) => -6.0,
        },
        Action::Store => match ir {
            Ir::ASTORE | Ir::HSTORE | Ir::USTORE | Ir::FSTORE | Ir::XSTORE => 3.0,
            Ir::TBAR | Ir::RETF | Ir::BUFHDR | Ir::BUFPUT | Ir::CNEW | Ir::CNEWI | Ir::TMPREF | Ir::OBAR => 1.0,
            _ if calls(ir) == Some(true) => 0.5,
            _ => -3.0,
        },
        Action::Branch => match ir {
            Ir::HREF
            | Ir::TBAR
            | Ir::OBAR
            | Ir::ALEN
            | Ir::MIN
            | Ir::MAX
            | Ir::FPMATH
            | Ir::CONV
            | Ir::MOD
            | Ir::EQ
            | Ir::NE
            | Ir::BUFPUT
            | Ir::LT
            | Ir::GE
            | Ir::LE
            | Ir::GT
            | Ir::ULT
            | Ir::UGE
            | Ir::ULE
            | Ir::UGT
            | Ir::LOOP => 0.5,
            _ => -1.0,
        },
        Action::Jump => 0.0,
        Action::Compute => 0.0,
    };
    if let (Some(written), Some(result)) = (machine.writes, ins.register()) {
        score += if written == result { 2.0 } else { -0.3 };
    }
    score + operation(machine, ir, ins)
}

/// Whether the kind of the operation is that of the instruction.
fn operation(machine: &Machine, ir: Ir, ins: Ins) -> f32 {
    let is_num = ins.kind_of_result() == irt::NUM;
    let wanted: &[Ir] = match machine.mnemonic {
        Mnemonic::Addsd => &[Ir::ADD],
        Mnemonic::Subsd => &[Ir::SUB],
        Mnemonic::Mulsd => &[Ir::MUL],
        Mnemonic::Divsd => &[Ir::DIV],
        Mnemonic::Sqrtsd => &[Ir::FPMATH, Ir::POW],
        Mnemonic::Roundsd => &[Ir::FPMATH],
        Mnemonic::Minsd => &[Ir::MIN],
        Mnemonic::Maxsd => &[Ir::MAX],
        Mnemonic::Xorpd | Mnemonic::Andpd => &[Ir::NEG, Ir::ABS],
        // Cuts the dependency of the conversion that follows (`emit_rr(as, XO_XORPS, dest, dest)`).
        Mnemonic::Xorps => &[Ir::CONV, Ir::NEG, Ir::SLOAD, Ir::ALOAD, Ir::HLOAD],
        Mnemonic::Ucomisd => &[
            Ir::LT,
            Ir::GE,
            Ir::LE,
            Ir::GT,
            Ir::ULT,
            Ir::UGE,
            Ir::ULE,
            Ir::UGT,
            Ir::EQ,
            Ir::NE,
            Ir::CONV,
            Ir::SLOAD,
            Ir::MIN,
            Ir::MAX,
        ],
        Mnemonic::Cvtsi2sd | Mnemonic::Cvttsd2si | Mnemonic::Cvtsd2si => &[Ir::CONV, Ir::SLOAD, Ir::TOBIT, Ir::ALOAD],
        Mnemonic::Imul => &[Ir::MUL, Ir::MULOV],
        Mnemonic::Bswap => &[Ir::BSWAP],
        Mnemonic::Not => &[Ir::BNOT, Ir::BXOR],
        Mnemonic::Neg => &[Ir::NEG],
        Mnemonic::Idiv | Mnemonic::Div => &[Ir::MOD, Ir::DIV],
        _ => &[],
    };
    if !wanted.is_empty() {
        return if wanted.contains(&ir) { 2.0 } else { -2.0 };
    }
    // The other way round: instructions that need a certain operation.
    let is_arithmetic = matches!(ir, Ir::ADD | Ir::SUB | Ir::MUL | Ir::DIV) && is_num;
    match machine.mnemonic {
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Ucomiss => {
            if ins.is_guard() || matches!(ir, Ir::HREF | Ir::TBAR | Ir::OBAR | Ir::ALEN | Ir::GCSTEP | Ir::LOOP) {
                1.0
            } else {
                -2.0
            }
        }
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Lea if !is_num => {
            if matches!(ir, Ir::ADD | Ir::SUB | Ir::ADDOV | Ir::SUBOV | Ir::AREF | Ir::HREF | Ir::STRREF | Ir::HREFK) {
                1.0
            } else {
                0.0
            }
        }
        Mnemonic::And if ir == Ir::BAND => 1.0,
        Mnemonic::Or if ir == Ir::BOR => 1.0,
        Mnemonic::Xor if ir == Ir::BXOR => 1.0,
        Mnemonic::Shl | Mnemonic::Shlx if ir == Ir::BSHL => 1.0,
        Mnemonic::Shr | Mnemonic::Shrx if ir == Ir::BSHR => 1.0,
        Mnemonic::Mov | Mnemonic::Movsd | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd if machine.loads => {
            match ir {
                Ir::ALOAD
                | Ir::HLOAD
                | Ir::ULOAD
                | Ir::FLOAD
                | Ir::XLOAD
                | Ir::SLOAD
                | Ir::VLOAD
                | Ir::HREFK
                | Ir::HREF
                | Ir::UREFC
                | Ir::UREFO
                | Ir::RETF => 1.0,
                _ if is_arithmetic => -0.5,
                _ => 0.0,
            }
        }
        _ => 0.0,
    }
}

/// What it costs if no machine code was made from an instruction.
pub fn absence(opcode: &Opcode, ins: Ins) -> f32 {
    if calls(opcode.op) == Some(true) && opcode.op != Ir::GCSTEP {
        return 4.0;
    }
    match opcode.op {
        // Loads that were fused still check their type.
        Ir::EQ | Ir::NE | Ir::LT | Ir::GE | Ir::LE | Ir::GT | Ir::ULT | Ir::UGE | Ir::ULE | Ir::UGT => 4.0,
        Ir::ASTORE | Ir::HSTORE | Ir::USTORE | Ir::FSTORE | Ir::XSTORE => 4.0,
        Ir::BASE | Ir::LOOP | Ir::XBAR | Ir::HIOP | Ir::GCSTEP | Ir::PROF | Ir::BUFHDR | Ir::TMPREF => 0.0,
        _ if ins.is_guard() => 2.5,
        _ if ins.register().is_some() => 1.5,
        _ => 0.0,
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
            && ins.op0_kind() == iced_x86::OpKind::Memory
            && ins.memory_base() == base
            && ins.memory_index() == Register::None
            && ins.memory_displacement64() == target
        {
            stores.push(ins.next_ip32());
        }
    }
    stores
}
