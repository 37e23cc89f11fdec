//! Names of functions from their definitions: the variable or field in which the code stores the function that an
//! `FNEW` creates.
//!
//! Lua functions have no names of their own. But `function M.f() end` and `local f = function() end` compile to an `FNEW` that
//! creates the function, and to instructions that store it ([`BCDEF`], `lj_bc.h`). The instructions are read one after the
//! other as they are. Names need no more, because LuaJIT's parser stores a value right after the expression that creates it.
//!
//! [`BCDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_bc.h#L71-L206

use std::cell::Cell;

use lj_trace_common::layout::BytecodeSet;

use super::path::Path;
use super::variables::VariablesBySlot;
use crate::bytecode::{Instruction, Op, Opcode, OperandA, opcodes};
use crate::prototype::Prototype;

/// How many tables may be nested before names begin with a field.
const MAX_DEPTH: u32 = 8;

/// The most instructions that are read for one prototype: enough for all prototypes that people write. A generated one with
/// thousands of functions in one table may reach this limit; the names of the other functions then begin with a field.
const MAX_STEPS: u32 = 1 << 23;

/// The most instructions that are read to find where one value comes from or goes to.
const MAX_DISTANCE: u32 = 1 << 16;

/// The definition of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Address of the function's prototype.
    pub function: u64,
    path: Path,
}

impl Definition {
    /// The function's name: `M.render`, or `M:render` for a method, which takes `self`.
    pub fn name(self, is_method: bool) -> String {
        if is_method { self.path.of_method() } else { self.path.into_text() }
    }
}

impl Prototype {
    /// The definition of the function with the prototype at `function`, if this prototype stores it under a name.
    pub(super) fn definition_of(&self, function: u64, set: BytecodeSet, fr2: bool) -> Option<Definition> {
        let code = CodeReader::new(self, set, fr2);
        let mut positions = 0..self.bytecode.len() as u32;
        let position = positions.find(|&position| code.made_at(position).is_some_and(|(made, _)| made == function))?;
        code.definition(position)
    }
}

/// The code of a prototype, for lookups in both directions.
struct CodeReader<'a> {
    prototype: &'a Prototype,
    opcodes: Vec<&'static Opcode>,
    variables: VariablesBySlot<'a>,
    fr2: bool,
    steps: Cell<u32>,
}

impl<'a> CodeReader<'a> {
    fn new(prototype: &'a Prototype, set: BytecodeSet, fr2: bool) -> Self {
        let variables = VariablesBySlot::of(prototype);
        Self { prototype, opcodes: opcodes(set).collect(), variables, fr2, steps: Cell::new(MAX_STEPS) }
    }

    fn instruction(&self, position: u32) -> Option<(&'static Opcode, Instruction)> {
        let instruction = self.prototype.instruction(position)?;
        Some((*self.opcodes.get(usize::from(instruction.op()))?, instruction))
    }

    /// The prototype of the function that the instruction at `position` creates, and the slot that it is stored in.
    fn made_at(&self, position: u32) -> Option<(u64, u8)> {
        let (opcode, instruction) = self.instruction(position)?;
        let is_new = opcode.op == Op::FNEW;
        is_new.then(|| Some((self.prototype.child(instruction.d())?, instruction.a())))?
    }

    fn definition(&self, position: u32) -> Option<Definition> {
        let (function, slot) = self.made_at(position)?;
        Some(Definition { function, path: self.destination(position, slot, 0)? })
    }

    fn step(&self) -> Option<()> {
        self.steps.set(self.steps.get().checked_sub(1)?);
        Some(())
    }

    fn variable(&self, position: u32, slot: u8) -> Option<Path> {
        self.variables.name(position, slot).map(|name| Path::variable(&name))
    }

    fn upvalue(&self, index: u16) -> Option<Path> {
        self.prototype.upvalues.get(usize::from(index)).map(|name| Path::variable(name))
    }

    fn global(&self, index: u16) -> Option<Path> {
        self.prototype.name_constant(index).map(Path::variable)
    }

    /// The variable or field that receives the value which the instruction at `made` has put into `slot`.
    fn destination(&self, made: u32, mut slot: u8, depth: u32) -> Option<Path> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut position = made;
        for _ in 0..MAX_DISTANCE {
            self.step()?;
            position += 1;
            if let Some(variable) = self.variable(position, slot) {
                return Some(variable);
            }
            let (opcode, instruction) = self.instruction(position)?;
            let is_value = instruction.a() == slot;
            match opcode.op {
                Op::GSET if is_value => return self.global(instruction.d()),
                Op::USETV if instruction.d() == u16::from(slot) => return self.upvalue(instruction.a().into()),
                Op::TSETS | Op::TSETB | Op::TSETV if is_value => return Some(self.element(position, opcode, depth)),
                Op::MOV if instruction.d() == u16::from(slot) => {
                    if let Some(variable) = self.variable(position + 1, instruction.a()) {
                        return Some(variable);
                    }
                }
                Op::JMP | Op::UCLO => {
                    // A jump back belongs to a loop, where nothing new is stored.
                    let target = i64::from(position) + 1 + i64::from(instruction.d()) - 0x8000;
                    position = u32::try_from(target).ok().filter(|&target| target > position)? - 1;
                }
                Op::RETM | Op::RET | Op::RET0 | Op::RET1 => return None,
                // `setmetatable(table, ...)` returns its table.
                Op::CALL
                    if slot == self.first_argument(instruction) && self.calls_setmetatable(position, instruction) =>
                {
                    slot = instruction.a();
                }
                op if opcode.a == OperandA::Base
                    && slot >= instruction.a()
                    && (op != Op::KNIL || u16::from(slot) <= instruction.d()) =>
                {
                    return None;
                }
                _ if opcode.a == OperandA::Destination && is_value => return None,
                _ => {}
            }
        }
        None
    }

    /// The table element that the instruction at `position` sets or reads.
    fn element(&self, position: u32, opcode: &Opcode, depth: u32) -> Path {
        let instruction = Instruction(self.prototype.bytecode[position as usize]);
        let table = self.origin(position, instruction.b(), depth + 1);
        match opcode.op {
            Op::TSETS | Op::TGETS => match self.prototype.name_constant(u16::from(instruction.c())) {
                Some(key) => Path::field(table, key),
                None => Path::element(table, "?"),
            },
            Op::TSETB | Op::TGETB => Path::element(table, &instruction.c().to_string()),
            _ => self.keyed(table, position, instruction.c()),
        }
    }

    /// The table element whose key is in `slot`.
    fn keyed(&self, table: Option<Path>, position: u32, slot: u8) -> Path {
        if let Some(variable) = self.variables.name(position, slot) {
            return Path::element(table, &variable);
        }
        let written = self.written(position, slot);
        let key = written.and_then(|written| {
            let (opcode, instruction) = self.instruction(written)?;
            match opcode.op {
                Op::KSTR => Some(Err(self.prototype.name_constant(instruction.d())?)),
                Op::KSHORT => Some(Ok((instruction.d() as i16).to_string())),
                Op::UGET => Some(Ok(self.prototype.upvalues.get(usize::from(instruction.d()))?.clone())),
                _ => None,
            }
        });
        match key {
            Some(Err(text)) => Path::field(table, text),
            Some(Ok(key)) => Path::element(table, &key),
            None => Path::element(table, "?"),
        }
    }

    /// The name of the value in `slot` at `position`: where it was loaded from, or, for a new table, where it is stored later.
    fn origin(&self, position: u32, slot: u8, depth: u32) -> Option<Path> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(variable) = self.variable(position, slot) {
            return Some(variable);
        }
        let written = self.written(position, slot)?;
        let (opcode, instruction) = self.instruction(written)?;
        match opcode.op {
            Op::MOV => self.origin(written, instruction.d() as u8, depth + 1),
            Op::GGET => self.global(instruction.d()),
            Op::UGET => self.upvalue(instruction.d()),
            Op::TGETS | Op::TGETB | Op::TGETV => Some(self.element(written, opcode, depth)),
            Op::TNEW | Op::TDUP => self.destination(written, slot, depth + 1),
            _ => None,
        }
    }

    /// Position of the instruction before `position` that has written `slot`, unless that is a call or a loop.
    fn written(&self, position: u32, slot: u8) -> Option<u32> {
        // The first instruction is the function's header.
        for position in (1..position).rev().take(MAX_DISTANCE as usize) {
            self.step()?;
            let (opcode, instruction) = self.instruction(position)?;
            match opcode.a {
                OperandA::Base => {
                    let is_written = slot >= instruction.a()
                        && (opcode.op != Op::KNIL || u16::from(slot) <= instruction.d())
                        // TSETM keeps its table in the slot below the values that it stores.
                        && opcode.op != Op::TSETM;
                    if is_written {
                        return None;
                    }
                }
                OperandA::Destination if instruction.a() == slot => return Some(position),
                _ => {}
            }
        }
        None
    }

    fn first_argument(&self, call: Instruction) -> u8 {
        call.a().saturating_add(1 + u8::from(self.fr2))
    }

    fn calls_setmetatable(&self, position: u32, call: Instruction) -> bool {
        let called = self.origin(position, call.a(), MAX_DEPTH);
        called.is_some_and(|called| called.is_variable("setmetatable"))
    }
}

#[cfg(test)]
mod tests;
