//! What a trace is able to do at all: its constants rule out everything else.
//!
//! LuaJIT's sources: [`rec_mm_prep`], [`lj_record_mm_lookup`], [`contptr`], [`IRFLDEF`].
//!
//! [`rec_mm_prep`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1073-L1086
//! [`lj_record_mm_lookup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1143-L1156
//! [`contptr`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L896-L904
//! [`IRFLDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L193-L197

use lj_trace_common::arch::ADDRESS_END;
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use crate::trace::body::TraceBody;
use crate::trace::functions::{TraceFunctions, object};
use crate::trace::ir::{BIAS, FIRST, IrOp, Numbering, irt, is_wide};

use crate::InterpreterText;
use crate::object::read_string;

/// Abilities of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Powers {
    /// It may call metamethods: each call leaves its continuation among the constants (`rec_mm_prep`, `lj_record.c`).
    pub metamethods: bool,
    /// Names of the metamethods that it may look up: these names are constants (`lj_record_mm_lookup`).
    pub names: Vec<String>,
    /// It uses C data, whose operations may emit any instruction.
    pub cdata: bool,
    /// Types of C data have metatables with Lua functions in them, which are called without a guard.
    pub metatypes: bool,
    /// It guards the number of a library function, so it calls a library function that is no constant.
    pub unnamed_natives: bool,
}

/// The most bytes of a metamethod's name, with some reserve.
const MAX_NAME: usize = 16;

impl Powers {
    /// Derives the abilities from the constants of a trace.
    pub fn read<M: ReadMemory>(
        memory: &M,
        layout: &VmLayout,
        body: &TraceBody,
        functions: &TraceFunctions,
        numbering: Numbering,
        metatypes: bool,
        text: &InterpreterText,
    ) -> Self {
        let gc64 = layout.is_gc64();
        let code = &body.code;
        let mut powers = Self::default();
        let mut at = code.references().start;
        while at < BIAS {
            let ins = code.ins(at);
            let op = numbering.opcode(ins.number()).map(|opcode| opcode.op);
            match op {
                Some(IrOp::KNUM) if gc64 => powers.metamethods |= is_continuation(code.word(at + 1), functions, text),
                // Without GC64, a continuation is stored as its distance from the VM's first instruction (`contptr`,
                // `lj_obj.h`).
                Some(IrOp::KPTR | IrOp::KKPTR) if !gc64 => powers.metamethods |= (1..1 << 18).contains(&ins.literal()),
                Some(IrOp::KGC) if ins.kind_of_result() == irt::CDATA => powers.cdata = true,
                Some(IrOp::KGC) if ins.kind_of_result() == irt::STR => {
                    if let Ok(name) = read_string(memory, layout, object(layout, body, at), MAX_NAME)
                        && name.starts_with(b"__")
                    {
                        powers.names.push(String::from_utf8_lossy(&name).into_owned());
                    }
                }
                _ => {}
            }
            at += 1 + u16::from(is_wide(op, gc64));
        }
        for at in FIRST..code.end() {
            let ins = code.ins(at);
            let op = numbering.opcode(ins.number()).map(|opcode| opcode.op);
            powers.cdata |=
                ins.kind_of_result() == irt::CDATA || matches!(op, Some(IrOp::CNEW | IrOp::CNEWI | IrOp::CALLXS));
            let of_function = op == Some(IrOp::FLOAD) && code.ins(ins.op1()).kind_of_result() == irt::FUNC;
            // Neither `func.env` nor `func.pc` (`IRFLDEF`, `lj_ir.h`).
            powers.unnamed_natives |= of_function && ins.op2() > 2;
        }
        powers.metatypes = powers.cdata && metatypes;
        powers
    }

    /// Whether the trace may look up the metamethod with this name.
    pub fn looks_for(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

/// Whether a 64-bit constant may be the continuation of a metamethod: a pointer into the interpreter's own code. Links
/// of frames are such constants, too, but they point into bytecode, or are small.
fn is_continuation(bits: u64, functions: &TraceFunctions, text: &InterpreterText) -> bool {
    if text.exact {
        return text.range.contains(&bits);
    }
    (1 << 16..ADDRESS_END).contains(&bits) && functions.owner(bits).is_none()
}
