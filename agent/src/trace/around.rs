//! What the walk through a trace's bytecode asks of the live VM.

use lj_trace_common::memory::ReadMemory;

use super::cast::Callee;
use super::path::Surroundings;
use crate::vm::bytecode::{Instruction, Op};
use crate::vm::object::{Function, field, read_function};
use crate::vm::value::{self, Value};
use crate::vm::{Prototype, Trace, Vm, bytecode_set, trace_by_number};
use lj_trace_common::layout::gct;

/// A VM in the memory of its process.
pub struct Around<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// The VM.
    pub vm: &'a Vm,
    /// The trace.
    pub trace: &'a Trace,
}

impl<M: ReadMemory> Around<'_, M> {
    /// The lowest byte of the exit that the code at `address` leaves a trace by: exit stubs push it
    /// (`asm_exitstub_gen`, `lj_asm_x86.h`).
    pub fn exit_at(&self, address: u64) -> Option<u8> {
        /// `push imm8`.
        const PUSH: u8 = 0x6a;
        let [code, exit]: [u8; 2] = self.memory.read(address).ok()?;
        (code == PUSH).then_some(exit)
    }
}

impl<M: ReadMemory> Surroundings for Around<'_, M> {
    fn upvalue(&self, closure: u64, index: u16) -> Option<Callee> {
        let layout = &self.vm.layout;
        let gc64 = layout.is_gc64();
        let width = if gc64 { 8 } else { 4 };
        let count: u8 = self.memory.read(field(closure, layout.fn_nupvalues)).ok()?;
        if index >= u16::from(count) {
            return None;
        }
        // `GCfuncL.uvptr` follows `pc`; `GCupval.v` follows the value or the links of an open one (`lj_obj.h`).
        let slot = field(closure, layout.fn_pc) + width * (1 + u64::from(index));
        let upvalue = self.memory.read_ref(gc64, slot).ok()?;
        let address = self.memory.read_ref(gc64, upvalue.wrapping_add(if gc64 { 32 } else { 16 })).ok()?;
        match value::read(self.memory, layout, address).ok()? {
            Value::Object { gct: gct::FUNC, address } => {
                Some(match read_function(self.memory, layout, address).ok()? {
                    Function::Lua { prototype } => Callee::Lua { prototype, function: Some(address) },
                    Function::C { .. } => Callee::Native { function: address, ffid: 1 },
                    Function::Builtin { ffid, .. } => Callee::Native { function: address, ffid },
                })
            }
            _ => None,
        }
    }

    fn string(&self, prototype: &Prototype, index: u16) -> Option<u64> {
        let layout = &self.vm.layout;
        let gc64 = layout.is_gc64();
        let constants = self.memory.read_ref(gc64, field(prototype.key.address, layout.pt_k)).ok()?;
        let width = if gc64 { 8 } else { 4 };
        // Collectable constants lie below `k`, in reverse order.
        self.memory.read_ref(gc64, constants.wrapping_sub(width * (u64::from(index) + 1))).ok()
    }

    fn number(&self, prototype: &Prototype, index: u16) -> Option<f64> {
        let layout = &self.vm.layout;
        let constants = self.memory.read_ref(layout.is_gc64(), field(prototype.key.address, layout.pt_k)).ok()?;
        let bits: u64 = self.memory.read(constants.wrapping_add(8 * u64::from(index))).ok()?;
        // An integer (`LJ_DUALNUM`) has a type in its upper half.
        let is_number = bits < 0xfff8_0000_0000_0001;
        Some(if is_number { f64::from_bits(bits) } else { f64::from(bits as i32) })
    }

    fn start_instruction(&self, prototype: &Prototype, position: u32, trace: u16) -> Option<Instruction> {
        let layout = &self.vm.layout;
        let pc = field(prototype.key.address, layout.sizeof_pt).wrapping_add(4 * u64::from(position));
        // The bytecode may have been read at another time than the trace: only one that starts here has replaced it.
        let replaced = |trace: &Trace| (trace.startpc == pc && trace.root == 0).then_some(Instruction(trace.startins));
        let by_number = |number: u16| replaced(&trace_by_number(self.memory, self.vm, number)?);
        replaced(self.trace).or_else(|| by_number(trace)).or_else(|| {
            let now = Instruction(self.memory.read(pc).ok()?);
            let is_start = now.opcode(bytecode_set(layout))?.op == Op::JLOOP;
            if is_start { by_number(now.d()) } else { Some(now) }
        })
    }
}
