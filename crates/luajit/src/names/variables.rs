//! The local variables of a function, as its debug information has them ([`debug_varname`], `lj_debug.c`, of 2.0 to 2026-08).
//!
//! LuaJIT's sources: [`VARNAMEDEF`].
//!
//! [`debug_varname`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L152-L182
//! [`VARNAMEDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.h#L50-L56

use std::collections::HashMap;

use crate::prototype::{MAX_NAME, Prototype};

impl Prototype {
    /// The local variables that are live at `position`, each with its slot, as `debug.getlocal` shows them; empty if
    /// the function is stripped. The hidden variables of loops are left out.
    pub fn locals_at(&self, position: u32) -> Vec<(u8, String)> {
        let variables = variables(self.varinfo());
        let live = variables.into_iter().filter(|variable| variable.lives_at(position)).zip(0..self.framesize);
        let named = live.filter(|(variable, _)| !variable.is_hidden());
        named.map(|(variable, slot)| (slot, String::from_utf8_lossy(variable.name).into_owned())).collect()
    }

    /// Whether its first parameter is called `self`: then it is a method, as `function object:name()` defines it.
    pub fn takes_self(&self) -> bool {
        self.numparams > 0 && variables(self.varinfo()).first().is_some_and(|variable| variable.name == b"self")
    }
}

/// A local variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variable<'a> {
    name: &'a [u8],
    /// The positions at which it is live: from `start` up to `end`.
    start: u32,
    end: u32,
}

impl Variable<'_> {
    fn lives_at(&self, position: u32) -> bool {
        (self.start..self.end).contains(&position)
    }

    /// Whether it is a hidden variable of a loop.
    fn is_hidden(&self) -> bool {
        self.name.starts_with(b"(")
    }
}

/// Variables by slot.
#[derive(Debug, Default)]
pub struct VariablesBySlot<'a>(HashMap<u8, Vec<Variable<'a>>>);

impl<'a> VariablesBySlot<'a> {
    /// The variables of a function; empty if it is stripped.
    pub fn of(prototype: &'a Prototype) -> Self {
        let mut slots: HashMap<u8, Vec<Variable<'a>>> = HashMap::new();
        // A variable takes the first slot above the variables that are live where it begins. Blocks nest, and so do
        // live ranges.
        let mut live: Vec<Variable<'a>> = Vec::new();
        for variable in variables(prototype.varinfo()) {
            while live.last().is_some_and(|last| !last.lives_at(variable.start)) {
                live.pop();
            }
            let Ok(slot) = u8::try_from(live.len()) else { break };
            live.push(variable);
            slots.entry(slot).or_default().push(variable);
        }
        Self(slots)
    }

    /// The name of the variable that is live in `slot` at `position`.
    pub fn name(&self, position: u32, slot: u8) -> Option<String> {
        let variables = self.0.get(&slot)?;
        let next = variables.partition_point(|variable| variable.start <= position);
        let variable = variables.get(next.checked_sub(1)?)?;
        let is_named = variable.lives_at(position) && !variable.is_hidden();
        let name = &variable.name[..variable.name.len().min(MAX_NAME)];
        is_named.then(|| String::from_utf8_lossy(name).into_owned())
    }
}

/// All local variables, in the order in which they begin.
///
/// `varinfo` has for each variable: a name (or a number for the hidden variables of loops), the distance from the last
/// beginning, and the length of its live range.
fn variables(varinfo: &[u8]) -> Vec<Variable<'_>> {
    /// `VARNAMEDEF` (`lj_debug.h`); 0 ends the list.
    const HIDDEN: [&str; 6] =
        ["(for index)", "(for limit)", "(for step)", "(for generator)", "(for state)", "(for control)"];
    let mut rest = varinfo;
    let mut start = 0_u32;
    let mut next = || -> Option<Variable<'_>> {
        let name = match usize::from(*rest.first()?) {
            0 => return None,
            kind @ 1..=6 => {
                rest = &rest[1..];
                HIDDEN[kind - 1].as_bytes()
            }
            _ => {
                let (name, tail) = rest.split_at(rest.iter().position(|byte| *byte == 0)?);
                rest = &tail[1..];
                name
            }
        };
        start = start.checked_add(uleb128(&mut rest)?)?;
        Some(Variable { name, start, end: start.checked_add(uleb128(&mut rest)?)? })
    };
    std::iter::from_fn(&mut next).collect()
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
    use crate::prototype::tests::prototype;

    #[test]
    fn variables_have_the_slots_that_are_free_where_they_begin() {
        // `f` from 2 to 12, a loop's hidden variables from 3 to 8, then `late` in their slots.
        let varinfo = b"f\0\x02\x0a\x04\x01\x05\x05\x00\x05\x06\x00\x05late\0\x06\x03\x00";
        let prototype = prototype(vec![0; 20], varinfo, &[], &[]);
        let slots = VariablesBySlot::of(&prototype);
        assert_eq!(slots.name(3, 0).as_deref(), Some("f"));
        assert_eq!((slots.name(1, 0), slots.name(12, 0)), (None, None));
        assert_eq!(
            (slots.name(4, 1), slots.name(8, 1)),
            (None, None),
            "those of a loop have no names of the program's"
        );
        assert_eq!(slots.name(9, 1).as_deref(), Some("late"));
        assert_eq!(prototype.locals_at(4), [(0, "f".to_owned())]);
        assert_eq!(prototype.locals_at(9), [(0, "f".to_owned()), (1, "late".to_owned())]);
    }

    #[test]
    fn survives_garbage() {
        for varinfo in [&b"abc"[..], b"abc\0\xff\xff\xff\xff\xff\xff", b"\x01", b"\x01\x80", b""] {
            assert_eq!(variables(varinfo), []);
        }
    }
}
