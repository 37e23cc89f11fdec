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

/// What a name ends in that was found by signature, and is in no symbol table.
pub const MARK: &str = "_[s]";

/// Interpreters that are known: a library that is loaded again and again is somewhere else each time.
const MAX_INTERPRETERS: usize = 64;

/// Modules of which the functions are kept: a process has one LuaJIT, or a few.
const MAX_MODULES: usize = 8;

/// A function that was named. Addresses are the file's own.
#[derive(Clone, Debug)]
pub struct FunctionBySignature {
    /// Its code.
    pub range: Range<u64>,
    /// Its name, with [`MARK`].
    pub name: Arc<str>,
}

/// The functions of the LuaJITs of a process.
#[derive(Debug, Default)]
pub struct BySignature {
    /// Where interpreters begin in the target.
    interpreters: Vec<u64>,
    /// By the module's address in our memory.
    modules: HashMap<usize, (Arc<Module>, Arc<[FunctionBySignature]>)>,
}

impl BySignature {
    /// Makes an interpreter known; whether it is a new one.
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

    /// The function at an address of a module, which has no symbol; none if it has no name. All of the module's functions are
    /// looked at when the first of them is asked for: that takes some 0.1 s.
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

/// A file as it is now: device, inode, size, and when it was changed; and where the interpreter begins in it.
type InterpreterOfFile = (u64, u64, u64, (i64, i64), u64);

/// What was found out of the files of all processes.
static NAMED: Mutex<Vec<(InterpreterOfFile, Arc<[FunctionBySignature]>)>> = Mutex::new(Vec::new());

/// The same as [`functions`], which looks at a file once for all processes.
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

/// The functions of a module that can be named, by address.
fn functions(module: &Module, symbols: &ElfSymbols, interpreter: u64) -> Vec<FunctionBySignature> {
    let table = SignatureTable::built_in();
    let program =
        Program::explore(module, symbols.iter().map(|symbol| (symbol.name, symbol.address)), interpreter, [], table);
    let named = names(table, &program).into_iter();
    let function = |(start, id)| {
        // What a compiler adds to the names of copies is nothing that LuaJIT calls them.
        let name = table.name(id).split('.').next().unwrap_or_default();
        let end = program.functions.get(&start)?.end;
        Some(FunctionBySignature { range: start..end, name: format!("{name}{MARK}").into() })
    };
    named.filter_map(function).collect()
}
