//! Functions are named by their definitions: one name for each, and the right one, in every output.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_luajit::{FunctionNamer, Prototype, find_vms, heap};
use lj_trace_process::Process;
use lj_trace_tests::function_names::{NamedProgram, names_in};
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::tracer::run;
use lj_trace_tests::workload::Workload;

/// A program with as many functions as its argument says.
const PROTOTYPES: &str = "prototypes.lua";

/// The seeds whose programs are recorded: as many as `LJ_TRACE_NAMED_PROGRAMS` says, and one if it does not.
fn seeds() -> RangeInclusive<u64> {
    1..=std::env::var("LJ_TRACE_NAMED_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// How many percent of the functions have to be seen at least. Each works as long as any other.
const LEAST_SEEN: usize = 80;

/// Checks the names in a report; gives how many functions are in it.
fn check(program: &NamedProgram, text: &str, folder: &Path) -> Result<usize> {
    let found = names_in(text, folder);
    let mut wrong = String::new();
    let mut seen = 0;
    for (place, found) in &found {
        // Main chunks.
        let Some(expected) = program.names.get(place) else { continue };
        seen += 1;
        if found[..] != [expected.clone().unwrap_or_default()] {
            wrong.push_str(&format!("\n  {place:?} is {expected:?}, not {found:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(seen)
}

/// Records a program; how many of its functions were seen.
fn record(host: &Program, seed: u64, jit: bool, mode: &str) -> Result<(usize, usize)> {
    let folder = tempfile::tempdir()?;
    let program = NamedProgram::generate(seed, if mode == "memprof" { 10 } else { 300 });
    program.write(folder.path(), jit)?;
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let workload = Workload::start(host, &file("main.lua"), &[])?;
    let (pid, report, stream) = (workload.pid().to_string(), file("report.folded"), file("stream.bin"));
    let mut arguments = vec!["--pid", &pid, "--mode", mode, "-o", &report, "-o", &stream, "--duration"];
    arguments.extend(if mode == "memprof" { ["500ms", "--no-limit"] } else { ["1500ms", "--rate=1999"] });
    run(arguments)?.expect(0, &["finished: recorded"]);
    let text = std::fs::read_to_string(&report)?;
    let seen = check(&program, &text, folder.path()).context("the report")?;
    let read = run(["report", &stream, "--format", "folded"])?;
    check(&program, &read.stdout, folder.path()).context("the stream")?;
    // `dump` shows some of them.
    let dump = run(["dump", "--pid", &pid, "--json"])?;
    dump.expect(0, &[]);
    let stack: serde_json::Value = serde_json::from_str(&dump.stdout)?;
    let mut functions = String::new();
    functions_of(&stack, &mut functions);
    check(&program, &functions, folder.path()).context("the dump")?;
    Ok((seen, program.names.len()))
}

/// The names of all functions in a dump, each as a stack of its own.
fn functions_of(value: &serde_json::Value, text: &mut String) {
    match value {
        serde_json::Value::Object(fields) => {
            if let Some(function) = fields.get("function").and_then(|function| function.as_str()) {
                text.push_str(&format!("{function} 1\n"));
            }
            fields.values().for_each(|value| functions_of(value, text));
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| functions_of(value, text)),
        _ => {}
    }
}

fn every_function_has_its_name(program: &'static str, jit: bool, mode: &str) -> Result<()> {
    let Some(host) = Program::find(program) else { return Ok(()) };
    let (mut seen, mut all) = (0, 0);
    for seed in seeds() {
        let (of_one, functions) =
            record(&host, seed, jit, mode).with_context(|| format!("seed {seed} on {program}"))?;
        (seen, all) = (seen + of_one, all + functions);
    }
    println!("{program}, {mode}: {seen} of {all} functions are seen, and named as they are defined");
    // What is compiled is inlined; in a memory profile it is behind the trace that it is in.
    let least = if jit { 20 } else { LEAST_SEEN };
    ensure!(seen * 100 >= all * least, "only {seen} of {all} functions are seen");
    Ok(())
}

#[test]
fn interpreted_on_luajit() -> Result<()> {
    every_function_has_its_name(LUAJIT, false, "sysprof")
}

#[test]
fn interpreted_on_luajit2() -> Result<()> {
    every_function_has_its_name(LUAJIT2, false, "sysprof")
}

#[test]
fn interpreted_on_tarantool() -> Result<()> {
    every_function_has_its_name(TARANTOOL, false, "sysprof")
}

#[test]
fn compiled_on_luajit() -> Result<()> {
    every_function_has_its_name(LUAJIT, true, "sysprof")
}

#[test]
fn compiled_on_luajit2() -> Result<()> {
    every_function_has_its_name(LUAJIT2, true, "sysprof")
}

#[test]
fn compiled_on_tarantool() -> Result<()> {
    every_function_has_its_name(TARANTOOL, true, "sysprof")
}

#[test]
fn allocating_interpreted_on_luajit() -> Result<()> {
    every_function_has_its_name(LUAJIT, false, "memprof")
}

#[test]
fn allocating_interpreted_on_luajit2() -> Result<()> {
    every_function_has_its_name(LUAJIT2, false, "memprof")
}

#[test]
fn allocating_interpreted_on_tarantool() -> Result<()> {
    every_function_has_its_name(TARANTOOL, false, "memprof")
}

#[test]
fn allocating_compiled_on_luajit() -> Result<()> {
    every_function_has_its_name(LUAJIT, true, "memprof")
}

#[test]
fn allocating_compiled_on_luajit2() -> Result<()> {
    every_function_has_its_name(LUAJIT2, true, "memprof")
}

#[test]
fn allocating_compiled_on_tarantool() -> Result<()> {
    every_function_has_its_name(TARANTOOL, true, "memprof")
}

/// Where lj-trace has too little CPU to find a name before the first events, the name is that of these events, too.
#[test]
fn names_that_are_found_late_are_those_of_earlier_events() -> Result<()> {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 * std::thread::available_parallelism()?.get() {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let outcome = every_function_has_its_name(TARANTOOL, true, "memprof");
        ends.store(true, Ordering::Relaxed);
        outcome
    })
}

/// What the first name costs, and the memory that is kept for the others.
#[test]
fn the_first_name_among_many_prototypes_is_found_and_is_bounded() -> Result<()> {
    let Some(host) = Program::find(LUAJIT) else { return Ok(()) };
    let workload = Workload::start(&host, PROTOTYPES, &["100000"])?;
    let process = Process::open(workload.pid())?;
    let [vm] = &find_vms(&process, &process.maps()?)?[..] else { anyhow::bail!("not one VM") };
    let memory = process.memory();
    let all = heap::all_prototypes(&memory, vm, Duration::from_secs(60));
    ensure!(all.addresses.len() > 100_000, "{}", all.addresses.len());
    let keys: Vec<_> = all.addresses.iter().filter_map(|&at| Prototype::key_at(&memory, &vm.layout, at).ok()).collect();
    let own = keys.iter().filter(|key| key.firstline == 15).find_map(|key| {
        let read = Prototype::read(&memory, &vm.layout, *key).ok()?;
        read.chunkname.ends_with(PROTOTYPES).then_some(*key)
    });
    let own = own.context("the function that runs is not there")?;
    let (before, began) = (own_memory()?, Instant::now());
    let mut namer = FunctionNamer::default();
    let name = namer.name(&memory, vm, &own);
    let (first, grown) = (began.elapsed(), own_memory()?.saturating_sub(before));
    ensure!(name.as_deref() == Some("Busy.work") && namer.unsearched() == 0, "{name:?}");
    let began = Instant::now();
    let some: Vec<_> = keys.iter().filter(|key| key.firstline > 1).step_by(100).collect();
    for key in &some {
        let name = namer.name(&memory, vm, key);
        ensure!(name.as_deref().is_some_and(|name| name.starts_with("own.f") || name == "Busy.work"), "{name:?}");
    }
    let each = began.elapsed() / some.len().max(1) as u32;
    println!("for 10,000 prototypes: {:?} once, {} KiB kept; then {each:?} for a name", first / 10, grown / 10 / 1024);
    ensure!(grown < 40 << 20, "{grown} bytes");
    Ok(())
}

/// What this process has in memory, in bytes.
fn own_memory() -> Result<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident: u64 = pages.split_whitespace().nth(1).context("no resident pages")?.parse()?;
    Ok(resident * 4096)
}
