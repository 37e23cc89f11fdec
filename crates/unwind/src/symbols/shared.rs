//! Symbols of a module, read once for all processes that map it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use lj_trace_process::Process;

use super::debug_file;
use super::elf::{self, DebugLinks, ElfSymbols};
use crate::module::Module;

/// What is known about a module.
#[derive(Debug, Default)]
struct Known {
    links: OnceLock<DebugLinks>,
    /// Freed with its last user: symbols of a large program take some megabytes.
    symbols: Mutex<Weak<ElfSymbols>>,
}

/// Known modules, by the module's address in lj-trace's memory, while the module exists.
type Modules = HashMap<usize, (Weak<Module>, Arc<Known>)>;

static KNOWN: Mutex<Option<Modules>> = Mutex::new(None);

fn known(module: &Arc<Module>) -> Arc<Known> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let key = Arc::as_ptr(module) as usize;
    // The weak reference keeps the address from being reused for another module.
    if let Some((_, known)) = known.get(&key) {
        return Arc::clone(known);
    }
    known.retain(|_, (module, _)| module.strong_count() > 0);
    Arc::clone(&known.entry(key).or_insert_with(|| (Arc::downgrade(module), Arc::default())).1)
}

/// What a module says about its debug symbols.
pub fn links(module: &Arc<Module>) -> DebugLinks {
    known(module).links.get_or_init(|| elf::debug_links(module.image()).unwrap_or_default()).clone()
}

/// The symbols of a module that `process` has mapped.
pub(super) fn table(module: &Arc<Module>, process: &Process) -> Arc<ElfSymbols> {
    let links = links(module);
    let known = known(module);
    let mut symbols = known.symbols.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(symbols) = symbols.upgrade() {
        return symbols;
    }
    let debug = if links.has_symtab { None } else { debug_file::find(process, module.path(), &links) };
    let table = Arc::new(ElfSymbols::read(module.image(), debug.as_ref()));
    *symbols = Arc::downgrade(&table);
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{CodePlace, Modules};

    /// The module of this test, opened anew as for a symbolizer of its own.
    fn own() -> (Process, Arc<Module>) {
        let process = Process::open(std::process::id()).unwrap();
        let mut modules = Modules::new(process.clone());
        modules.refresh();
        let CodePlace::Module(located) = modules.find(own as *const () as u64).0 else { panic!("no module") };
        (process, located.module)
    }

    #[test]
    fn a_file_is_read_once_for_all_who_have_it() {
        let ((process, first), (other, second)) = (own(), own());
        assert!(Arc::ptr_eq(&first, &second));
        let symbols = table(&first, &process);
        assert!(Arc::ptr_eq(&symbols, &table(&second, &other)));
        assert_eq!(first.path(), std::fs::read_link("/proc/self/exe").unwrap());
    }

    #[test]
    fn another_view_of_files_has_modules_of_its_own() {
        let (process, module) = own();
        let file = || std::fs::File::open(module.path()).unwrap();
        let new = |file| Module::new("m", Path::new("m"), crate::module::Image::File(file));
        let view = crate::opened::FileView::of(&process);
        let open = |view| crate::opened::module(view, module.path(), file(), new).unwrap();
        assert!(Arc::ptr_eq(&open(view), &module));
        assert!(!Arc::ptr_eq(&open(None), &module));
    }
}
