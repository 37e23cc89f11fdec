//! The C functions that a memprof stream declares: all of them, as Tarantool's own profiler does ([`lj_symtab_dump`] and
//! [`lj_symtab_dump_newc`], `lj_symtab.c` of Tarantool's fork).
//!
//! [`lj_symtab_dump`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_symtab.c#L455-L504
//! [`lj_symtab_dump_newc`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_symtab.c#L435-L453

use lj_trace_process::Process;
use lj_trace_streams::Symbol;
use lj_trace_unwind::symbols::{FileSymbols, NativeSymbol, Symbolizer};

/// The function symbols of all files that the target has mapped so far. They are read at their first use: there may be a
/// hundred thousand, and the recording has to begin before that.
#[derive(Debug)]
pub struct CSymbols {
    symbolizer: Symbolizer,
    wanted: bool,
    files: Vec<FileSymbols>,
    /// The number of symbols in these files.
    symbols: usize,
}

/// The most files whose symbols streams contain completely. Functions of other files are named one by one, at their first
/// event.
const MAX_FILES: usize = 1024;
/// The most symbols in these files: a browser has fewer.
const MAX_SYMBOLS: usize = 1 << 20;

impl CSymbols {
    /// Opens the files that are mapped so far. If not all symbols are `wanted`, single ones can still be looked up.
    pub fn new(process: &Process, wanted: bool) -> Self {
        Self { symbolizer: Symbolizer::new(process.clone()), wanted, files: Vec::new(), symbols: 0 }
    }

    /// Reads the symbols of files that were mapped since the last call.
    pub fn read(&mut self) {
        if !self.wanted {
            return;
        }
        for file in self.symbolizer.files() {
            if self.files.len() >= MAX_FILES || self.files.iter().any(|known| known.is_same(&file)) {
                continue;
            }
            let symbols = file.iter().count();
            if self.symbols + symbols <= MAX_SYMBOLS {
                self.symbols += symbols;
                self.files.push(file);
            }
        }
    }

    /// The files that were read, in that order.
    pub fn files(&self) -> &[FileSymbols] {
        &self.files
    }

    /// Finds the function at `address`, and whether it begins there. If the function is in a library that was loaded since,
    /// the library is then among the [`files`](Self::files).
    pub fn find(&mut self, address: u64) -> (NativeSymbol, bool) {
        let is_known = |files: &[FileSymbols]| files.iter().any(|file| file.has(address));
        if self.symbolizer.is_mapped(address) && !is_known(&self.files) {
            self.read();
        }
        (self.symbolizer.symbolize(address), is_known(&self.files))
    }
}

/// The symbols of a file, in the form of streams.
pub fn symbols(file: &FileSymbols) -> impl Iterator<Item = Symbol> {
    file.iter().map(|(address, name)| Symbol::c(address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(wanted: bool) -> CSymbols {
        CSymbols::new(&Process::open(std::process::id()).unwrap(), wanted)
    }

    #[test]
    fn a_library_that_is_loaded_later_is_found_when_its_functions_are() {
        let mut symbols = own(true);
        symbols.read();
        let before = symbols.files().len();
        assert!(symbols.find(libc::qsort as *const () as u64).1);
        assert_eq!(symbols.files().len(), before);
        // SAFETY: the strings end with a NUL; the library is glibc's own, and nothing happens when it is loaded.
        let function = unsafe {
            let library = libc::dlopen(c"libresolv.so.2".as_ptr(), libc::RTLD_NOW);
            libc::dlsym(library, c"ns_initparse".as_ptr()) as u64
        };
        // New mappings are looked up at most once in 50 ms, however many unknown addresses there are.
        std::thread::sleep(std::time::Duration::from_millis(60));
        let (symbol, has_start) = symbols.find(function);
        assert_eq!((symbol.to_string().as_str(), has_start), ("ns_initparse", true));
        assert!(symbols.files().len() > before);
    }

    #[test]
    fn single_functions_are_found_without_all_the_others() {
        let mut symbols = own(false);
        let (symbol, has_start) = symbols.find(libc::qsort as *const () as u64);
        assert_eq!((symbol.to_string().as_str(), has_start), ("qsort", false));
        assert!(symbols.files().is_empty());
        assert_eq!(symbols.find(0x10).0.name, None);
    }
}
