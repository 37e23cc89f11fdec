//! Learns the signatures of LuaJIT's functions from builds with symbols, and measures how well they work.
//!
//! `signatures learn TABLE FILE...` writes a table. `signatures measure FILE...` does this for each file: it learns
//! from all other files, ignores the symbols of this one, names its functions, and compares. `signatures check FILE...`
//! does the same with the built-in table, on files that the table need not have been learned from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use lj_trace_unwind::module::{Image, Module};
use lj_trace_unwind::signatures::{Program, SignatureTable, interpreter_of, learn, learn_interpreter, names};
use lj_trace_unwind::symbols::elf::ElfSymbols;

fn module(path: &str) -> (Module, ElfSymbols) {
    let open = || Image::of(File::open(path).expect(path), Path::new(path));
    let module = Module::new(path, Path::new(path), open()).expect("an ELF file");
    let symbols = ElfSymbols::read(&open(), None);
    (module, symbols)
}

fn pairs(symbols: &ElfSymbols) -> Vec<(&str, u64)> {
    symbols.iter().map(|symbol| (symbol.name, symbol.address)).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["learn", table, ref files @ ..] => {
            std::fs::write(table, learned(files).text()).expect("written");
            ExitCode::SUCCESS
        }
        ["measure", ref files @ ..] => {
            let wrong: usize = files
                .iter()
                .map(|file| {
                    let others: Vec<&str> = files.iter().copied().filter(|other| other != file).collect();
                    compare(&learned(&others), file)
                })
                .sum();
            ExitCode::from(u8::from(wrong > 0))
        }
        ["check", ref files @ ..] => {
            let wrong: usize = files.iter().map(|file| compare(SignatureTable::built_in(), file)).sum();
            ExitCode::from(u8::from(wrong > 0))
        }
        _ => ExitCode::from(64),
    }
}

fn learned(files: &[&str]) -> SignatureTable {
    let mut table = SignatureTable::default();
    for file in files {
        let (module, symbols) = module(file);
        learn(&mut table, &module, &pairs(&symbols));
    }
    // Lists of the functions that interpreters call, by name.
    let folder = std::env::var_os("INTERPRETERS").map(std::fs::read_dir);
    for list in folder.into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(list.expect("an entry").path()).expect("a list");
        let is_short = list.split_whitespace().count() < 20;
        if !is_short {
            learn_interpreter(&mut table, list.split_whitespace());
        }
    }
    SignatureTable::parse(&table.text()).expect("a table")
}

/// Counts the wrong names.
fn compare(table: &SignatureTable, file: &str) -> usize {
    let (module, symbols) = module(file);
    // The symbols that a stripped file would keep.
    let is_exported = |name: &str| {
        (name.starts_with("lua_") || name.starts_with("luaL_") || name.starts_with("luaopen_"))
            && std::env::var_os("STATIC").is_none()
    };
    let stripped = symbols.only(|name| name.ends_with("@plt") || is_exported(name));
    let interpreter = interpreter_of(&pairs(&symbols)).expect("an interpreter");
    // Functions of LuaJIT's libraries: a live VM has their names.
    let is_library = |name: &str| name.starts_with("lj_cf_") && std::env::var_os("LIB").is_some();
    let library = symbols.iter().filter(|symbol| is_library(symbol.name));
    let known: Vec<_> = library.filter_map(|symbol| Some((symbol.address, table.id(symbol.name)?))).collect();
    let program = Program::explore(&module, pairs(&stripped), interpreter, known, table);
    let began = std::time::Instant::now();
    let found = names(table, &program);
    let took = began.elapsed();
    let mut truth: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for symbol in symbols.iter() {
        truth.entry(symbol.address).or_default().insert(base(symbol.name).to_owned());
    }
    let own: Vec<_> =
        symbols.iter().filter(|s| table.id(s.name).is_some() && program.functions.contains_key(&s.address)).collect();
    let all = symbols.iter().filter(|s| table.id(s.name).is_some()).count();
    let bytes: u64 = own.iter().map(|s| s.size).sum();
    let known = |address: u64| found.contains_key(&address) || program.certain.contains_key(&address);
    let named: u64 = own.iter().filter(|s| known(s.address)).map(|s| s.size).sum();
    let mut wrong = 0;
    for (address, id) in &found {
        let name = base(table.name(*id));
        if truth.get(address).is_none_or(|names| !names.contains(name)) {
            println!("  WRONG {address:#x}: {name}, is {:?}", truth.get(address));
            wrong += 1;
        }
    }
    let reached = own.len();
    println!(
        "{file}: {all} functions, {reached} reached, {} by symbols, {} by signature, {wrong} wrong, {:.0}% of the code, {took:?}",
        program.certain.len(),
        found.len(),
        100.0 * named as f64 / bytes.max(1) as f64,
    );
    if std::env::var_os("FOUND").is_some() {
        let names: Vec<_> = found.values().map(|id| table.name(*id)).collect();
        println!("  found {}", names.join(" "));
    }
    if std::env::var_os("MISSING").is_some() {
        for symbol in own.iter().filter(|s| !known(s.address)) {
            println!("  missing {}", symbol.name);
        }
    }
    wrong
}

/// A name without the suffix that the compiler has added for copies and parts.
fn base(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}
