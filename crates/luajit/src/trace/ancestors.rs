//! Functions of a side trace's parent traces. The side trace runs in their frames, but has no constants that name them.
//!
//! LuaJIT's sources: [`IRT_PROTO`], [`lj_record_setup`].
//!
//! [`IRT_PROTO`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L320-L323
//! [`lj_record_setup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2892

use lj_trace_common::memory::ReadMemory;

use super::body::TraceBody;
use super::functions::object_at;
use super::ir::{BIAS, IrCode, IrOp, Numbering, irt};
use crate::object::{Function, read_bytes, read_function};
use crate::{Trace, Vm, trace_by_number};

/// The longest chain of side traces that is followed.
const MAX_ANCESTORS: usize = 32;

/// `IRT_PROTO` (`lj_ir.h`).
const PROTO: u8 = 7;

/// The prototypes among the constants of a trace's ancestors, and those in which the ancestors start.
pub fn prototypes_above<M: ReadMemory>(memory: &M, vm: &Vm, body: &TraceBody, numbering: Numbering) -> Vec<u64> {
    let mut prototypes = Vec::new();
    // `BASE` has the parent's number (`lj_record_setup`, `lj_record.c`).
    let mut parent = body.code.ins(BIAS).op1();
    for _ in 0..MAX_ANCESTORS {
        let Some(trace) = trace_by_number(memory, vm, parent).filter(|_| parent != 0) else { break };
        prototypes.push(trace.startpt);
        let Some(code) = constants(memory, &trace) else { break };
        prototypes.extend(in_constants(memory, vm, &code, numbering));
        parent = code.ins(BIAS).op1();
    }
    // The root trace, if the chain to it is too long.
    prototypes.extend(trace_by_number(memory, vm, body.trace.root).map(|root| root.startpt));
    prototypes.sort_unstable();
    prototypes.dedup();
    prototypes
}

/// The constants of a trace, and its `BASE`.
fn constants<M: ReadMemory>(memory: &M, trace: &Trace) -> Option<IrCode> {
    let first = u16::try_from(trace.nk).ok().filter(|first| *first <= BIAS)?;
    let count = usize::from(BIAS - first) + 1;
    let words = read_bytes(memory, trace.ir.wrapping_add(8 * u64::from(first)), 8 * count).ok()?;
    let (words, _) = words.as_chunks();
    Some(IrCode::new(first, words.iter().map(|word| u64::from_le_bytes(*word)).collect()))
}

fn in_constants<M: ReadMemory>(memory: &M, vm: &Vm, code: &IrCode, numbering: Numbering) -> Vec<u64> {
    let layout = &vm.layout;
    let mut prototypes = Vec::new();
    let mut at = code.references().start;
    while at < BIAS {
        let ins = code.ins(at);
        let op = numbering.opcode(ins.number()).map(|opcode| opcode.op);
        if op == Some(IrOp::KGC) {
            let address = object_at(layout, code, at);
            match ins.kind_of_result() {
                irt::FUNC => {
                    if let Ok(Function::Lua { prototype }) = read_function(memory, layout, address) {
                        prototypes.push(prototype);
                    }
                }
                PROTO => prototypes.push(address),
                _ => {}
            }
        }
        at += 1 + u16::from(super::ir::is_wide(op, layout.is_gc64()));
    }
    prototypes
}
