//! Names native code: finds the function and the file of an address.

mod by_signature;
pub mod debug_file;
pub mod demangle;
pub mod elf;
mod kernel;
mod shared;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use lj_trace_process::Process;

use crate::module::Module;
use crate::modules::{CodePlace, Located, Modules};
use by_signature::BySignature;
use demangle::demangle;
use elf::ElfSymbols;
pub use kernel::KernelSymbols;
pub use shared::links;

/// The most symbols that are kept; a program rarely shows more than some thousand distinct addresses.
const MAX_CACHED: usize = 1 << 15;

/// The number of symbol tables that are always kept.
const MAX_TABLES: usize = 256;

/// The function that an address of the target belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NativeSymbol {
    /// Its name, demangled; [`None`] if no symbol covers the address. A name found by signature ends in `_[s]`.
    pub name: Option<Arc<str>>,
    /// Name of its file, without the folder; `[unknown]` outside of all files.
    pub module: Arc<str>,
    /// The function's first address in the target, or the looked-up address if that is not known. It distinguishes
    /// functions with and without names.
    pub address: u64,
    /// The function's length in bytes; 0 if unknown.
    pub size: u64,
    /// `address` relative to the place where the module is loaded: its address in the file.
    pub offset_in_module: u64,
}

impl fmt::Display for NativeSymbol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "{}+{:#x}", self.module, self.offset_in_module),
        }
    }
}

/// The function symbols of a file, at the place where the target has mapped it.
#[derive(Clone, Debug)]
pub struct FileSymbols {
    located: Located,
    table: Arc<ElfSymbols>,
}

impl FileSymbols {
    /// Whether both are the same file, mapped at the same address.
    pub fn is_same(&self, other: &Self) -> bool {
        self.located.bias == other.located.bias && Arc::ptr_eq(&self.located.module, &other.located.module)
    }

    /// The address and the name of each function; the name is as in the file.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        self.table.iter().map(|symbol| (symbol.address.wrapping_add(self.located.bias), symbol.name))
    }

    /// Whether a function of the file begins at `address`.
    pub fn has(&self, address: u64) -> bool {
        let own = address.wrapping_sub(self.located.bias);
        self.table.lookup(own).is_some_and(|symbol| symbol.address == own)
    }
}

/// Names the native code of one process.
#[derive(Debug)]
pub struct Symbolizer {
    modules: Modules,
    /// Symbol tables by the module's address in lj-trace's memory: modules are opened once and kept by `modules`.
    tables: HashMap<usize, (Arc<Module>, Arc<ElfSymbols>)>,
    by_signature: BySignature,
    cache: HashMap<u64, NativeSymbol>,
}

impl Symbolizer {
    /// A symbolizer for `process`. It opens the files that are mapped now, so that their code can still be named after
    /// the process has exited.
    pub fn new(process: Process) -> Self {
        // Debug files are only read when their symbols are needed, which may be after privileges were given up.
        process.files();
        let mut modules = Modules::new(process);
        modules.open_all();
        Self { modules, tables: HashMap::new(), by_signature: BySignature::default(), cache: HashMap::new() }
    }

    /// Declares where the interpreter of a VM begins. LuaJIT's functions around it are named by their signatures if
    /// they have no symbols.
    pub fn add_interpreter(&mut self, start: u64) {
        if self.by_signature.add(start) {
            self.cache.clear();
        }
    }

    /// Notes that the target's mappings may have changed.
    pub fn refresh(&mut self) {
        if self.modules.refresh() {
            self.cache.clear();
        }
    }

    /// The function at `address`. For a return address, pass the byte before it: the call may be the function's last
    /// instruction ([`NativeFrame::lookup_address`](crate::NativeFrame::lookup_address)).
    pub fn symbolize(&mut self, address: u64) -> NativeSymbol {
        if let Some(known) = self.cache.get(&address) {
            return known.clone();
        }
        let (place, changed) = self.modules.find(address);
        if changed || self.cache.len() >= MAX_CACHED {
            self.cache.clear();
        }
        let (module, offset) = match place {
            CodePlace::Module(located) => {
                let symbol = self.in_module(&located, address);
                self.cache.insert(address, symbol.clone());
                return symbol;
            }
            CodePlace::UprobeTrampoline => ("[uprobes]", 0),
            CodePlace::NotElf | CodePlace::Nowhere => ("[unknown]", address),
        };
        // Do not cache this: the next read of the maps may know the address.
        NativeSymbol { name: None, module: module.into(), address, size: 0, offset_in_module: offset }
    }

    /// Whether an address is in a mapped file. The maps are read again if it is not, and whenever they are older than 50 ms.
    pub fn is_mapped(&mut self, address: u64) -> bool {
        if self.modules.refresh_if_due() {
            self.cache.clear();
        }
        let is_module = |modules: &mut Modules| matches!(modules.find(address).0, CodePlace::Module(_));
        if is_module(&mut self.modules) {
            return true;
        }
        self.refresh();
        is_module(&mut self.modules)
    }

    /// The symbols of all files that are mapped now. If the symbols of a file were not needed before, they are read
    /// now: that takes some milliseconds per megabyte of symbols.
    pub fn files(&mut self) -> Vec<FileSymbols> {
        let mapped = self.modules.open_all();
        mapped.into_iter().map(|located| FileSymbols { table: self.table(&located.module), located }).collect()
    }

    /// Address of the function with this name: in the first file that has one. Files are read one after the other until
    /// it is found.
    pub fn function(&mut self, name: &str) -> Option<u64> {
        self.modules.open_all().into_iter().find_map(|located| {
            let table = self.table(&located.module);
            let address = table.iter().find(|symbol| symbol.name == name)?.address;
            Some(address.wrapping_add(located.bias))
        })
    }

    /// The names and build ids of mapped files without symbols of their own functions, either in the file or in a debug file.
    pub fn without_symbols(&mut self) -> Vec<(Arc<str>, Vec<u8>)> {
        let mut found: Vec<(Arc<str>, Vec<u8>)> = Vec::new();
        for located in self.modules.open_all() {
            let module = &located.module;
            let links = links(module);
            let has_symbols =
                links.has_symtab || debug_file::find(self.modules.process(), module.path(), &links).is_some();
            if let Some(build_id) = links.build_id.clone().filter(|_| !has_symbols)
                && module.name().as_ref() != "[vdso]"
                && !found.iter().any(|(_, known)| *known == build_id)
            {
                found.push((Arc::clone(module.name()), build_id));
            }
        }
        found
    }

    fn in_module(&mut self, located: &Located, address: u64) -> NativeSymbol {
        let module = &located.module;
        let own = address.wrapping_sub(located.bias);
        let table = self.table(module);
        let (name, start, size) = match table.lookup(own) {
            Some(symbol) => (Some(demangle(symbol.name).into()), symbol.address, symbol.size),
            None => match self.by_signature.find(module, located.bias, &table, &mut self.modules, own) {
                Some(function) => {
                    (Some(function.name.clone()), function.range.start, function.range.end - function.range.start)
                }
                None => match module.table().and_then(|table| table.function(own)) {
                    Some(range) => (None, range.start, range.end - range.start),
                    None => (None, own, 0),
                },
            },
        };
        NativeSymbol {
            name,
            module: Arc::clone(module.name()),
            address: start.wrapping_add(located.bias),
            size,
            offset_in_module: start,
        }
    }

    fn table(&mut self, module: &Arc<Module>) -> Arc<ElfSymbols> {
        let process = self.modules.process();
        let read = || (Arc::clone(module), shared::table(module, process));
        let key = Arc::as_ptr(module) as usize;
        if self.tables.len() >= MAX_TABLES {
            // The other tables belong to files that are no longer mapped.
            self.tables.retain(|_, (module, _)| Arc::strong_count(module) > 1);
        }
        Arc::clone(&self.tables.entry(key).or_insert_with(read).1)
    }
}

#[cfg(test)]
mod crafted_sections;
#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Symbolizer {
        Symbolizer::new(Process::open(std::process::id()).unwrap())
    }

    #[test]
    fn names_a_function_of_this_test() {
        let mut symbolizer = own();
        let address = names_a_function_of_this_test as *const () as u64;
        let symbol = symbolizer.symbolize(address + 1);
        assert!(symbol.to_string().ends_with("symbols::tests::names_a_function_of_this_test"), "{symbol}");
        assert_eq!(symbol.address, address);
    }

    #[test]
    fn finds_functions_by_their_names() {
        let mut symbolizer = own();
        let address = symbolizer.function("getpid").unwrap();
        // The function has other names, too.
        assert_eq!(symbolizer.symbolize(address).address, address);
        assert_eq!(symbolizer.function("no_such_function_at_all"), None);
    }

    #[test]
    fn names_functions_of_libraries_and_the_vdso() {
        let mut symbolizer = own();
        let files = symbolizer.files();
        let mut from = |module: &str, name: &str| {
            let mut functions = files.iter().flat_map(FileSymbols::iter).filter(|&(_, found)| found == name);
            let mut symbols = functions.by_ref().map(|(address, _)| symbolizer.symbolize(address));
            symbols.find(|symbol| &*symbol.module == module).unwrap_or_else(|| panic!("no {name} in {module}"))
        };
        let qsort = from("libc.so.6", "qsort");
        assert_eq!(qsort.address, libc::qsort as *const () as u64);
        assert_ne!(from("[vdso]", "clock_gettime").size, 0);
        assert_eq!(symbolizer.symbolize(qsort.address + qsort.size - 1), qsort);
        assert!(files.iter().any(|file| file.has(qsort.address)));
        assert!(!files.iter().any(|file| file.has(qsort.address + 1)));
        assert!(symbolizer.is_mapped(qsort.address) && !symbolizer.is_mapped(0x10));
    }

    #[test]
    fn what_is_no_code_is_unknown() {
        let symbol = own().symbolize(0x10);
        assert_eq!((symbol.to_string().as_str(), symbol.size), ("[unknown]+0x10", 0));
    }
}
