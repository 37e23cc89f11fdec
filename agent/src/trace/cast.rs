//! The functions that play a part in a trace: those among its constants, and what its guards say of the rest.

use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;

use super::body::Body;
use super::ir::{BIAS, FIRST, Ins, Numbering, Op, irt};
use crate::vm::object::{Function, read_function, read_string};
use crate::vm::{Prototype, Prototypes};

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// A Lua function.
    Lua {
        /// Address of its prototype.
        prototype: u64,
        /// Its closure, if that is known.
        function: Option<u64>,
    },
    /// A C function or fast function, a `GCfunc`.
    Native {
        /// Its address.
        function: u64,
        /// Its number; 1 for a C function.
        ffid: u8,
    },
}

impl Callee {
    /// The prototype of a Lua function.
    pub fn prototype(self) -> Option<u64> {
        if let Self::Lua { prototype, .. } = self { Some(prototype) } else { None }
    }

    /// Whether both are the same code.
    pub fn same_code(self, other: Self) -> bool {
        match (self, other) {
            (Self::Lua { prototype: a, .. }, Self::Lua { prototype: b, .. }) => a == b,
            _ => self == other,
        }
    }
}

/// All that is known of the functions in a trace.
#[derive(Debug)]
pub struct Cast {
    numbering: Numbering,
    /// Constants, by their references.
    constants: HashMap<u16, Callee>,
    prototypes: HashMap<u64, Arc<Prototype>>,
    /// By reference: what a guard says that the value is.
    specialized: HashMap<u16, Callee>,
    /// By the address of a key, a string: functions that were loaded by it.
    by_key: HashMap<u64, Vec<Callee>>,
    /// By the name of a metamethod: functions that were loaded by it.
    metamethods: HashMap<String, Vec<Callee>>,
    sizeof_pt: u64,
}

/// The longest name of a metamethod, and some more.
const MAX_NAME: usize = 16;

impl Cast {
    /// A cast made by hand.
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
            specialized: HashMap::new(),
            by_key: HashMap::new(),
            metamethods: HashMap::new(),
            sizeof_pt,
        }
    }

    /// Looks through the constants and guards of a trace.
    pub fn read<M: ReadMemory>(
        memory: &M,
        layout: &VmLayout,
        prototypes: &mut Prototypes,
        body: &Body,
        numbering: Numbering,
    ) -> Self {
        let mut cast = Self {
            numbering,
            constants: HashMap::new(),
            prototypes: HashMap::new(),
            specialized: HashMap::new(),
            by_key: HashMap::new(),
            metamethods: HashMap::new(),
            sizeof_pt: u64::from(layout.sizeof_pt),
        };
        let mut at = body.code.references().start;
        while at < BIAS {
            let ins = body.code.ins(at);
            let op = numbering.opcode(ins.number()).map(|opcode| opcode.op);
            if op == Some(Op::KGC) {
                cast.add_constant(memory, layout, body, at, ins);
            }
            let wide = match op {
                Some(Op::KNUM | Op::KINT64) => true,
                Some(Op::KGC | Op::KPTR | Op::KKPTR) => layout.is_gc64(),
                _ => false,
            };
            at += 1 + u16::from(wide);
        }
        cast.constants.values().filter_map(|callee| callee.prototype()).chain([body.trace.startpt]).for_each(
            |address| {
                let read =
                    Prototype::key_at(memory, layout, address).and_then(|key| prototypes.get(memory, layout, key));
                if let Ok(prototype) = read {
                    cast.prototypes.insert(address, prototype);
                }
            },
        );
        cast.read_guards(memory, layout, body);
        cast
    }

    fn add_constant<M: ReadMemory>(&mut self, memory: &M, layout: &VmLayout, body: &Body, at: u16, ins: Ins) {
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
            _ => return,
        };
        self.constants.insert(at, callee);
    }

    /// What `rec_call_specialize` (`lj_record.c`) has left: `EQ value function`, or, where a prototype has many
    /// closures, `EQ (FLOAD value func.pc) bytecode`.
    fn read_guards<M: ReadMemory>(&mut self, memory: &M, layout: &VmLayout, body: &Body) {
        let op = |numbering: Numbering, ins: Ins| numbering.opcode(ins.number()).map(|opcode| opcode.op);
        for at in FIRST..body.code.end() {
            let ins = body.code.ins(at);
            if op(self.numbering, ins) != Some(Op::EQ) {
                continue;
            }
            for (value, constant) in [(ins.op1(), ins.op2()), (ins.op2(), ins.op1())] {
                if value < BIAS || constant >= BIAS {
                    continue;
                }
                if let Some(&callee) = self.constants.get(&constant) {
                    self.specialized.insert(value, callee);
                    continue;
                }
                let load = body.code.ins(value);
                if op(self.numbering, load) == Some(Op::FLOAD)
                    && matches!(op(self.numbering, body.code.ins(constant)), Some(Op::KPTR | Op::KKPTR))
                {
                    let prototype = object(layout, body, constant).wrapping_sub(self.sizeof_pt);
                    if self.prototypes.contains_key(&prototype) {
                        self.specialized.insert(load.op1(), Callee::Lua { prototype, function: None });
                    }
                }
            }
        }
        let specialized: Vec<(u16, Callee)> = self.specialized.iter().map(|(at, callee)| (*at, *callee)).collect();
        for (at, callee) in specialized {
            let load = body.code.ins(at);
            if op(self.numbering, load) != Some(Op::HLOAD) {
                continue;
            }
            let reference = body.code.ins(load.op1());
            if !matches!(op(self.numbering, reference), Some(Op::HREFK | Op::HREF)) {
                continue;
            }
            let key = reference.op2();
            let key =
                if op(self.numbering, body.code.ins(key)) == Some(Op::KSLOT) { body.code.ins(key).op1() } else { key };
            if key >= BIAS || op(self.numbering, body.code.ins(key)) != Some(Op::KGC) {
                continue;
            }
            let string = object(layout, body, key);
            self.by_key.entry(string).or_default().push(callee);
            if let Ok(name) = read_string(memory, layout, string, MAX_NAME)
                && name.starts_with(b"__")
            {
                let name = String::from_utf8_lossy(&name).into_owned();
                self.metamethods.entry(name).or_default().push(callee);
            }
        }
        for known in self.by_key.values_mut().chain(self.metamethods.values_mut()) {
            known.dedup();
        }
    }

    /// The function that the constant at a reference is.
    pub fn function(&self, at: u16) -> Option<Callee> {
        self.constants.get(&at).copied()
    }

    /// What a guard says that the value at a reference is.
    pub fn specialized(&self, at: u16) -> Option<Callee> {
        self.specialized.get(&at).copied()
    }

    /// The function that was loaded by the string at `key`, if there is one only.
    pub fn by_key(&self, key: u64) -> Option<Callee> {
        match self.by_key.get(&key).map(Vec::as_slice) {
            Some([callee]) => Some(*callee),
            _ => None,
        }
    }

    /// The functions that were loaded as this metamethod.
    pub fn metamethods(&self, name: &str) -> &[Callee] {
        self.metamethods.get(name).map_or(&[], Vec::as_slice)
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

    /// The Lua function whose bytecode `pc` points into (or behind its last instruction).
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

    /// Whether the trace may have begun in this function, and have replaced it by a tail call, or returned to it.
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

/// The address of the object or the pointer that a constant is.
pub fn object(layout: &VmLayout, body: &Body, at: u16) -> u64 {
    if layout.is_gc64() { body.code.word(at + 1) & ((1 << 47) - 1) } else { u64::from(body.code.ins(at).literal()) }
}
