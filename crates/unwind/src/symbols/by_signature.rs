//! LuaJIT's functions in files without symbols, named by [`signatures`](crate::signatures).

use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use super::elf::ElfSymbols;
use crate::module::Module;
use crate::modules::CodePlace;
use crate::modules::Modules;
use crate::signatures::{Program, SignatureTable, names};

/// The suffix of names that were found by signature and are in no symbol table.
pub const MARK: &str = "_[s]";

/// The most interpreters that are kept: a library that is loaded again and again may have another address each time.
const MAX_INTERPRETERS: usize = 64;

/// The most modules whose functions are kept: a process has one LuaJIT, or a few.
const MAX_MODULES: usize = 8;

/// A function that was named by its signature. Addresses are as in the file.
#[derive(Clone, Debug)]
pub struct FunctionBySignature {
    /// Addresses of its code.
    pub range: Range<u64>,
    /// Its name, with [`MARK`].
    pub name: Arc<str>,
}

/// The named functions of all LuaJITs of a process.
#[derive(Debug, Default)]
pub struct BySignature {
    /// Addresses in the target where interpreters begin.
    interpreters: Vec<u64>,
    /// Modules with their functions, by the module's address in lj-trace's memory.
    modules: HashMap<usize, (Arc<Module>, Arc<[FunctionBySignature]>)>,
}

impl BySignature {
    /// Adds an interpreter. Returns whether it is a new one.
    pub fn add(&mut self, interpreter: u64) -> bool {
        let is_new = !self.interpreters.contains(&interpreter);
        if is_new {
            if self.interpreters.len() >= MAX_INTERPRETERS {
                self.interpreters.remove(0);
            }
            self.interpreters.push(interpreter);
            self.modules.clear();
        }
        is_new
    }

    /// The function at an address of a module that has no symbol there; [`None`] if it has no name. The first call for
    /// a module reads all of the module's functions: that takes some 0.1 s.
    pub fn find(
        &mut self,
        module: &Arc<Module>,
        bias: u64,
        symbols: &ElfSymbols,
        modules: &mut Modules,
        address: u64,
    ) -> Option<&FunctionBySignature> {
        let key = Arc::as_ptr(module) as usize;
        if !self.modules.contains_key(&key) {
            let is_inside = |interpreter: &u64| match modules.find(*interpreter).0 {
                CodePlace::Module(located) => located.bias == bias && Arc::ptr_eq(&located.module, module),
                _ => false,
            };
            let inside = self.interpreters.iter().copied().find(is_inside);
            let functions = inside.map(|interpreter| shared_functions(module, symbols, interpreter.wrapping_sub(bias)));
            if self.modules.len() >= MAX_MODULES {
                self.modules.clear();
            }
            self.modules.insert(key, (Arc::clone(module), functions.unwrap_or_else(|| Arc::from([]))));
        }
        let (_, functions) = self.modules.get(&key)?;
        let after = functions.partition_point(|function| function.range.start <= address);
        functions.get(after.checked_sub(1)?).filter(|function| function.range.contains(&address))
    }
}

/// A file in its current state (device, inode, size and time of the last change), and the address of the interpreter in it.
type InterpreterOfFile = (u64, u64, u64, (i64, i64), u64);

/// The named functions of the files of all processes.
static NAMED: Mutex<Vec<(InterpreterOfFile, Arc<[FunctionBySignature]>)>> = Mutex::new(Vec::new());

/// Like [`functions`], but reads a file only once for all processes.
fn shared_functions(module: &Module, symbols: &ElfSymbols, interpreter: u64) -> Arc<[FunctionBySignature]> {
    let file = module.image().file().and_then(|file| file.metadata().ok());
    let key = file.map(|file| (file.dev(), file.ino(), file.len(), (file.ctime(), file.ctime_nsec()), interpreter));
    let Some(key) = key else { return functions(module, symbols, interpreter).into() };
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, functions)) = named.iter().find(|(known, _)| *known == key) {
        return Arc::clone(functions);
    }
    let functions: Arc<[_]> = functions(module, symbols, interpreter).into();
    if named.len() >= MAX_MODULES {
        named.remove(0);
    }
    named.push((key, Arc::clone(&functions)));
    functions
}

/// The functions of a module that can be named, sorted by address.
fn functions(module: &Module, symbols: &ElfSymbols, interpreter: u64) -> Vec<FunctionBySignature> {
    let table = SignatureTable::built_in();
    let program =
        Program::explore(module, symbols.iter().map(|symbol| (symbol.name, symbol.address)), interpreter, [], table);
    let named = names(table, &program).into_iter();
    let function = |(start, id)| {
        // Names of copies have a suffix from the compiler, which is not part of LuaJIT's name.
        let name = table.name(id).split('.').next().unwrap_or_default();
        let end = program.functions.get(&start)?.end;
        Some(FunctionBySignature { range: start..end, name: format!("{name}{MARK}").into() })
    };
    named.filter_map(function).collect()
}
