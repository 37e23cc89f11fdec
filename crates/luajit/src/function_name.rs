//! What a function is called, as its caller sees it: LuaJIT's [`lj_debug_funcname`] on prototypes.
//!
//! Lua functions have no names of their own. As LuaJIT does for its error messages, the name is taken from
//! the instruction that called: which variable, field or upvalue its function came from (`lj_debug.c`,
//! `lj_debug_funcname`, [`lj_debug_slotname`], [`debug_varname`], of 2.0 to 2026-08).
//!
//! LuaJIT's sources: [`VARNAMEDEF`].
//!
//! [`lj_debug_funcname`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L298-L324
//! [`lj_debug_slotname`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L255-L295
//! [`debug_varname`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L152-L182
//! [`VARNAMEDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.h#L50-L56

use lj_trace_common::layout::BytecodeSet;

use super::bytecode::{Metamethod, Op, OperandA};
use super::prototype::Prototype;

/// A function's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionName {
    /// The name alone: `gsub`, not `string.gsub`.
    pub name: String,
    /// What it is the name of.
    pub kind: NameKind,
}

/// What a function was called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A global variable.
    Global,
    /// A local variable.
    Local,
    /// A method: `object:name()`.
    Method,
    /// A field of a table.
    Field,
    /// An upvalue.
    Upvalue,
    /// A metamethod, called by an operator.
    Metamethod,
}

/// The name of the function that `caller` called with its instruction at `position`.
///
/// `fr2` tells whether frames take two slots (builds with 64-bit references).
pub fn function_name(caller: &Prototype, position: u32, set: BytecodeSet, fr2: bool) -> Option<FunctionName> {
    let call = caller.instruction(position)?;
    let opcode = call.opcode(set)?;
    match opcode.metamethod {
        Metamethod::None => None,
        Metamethod::Named(name) => Some(FunctionName { name: name.to_owned(), kind: NameKind::Metamethod }),
        Metamethod::Call => {
            // The iterator of a `for` loop was copied from three slots below.
            let slot = if opcode.op == Op::ITERC { call.a().checked_sub(3)? } else { call.a() };
            slot_name(caller, position, slot, set, fr2)
        }
    }
}

impl Prototype {
    /// The functions that it defines, by the addresses of their prototypes, with the variables or fields that each is
    /// assigned to at once: `local function f`, `function M.f`, `f = function`.
    pub fn definitions(&self, set: BytecodeSet) -> Vec<(u64, String)> {
        let definition = |position: u32| {
            let instruction = self.instruction(position)?;
            if instruction.opcode(set)?.op != Op::FNEW {
                return None;
            }
            let (child, slot) = (self.child(instruction.d())?, instruction.a());
            let next = self.instruction(position + 1);
            let stored = next.and_then(|next| {
                let name = match next.opcode(set)?.op {
                    Op::GSET if next.a() == slot => self.name_constant(next.d())?,
                    Op::TSETS if next.a() == slot => self.name_constant(u16::from(next.c()))?,
                    Op::USETV if next.d() == u16::from(slot) => self.upvalues.get(usize::from(next.a()))?,
                    _ => return None,
                };
                Some(name.to_owned())
            });
            let name = stored.or_else(|| variable_name(self.varinfo(), position + 1, slot))?;
            (!name.starts_with('(')).then_some((child, name))
        };
        (0..self.bytecode.len() as u32).filter_map(definition).collect()
    }

    /// The local variables that live at `position`, each with its slot, as `debug.getlocal` shows them; none if the
    /// function is stripped. Without the variables that loops keep for themselves.
    pub fn locals_at(&self, position: u32) -> Vec<(u8, String)> {
        let named = (0..self.framesize).map_while(|slot| Some((slot, variable_name(self.varinfo(), position, slot)?)));
        named.filter(|(_, name)| !name.starts_with('(')).collect()
    }
}

/// The name of what `slot` holds at `position`.
fn slot_name(
    prototype: &Prototype,
    mut position: u32,
    mut slot: u8,
    set: BytecodeSet,
    fr2: bool,
) -> Option<FunctionName> {
    let named = |name: &str, kind| Some(FunctionName { name: name.to_owned(), kind });
    if let Some(name) = variable_name(prototype.varinfo(), position, slot) {
        return named(&name, NameKind::Local);
    }
    // Back to the instruction that wrote the slot. The first one is the function's header.
    while position > 1 {
        position -= 1;
        let instruction = prototype.instruction(position)?;
        let opcode = instruction.opcode(set)?;
        if opcode.a == OperandA::Base {
            // A call or a loop overwrote it; KNIL only up to D.
            if slot >= instruction.a() && (opcode.op != Op::KNIL || u16::from(slot) <= instruction.d()) {
                return None;
            }
        } else if opcode.a == OperandA::Destination && instruction.a() == slot {
            match opcode.op {
                Op::MOV => {
                    slot = instruction.d() as u8;
                    if let Some(name) = variable_name(prototype.varinfo(), position, slot) {
                        return named(&name, NameKind::Local);
                    }
                }
                Op::GGET => return named(prototype.name_constant(instruction.d())?, NameKind::Global),
                Op::TGETS => {
                    // `object:name()` first copies the object to where the first argument goes.
                    let copy = prototype.instruction(position - 1)?;
                    let is_method = copy.opcode(set).is_some_and(|opcode| opcode.op == Op::MOV)
                        && u16::from(copy.a()) == u16::from(slot) + 1 + u16::from(fr2)
                        && copy.d() == u16::from(instruction.b());
                    let kind = if is_method { NameKind::Method } else { NameKind::Field };
                    return named(prototype.name_constant(u16::from(instruction.c()))?, kind);
                }
                Op::UGET => {
                    let name = prototype.upvalues.get(usize::from(instruction.d()))?;
                    return named(name, NameKind::Upvalue);
                }
                _ => return None,
            }
        }
    }
    None
}

/// The name of the local variable that is in `slot` at `position`.
///
/// `varinfo` lists the variables in the order of their slots and beginnings: a name (or a number for the
/// hidden variables of loops), the distance from the last beginning, and the length of its life.
fn variable_name(varinfo: &[u8], position: u32, mut slot: u8) -> Option<String> {
    /// `VARNAMEDEF` (`lj_debug.h`); 0 ends the list.
    const HIDDEN: [&str; 6] =
        ["(for index)", "(for limit)", "(for step)", "(for generator)", "(for state)", "(for control)"];
    let mut rest = varinfo;
    let mut start = 0_u32;
    loop {
        let kind = usize::from(*rest.first()?);
        let name = match kind {
            0 => return None,
            1..=6 => {
                rest = &rest[1..];
                HIDDEN[kind - 1].as_bytes()
            }
            _ => {
                let end = rest.iter().position(|byte| *byte == 0)?;
                let (name, tail) = rest.split_at(end);
                rest = &tail[1..];
                name
            }
        };
        start = start.checked_add(uleb128(&mut rest)?)?;
        if start > position {
            return None;
        }
        let end = start.checked_add(uleb128(&mut rest)?)?;
        if position < end {
            match slot.checked_sub(1) {
                Some(next) => slot = next,
                None => return Some(String::from_utf8_lossy(name).into_owned()),
            }
        }
    }
}

/// Takes an unsigned LEB128 number of up to 32 bits.
fn uleb128(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytecode::opcodes;
    use crate::prototype::tests::prototype;

    const SET: BytecodeSet = BytecodeSet::V21;

    fn ad(op: Op, a: u32, d: u32) -> u32 {
        let number = opcodes(SET).position(|opcode| opcode.op == op).unwrap() as u32;
        number | a << 8 | d << 16
    }

    fn abc(op: Op, a: u32, b: u32, c: u32) -> u32 {
        ad(op, a, c | b << 8)
    }

    #[test]
    fn functions_are_named_by_what_they_are_assigned_to() {
        let prototype = prototype(
            vec![
                ad(Op::FUNCV, 9, 0),
                ad(Op::FNEW, 0, 0),
                ad(Op::FNEW, 1, 1),
                ad(Op::GSET, 1, 5),
                ad(Op::FNEW, 1, 2),
                abc(Op::TSETS, 1, 0, 6),
                ad(Op::FNEW, 1, 3),
                ad(Op::USETV, 1, 1),
                // Stored nowhere: an argument.
                ad(Op::FNEW, 2, 0),
                abc(Op::CALL, 1, 1, 2),
            ],
            b"helper\0\x02\x20\0",
            &["up", "other"],
            &[(5, "global"), (6, "field")],
        );
        let names = prototype.definitions(SET);
        let expected = [(0x9000, "helper"), (0x9001, "global"), (0x9002, "field"), (0x9003, "other")];
        assert_eq!(names, expected.map(|(child, name)| (child, name.to_owned())));
    }

    fn name_at(position: u32, prototype: &Prototype) -> Option<(String, NameKind)> {
        function_name(prototype, position, SET, true).map(|name| (name.name, name.kind))
    }

    #[test]
    fn names_globals_fields_methods_and_upvalues() {
        let names = [(0, "print"), (1, "gsub"), (2, "close")];
        let prototype = prototype(
            vec![
                ad(Op::FUNCF, 9, 0),
                ad(Op::GGET, 0, 0),
                abc(Op::CALL, 0, 1, 1),
                ad(Op::UGET, 0, 1),
                abc(Op::TGETS, 3, 0, 1),
                abc(Op::CALL, 3, 1, 1),
                ad(Op::MOV, 5, 0),
                abc(Op::TGETS, 3, 0, 2),
                abc(Op::CALL, 3, 1, 1),
                ad(Op::UGET, 4, 1),
                abc(Op::CALL, 4, 1, 1),
                abc(Op::ADDVV, 4, 1, 1),
                ad(Op::RET0, 0, 1),
            ],
            &[0],
            &["a", "helper"],
            &names,
        );
        let named = |name: &str, kind| Some((name.to_owned(), kind));
        assert_eq!(name_at(2, &prototype), named("print", NameKind::Global));
        assert_eq!(name_at(5, &prototype), named("gsub", NameKind::Field));
        assert_eq!(name_at(8, &prototype), named("close", NameKind::Method));
        assert_eq!(name_at(10, &prototype), named("helper", NameKind::Upvalue));
        assert_eq!(name_at(11, &prototype), named("__add", NameKind::Metamethod));
        assert_eq!(name_at(12, &prototype), None);
        assert_eq!(name_at(99, &prototype), None);
    }

    #[test]
    fn names_locals_and_iterators() {
        // `local f = ...; f()` with `f` alive from position 2 on, and a `for` loop's hidden variables.
        let varinfo = b"f\0\x02\x0a\x04\x01\x05\x05\x00\x05\x06\x00\x05\x00";
        let prototype = prototype(
            vec![
                ad(Op::FUNCF, 9, 0),
                abc(Op::TNEW, 0, 0, 0),
                ad(Op::MOV, 5, 0),
                abc(Op::CALL, 5, 1, 1),
                abc(Op::ITERC, 4, 3, 3),
            ],
            varinfo,
            &[],
            &[],
        );
        assert_eq!(name_at(3, &prototype), Some(("f".to_owned(), NameKind::Local)));
        assert_eq!(name_at(4, &prototype), Some(("(for generator)".to_owned(), NameKind::Local)));
    }

    #[test]
    fn a_call_in_between_ends_the_search() {
        let bytecode = vec![
            ad(Op::FUNCF, 9, 0),
            ad(Op::GGET, 2, 0),
            abc(Op::CALL, 1, 2, 1),
            abc(Op::CALL, 2, 1, 1),
            ad(Op::KNIL, 0, 1),
            abc(Op::CALL, 2, 1, 1),
        ];
        let prototype = prototype(bytecode, &[0], &[], &[(0, "print")]);
        assert_eq!(name_at(3, &prototype), None);
        assert_eq!(name_at(2, &prototype), None);
    }

    #[test]
    fn survives_garbage() {
        for varinfo in [&b"abc"[..], b"abc\0\xff\xff\xff\xff\xff\xff", b"\x01", b"\x01\x80"] {
            assert_eq!(variable_name(varinfo, 5, 0), None);
        }
        let prototype = prototype(vec![0xffff_ffff, 0xffff_ffff], b"\x01", &[], &[]);
        assert_eq!(name_at(1, &prototype), None);
    }
}
