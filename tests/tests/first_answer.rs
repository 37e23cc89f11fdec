//! The first command that a person tries ends with the culprit, in one sentence.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::chance::{ERRORS, of_share};
use lj_trace_tests::nginx::Nginx;
use lj_trace_tests::programs::{LUAJIT, Program, TARANTOOL};
use lj_trace_tests::tracer::{Outcome, Tracer, binary};
use lj_trace_tests::usage::let_work;
use lj_trace_tests::workload::Workload;

/// Runs the source of a program; it says that it is ready by itself.
fn start(program: &Program, folder: &Path, source: &str) -> Result<Workload> {
    let source = format!("io.write('ready\\n') io.flush()\n{source}");
    fs::write(folder.join("shop.lua"), source)?;
    Workload::spawn(Command::new(&program.path).arg("shop.lua").current_dir(folder))
}

/// What is said of a process after it has worked for so many seconds of CPU time, and the answer in it.
fn answer_after(pid: u32, seconds: f64, folder: &Path) -> Result<String> {
    let mut command = Command::new(binary());
    let mut tracer = Tracer::spawn_short(command.args(["--pid", &pid.to_string()]).current_dir(folder))?;
    tracer.wait_until_attached()?;
    let_work(pid, seconds)?;
    tracer.signal(libc::SIGINT)?;
    answer_of(tracer.wait()?)
}

/// What is said of a process that waits.
fn answer_in(pid: u32, time: &str, folder: &Path) -> Result<String> {
    let mut command = Command::new(binary());
    let tracer = Tracer::spawn_short(command.args(["--pid", &pid.to_string(), "-d", time]).current_dir(folder))?;
    answer_of(tracer.wait()?)
}

/// All that comes after the files.
fn answer_of(outcome: Outcome) -> Result<String> {
    outcome.expect(0, &["wrote "]);
    let (_, answer) = outcome.stderr.split_once("\n\n").with_context(|| format!("no answer in {}", outcome.stderr))?;
    for what in ["losses      ", "cost        "] {
        ensure!(answer.lines().any(|line| line.starts_with(what)), "no {what:?} in {answer}");
    }
    Ok(answer.to_owned())
}

fn sentence(answer: &str) -> &str {
    answer.lines().next().unwrap_or_default()
}

/// The share in percent, and the function, of `62% of the CPU time is in `render@shop.lua:20``.
fn culprit(answer: &str) -> Result<(f64, &str)> {
    let (share, rest) = sentence(answer).split_once("% of the CPU time is in `").context("it names no function")?;
    let share = share.rsplit([' ', ':']).next().and_then(|share| share.parse().ok());
    let function = rest.split('`').next().unwrap_or_default();
    Ok((share.with_context(|| format!("no share in {answer}"))?, function))
}

/// A function that works for its share of each turn, and what makes it special.
struct Culprit {
    name: &'static str,
    /// A statement that takes some hundred microseconds.
    work: &'static str,
    /// What stands after the function.
    after: &'static str,
    /// What the answer says of it, one or the other.
    said: [&'static str; 2],
}

const KINDS: [Culprit; 4] = [
    Culprit {
        name: "compute",
        work: "for i = 1, 50000 do sum = (sum * 31 + i) % 1000003 end",
        after: "",
        said: ["% of the CPU time", "% of the CPU time"],
    },
    Culprit {
        name: "garbage",
        work: "for i = 1, 2000 do kept = { i, tostring(i) } end",
        after: "",
        said: ["collecting garbage", "Garbage collection takes"],
    },
    Culprit {
        name: "interpreted",
        work: "for i = 1, 5000 do sum = (sum * 31 + i) % 1000003 end",
        after: "jit.off(NAME)",
        said: ["interpreted rather than compiled", "interpreted rather than compiled"],
    },
    Culprit {
        name: "fallback",
        // LuaJIT does not compile what makes a closure.
        work: "for i = 1, 2000 do kept = function() return i end; sum = sum + i end",
        after: "",
        said: ["interpreted rather than compiled", "collecting garbage"],
    },
];

/// How long all functions of such a program take, in seconds.
const TURN: f64 = 0.03;

/// A program of so many functions, one of which works for `share` of the time. How long a call takes is random: what takes the
/// same time over and over is in step with the clock of samples.
fn program_of(names: &[String], culprit: usize, kind: &Culprit, share: f64) -> String {
    let mut source = "local sum, kept, clock, random = 1, nil, os.clock, math.random\n".to_owned();
    for (index, name) in names.iter().enumerate() {
        let is_culprit = index == culprit;
        let time = TURN * if is_culprit { share } else { (1.0 - share) / (names.len() - 1) as f64 };
        let (work, after) = if is_culprit { (kind.work, kind.after) } else { (KINDS[0].work, "") };
        let after = after.replace("NAME", name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            source,
            "local function {name}()\n local stop = clock() + {time} * (0.5 + random())\n repeat {work} until clock() >= stop\n return sum\n\
             end\n{after}"
        );
    }
    source.push_str("while true do\n");
    names.iter().for_each(|name| {
        let _ = writeln!(source, " sum = {name}() + 0");
    });
    source.push_str("end\n");
    source
}

#[test]
fn a_function_that_takes_most_is_named_in_random_programs() -> Result<()> {
    /// CPU time of each, and samples a second where nothing else is asked for.
    const SECONDS: f64 = 2.4;
    const RATE: f64 = 99.0;
    let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let mut state = u64::from(std::process::id());
    println!("seed {state}");
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for kind in &KINDS {
        let names: Vec<String> = (0..3 + random(2)).map(|index| format!("f{index}_{}", random(1_000_000))).collect();
        let at = random(names.len() as u64) as usize;
        let share = 0.6 + random(26) as f64 / 100.0;
        let folder = tempfile::tempdir()?;
        let workload = start(&luajit, folder.path(), &program_of(&names, at, kind, share))?;
        let answer = answer_after(workload.pid(), SECONDS, folder.path())?;
        let (said, function) = culprit(&answer).with_context(|| format!("{}: {answer}", kind.name))?;
        ensure!(function.starts_with(&format!("{}@shop.lua:", names[at])), "{} is {}: {answer}", names[at], kind.name);
        // A call takes a random time, which is off by a twelfth of its square: some dozens of turns have the share of the culprit
        // only nearly. Others run a little longer than they should, since they do not look at the clock all the time: 0.02.
        let samples = SECONDS * RATE;
        let turns = SECONDS / TURN;
        let variance = (1.0 - share).powi(2) * share.powi(2) * 2.0 / 12.0 / turns;
        let tolerance = of_share(share, samples) + ERRORS * variance.sqrt() + 0.02;
        ensure!((said / 100.0 - share).abs() < tolerance, "{said}% rather than {share} +-{tolerance}: {answer}");
        ensure!(kind.said.iter().any(|said| answer.contains(said)), "{}: {answer}", kind.name);
        ensure!(answer.contains("All shares are of "), "{answer}");
    }
    Ok(())
}

#[test]
fn a_busy_worker_is_explained_on_tarantool_and_on_nginx() -> Result<()> {
    let names = ["other", "render", "another"].map(str::to_owned);
    let folder = tempfile::tempdir()?;
    if let Some(tarantool) = Program::find(TARANTOOL) {
        let workload = start(&tarantool, folder.path(), &program_of(&names, 1, &KINDS[0], 0.7))?;
        let answer = answer_after(workload.pid(), 0.6, folder.path())?;
        ensure!(culprit(&answer)?.1.starts_with("render@"), "{answer}");
    }
    let Some(nginx) = Nginx::start(2)? else { return Ok(()) };
    let worker = nginx.workers()[0];
    let answer = answer_after(worker, 0.6, folder.path())?;
    ensure!(culprit(&answer)?.1.starts_with("compute@"), "{answer}");

    // All of them have one answer, and a line each.
    let [master, all] = [nginx.pid().to_string(), folder.path().join("all.folded").display().to_string()];
    let arguments = ["--pid", &master, "--children", "-o", &all];
    let mut tracer = Tracer::spawn_short(Command::new(binary()).args(arguments))?;
    tracer.wait_until_attached()?;
    nginx.workers().iter().try_for_each(|worker| let_work(*worker, 0.4))?;
    tracer.signal(libc::SIGINT)?;
    let answer = answer_of(tracer.wait()?)?;
    ensure!(culprit(&answer)?.1.starts_with("compute@"), "{answer}");
    for worker in nginx.workers() {
        let begin = format!("nginx (pid {worker}): ");
        let line =
            answer.lines().find(|line| line.starts_with(&begin)).with_context(|| format!("no {worker}: {answer}"))?;
        ensure!(line.contains(" of them in compute@") && line.contains("; losses: "), "{line}");
    }
    Ok(())
}

#[test]
fn the_compiler_that_gave_up_is_told_on_tarantool_and_on_nginx() -> Result<()> {
    let names = ["other", "render", "another"].map(str::to_owned);
    let fallback = KINDS.iter().find(|kind| kind.name == "fallback").context("it is one of them")?;
    let source = program_of(&names, 1, fallback, 0.75);
    let check = |answer: &str| {
        ensure!(culprit(answer)?.1.starts_with("render@"), "{answer}");
        ensure!(fallback.said.iter().any(|said| answer.contains(said)), "{answer}");
        Ok(())
    };
    let folder = tempfile::tempdir()?;
    if let Some(tarantool) = Program::find(TARANTOOL) {
        let workload = start(&tarantool, folder.path(), &source)?;
        check(&answer_after(workload.pid(), 0.6, folder.path())?)?;
    }
    let nginx = Nginx::configured(|own, _| {
        let script = own.join("shop.lua");
        fs::write(&script, format!("ngx.timer.at(0, function()\n{source}end)\n"))?;
        Ok(format!("init_worker_by_lua_file {};", script.display()))
    })?;
    let Some(nginx) = nginx else { return Ok(()) };
    check(&answer_after(nginx.workers()[0], 0.6, folder.path())?)
}

#[test]
fn what_waits_is_said_to_wait_and_where() -> Result<()> {
    let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let folder = tempfile::tempdir()?;
    for (source, place) in [
        (
            "local function convert()\n os.execute('sleep 0.3')\n return 1\nend\nwhile true do convert() end",
            "`convert@shop.lua:2, line 3`",
        ),
        (
            "local ffi = require 'ffi'\nffi.cdef 'int usleep(unsigned);'\njit.off()\nlocal function nap()\n \
             ffi.C.usleep(50000)\n return 1\nend\nwhile true do nap() end",
            "`nap@shop.lua:5, line 6`",
        ),
        ("io.read()", "`main chunk@shop.lua:0, line 2`"),
    ] {
        let workload = start(&luajit, folder.path(), source)?;
        let answer = answer_in(workload.pid(), "2500ms", folder.path())?;
        ensure!(sentence(&answer).starts_with("It waits most of the time: "), "{answer}");
        ensure!(sentence(&answer).contains(place), "{place} is not where it waits: {answer}");
        ensure!(sentence(&answer).contains(&format!("`lj-trace dump --pid {}`", workload.pid())), "{answer}");
    }
    Ok(())
}

#[test]
fn a_recording_leaves_a_stream_and_a_picture_and_all_numbers_with_v() -> Result<()> {
    let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let folder = tempfile::tempdir()?;
    let names = ["other", "render"].map(str::to_owned);
    let workload = start(&luajit, folder.path(), &program_of(&names, 1, &KINDS[1], 0.8))?;
    let pid = workload.pid().to_string();
    let mut said = Vec::new();
    for more in [&[][..], &["-v"], &["-v", "--mode", "memprof", "--no-limit"]] {
        let own = tempfile::tempdir_in(folder.path())?;
        let mut command = Command::new(binary());
        command.args(["--pid", &pid, "-d", "1s"]).args(more).current_dir(own.path());
        let outcome = Tracer::spawn_short(&mut command)?.wait_for(Duration::from_secs(60))?;
        outcome.expect(0, &["finished: recorded "]);
        let mut files: Vec<_> =
            fs::read_dir(own.path())?.map(|file| Ok(file?.file_name().display().to_string())).collect::<Result<_>>()?;
        files.sort();
        let kind = if more.contains(&"memprof") { "memprof" } else { "sysprof" };
        ensure!(files.len() == 2 && files[0].ends_with(&format!(".{kind}.bin")), "{files:?}");
        ensure!(files[1].ends_with(&format!(".{kind}.svg")) && files[1].starts_with("lj-trace-"), "{files:?}");
        ensure!(outcome.stderr.contains(".svg: open it in a browser"), "{}", outcome.stderr);
        said.push(outcome.stderr);
    }
    let [short, long, memory] = said.as_slice() else { unreachable!("there are three") };
    for number in ["  lost               ", "  Lua complete       ", "  native complete    ", "  garbage collector "] {
        ensure!(!short.contains(number) && long.contains(number), "{number}: {short}\n{long}");
    }
    ensure!(short.contains("losses      ") && long.contains("losses      "), "{short}\n{long}");
    let answer =
        memory.split_once("\n\n").map(|(_, answer)| answer).with_context(|| format!("no answer in {memory}"))?;
    ensure!(answer.contains("of the bytes allocated") && answer.contains("shop.lua:9"), "{memory}");
    Ok(())
}
