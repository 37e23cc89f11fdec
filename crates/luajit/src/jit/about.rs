//! The subject of an abort reason: the bytecode or function that could not be recorded.
//!
//! All builds set `J->errinfo` before they throw one of these reasons ([`lj_trace_err_info`], `lj_trace.c`): to the
//! number of the bytecode, or to the function.
//!
//! [`lj_trace_err_info`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L45-L50

use std::cell::OnceCell;

use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory;
use lj_trace_text::untrusted::Untrusted;

use super::reasons::AbortReason;
use crate::bytecode::opcodes;
use crate::object::{Function, read_function};
use crate::value::{self, Value};
use crate::{FunctionNames, Vm};

/// Names the subjects of abort reasons. It reads the names of functions when the first one is needed.
#[derive(Default)]
pub struct Subjects(OnceCell<FunctionNames>);

impl Subjects {
    /// The name of `about`, the tagged value that the VM stored with `reason`.
    pub fn name<M: ReadMemory>(&self, memory: &M, vm: &Vm, reason: AbortReason, about: u64) -> Option<String> {
        match reason.name? {
            "NYIBC" => bytecode(vm, about),
            "NYIFFU" | "NYIFF" | "NYICF" => self.function(memory, vm, about),
            _ => None,
        }
    }

    fn function<M: ReadMemory>(&self, memory: &M, vm: &Vm, about: u64) -> Option<String> {
        let Value::Object { gct: gct::FUNC, address } = value::decode(vm.layout.is_gc64(), about) else { return None };
        let names = self.0.get_or_init(|| FunctionNames::read(memory, vm));
        let name = match read_function(memory, &vm.layout, address).ok()? {
            Function::Builtin { ffid, .. } => names.builtin(ffid)?,
            Function::C { address } => names.c_function(address)?,
            Function::Lua { .. } => return None,
        };
        Some(Untrusted(name).to_string())
    }
}

fn bytecode(vm: &Vm, about: u64) -> Option<String> {
    let number = number(vm.layout.is_gc64(), about)?;
    let opcode = opcodes(vm.bytecode_set()).nth(usize::try_from(number).ok()?)?;
    Some(format!("{:?}", opcode.op))
}

/// A whole number in either form: builds for x86 store it as a double.
fn number(gc64: bool, bits: u64) -> Option<u32> {
    let tag = if gc64 { !((bits as i64 >> 47) as u32) } else { !((bits >> 32) as u32) };
    /// `~LJ_TNUMX`, the type of integers.
    const INTEGER: u32 = 13;
    if tag == INTEGER {
        return Some(bits as u32);
    }
    let number = f64::from_bits(bits);
    (number.fract() == 0.0 && (0.0..1e6).contains(&number)).then_some(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_two_forms() {
        for gc64 in [false, true] {
            assert_eq!(number(gc64, 71_f64.to_bits()), Some(71));
            assert_eq!(number(gc64, 0.5_f64.to_bits()), None);
            assert_eq!(number(gc64, u64::MAX), None, "nil");
        }
        assert_eq!(number(true, !13_u64 << 47 | 51), Some(51));
        assert_eq!(number(false, 0xffff_fff2_0000_0033), Some(51));
    }
}
