//! `lj-trace dump` shows what every coroutine and thread executes, and says so where that changes meanwhile.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::programs::{ALL, LUAJIT, Program, TARANTOOL};
use lj_trace_tests::source::{definition_of, line_of};
use lj_trace_tests::tracer::{binary, exit_code, run};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

const SCRIPT: &str = "standstill.lua";
/// How long a workload may take to come to rest, in seconds.
const PATIENCE: u64 = 20;

fn dump(workload: &Workload, more: &[&str]) -> Result<Value> {
    let pid = workload.pid().to_string();
    let outcome = run(["dump", "--pid", &pid, "--json"].iter().chain(more))?;
    outcome.expect(0, &[]);
    Ok(serde_json::from_str(&outcome.stdout)?)
}

/// `leaf@standstill.lua:4:9`: the function and the line that it executes; other frames by their names.
fn shown(frame: &Value) -> String {
    let function = frame["function"].as_str().unwrap_or_default();
    match frame["line"].as_u64() {
        Some(line) => format!("{function}:{line}"),
        None => function.to_owned(),
    }
}

fn frames(value: &Value) -> Vec<String> {
    value["frames"].as_array().map(|frames| frames.iter().map(shown).collect()).unwrap_or_default()
}

fn lua(name: &str, function: &str, mark: &str) -> String {
    let first = if function.is_empty() { line_of(SCRIPT, mark) } else { definition_of(SCRIPT, function) };
    format!("{name}@{SCRIPT}:{first}:{}", line_of(SCRIPT, mark))
}

/// The value of a local variable of a frame.
fn local<'a>(frame: &'a Value, name: &str) -> &'a str {
    let locals = frame["locals"].as_array().map(Vec::as_slice).unwrap_or_default();
    let local = locals.iter().find(|local| local["name"] == name).and_then(|local| local["value"].as_str());
    local.unwrap_or_else(|| panic!("no local {name} in {frame:#}"))
}

/// What stands on the Lua stacks when the workload waits, innermost first.
fn expected_stack() -> Vec<String> {
    let own = line_of(SCRIPT, "calls leaf");
    vec![
        "io.read".into(),
        lua("leaf", "leaf", "waits"),
        lua("leaf", "leaf", "calls itself"),
        lua("leaf", "leaf", "calls itself"),
        lua("leaf", "leaf", "calls itself"),
        "pcall".into(),
        format!("@{SCRIPT}:{}:{own}", own - 1),
        "coroutine.wrap_aux".into(),
        lua("compare", "compare", "resumes"),
        "table.sort".into(),
        format!("main chunk@{SCRIPT}:0:{}", line_of(SCRIPT, "sorts")),
    ]
}

/// Checks the stack of the thread on which the workload waits: the Lua frames in their order, native frames between
/// and around them.
fn check_thread(thread: &Value, program: &Program) -> Result<()> {
    ensure!(thread["state"] == "sleeping" && thread["in_motion"] == false, "{thread:#}");
    let all = thread["frames"].as_array().context("no frames")?;
    let is_native = |frame: &&Value| frame["kind"] == "native";
    let of_lua: Vec<String> = all.iter().filter(|frame| !is_native(frame)).map(shown).collect();
    ensure!(of_lua == expected_stack(), "{of_lua:#?}\ninstead of\n{:#?}", expected_stack());
    let names = frames(thread);
    ensure!(names.first().is_some_and(|name| name.contains("read")), "{names:#?}");
    let last = if program.name == TARANTOOL { "coro_init" } else { "_start" };
    ensure!(names.last().is_some_and(|name| name == last), "{names:#?}");
    ensure!(names.iter().any(|name| name == "lua_pcall"), "{names:#?}");
    // table.sort calls its comparator through native code.
    let sort = names.iter().position(|name| name == "table.sort").context("no table.sort")?;
    ensure!(all[sort - 1]["kind"] == "native", "{names:#?}");
    Ok(())
}

fn check_locals(thread: &Value) -> Result<()> {
    let all = thread["frames"].as_array().context("no frames")?;
    let leaves: Vec<&Value> =
        all.iter().filter(|frame| frame["function"].as_str().is_some_and(|name| name.starts_with("leaf@"))).collect();
    let [innermost, second, third, _] = leaves[..] else { anyhow::bail!("{leaves:#?}") };
    ensure!(local(innermost, "depth") == "0" && local(innermost, "label") == "\"hello321\"", "{innermost:#}");
    ensure!(local(innermost, "yes") == "true" && local(innermost, "number") == "42.5", "{innermost:#}");
    ensure!(local(innermost, "nothing") == "nil", "{innermost:#}");
    ensure!(local(innermost, "list").starts_with("table: 0x"), "{innermost:#}");
    // It gets its value from the call that waits.
    let names: Vec<_> = innermost["locals"].as_array().into_iter().flatten().map(|local| &local["name"]).collect();
    ensure!(!names.contains(&&Value::from("answer")), "{innermost:#}");
    ensure!(local(second, "label") == "\"hello32\"" && local(second, "deeper") == "0", "{second:#}");
    ensure!(local(third, "depth") == "2" && local(third, "label") == "\"hello3\"", "{third:#}");
    let main =
        all.iter().find(|frame| frame["function"] == format!("main chunk@{SCRIPT}:0")).context("no main chunk")?;
    let leaf = format!("function @{SCRIPT}:{}", definition_of(SCRIPT, "leaf"));
    ensure!(local(main, "leaf") == leaf, "{main:#}");
    ensure!(local(main, "resumed") == "function coroutine.wrap_aux", "{main:#}");
    Ok(())
}

fn check_coroutines(vm: &Value, tid: &Value) -> Result<()> {
    ensure!(vm["complete"] == true, "{vm:#}");
    let all = vm["coroutines"].as_array().context("no coroutines")?;
    let with = |status: &str| -> Vec<&Value> { all.iter().filter(|coroutine| coroutine["status"] == status).collect() };
    let yielded = ["coroutine.yield".to_owned(), lua("generator", "generator", "yields")];
    let suspended: Vec<_> = with("suspended").into_iter().filter(|coroutine| frames(coroutine) == yielded).collect();
    ensure!(suspended.len() == 3, "{all:#?}");
    let mut items: Vec<&str> = suspended.iter().map(|coroutine| local(&coroutine["frames"][1], "text")).collect();
    items.sort_unstable();
    ensure!(items == ["\"item 1\"", "\"item 2\"", "\"item 3\""], "{items:?}");
    let fresh = [format!("generator@{SCRIPT}:{}", definition_of(SCRIPT, "generator"))];
    ensure!(with("not-started").iter().any(|coroutine| frames(coroutine) == fresh), "{all:#?}");
    let fails = line_of(SCRIPT, "fails");
    let failed = ["error".to_owned(), format!("@{SCRIPT}:{}:{fails}", fails - 1)];
    ensure!(with("dead").iter().any(|coroutine| frames(coroutine) == failed), "{all:#?}");
    ensure!(with("finished").iter().any(|coroutine| frames(coroutine).is_empty()), "{all:#?}");
    let [running] = with("running")[..] else { anyhow::bail!("{all:#?}") };
    ensure!(running["tid"] == *tid && frames(running) == expected_stack()[..7], "{running:#}");
    let [normal] = with("normal")[..] else { anyhow::bail!("{all:#?}") };
    // Below lies what the host calls through `lua_cpcall`.
    ensure!(normal["tid"] == *tid && frames(normal).starts_with(&expected_stack()[7..]), "{normal:#}");
    Ok(())
}

#[test]
fn shows_every_coroutine_with_its_locals() -> Result<()> {
    for program in ALL.into_iter().filter_map(Program::find) {
        let workload = Workload::start(&program, SCRIPT, &[])?;
        let dump = dump(&workload, &["--locals"])?;
        let check = || -> Result<()> {
            ensure!(dump["pid"] == workload.pid(), "{dump:#}");
            let threads = dump["threads"].as_array().context("no threads")?;
            let thread =
                threads.iter().find(|thread| thread["coroutines"].as_array().is_some_and(|all| !all.is_empty()));
            let thread = thread.context("no thread runs a coroutine")?;
            check_thread(thread, &program)?;
            check_locals(thread)?;
            let [vm] = dump["vms"].as_array().context("no VMs")?.as_slice() else { anyhow::bail!("{dump:#}") };
            ensure!(vm["state"] == "CFUNC" && vm["jit"] == "on", "{vm:#}");
            ensure!(vm["gc64"] == (program.name != TARANTOOL), "{vm:#}");
            check_coroutines(vm, &thread["tid"])
        };
        check().with_context(|| format!("{} with {dump:#}", program.name))?;
    }
    Ok(())
}

#[test]
fn the_text_names_functions_lines_and_values() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, SCRIPT, &[])?;
    let outcome = run(["dump", "--pid", &workload.pid().to_string(), "--locals"])?;
    outcome.expect(0, &[]);
    let waits = line_of(SCRIPT, "waits");
    let leaf = definition_of(SCRIPT, "leaf");
    let lines: Vec<String> =
        outcome.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for expected in [
        format!("leaf@{SCRIPT}:{leaf} at {SCRIPT}:{waits}"),
        "label = \"hello321\"".to_owned(),
        "io.read (LuaJIT's library)".to_owned(),
        format!("thread {} (luajit): sleeping", workload.pid()),
    ] {
        ensure!(lines.contains(&expected), "no {expected:?} in {}", outcome.stdout);
    }
    ensure!(outcome.stdout.contains("LuaJIT 2.1.0-beta3, GC64, JIT on (0 traces)"), "{}", outcome.stdout);
    ensure!(outcome.stdout.contains(": not started"), "{}", outcome.stdout);
    Ok(())
}

/// Whether a frame is the expected one, whose line may be left out.
fn is_frame(shown: &str, expected: &str) -> bool {
    shown == expected || expected.rsplit_once(':').is_some_and(|(function, _)| shown == function)
}

/// A thread that waits in a C function which compiled code has called.
#[test]
fn shows_the_functions_inlined_into_a_trace() -> Result<()> {
    const SCRIPT: &str = "standstill_trace.lua";
    let lua = |name: &str, function: &str, mark: &str| {
        format!("{name}@{SCRIPT}:{}:{}", definition_of(SCRIPT, function), line_of(SCRIPT, mark))
    };
    let compiled =
        [lua("pause", "pause", "waits"), lua("step", "step", "calls pause"), lua("run", "run", "calls step")];
    let below = ["coroutine.wrap_aux".to_owned(), format!("main chunk@{SCRIPT}:0:{}", line_of(SCRIPT, "resumes"))];
    for program in ALL.into_iter().filter_map(Program::find) {
        let workload = Workload::start(&program, SCRIPT, &[])?;
        // It says that it is ready before its loop runs.
        let start = Instant::now();
        let dump = loop {
            let dump = dump(&workload, &["--locals"])?;
            let waits = |thread: &Value| {
                thread["state"] == "sleeping" && thread["in_motion"] == false && frames(thread).contains(&"poll".into())
            };
            let threads = dump["threads"].as_array().context("no threads")?;
            if threads.iter().any(waits) && dump["vms"][0]["state"] == "TRACE" {
                break dump;
            }
            ensure!(
                start.elapsed() < lj_trace_tests::patience(PATIENCE),
                "{}: it does not wait in a trace: {dump:#}",
                program.name
            );
        };
        let check = || -> Result<()> {
            let threads = dump["threads"].as_array().context("no threads")?;
            let thread = threads.iter().find(|thread| frames(thread).contains(&below[0])).context("no thread")?;
            let names = frames(thread);
            if names.iter().any(|name| name == "[unknown: inlined function not certain]") {
                // What is above the mark is right, and begins with the outermost frame of the trace.
                ensure!(names[0] == "poll" && names.contains(&below[0]) && names.contains(&below[1]), "{names:#?}");
                let shown = names.iter().position(|name| *name == below[0]).context("no coroutine")?;
                let shown = &names[2..shown];
                ensure!(shown.iter().rev().zip(compiled.iter().rev()).all(|(a, b)| is_frame(a, b)), "{names:#?}");
                return Ok(());
            }
            ensure!(names[0] == "poll" && names[1..4] == compiled && names[4..6] == below, "{names:#?}");
            let all = thread["frames"].as_array().context("no frames")?;
            let number = all[1]["trace"].as_u64().context("no trace")?;
            ensure!(number > 0 && all[1..4].iter().all(|frame| frame["trace"] == number), "{all:#?}");
            ensure!(all[1..4].iter().all(|frame| frame["locals"].is_null()), "{all:#?}");
            ensure!(local(&all[5], "timeouts").starts_with("table: 0x"), "{all:#?}");
            // The coroutine itself shows the same.
            let coroutines = dump["vms"][0]["coroutines"].as_array().context("no coroutines")?;
            let running = coroutines.iter().find(|coroutine| coroutine["status"] == "running").context("none runs")?;
            ensure!(frames(running) == compiled, "{running:#}");
            Ok(())
        };
        check().with_context(|| format!("{} with {dump:#}", program.name))?;
    }
    Ok(())
}

/// The event loop waits in a function that needs rbp, which the kernel does not tell.
#[test]
fn shows_all_of_an_event_loop() -> Result<()> {
    let Some(program) = Program::find(TARANTOOL) else { return Ok(()) };
    let workload = Workload::start(&program, "idle.lua", &[])?;
    let start = Instant::now();
    loop {
        let dump = dump(&workload, &[])?;
        let names = frames(&dump["threads"][0]);
        if names.first().is_some_and(|name| name == "epoll_wait") && dump["threads"][0]["in_motion"] == false {
            ensure!(
                names.contains(&"ev_run".into()) && names.last().is_some_and(|name| name == "_start"),
                "{names:#?}"
            );
            return Ok(());
        }
        ensure!(start.elapsed() < lj_trace_tests::patience(PATIENCE), "it does not wait: {dump:#}");
    }
}

/// A stack is shown as it was at one moment, or said to have been in motion.
#[test]
fn stacks_without_the_mark_are_whole() -> Result<()> {
    const SCRIPT: &str = "napping.lua";
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut whole = 0;
    // Naps that are over while it is looked at, and naps that are not.
    for milliseconds in ["1", "1", "1", "1", "1", "200", "200", "200", "200", "200"] {
        let workload = Workload::start(&program, SCRIPT, &[milliseconds])?;
        let dump = dump(&workload, &["--locals"])?;
        let thread = &dump["threads"][0];
        if thread["state"] != "sleeping" || thread["in_motion"] == true {
            continue;
        }
        let all = thread["frames"].as_array().context("no frames")?;
        // `lj_vm_ffi_call` needs rbp, which the kernel does not tell.
        ensure!(all.iter().all(|frame| frame["kind"] != "unresolved"), "{thread:#}");
        let is_nap = |frame: &&Value| frame["function"].as_str().is_some_and(|name| name.starts_with("nap@"));
        let naps: Vec<&Value> = all.iter().filter(is_nap).collect();
        if naps.is_empty() {
            // It has just begun.
            continue;
        }
        let depths: Vec<&str> = naps.iter().map(|nap| local(nap, "depth")).collect();
        let expected: Vec<String> = (0..naps.len()).map(|depth| depth.to_string()).collect();
        let deepest = (naps.len() - 1).to_string();
        ensure!(depths == expected && naps.iter().all(|nap| local(nap, "deepest") == deepest), "{thread:#}");
        whole += 1;
    }
    ensure!(whole > 0, "no thread was seen at rest");
    Ok(())
}

#[test]
fn shows_a_busy_process_by_samples() -> Result<()> {
    for program in ALL.into_iter().filter_map(Program::find) {
        let mut workload = Workload::start(&program, SCRIPT, &[])?;
        workload.go()?;
        for _ in 0..3 {
            let dump = dump(&workload, &["--locals"])?;
            let thread = &dump["threads"][0];
            ensure!(thread["in_motion"] == false && thread["seen_by"] == "sample", "{}: {thread:#}", program.name);
            ensure!(dump["vms"][0]["coroutines"].as_array().is_some_and(|all| all.len() >= 6), "{dump:#}");
            let spins = format!("main chunk@{SCRIPT}:0:{}", line_of(SCRIPT, "spins"));
            ensure!(frames(thread).contains(&spins), "{}: {thread:#}", program.name);
        }
        let text = run(["dump", "--pid", &workload.pid().to_string()])?.stdout;
        ensure!(text.contains(": running (its stack is that of a sample)"), "{}: {text}", program.name);
    }
    Ok(())
}

#[test]
fn is_quick() -> Result<()> {
    if binary().components().any(|part| part.as_os_str() == "debug") {
        println!("not timed: this is a debug build");
        return Ok(());
    }
    for program in ALL.into_iter().filter_map(Program::find) {
        let workload = Workload::start(&program, SCRIPT, &[])?;
        let times: Result<Vec<f64>> =
            (0..5).map(|_| dump(&workload, &[])?["milliseconds"].as_f64().context("no time")).collect();
        let fastest = times?.into_iter().fold(f64::MAX, f64::min);
        println!("{}: {fastest:.1} ms", program.name);
        // Some tens of them are for names: the functions that make others are searched in the heap.
        ensure!(fastest < 100.0, "{}: {fastest} ms", program.name);
    }
    Ok(())
}

#[test]
fn refuses_what_is_no_luajit() -> Result<()> {
    run(["dump", "--pid", &std::process::id().to_string()])?.expect(exit_code::NO_LUAJIT, &["no LuaJIT VM"]);
    run(["dump", "--pid", "4000000"])?.expect(exit_code::NO_PROCESS, &["no process 4000000"]);
    run(["dump"])?.expect(exit_code::USAGE, &["--pid"]);
    Ok(())
}
