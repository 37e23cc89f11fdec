//! Learns signatures from a build with symbols.

use std::collections::BTreeMap;

use super::explore::{NamedAddress, Program};
use super::table::{Element, INTERPRETER, SignatureTable};
use crate::module::Module;

/// Functions of programs and of their startup code, which do not belong to LuaJIT.
const FOREIGN: [&str; 16] = [
    "main",
    "pmain",
    "dotty",
    "docall",
    "lstop",
    "laction",
    "report",
    "traceback",
    "dolibrary",
    "incomplete",
    "pushline",
    "handle_script",
    "print_jit_status",
    "l_message",
    "runargs",
    "loadline",
];

/// Symbols at the beginning of the interpreter: both have the same address, and files keep one of them.
const INTERPRETER_SYMBOLS: [&str; 2] = [INTERPRETER, "lj_BC_ISLT"];

/// The beginning of the interpreter, from the symbols.
pub fn interpreter_of(symbols: &[NamedAddress<'_>]) -> Option<u64> {
    symbols.iter().find(|(name, _)| INTERPRETER_SYMBOLS.contains(name)).map(|(_, address)| *address)
}

/// Whether a symbol names a place in the interpreter.
fn is_in_interpreter(name: &str) -> bool {
    name != "lj_vm_ffi_call" && ["lj_BC_", "lj_vm_", "lj_ff_", "lj_cont_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Adds the references of a module's functions, named by its symbols, to a table.
pub fn learn(table: &mut SignatureTable, module: &Module, symbols: &[NamedAddress<'_>]) {
    let mut names: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for &(name, address) in symbols {
        let is_own = |name: &str| {
            !name.starts_with('_') && !name.ends_with("@plt") && !is_in_interpreter(name) && !FOREIGN.contains(&name)
        };
        if let Some(name) = plain(name).filter(|name| is_own(name)) {
            names.entry(name).or_default().push(address);
        }
    }
    let interpreter = interpreter_of(symbols).unwrap_or(0);
    names.insert(INTERPRETER.to_owned(), vec![interpreter]);
    for name in names.keys() {
        table.intern(name);
    }
    let own = names.iter().flat_map(|(name, addresses)| addresses.iter().map(move |address| (*address, name)));
    let own: Vec<_> = own.filter_map(|(address, name)| Some((address, table.id(name)?))).collect();
    let program = Program::explore(module, symbols.iter().copied(), interpreter, own.iter().copied(), table);
    for (name, addresses) in &names {
        if let Some(signature) = table.id(name).and_then(|id| table.signature_mut(id)) {
            signature.is_ambiguous |= addresses.len() > 1;
            signature.builds += 1;
        }
    }
    let name_of = |address: &u64| -> Element {
        own.iter()
            .find(|(own, _)| own == address)
            .map(|(_, id)| *id)
            .or_else(|| program.stubs.get(address).copied().flatten())
    };
    for (address, id) in &own {
        let Some(function) = program.functions.get(address) else { continue };
        let Some(signature) = table.signature_mut(*id) else { continue };
        signature.calls.insert(function.references.calls.iter().map(name_of).collect());
        signature.addresses.insert(function.references.addresses.iter().map(name_of).collect());
        signature.constants.insert(function.references.constants.clone());
    }
}

/// Adds the calls of an interpreter, in order, to a table. No compiler has made its assembler code, so this needs no
/// whole build.
pub fn learn_interpreter<'a>(table: &mut SignatureTable, calls: impl Iterator<Item = &'a str>) {
    let calls: Vec<Element> = calls.map(|name| table.id(name)).collect();
    if let Some(signature) = table.id(INTERPRETER).and_then(|id| table.signature_mut(id)) {
        signature.calls.insert(calls);
    }
}

/// The name of a function without the numbers that a compiler gives to copies; [`None`] for a cold part, which is no function.
fn plain(name: &str) -> Option<String> {
    if name.contains(".cold") {
        return None;
    }
    let kept = name.split('.').filter(|part| part.parse::<u32>().is_err());
    Some(kept.collect::<Vec<_>>().join("."))
}
