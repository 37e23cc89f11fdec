//! Explores the functions of a LuaJIT in a file: it starts with those that are certain, and follows their references.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::code::FunctionReferences;
use super::table::{INTERPRETER, NameId, SignatureTable};
use crate::module::Module;
use crate::references::References;

/// The most functions that are read: LuaJIT has some thousand. If a file has more, the most distant ones get no names.
const MAX_FUNCTIONS: usize = 4096;

/// A symbol's name, and its address in the file.
pub type NamedAddress<'a> = (&'a str, u64);

/// The functions of a file, and what is certain about them.
#[derive(Debug, Default)]
pub struct Program {
    /// Functions by their first addresses.
    pub functions: BTreeMap<u64, FunctionReferences>,
    /// Where the interpreter begins.
    pub interpreter: u64,
    /// Functions whose names are certain.
    pub certain: HashMap<u64, NameId>,
    /// Addresses that belong to no function of LuaJIT, and stubs of functions that do.
    pub stubs: HashMap<u64, Option<NameId>>,
}

impl Program {
    /// The functions of a module that can be reached from its symbols, from the interpreter that begins at
    /// `interpreter`, and from functions that are known otherwise. All addresses are as in the file.
    pub fn explore<'a>(
        module: &Module,
        symbols: impl IntoIterator<Item = NamedAddress<'a>>,
        interpreter: u64,
        known: impl IntoIterator<Item = (u64, NameId)>,
        table: &SignatureTable,
    ) -> Self {
        let mut program = Self { interpreter, ..Self::default() };
        for (name, address) in symbols {
            match (name.strip_suffix("@plt"), table.id(name)) {
                (Some(name), _) => drop(program.stubs.insert(address, table.id(name))),
                (None, Some(id)) => drop(program.certain.insert(address, id)),
                (None, None) => drop(program.stubs.insert(address, None)),
            }
        }
        for (address, id) in known {
            program.certain.entry(address).or_insert(id);
        }
        if let Some(id) = table.id(INTERPRETER) {
            program.certain.insert(interpreter, id);
        }
        program.visit(module);
        program
    }

    fn visit(&mut self, module: &Module) {
        let mut waiting: VecDeque<u64> = self.certain.keys().copied().collect();
        waiting.make_contiguous().sort_unstable();
        // Whether a function begins at an address that was examined.
        let mut looked_at: HashMap<u64, bool> = HashMap::new();
        let mut left = MAX_FUNCTIONS;
        while let Some(address) = waiting.pop_front() {
            if looked_at.contains_key(&address) || left == 0 {
                continue;
            }
            left -= 1;
            let found = FunctionReferences::of(module, address);
            let begins = found.as_ref().is_none_or(|found| found.start == address);
            looked_at.insert(address, begins);
            if let Some(function) = found.filter(|_| begins) {
                let References { calls, addresses, .. } = &function.references;
                waiting.extend(calls.iter().chain(addresses).filter(|address| !self.stubs.contains_key(address)));
                self.functions.insert(address, function);
            }
        }
        // A jump into the middle of a function is no call: it leads to a part of the same function that lies elsewhere.
        let is_whole =
            |address: &u64| self.stubs.contains_key(address) || looked_at.get(address).copied().unwrap_or(true);
        for function in self.functions.values_mut() {
            function.references.calls.retain(is_whole);
        }
    }
}
