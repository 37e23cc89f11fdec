//! The functions that take part in a trace: the functions among its constants, and what guards show about others.
//!
//! LuaJIT's sources: [`rec_call_specialize`], [`recff_xpairs`].
//!
//! [`rec_call_specialize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L796-L828
//! [`recff_xpairs`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ffrecord.c#L514-L526

use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_common::layout::{BytecodeSet, VmLayout};
use lj_trace_common::memory::ReadMemory;

use super::body::TraceBody;
use super::ir::{BIAS, FIRST, Ins, IrCode, IrOp, Numbering, irt, is_wide};
use crate::bytecode::{Instruction, Op as Bytecode};
use crate::object::{Function, read_function, read_string};
use crate::{FunctionNames, Prototype, Prototypes, Vm};

/// A function that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// A Lua function.
    Lua {
        /// Address of its prototype.
        prototype: u64,
        /// Address of its closure, if that is known.
        function: Option<u64>,
    },
    /// A C function or fast function, a `GCfunc`.
    Native {
        /// Address of its `GCfunc`.
        function: u64,
        /// Its fast-function id; 1 for a C function.
        ffid: u8,
    },
}

impl Callee {
    /// The prototype of a Lua function.
    pub fn prototype(self) -> Option<u64> {
        if let Self::Lua { prototype, .. } = self { Some(prototype) } else { None }
    }

    /// The address that identifies its code: the prototype's address, or a C function's own.
    pub fn code(self) -> u64 {
        match self {
            Self::Lua { prototype, .. } => prototype,
            Self::Native { function, .. } => function,
        }
    }

    /// Whether both have the same code.
    pub fn same_code(self, other: Self) -> bool {
        match (self, other) {
            (Self::Lua { prototype: a, .. }, Self::Lua { prototype: b, .. }) => a == b,
            _ => self == other,
        }
    }
}

/// Everything that is known about the functions in a trace.
#[derive(Debug)]
pub struct TraceFunctions {
    numbering: Numbering,
    /// Constants, by their references.
    constants: HashMap<u16, Callee>,
    prototypes: HashMap<u64, Arc<Prototype>>,
    /// For each reference, the functions with which guards compare the value.
    guarded: HashMap<u16, Vec<Callee>>,
    /// Constant strings: their addresses, and whether each may be the name of a metamethod.
    strings: HashMap<u16, (u64, bool)>,
    /// Constant pointers to bytecode: the prototype that each points into.
    bytecodes: HashMap<u16, u64>,
    /// Functions, each with the field name by which it was loaded; [`None`] if it was loaded in another way.
    loaded_by: Vec<(Callee, Option<String>)>,
    /// Whether the trace stores functions in tables, so that any of them may be loaded from there without a guard.
    stores_functions: bool,
    /// The names of library functions.
    names: Arc<FunctionNames>,
    sizeof_pt: u64,
}

/// The most bytes of a metamethod's name, with some reserve.
const MAX_NAME: usize = 16;

impl TraceFunctions {
    /// Hand-made functions.
    #[cfg(test)]
    pub(super) fn made(
        numbering: Numbering,
        constants: &[(u16, Callee)],
        prototypes: HashMap<u64, Arc<Prototype>>,
        sizeof_pt: u64,
    ) -> Self {
        Self {
            numbering,
            constants: constants.iter().copied().collect(),
            prototypes,
            guarded: HashMap::new(),
            strings: HashMap::new(),
            bytecodes: HashMap::new(),
            loaded_by: Vec::new(),
            stores_functions: false,
            names: Arc::default(),
            sizeof_pt,
        }
    }

    /// Approximate memory use in bytes, with the prototypes that it keeps.
    pub fn size(&self) -> usize {
        /// Bytes of a table entry, with unused space.
        const ENTRY: usize = 48;
        let entries = self.constants.len() + self.guarded.len() + self.strings.len() + self.bytecodes.len();
        let prototypes = self.prototypes.values().map(|prototype| prototype.size()).sum::<usize>();
        ENTRY * (entries + self.prototypes.len() + self.loaded_by.len()) + prototypes
    }

    /// Reads the constants and guards of a trace. The prototypes `above` belong to frames in which the trace may run.
    pub fn read<M: ReadMemory>(
        memory: &M,
        vm: &Vm,
        prototypes: &mut Prototypes,
        body: &TraceBody,
        numbering: Numbering,
        names: Arc<FunctionNames>,
        above: &[u64],
    ) -> Self {
        let layout = &vm.layout;
        let mut functions = Self {
            numbering,
            constants: HashMap::new(),
            prototypes: HashMap::new(),
            guarded: HashMap::new(),
            strings: HashMap::new(),
            bytecodes: HashMap::new(),
            loaded_by: Vec::new(),
            stores_functions: false,
            names,
            sizeof_pt: u64::from(layout.sizeof_pt),
        };
        let mut at = body.code.references().start;
        while at < BIAS {
            let ins = body.code.ins(at);
            let op = numbering.opcode(ins.number()).map(|opcode| opcode.op);
            if op == Some(IrOp::KGC) {
                functions.add_constant(memory, layout, body, at, ins);
            }
            at += 1 + u16::from(is_wide(op, layout.is_gc64()));
        }
        let above = above.iter().copied().chain([body.trace.startpt]);
        functions.constants.values().filter_map(|callee| callee.prototype()).chain(above).for_each(|address| {
            let read = Prototype::key_at(memory, layout, address).and_then(|key| prototypes.get(memory, vm, key));
            if let Ok(prototype) = read {
                functions.prototypes.insert(address, prototype);
            }
        });
        functions.read_guards(memory, layout, body);
        functions
    }

    fn add_constant<M: ReadMemory>(&mut self, memory: &M, layout: &VmLayout, body: &TraceBody, at: u16, ins: Ins) {
        /// `IRT_PROTO`.
        const PROTO: u8 = 7;
        let address = object(layout, body, at);
        let callee = match ins.kind_of_result() {
            irt::FUNC => match read_function(memory, layout, address) {
                Ok(Function::Lua { prototype }) => Callee::Lua { prototype, function: Some(address) },
                Ok(Function::C { .. }) => Callee::Native { function: address, ffid: 1 },
                Ok(Function::Builtin { ffid, .. }) => Callee::Native { function: address, ffid },
                Err(_) => return,
            },
            PROTO => Callee::Lua { prototype: address, function: None },
            irt::STR => {
                let name = read_string(memory, layout, address, MAX_NAME);
                self.strings.insert(at, (address, name.is_ok_and(|name| name.starts_with(b"__"))));
                return;
            }
            _ => return,
        };
        self.constants.insert(at, callee);
    }

    /// Reads the guards that `rec_call_specialize` (`lj_record.c`) has emitted: `EQ value function`, or, if a prototype
    /// has many closures, `EQ (FLOAD value func.pc) bytecode`.
    fn read_guards<M: ReadMemory>(&mut self, memory: &M, layout: &VmLayout, body: &TraceBody) {
        let code = &body.code;
        let op = |at: u16| self.numbering.opcode(code.ins(at).number()).map(|opcode| opcode.op);
        for at in (code.references().start..BIAS).filter(|&at| matches!(op(at), Some(IrOp::KPTR | IrOp::KKPTR))) {
            let prototype = object(layout, body, at).wrapping_sub(self.sizeof_pt);
            if self.prototypes.contains_key(&prototype) {
                self.bytecodes.insert(at, prototype);
            }
        }
        for at in FIRST..code.end() {
            let ins = code.ins(at);
            match op(at) {
                Some(IrOp::HSTORE | IrOp::ASTORE) => {
                    self.stores_functions |= code.ins(ins.op2()).kind_of_result() == irt::FUNC;
                }
                Some(IrOp::EQ) => {
                    let Some(callee) = self.guard(ins.op1(), ins.op2()) else { continue };
                    let value = if ins.op1() >= BIAS { ins.op1() } else { ins.op2() };
                    let is_bytecode =
                        self.bytecodes.contains_key(&ins.op1()) || self.bytecodes.contains_key(&ins.op2());
                    let value = if is_bytecode { code.ins(value).op1() } else { value };
                    let name = key_of(self.numbering, body, value)
                        .and_then(|key| read_string(memory, layout, object(layout, body, key), MAX_NAME).ok())
                        .map(|name| String::from_utf8_lossy(&name).into_owned());
                    self.loaded_by.push((callee, name));
                    let guarded = self.guarded.entry(value).or_default();
                    if !guarded.contains(&callee) {
                        guarded.push(callee);
                    }
                }
                _ => {}
            }
        }
    }

    /// The function with which a guard with these operands compares a value.
    pub fn guard(&self, op1: u16, op2: u16) -> Option<Callee> {
        let (value, constant) = if op1 >= BIAS { (op1, op2) } else { (op2, op1) };
        if value < BIAS || constant >= BIAS {
            return None;
        }
        let prototype = || self.bytecodes.get(&constant).map(|&prototype| Callee::Lua { prototype, function: None });
        self.constants.get(&constant).copied().or_else(prototype)
    }

    /// The address of the constant string at a reference, and whether it may be the name of a metamethod.
    pub fn string(&self, at: u16) -> Option<(u64, bool)> {
        self.strings.get(&at).copied()
    }

    /// Whether a string is a constant of the trace.
    pub fn has_string(&self, address: u64) -> bool {
        self.strings.values().any(|(known, _)| *known == address)
    }

    /// Whether a function is a constant of the trace.
    pub fn has_function(&self, callee: Callee) -> bool {
        self.constants.values().any(|known| *known == callee)
    }

    /// The functions with which guards compare the value at a reference.
    pub fn guarded(&self, at: u16) -> Vec<Callee> {
        self.guarded.get(&at).cloned().unwrap_or_default()
    }

    /// Whether a function may have been found as the metamethod of this name: a guard shows it, or it was found in a
    /// way that needs no guard.
    pub fn may_be_metamethod(&self, callee: Callee, name: &str) -> bool {
        let mut loads = self.loaded_by.iter().filter(|(known, _)| known.same_code(callee));
        self.stores_functions || loads.any(|(_, known)| known.as_deref() == Some(name))
    }

    /// The closure of a prototype, if no other closure can run in the trace.
    pub fn only_closure(&self, prototype: u64) -> Option<u64> {
        if let [only] = self.closures(prototype)[..]
            && !self.is_any_closure(prototype)
        {
            return Some(only);
        }
        None
    }

    /// Whether a guard compares a function with the prototype only, so that it may be any of its many closures.
    pub fn is_any_closure(&self, prototype: u64) -> bool {
        self.bytecodes.values().any(|&guarded| guarded == prototype)
    }

    /// The closures of a prototype among the constants. The target of a return is identified by its prototype alone.
    pub fn closures(&self, prototype: u64) -> Vec<u64> {
        let closure = |callee: &Callee| match callee {
            Callee::Lua { prototype: known, function } if *known == prototype => *function,
            _ => None,
        };
        self.constants.values().filter_map(closure).collect()
    }

    /// All functions among the constants, each code once: the callees of a trace are among them.
    pub fn callable(&self) -> Vec<Callee> {
        let mut callable: Vec<Callee> = Vec::new();
        for callee in self.functions() {
            if callable.iter().any(|known| known.same_code(callee)) {
                continue;
            }
            callable.push(match callee {
                // If there are several closures, it is not known which one runs.
                Callee::Lua { prototype, .. } => Callee::Lua { prototype, function: self.only_closure(prototype) },
                Callee::Native { .. } => callee,
            });
        }
        callable
    }

    /// Whether a library function calls a function that it is given: `pcall`, `xpcall`. [`None`] if that is not known,
    /// because the VM's libraries could not be read.
    pub fn protects(&self, ffid: u8) -> Option<bool> {
        const PROTECTED: [&str; 2] = ["pcall", "xpcall"];
        match self.names.builtin(ffid) {
            Some(name) => Some(PROTECTED.contains(&name)),
            None => PROTECTED.iter().all(|name| self.names.has_builtin(name)).then_some(false),
        }
    }

    /// Whether a library function may be a loop's iterator, which `pairs` and `ipairs` return as a constant
    /// (`recff_xpairs`, `lj_ffrecord.c`). A function without a known name may be one.
    pub fn may_iterate(&self, ffid: u8) -> bool {
        self.names.builtin(ffid).is_none_or(|name| matches!(name, "ipairs_aux" | "next"))
    }

    /// Whether a C function or fast function may be the metamethod of this name: found like a Lua function, or put by the VM
    /// itself into the metatables of C data, C libraries and files, which the recorder does not look up.
    pub fn may_be_native_metamethod(&self, callee: Callee, name: &str) -> bool {
        let Callee::Native { ffid, .. } = callee else { return false };
        self.may_be_metamethod(callee, name) || self.is_metamethod_of_vm(ffid)
    }

    /// Whether the VM itself may have put a library function into the metatables of C data, C libraries and files.
    pub fn is_metamethod_of_vm(&self, ffid: u8) -> bool {
        self.names.builtin(ffid).is_none_or(|own| own.contains("__"))
    }

    /// The library of a library function: `math`.
    pub fn library(&self, ffid: u8) -> Option<&str> {
        self.names.builtin(ffid)?.split_once('.').map(|(library, _)| library)
    }

    /// Whether a library function has this name.
    pub fn is_named(&self, ffid: u8, name: &str) -> bool {
        self.names.builtin(ffid) == Some(name)
    }

    /// Whether it is the function that looks up the functions of a C library.
    pub fn is_c_library_index(&self, callee: Callee) -> bool {
        matches!(callee, Callee::Native { ffid, .. } if self.names.builtin(ffid) == Some("ffi.clib.__index"))
    }

    /// The function at the reference of a constant.
    pub fn function(&self, at: u16) -> Option<Callee> {
        self.constants.get(&at).copied()
    }

    /// Whether one of its functions has a tail call.
    pub fn calls_in_tails(&self, set: BytecodeSet) -> bool {
        let is_tail = |ins: Instruction| {
            ins.opcode(set).is_some_and(|opcode| matches!(opcode.op, Bytecode::CALLT | Bytecode::CALLMT))
        };
        self.prototypes
            .values()
            .any(|read| (0..read.key.sizebc).filter_map(|position| read.instruction(position)).any(is_tail))
    }

    /// All functions among the constants, each once.
    pub fn functions(&self) -> Vec<Callee> {
        let mut functions: Vec<(u16, Callee)> = self.constants.iter().map(|(at, callee)| (*at, *callee)).collect();
        // Constants grow downward: the first one used has the highest reference.
        functions.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        functions.into_iter().map(|(_, callee)| callee).collect()
    }

    /// A prototype of the trace.
    pub fn prototype(&self, address: u64) -> Option<&Arc<Prototype>> {
        self.prototypes.get(&address)
    }

    /// The Lua function whose bytecode contains `pc` (or whose last instruction is right before it).
    pub fn owner(&self, pc: u64) -> Option<Callee> {
        let address = self.prototypes.values().find(|prototype| self.position(prototype, pc).is_some())?.key.address;
        let is_it = |callee: &&Callee| callee.prototype() == Some(address);
        let mut closures = self.constants.values().filter(is_it).filter_map(|callee| match callee {
            Callee::Lua { function, .. } => *function,
            Callee::Native { .. } => None,
        });
        let function = closures.next().filter(|_| closures.next().is_none());
        Some(Callee::Lua { prototype: address, function })
    }

    /// Whether the trace may have started in this function, and then have replaced it by a tail call, or returned to it.
    pub fn may_start_in(&self, prototype: u64) -> bool {
        self.prototypes.contains_key(&prototype)
    }

    /// The index of the bytecode at `pc` in a prototype.
    pub fn position(&self, prototype: &Prototype, pc: u64) -> Option<u32> {
        let offset = pc.checked_sub(prototype.key.address.wrapping_add(self.sizeof_pt))?;
        let index = u32::try_from(offset / 4).ok()?;
        (offset % 4 == 0 && index < prototype.key.sizebc).then_some(index)
    }
}

/// Reference of the constant string by which a value was loaded from a table.
fn key_of(numbering: Numbering, body: &TraceBody, value: u16) -> Option<u16> {
    let op = |at: u16| numbering.opcode(body.code.ins(at).number()).map(|opcode| opcode.op);
    if op(value) != Some(IrOp::HLOAD) {
        return None;
    }
    let reference = body.code.ins(value).op1();
    if !matches!(op(reference), Some(IrOp::HREFK | IrOp::HREF)) {
        return None;
    }
    let key = body.code.ins(reference).op2();
    let key = if op(key) == Some(IrOp::KSLOT) { body.code.ins(key).op1() } else { key };
    (key < BIAS && op(key) == Some(IrOp::KGC) && body.code.ins(key).kind_of_result() == irt::STR).then_some(key)
}

/// The address in a constant: of an object, or a pointer.
pub fn object(layout: &VmLayout, body: &TraceBody, at: u16) -> u64 {
    object_at(layout, &body.code, at)
}

/// The same for the code of a trace whose other parts were not read.
pub(super) fn object_at(layout: &VmLayout, code: &IrCode, at: u16) -> u64 {
    if layout.is_gc64() { code.word(at + 1) & ((1 << 47) - 1) } else { u64::from(code.ins(at).literal()) }
}
