//! A memprof stream names all C functions: those of the files that are there, at its start; those of a library that is
//! loaded later, before the first event that needs them.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_streams::{Body, Stream, Symbol};
use lj_trace_tests::compiled::{LIBRARY, compile};
use lj_trace_tests::programs::{ALL, Program};
use lj_trace_tests::tracer::Tracer;
use lj_trace_tests::workload::Workload;

/// How often the module's function is called.
const ROUNDS: usize = 100;
/// What it allocates, without the header.
const SIZE: u64 = 1000;

/// Records a program that loads the module.
fn record(program: &Program, folder: &Path, version: &str) -> Result<Stream<File>> {
    let library = folder.join("module.so");
    compile("module.c", &library, LIBRARY)?;
    let stream = folder.join("module.bin");
    let mut workload = Workload::start(program, "module.lua", &[&library.to_string_lossy(), &ROUNDS.to_string()])?;
    let (pid, output) = (workload.pid().to_string(), stream.to_string_lossy());
    let arguments =
        ["--pid", &pid, "--mode", "memprof", "--no-limit", "--stream-version", version, "--output", &output];
    let mut tracer = Tracer::start(arguments)?;
    tracer.wait_until_attached()?;
    // Events wait until the symbol table is written: what is loaded meanwhile may be in it.
    let begun = Instant::now();
    while std::fs::metadata(&stream)?.len() == 0 && version == "3" {
        ensure!(begun.elapsed() < lj_trace_tests::patience(30), "no symbol table was written");
        thread::sleep(Duration::from_millis(10));
    }
    workload.go()?;
    workload.expect("done")?;
    tracer.signal(libc::SIGINT)?;
    tracer.wait()?.expect(0, &["lost               0"]);
    Ok(Stream::open(File::open(stream)?)?)
}

/// The name of a C function.
fn c_name(symbol: &Symbol) -> Option<String> {
    match symbol {
        Symbol::C { name, .. } => Some(String::from_utf8_lossy(name).into_owned()),
        _ => None,
    }
}

#[test]
fn c_functions_are_named_before_they_allocate() -> Result<()> {
    for program in ALL.into_iter().filter_map(Program::find) {
        let folder = tempfile::tempdir()?;
        let Stream { symbols, body, .. } = record(&program, folder.path(), "3")?;
        let first: HashSet<String> = symbols.iter().filter_map(c_name).collect();
        // libc has some thousand.
        ensure!(first.len() > 1000 && first.contains("qsort"), "{}: {} C functions", program.name, first.len());
        ensure!(!first.contains("make_userdata"), "{}: the module was loaded too early", program.name);
        let Body::Memprof(mut events) = body else { panic!("no memprof stream") };
        let (mut later, mut calls) = (Vec::new(), 0);
        while let Some(event) = events.next_event()? {
            match event {
                Event::Symbol(symbol) => later.extend(c_name(&symbol).map(|name| (name, symbol))),
                Event::Alloc { source: Source::C { addr: function }, size, .. } if size > SIZE && size < SIZE + 100 => {
                    let is_it = |(name, symbol): &&(String, Symbol)| {
                        name == "make_userdata" && matches!(symbol, Symbol::C { addr, .. } if *addr == function)
                    };
                    later.iter().find(is_it).with_context(|| format!("{}: {later:?}", program.name))?;
                    calls += 1;
                }
                _ => {}
            }
        }
        ensure!(calls == ROUNDS, "{}: {calls} calls", program.name);
        for name in ["luaopen_module", "never_called"] {
            ensure!(later.iter().any(|(known, _)| known == name), "{}: no {name} in {later:?}", program.name);
        }
        // What was there already is not written twice.
        ensure!(!later.iter().any(|(name, _)| name == "qsort"), "{}: {later:?}", program.name);
    }
    Ok(())
}

#[test]
fn older_versions_have_no_c_functions() -> Result<()> {
    let Some(program) = Program::find(ALL[0]) else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let stream = record(&program, folder.path(), "2")?;
    ensure!(!stream.symbols.is_empty() && stream.symbols.iter().all(|symbol| c_name(symbol).is_none()));
    Ok(())
}
