//! Decides from which intermediate code a machine instruction can have been assembled (`lj_asm.c`, `lj_asm_*.h`).
//!
//! The assembler goes through the intermediate code backwards and puts new machine code before the existing one, so both are in
//! the same order. Between the code of two instructions there are loads and moves of registers that may belong to either.
//!
//! LuaJIT's sources: [`lj_asm_trace`], [`asm_fparith`], [`ir_sideeff`], [`asm_div`], [`asm_uref`], [`asm_fuseequal`].
//!
//! [`lj_asm_trace`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm.c#L2564-L2579
//! [`asm_fparith`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_x86.h#L2080-L2102
//! [`ir_sideeff`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L599-L603
//! [`asm_div`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm.c#L1742-L1751
//! [`asm_uref`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_x86.h#L1401-L1430
//! [`asm_fuseequal`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm.c#L1765-L1774

use crate::arch::{Machine, MachineAction, MachineOperation};
use crate::trace::ir::{Effect, Ins, IrOp as Ir, IrOpcode, irt};

/// Whether an instruction produces machine code at all: others were dropped, sunk, or became an operand of their users.
pub fn is_assembled(opcode: &IrOpcode, ins: Ins) -> bool {
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

/// Whether an instruction compiles to a call: always (`true`), never (`false`), or perhaps ([`None`]).
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
        | Ir::TOSTR
        | Ir::STRTO
        | Ir::BUFPUT
        | Ir::BUFSTR
        | Ir::NEWREF => Some(true),
        Ir::ASTORE | Ir::HSTORE | Ir::USTORE | Ir::FSTORE | Ir::RETF => Some(false),
        // Divisions of 64-bit integers are calls (`asm_div`, `lj_asm.c`). Multiplications never are, but this makes no
        // use of that.
        Ir::MUL | Ir::DIV => None,
        _ if is_value(ir) => Some(false),
        _ => None,
    }
}

/// Whether a machine instruction can come from an instruction of the intermediate code.
pub fn can_come_from(machine: &Machine, opcode: &IrOpcode, ins: Ins) -> bool {
    let ir = opcode.op;
    match machine.action {
        MachineAction::Guard { .. } => {
            ins.is_guard() || matches!(ir, Ir::GCSTEP | Ir::BASE | Ir::LOOP | Ir::RETF | Ir::HIOP)
        }
        MachineAction::Call => calls(ir) != Some(false),
        MachineAction::Store => match ir {
            Ir::ASTORE | Ir::HSTORE | Ir::USTORE | Ir::FSTORE | Ir::XSTORE => true,
            _ => !is_value(ir),
        },
        MachineAction::Branch | MachineAction::Jump | MachineAction::Compute => match machine.operation {
            MachineOperation::Add => matches!(ir, Ir::ADD | Ir::TOBIT | Ir::CONV | Ir::LOOP),
            MachineOperation::Subtract => matches!(ir, Ir::SUB | Ir::CONV | Ir::TOBIT),
            MachineOperation::Multiply => matches!(ir, Ir::MUL | Ir::POW),
            MachineOperation::Divide => matches!(ir, Ir::DIV | Ir::POW),
            MachineOperation::SquareRoot => matches!(ir, Ir::FPMATH | Ir::POW),
            MachineOperation::Round => ir == Ir::FPMATH,
            MachineOperation::Minimum => ir == Ir::MIN,
            MachineOperation::Maximum => ir == Ir::MAX,
            MachineOperation::SwapBytes => ir == Ir::BSWAP,
            // Besides its own operation, floating-point arithmetic loads and moves registers, but never computes
            // (`asm_fparith`).
            MachineOperation::Integer => {
                !(matches!(ir, Ir::ADD | Ir::SUB | Ir::MUL | Ir::DIV) && ins.kind_of_result() == irt::NUM)
            }
            _ => true,
        },
    }
}

/// Whether an instruction only computes a value, so that it writes no memory but the native stack.
fn is_value(ir: Ir) -> bool {
    matches!(
        ir,
        Ir::ADD
            | Ir::SUB
            | Ir::MUL
            | Ir::DIV
            | Ir::NEG
            | Ir::ABS
            | Ir::AREF
            | Ir::HREFK
            | Ir::FREF
            | Ir::STRREF
            | Ir::ALOAD
            | Ir::HLOAD
            | Ir::ULOAD
            | Ir::FLOAD
            | Ir::SLOAD
            | Ir::VLOAD
            | Ir::UREFO
            | Ir::UREFC
            | Ir::LT
            | Ir::GE
            | Ir::LE
            | Ir::GT
            | Ir::ULT
            | Ir::UGE
            | Ir::ULE
            | Ir::UGT
            | Ir::EQ
            | Ir::NE
            | Ir::ABC
            | Ir::BNOT
            | Ir::BSWAP
            | Ir::BAND
            | Ir::BOR
            | Ir::BXOR
            | Ir::ADDOV
            | Ir::SUBOV
            | Ir::TOBIT
    )
}

/// Whether an instruction always leaves a machine instruction that [`is_its_own`] recognizes.
pub fn is_visible(opcode: &IrOpcode, ins: Ins) -> bool {
    let is_num = ins.kind_of_result() == irt::NUM;
    match opcode.op {
        Ir::ADD | Ir::SUB | Ir::MUL | Ir::DIV => is_num,
        Ir::ASTORE | Ir::HSTORE | Ir::USTORE => true,
        op => calls(op) == Some(true) || is_check(op, ins),
    }
}

/// Whether an instruction is a guard that always leaves a conditional jump. Guards of upvalue references may leave none
/// (`asm_uref`), and the guard after a lookup may be fused into the lookup (`asm_fuseequal`, `lj_asm.c`).
fn is_check(ir: Ir, ins: Ins) -> bool {
    ins.is_guard()
        && matches!(
            ir,
            Ir::SLOAD
                | Ir::ALOAD
                | Ir::HLOAD
                | Ir::ULOAD
                | Ir::LT
                | Ir::GE
                | Ir::LE
                | Ir::GT
                | Ir::ULT
                | Ir::UGE
                | Ir::ULE
                | Ir::UGT
                | Ir::ABC
                | Ir::HREFK
                | Ir::RETF
                | Ir::CONV
                | Ir::EQ
                | Ir::NE
        )
}

/// Whether a machine instruction does the main work of an IR instruction.
pub fn is_its_own(machine: &Machine, opcode: &IrOpcode, ins: Ins) -> bool {
    match opcode.op {
        // The last guard of a loop may jump back instead of leaving the trace.
        ir if is_check(ir, ins) => matches!(machine.action, MachineAction::Guard { .. } | MachineAction::Branch),
        Ir::ADD => machine.operation == MachineOperation::Add,
        Ir::SUB => machine.operation == MachineOperation::Subtract,
        Ir::MUL => machine.operation == MachineOperation::Multiply,
        Ir::DIV => machine.operation == MachineOperation::Divide,
        Ir::ASTORE | Ir::HSTORE | Ir::USTORE => machine.action == MachineAction::Store,
        _ => machine.action == MachineAction::Call,
    }
}

/// Whether an instruction is assembled to exactly one such machine instruction.
pub fn is_single(opcode: &IrOpcode, ins: Ins) -> bool {
    ins.kind_of_result() == irt::NUM && matches!(opcode.op, Ir::ADD | Ir::SUB | Ir::MUL | Ir::DIV)
}

/// Whether two machine instructions in a row belong to the same IR instruction: the second one works on the register
/// that the first one has filled for it, or jumps by the flags that the first one has set.
pub fn belong_together(first: &Machine, second: &Machine) -> bool {
    if matches!(first.action, MachineAction::Compute)
        && first.fills
        && first.writes.is_some()
        && first.writes == second.writes
    {
        return second.is_arithmetic() && second.second != first.writes;
    }
    let compares = first.operation == MachineOperation::Compare;
    let jumps = |machine: &Machine| matches!(machine.action, MachineAction::Guard { .. } | MachineAction::Branch);
    (compares || jumps(first) && first.operation == MachineOperation::JumpIfUnordered) && jumps(second)
}
