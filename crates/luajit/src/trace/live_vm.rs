//! Reads what the walk through a trace's bytecode needs to know from the live VM.
//!
//! LuaJIT's sources: [`CTState.miscmap`], [`ctype_state`], [`GCupval`],
//! [`rec_upvalue_constify`].
//!
//! [`CTState.miscmap`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ctype.h#L180
//! [`ctype_state`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L661-L662
//! [`GCupval`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L433-L446
//! [`rec_upvalue_constify`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L1760-L1782

use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory;

use super::functions::Callee;
use super::reading::{Constant, VmQueries};
use crate::arch::exit_byte_at;
use crate::bytecode::{Instruction, Op};
use crate::object::{Function, expect_type, field, marked_offset, read_function};
use crate::value::{self, Value};
use crate::{Prototype, Trace, Vm, bytecode_set, trace_by_number};

/// A VM in the memory of its process.
pub struct LiveVm<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// The VM.
    pub vm: &'a Vm,
    /// The trace.
    pub trace: &'a Trace,
}

impl<M: ReadMemory> LiveVm<'_, M> {
    /// The lowest byte of the exit that the code at `address` leads to.
    pub fn exit_at(&self, address: u64) -> Option<u8> {
        exit_byte_at(self.memory, address)
    }

    /// Whether types of C data may have metatables. These are stored under negative keys, so in the hash part of a table
    /// (`CTState.miscmap`, `lj_ctype.h`), which comes after another table in older versions.
    pub fn has_metatypes(&self) -> bool {
        let layout = &self.vm.layout;
        let gc64 = layout.is_gc64();
        let width = if gc64 { 8 } else { 4 };
        // `global_State.ctype_state` follows `jit_base`. The state itself has native pointers in every build.
        let state = self.vm.global.wrapping_add(u64::from(layout.g_jit_base)).wrapping_add(width);
        let Ok(state) = self.memory.read_ref(gc64, state) else { return true };
        if state == 0 {
            return false;
        }
        // `tab`, `top`, `sizetab`, `L`, `g` come before the tables. If there are two tables, the first one is for finalizers.
        let table = |index: u64| {
            let table: u64 = self.memory.read(state.wrapping_add(32 + 8 * index)).ok()?;
            expect_type(self.memory, layout, table, gct::TAB).ok().map(|()| table)
        };
        let Some(table) = table(1).or_else(|| table(0)) else { return true };
        // A hash part with one node has the same mask as an empty one, but its node is not the VM's `nilnode`.
        let node = self.memory.read_ref(gc64, field(table, layout.tab_node));
        let mask: Result<u32, _> = self.memory.read(field(table, layout.tab_hmask));
        mask != Ok(0) || node != Ok(field(self.vm.global, layout.g_nilnode))
    }
}

impl<M: ReadMemory> VmQueries for LiveVm<'_, M> {
    fn upvalue(&self, closure: u64, index: u16) -> Option<Constant> {
        let layout = &self.vm.layout;
        let gc64 = layout.is_gc64();
        let upvalue = self.upvalue_address(closure, index)?;
        // `immutable` is the second byte after the object's type.
        let immutable: u8 = self.memory.read(upvalue.wrapping_add(marked_offset(gc64) + 3)).ok()?;
        if immutable == 0 {
            return None;
        }
        // `GCupval.v` follows the value or, in an open upvalue, the links (`lj_obj.h`).
        let address = self.memory.read_ref(gc64, upvalue.wrapping_add(if gc64 { 32 } else { 16 })).ok()?;
        // Tables and userdata may hold large data, so the recorder loads them from the upvalue (`rec_upvalue_constify`,
        // `lj_record.c`).
        match value::read(self.memory, layout, address).ok()? {
            Value::Object { gct: gct::FUNC, address } => {
                Some(Constant::Function(match read_function(self.memory, layout, address).ok()? {
                    Function::Lua { prototype } => Callee::Lua { prototype, function: Some(address) },
                    Function::C { .. } => Callee::Native { function: address, ffid: 1 },
                    Function::Builtin { ffid, .. } => Callee::Native { function: address, ffid },
                }))
            }
            Value::Object { gct: gct::TAB | gct::UDATA, .. } => None,
            Value::Other => {
                let bits: u64 = self.memory.read(address).ok()?;
                let is_number = bits < 0xfff8_0000_0000_0001;
                Some(if is_number { Constant::Number(bits) } else { Constant::Other })
            }
            _ => Some(Constant::Other),
        }
    }

    fn upvalue_address(&self, closure: u64, index: u16) -> Option<u64> {
        let layout = &self.vm.layout;
        let gc64 = layout.is_gc64();
        let width = if gc64 { 8 } else { 4 };
        let count: u8 = self.memory.read(field(closure, layout.fn_nupvalues)).ok()?;
        if index >= u16::from(count) {
            return None;
        }
        // `GCfuncL.uvptr` follows `pc`.
        let slot = field(closure, layout.fn_pc).wrapping_add(width * (1 + u64::from(index)));
        self.memory.read_ref(gc64, slot).ok()
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
        // An integer (`LJ_DUALNUM`) has a type tag in its upper half.
        let is_number = bits < 0xfff8_0000_0000_0001;
        Some(if is_number { f64::from_bits(bits) } else { f64::from(bits as i32) })
    }

    fn start_instruction(&self, prototype: &Prototype, position: u32, trace: u16) -> Option<Instruction> {
        let layout = &self.vm.layout;
        let pc = field(prototype.key.address, layout.sizeof_pt).wrapping_add(4 * u64::from(position));
        // The bytecode may have been read at another time than the trace: only a trace that starts here has replaced it.
        let replaced = |trace: &Trace| (trace.startpc == pc && trace.root == 0).then_some(Instruction(trace.startins));
        let by_number = |number: u16| replaced(&trace_by_number(self.memory, self.vm, number)?);
        replaced(self.trace).or_else(|| by_number(trace)).or_else(|| {
            let now = Instruction(self.memory.read(pc).ok()?);
            let is_start = now.opcode(bytecode_set(layout))?.op == Op::JLOOP;
            if is_start { by_number(now.d()) } else { Some(now) }
        })
    }
}
