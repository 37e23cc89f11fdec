//! Hand-made traces for tests.

use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_common::layout::{BytecodeSet, VmLayout};

use super::body::{TraceBody, TraceSnapshot};
use super::functions::{Callee, TraceFunctions};
use super::ir::{BIAS, IrCode, Numbering};
use crate::bytecode::{Op, opcodes};
use crate::testing::{Saved, x64_layout};
use crate::{Prototype, Trace, prototype};

/// The numbering of the bytecode.
pub const SET: BytecodeSet = BytecodeSet::V21;

/// The size of a prototype's header in bytes, whatever the build.
pub const HEADER: u64 = 0x40;

/// Address of the first hand-made function: there is one each 0x1000 bytes.
pub const START: u64 = 0x1000;

/// A layout whose frames take two slots, or one slot.
pub fn layout(fr2: bool) -> VmLayout {
    x64_layout("Debian", if fr2 { "x64gc64" } else { "x64" })
}

/// An instruction `OP A D`.
pub fn ad(op: Op, a: u8, d: u16) -> u32 {
    let number = opcodes(SET).position(|opcode| opcode.op == op).unwrap();
    number as u32 | u32::from(a) << 8 | u32::from(d) << 16
}

/// An instruction `OP A B C`.
pub fn abc(op: Op, a: u8, b: u8, c: u8) -> u32 {
    ad(op, a, u16::from(c) | u16::from(b) << 8)
}

/// The Lua function `index`.
pub fn lua(index: u64) -> Callee {
    Callee::Lua { prototype: START + 0x1000 * index, function: Some(0x10_0000 + index) }
}

/// A library function.
pub fn native() -> Callee {
    Callee::Native { function: 0x20_0000, ffid: 20 }
}

/// The PC of an instruction.
pub fn pc(index: u64, position: u64) -> u64 {
    START + 0x1000 * index + HEADER + 4 * position
}

/// The memory of functions, with nothing but their bytecode.
pub fn memory(functions: &[Vec<u32>]) -> Saved {
    let mut bytes = vec![0; 0x1000 * functions.len()];
    for (index, function) in functions.iter().enumerate() {
        for (position, word) in function.iter().enumerate() {
            let at = (pc(index as u64, position as u64) - START) as usize;
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
    Saved::new(START, bytes)
}

/// The functions of a trace, with those among its constants.
pub fn trace_functions(functions: &[Vec<u32>], constants: &[(u16, Callee)]) -> TraceFunctions {
    let prototypes = functions.iter().enumerate().map(|(index, function)| {
        let mut prototype: Prototype = prototype::tests::prototype(function.clone(), &[], &[], &[]);
        prototype.key.address = START + 0x1000 * index as u64;
        (prototype.key.address, Arc::new(prototype))
    });
    TraceFunctions::made(Numbering::TmpRef, constants, prototypes.collect::<HashMap<_, _>>(), HEADER)
}

/// The reference of 64-bit constant `index`.
pub fn constant(index: usize) -> u16 {
    BIAS - 2 * (index as u16 + 1)
}

/// A trace with one snapshot and these constants.
pub fn body(constants: &[u64], entries: &[u32], tail: &[u32]) -> TraceBody {
    let words: Vec<u64> = constants.iter().rev().flat_map(|value| [0, *value]).collect();
    let trace = Trace {
        number: 1,
        address: 0,
        mcode: 0..0,
        mcloop: 0,
        root: 0,
        link: 0,
        nextside: 0,
        linktype: None,
        spadjust: 0,
        startpt: START,
        startpc: 0,
        startins: 0,
        ir: 0,
        nk: 0,
        nins: 0,
        nsnap: None,
        snap: 0,
        snapmap: 0,
    };
    TraceBody {
        trace,
        code: IrCode::new(BIAS - 2 * constants.len() as u16, words),
        snapshots: vec![TraceSnapshot { map: 0, entries: entries.len() as u8, at: BIAS, mcode: None }],
        map: [entries, tail].concat(),
        mcode: Vec::new(),
    }
}
