//! `lj-trace dump` of programs that run all the time shows where they are, by a sample or while they are stopped.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::capabilities::SYS_PTRACE;
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::source::{definition_of, line_of};
use lj_trace_tests::standstill::{MORE, stands, watch};
use lj_trace_tests::tracer::{Tracer, exit_code, run};
use lj_trace_tests::workload::Workload;
use serde_json::Value;

/// What keeps a program busy: its name, and the loop, which is one line. Something stands before it there: LuaJIT counts the
/// first bytecode of a loop to the line before.
const KINDS: [(&str, &str); 4] = [
    ("interpreted", "n = 0 while true do n = n + 1 end"),
    ("compiled", "n = 0 while true do n = n + 1 end"),
    ("in C", "n = 0 while true do n = ('x'):rep(3000):find('(x*)y') end"),
    ("collecting garbage", "n = 0 while true do n = {{}, {n and 1}} end"),
];

/// Makes some traces.
const TRACES: &str =
    "for i = 1, 500 do local t = { i, tostring(i) } if i % 3 == 0 then t.x = i elseif i % 5 == 0 then t[3] = t end end";

/// A program that is in one function for good, below others that have called it.
struct Busy {
    workload: Workload,
    /// Its Lua functions, innermost first, and the lines that they execute.
    stack: Vec<(String, u64)>,
    _folder: tempfile::TempDir,
}

impl Busy {
    /// One of [`KINDS`] whose functions lie where `seed` says.
    fn start(program: &Program, kind: usize, seed: usize) -> Result<Self> {
        let (name, code) = KINDS[kind];
        // Of one small trace alone, builds of LuaJIT may not be told apart: there are others.
        let mut lua = if name == "compiled" { format!("{TRACES}\n") } else { "jit.off()\n".to_owned() };
        let mut stack = Vec::new();
        let (mut depth, mut callee) = (0, code.to_owned());
        let mut line = lua.lines().count() as u64 + 1;
        while depth < 1 + (seed * 7 + kind) % 5 {
            let (above, inside) = ((seed * 5 + depth * 3) % 4, (seed + depth) % 3);
            let function = format!("f{depth}");
            write!(lua, "{}local function {function}() local n = 0", "\n".repeat(above))?;
            // The call is not the last thing that it does, and so no tail call.
            writeln!(lua, "{} {callee} return n end", "\n".repeat(inside + 1))?;
            let first = line + above as u64;
            let current = first + inside as u64 + 1;
            stack.push((format!("{function}@busy.lua:{first}"), current));
            (line, callee, depth) = (current + 1, format!("n = {function}()"), depth + 1);
        }
        writeln!(lua, "print('ready') io.flush() local n {callee} return n")?;
        stack.push(("main chunk@busy.lua:0".to_owned(), line));
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("busy.lua"), lua)?;
        let mut command = Command::new(&program.path);
        let workload = Workload::spawn(command.arg("busy.lua").current_dir(folder.path()))?;
        Ok(Self { workload, stack, _folder: folder })
    }

    /// Whether a thread is shown where it is, the line of compiled code apart where that is not known.
    fn check(&self, thread: &Value) -> Result<()> {
        ensure!(thread["in_motion"] == false && thread["note"].is_null(), "{thread:#}");
        let frames = thread["frames"].as_array().context("no frames")?;
        ensure!(frames.iter().all(|frame| frame["kind"] != "unresolved"), "{thread:#}");
        let lua: Vec<&Value> = frames.iter().filter(|frame| frame["kind"] == "lua").collect();
        ensure!(lua.len() == self.stack.len(), "{thread:#}\ninstead of\n{:#?}", self.stack);
        for (frame, (function, line)) in lua.iter().zip(&self.stack) {
            // A call names a function only where it is known which variable is called.
            let place = function.split_once('@').map_or("", |(_, place)| place);
            let has_place = frame["function"].as_str().is_some_and(|name| name.ends_with(&format!("@{place}")));
            let has_line = frame["line"] == *line || frame["line"].is_null() && !frame["trace"].is_null();
            ensure!(has_place && has_line, "{frame:#} instead of {function} in line {line}: {thread:#}");
        }
        Ok(())
    }
}

fn dump(pid: u32, more: &[&str]) -> Result<Value> {
    let outcome = run(["dump", "--json", "--pid", &pid.to_string()].iter().chain(more))?;
    outcome.expect(0, &[]);
    Ok(serde_json::from_str(&outcome.stdout)?)
}

/// The thread that runs Lua.
fn lua_thread(dump: &Value) -> Result<&Value> {
    let threads = dump["threads"].as_array().context("no threads")?;
    let has_lua = |thread: &&Value| {
        let frames = thread["frames"].as_array().into_iter().flatten();
        frames.into_iter().any(|frame| frame["kind"] == "lua")
    };
    threads.iter().find(has_lua).with_context(|| format!("no thread has Lua frames: {dump:#}"))
}

#[test]
fn every_dump_shows_the_function_and_the_line() -> Result<()> {
    for program in [LUAJIT, TARANTOOL].into_iter().filter_map(Program::find) {
        for (kind, (name, _)) in KINDS.into_iter().enumerate() {
            let busy = Busy::start(&program, kind, kind + program.name.len())?;
            let shown = |more: &[&str], seen_by: &str| -> Result<()> {
                let dump = dump(busy.workload.pid(), more)?;
                let thread = lua_thread(&dump)?;
                ensure!(thread["seen_by"] == seen_by && thread["state"] == "running", "{thread:#}");
                ensure!(dump["paused"].is_number() == (seen_by == "stop") && dump["went_on"] == false, "{dump:#}");
                busy.check(thread)
            };
            // Of the one that is in most installations, twelve.
            let times = if program.name == LUAJIT { 3 } else { 1 };
            let check = || (0..times).try_for_each(|_| shown(&[], "sample").and(shown(&["--pause"], "stop")));
            check().with_context(|| format!("{}, {}", program.name, name))?;
            ensure!(!stands(busy.workload.pid()), "it does not go on");
        }
    }
    Ok(())
}

#[test]
fn a_worker_of_nginx_is_where_it_computes() -> Result<()> {
    let Some(nginx) = Nginx::start(1)? else { return Ok(()) };
    let worker = nginx.workers()[0];
    for more in [&[][..], &["--pause"]] {
        let dump = dump(worker, more)?;
        let thread = lua_thread(&dump)?;
        let frames = thread["frames"].as_array().context("no frames")?;
        let lua = frames.iter().filter(|frame| frame["kind"] == "lua");
        let is_own = |frame: &Value| frame["source"].as_str().is_some_and(|source| source.ends_with("worker.lua"));
        ensure!(thread["in_motion"] == false && lua.clone().count() > 0 && lua.clone().all(is_own), "{thread:#}");
    }
    Ok(())
}

/// What a function that runs has in its variables is told while it is stopped.
#[test]
fn variables_are_those_of_the_moment() -> Result<()> {
    const SCRIPT: &str = "standstill.lua";
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut workload = Workload::start(&program, SCRIPT, &[])?;
    workload.go()?;
    let (mut last, mut seen) = (0.0, 0);
    for _ in 0..20 {
        let dump = dump(workload.pid(), &["--pause", "--locals"])?;
        let frames = dump["threads"][0]["frames"].as_array().context("no frames")?.clone();
        let spin = format!("spin@{SCRIPT}:{}", definition_of(SCRIPT, "spin"));
        let main = frames.iter().find(|frame| frame["function"] == format!("main chunk@{SCRIPT}:0"));
        ensure!(main.is_some_and(|main| main["line"] == line_of(SCRIPT, "spins")), "{dump:#}");
        let Some(spin) = frames.iter().find(|frame| frame["function"] == *spin && frame["trace"].is_null()) else {
            continue;
        };
        let locals = spin["locals"].as_array().into_iter().flatten();
        let value = |name: &str| {
            let local = locals.clone().find(|local| local["name"] == name)?;
            local["value"].as_str()?.parse::<f64>().ok()
        };
        ensure!(value("count") == Some(1000.0), "{spin:#}");
        if let Some(sum) = value("sum") {
            seen += u32::from(sum != last);
            last = sum;
        }
    }
    println!("{seen} different sums");
    Ok(())
}

#[test]
fn without_privileges_it_says_how_to_see_more() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let busy = Busy::start(&program, 0, 1)?;
    let folder = tempfile::tempdir()?;
    let pid = busy.workload.pid().to_string();
    let with_ptrace = |more: &[&str]| {
        let arguments = [&["dump", "--pid", &pid][..], more].concat();
        Tracer::start_as_nobody_with(&[SYS_PTRACE], folder.path(), &arguments)?.wait()
    };
    let outcome = with_ptrace(&[])?;
    outcome.expect(0, &[]);
    for text in ["it is running", "CAP_BPF", "--pause"] {
        ensure!(outcome.stdout.contains(text), "no {text} in {}", outcome.stdout);
    }
    // To stop it, tracing is enough.
    let outcome = with_ptrace(&["--pause"])?;
    outcome.expect(0, &[]);
    let (function, line) = &busy.stack[0];
    let place = format!("at busy.lua:{line}");
    ensure!(outcome.stdout.contains(&place), "no {place} ({function}) in {}", outcome.stdout);
    ensure!(outcome.stdout.contains("running when it was stopped"), "{}", outcome.stdout);
    Ok(())
}

/// A program whose dump takes long: so many coroutines, each with a stack of its own.
fn large() -> Result<Workload> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    Workload::start(&program, "many.lua", &["coroutines", "100000"])
}

#[test]
fn it_goes_on_when_the_time_is_over() -> Result<()> {
    let workload = large()?;
    let limit = Duration::from_millis(5);
    let (dump, seen) = watch(workload.pid(), || dump(workload.pid(), &["--pause=5ms"]));
    let dump = dump?;
    let most = limit + MORE + seen.late;
    ensure!(seen.stood <= most, "it was seen to stand still for {:?}, at most {most:?} are right", seen.stood);
    ensure!(dump["went_on"] == true && dump["paused"].is_number(), "{:#}", dump["threads"]);
    ensure!(!stands(workload.pid()), "it does not go on");
    Ok(())
}

#[test]
fn it_goes_on_when_lj_trace_is_killed() -> Result<()> {
    let workload = large()?;
    let pid = workload.pid();
    let mut caught = false;
    for _ in 0..20 {
        let tracer = Tracer::start(["dump", "--pid", &pid.to_string(), "--pause", "--json"])?;
        let (start, own) = (Instant::now(), format!("/proc/{}/fd/0", tracer.pid()));
        while !caught && start.elapsed() < lj_trace_tests::patience(10) && Path::new(&own).exists() {
            caught = stands(pid);
        }
        tracer.signal(libc::SIGKILL)?;
        let _ = tracer.wait();
        if caught {
            break;
        }
    }
    ensure!(caught, "it was never seen to be stopped");
    let start = Instant::now();
    while stands(pid) {
        ensure!(start.elapsed() < lj_trace_tests::patience(20), "it does not go on");
    }
    Ok(())
}

/// One at a time can trace a process: this test, in place of a debugger.
#[test]
fn it_says_who_traces_it_already() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let busy = Busy::start(&program, 1, 2)?;
    let pid = libc::pid_t::try_from(busy.workload.pid())?;
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the request takes no address, and the process is ours.
    let outcome = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) };
    ensure!(outcome == 0, "{}", std::io::Error::last_os_error());
    let arguments = ["dump", "--pid", &pid.to_string(), "--pause"];
    let own = format!("(pid {}) traces it", std::process::id());
    run(arguments)?.expect(exit_code::PRIVILEGES, &[&own, "leave out --pause"]);
    // Samples do not mind.
    busy.check(lua_thread(&dump(busy.workload.pid(), &[])?)?)
}
