//! What `parse-sysprof` prints for a sysprof stream, but sorted: the parser prints its lines in no order.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};

use lj_trace_streams::hash::AddrMap;
use lj_trace_streams::sysprof::merge::{self, Boundary, MergedFrame};
use lj_trace_streams::sysprof::{LuaFrame, SysprofEvent, fast_function_name};
use lj_trace_streams::{StreamError, Symbol, SymbolTable, SysprofReader};

/// Stacks as the parser prints them, and how often each was seen.
pub type Lines = BTreeMap<Vec<u8>, u64>;

/// The lines of the parser, in bytewise order, and the position of the cut if the stream is cut off.
///
/// # Errors
/// The errors of [`SysprofReader::next_event`], except for a cut.
pub fn read<R: Read>(
    symbols: Vec<Symbol>,
    reader: &mut SysprofReader<R>,
) -> Result<(Lines, Option<StreamError>), StreamError> {
    let mut names = NumberedNames { symbols: SymbolTable::with_aliases(), ..NumberedNames::default() };
    names.symbols.extend(symbols);
    let mut merged = Vec::new();
    let mut stack: Vec<u32> = Vec::new();
    let mut stacks: AddrMap<Vec<u32>, u64> = AddrMap::default();
    let cut = loop {
        match reader.next_event() {
            Ok(Some(SysprofEvent::Sample(sample))) => {
                merge::as_shown(&sample, |addr| names.boundary(addr), &mut merged);
                stack.clear();
                stack.extend(merged.iter().filter_map(|&frame| names.of(frame)));
            }
            Ok(Some(SysprofEvent::Trace(_))) => stack.clear(),
            Ok(Some(SysprofEvent::Symbol(symbol))) => {
                names.learn(symbol);
                continue;
            }
            Ok(None) => break None,
            Err(cut) if cut.is_truncation() => break Some(cut),
            Err(error) => return Err(error),
        }
        match stacks.get_mut(&stack) {
            Some(count) => *count += 1,
            None => {
                stacks.insert(stack.clone(), 1);
            }
        }
    };
    let mut lines = Lines::new();
    for (stack, count) in stacks {
        let stack: Vec<&[u8]> = stack.iter().map(|&name| &*names.names[name as usize]).collect();
        let mut line = stack.join(&b';');
        line.push(b';');
        *lines.entry(line).or_insert(0) += count;
    }
    Ok((lines, cut))
}

/// Writes the lines as the parser does: stack, tab, count.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(lines: &Lines, mut out: impl Write) -> io::Result<()> {
    for (stack, count) in lines {
        out.write_all(stack)?;
        writeln!(out, "\t{count}")?;
    }
    out.flush()
}

/// The names of frames, by number.
#[derive(Default)]
struct NumberedNames {
    symbols: SymbolTable,
    names: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, u32>,
    /// What frames mean, up to the next symbol.
    frames: AddrMap<MergedFrame, Option<u32>>,
    boundaries: std::cell::RefCell<AddrMap<u64, Boundary>>,
}

impl NumberedNames {
    fn learn(&mut self, symbol: Symbol) {
        if self.symbols.insert(symbol) {
            self.frames.clear();
            self.boundaries.borrow_mut().clear();
        }
    }

    fn boundary(&self, addr: u64) -> Boundary {
        *self.boundaries.borrow_mut().entry(addr).or_insert_with(|| match self.symbols.lua(addr) {
            Some(_) => Boundary::None,
            None => Boundary::of_addr(addr, &self.symbols),
        })
    }

    /// The number of a frame's name; `None` for a fast function that the parser does not know and omits.
    fn of(&mut self, frame: MergedFrame) -> Option<u32> {
        if let Some(&number) = self.frames.get(&frame) {
            return number;
        }
        let number = self.name(frame).map(|name| match self.numbers.get(&name) {
            Some(&number) => number,
            None => {
                let number = self.names.len() as u32;
                self.names.push(name.clone());
                self.numbers.insert(name, number);
                number
            }
        });
        self.frames.insert(frame, number);
        number
    }

    fn name(&self, frame: MergedFrame) -> Option<Vec<u8>> {
        Some(match frame {
            MergedFrame::Lua(LuaFrame::Ffunc { ffid }) => fast_function_name(ffid)?.into(),
            MergedFrame::Lua(LuaFrame::Lfunc { proto, line }) => demangle(&self.symbols, proto, line),
            MergedFrame::Lua(LuaFrame::Cfunc { addr }) | MergedFrame::Host(addr) => demangle(&self.symbols, addr, 0),
        })
    }
}

/// The name of an address that is no trace: `demangle` of `tools/utils/symtab.lua`.
pub(super) fn demangle(symbols: &SymbolTable, addr: u64, line: u64) -> Vec<u8> {
    if addr == 0 {
        return b"INTERNAL".into();
    }
    if let Some(lua) = symbols.lua(addr) {
        let mut name = match symbols.alias(&lua.chunk) {
            Some(number) => format!("function_alias_{number}").into_bytes(),
            None => lua.chunk.to_vec(),
        };
        name.extend_from_slice(format!(":{line}").as_bytes());
        return name;
    }
    match symbols.c(addr) {
        Some(c) => [&c.name, format!(":{:#x}", c.start).as_bytes()].concat(),
        None => format!("CFUNC {addr:#x}").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::{Body, Stream};

    use super::*;

    #[test]
    fn golden_streams_read_as_the_parser_prints_them() {
        let golden: [(&[u8], &str); 2] = [
            (
                include_bytes!("../../../streams/tests/golden/sysprof-C-jit.bin"),
                include_str!("../../../streams/tests/golden/sysprof-C-jit.folded"),
            ),
            (
                include_bytes!("../../../streams/tests/golden/sysprof-C-nojit.bin"),
                include_str!("../../../streams/tests/golden/sysprof-C-nojit.folded"),
            ),
        ];
        for (stream, expected) in golden {
            let Stream { symbols, body, .. } = Stream::open(stream).unwrap();
            let Body::Sysprof(mut reader) = body else { panic!("not a sysprof stream") };
            let (lines, cut) = read(symbols, &mut reader).unwrap();
            assert!(cut.is_none());
            let mut out = Vec::new();
            write(&lines, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
