//! Lines of compiled loops: of simple ones, nearly every sample has a line; of random ones, what has a line has one of the
//! loop's.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use lj_trace_tests::chance::of_percent;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::tracer::{Tracer, binary};
use lj_trace_tests::usage::let_work;
use lj_trace_tests::workload::Workload;

/// Random programs for each LuaJIT.
const PROGRAMS: usize = 3;
/// Loops of which all is known.
const SIMPLE: [&[&str]; 2] = [&["x = x + i % 7"], &["x = x * 0.5 + i * 3"]];
/// Samples of a simple loop whose line may be unknown, in percent: 0 to 9 were seen, where two lines meet.
const UNKNOWN: f64 = 25.0;
/// Samples that may be outside of the loop, in percent: it runs two million times for each call.
const OUTSIDE: f64 = 3.0;
/// CPU time of each, in seconds.
const SECONDS: f64 = 0.6;
/// Samples a second.
const RATE: f64 = 999.0;

/// The name of the file, which has the loop's function alone.
const FILE: &str = "loop.lua";

/// Statements that random loops are made of.
const STEPS: [&str; 9] = [
    "x = x + i % 7",
    "x = x * 0.5 + i * 3",
    "x = x * 0.5\n+ i",
    "x = x / 3 + #t",
    "t[i % 64 + 1] = x * 0.5",
    "x = x * 0.5 + t[i % 64 + 1]",
    "if x > 1e6 then\nx = 0\nend",
    "x = math.floor(x * 0.75) + 0.5",
    "local y = x * 0.25\nx = y + i",
];

/// A program with a loop of these statements, and the loop's first and last line.
fn program(random: &mut Rng, steps: &[&str]) -> (String, [u32; 2]) {
    const HEADS: [&str; 3] = ["for i = 1, n do", "for i = 2, n * 2, 2 do", "for i = n, 1, -1 do"];
    let mut text = "io.write('ready\\n') io.flush()\nlocal function work(n)\nlocal t, x = {}, 0.5\n".to_owned();
    text.push_str("for i = 1, 64 do t[i] = i * 0.5 end\n");
    let line = |text: &str| text.lines().count() as u32 + 1;
    let first = line(&text);
    // Everything may be in one line, too.
    let between = [" ", "\n", "\n"][random.usize(..3)];
    let _ = write!(text, "{}{between}", HEADS[random.usize(..HEADS.len())]);
    for step in steps {
        let _ = write!(text, "{step}{between}");
    }
    text.push_str("end\n");
    let last = line(&text) - 1;
    text.push_str("return x\nend\nlocal sum = 0\nwhile true do sum = sum + work(2000000) end\n");
    (text, [first, last])
}

/// The hottest lines that the answer lists, with their shares in percent; [`None`] for samples in a line that is not known.
fn hottest_lines(answer: &str) -> Vec<(Option<u32>, f64)> {
    let rows = answer.lines().skip_while(|line| !line.ends_with("hottest lines")).skip(1);
    let row = |line: &str| {
        let (share, place) = line.trim().split_once("%  ")?;
        let line = place.rsplit_once(':').and_then(|(_, line)| line.parse().ok());
        Some((line, share.parse().ok()?))
    };
    rows.map_while(row).collect()
}

fn check(name: &'static str) -> Result<()> {
    let Some(host) = Program::find(name) else { return Ok(()) };
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut loops = SIMPLE.map(|steps| (program(&mut random, steps), UNKNOWN)).to_vec();
    for _ in 0..PROGRAMS {
        let steps: Vec<&str> = (0..random.usize(1..5)).map(|_| STEPS[random.usize(..STEPS.len())]).collect();
        loops.push((program(&mut random, &steps), 100.0));
    }
    for ((text, [first, last]), limit) in loops {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join(FILE), &text)?;
        let workload = Workload::spawn(Command::new(&host.path).arg(FILE).current_dir(folder.path()))?;
        let pid = workload.pid();
        let mut command = Command::new(binary());
        let arguments = ["--pid", &pid.to_string(), "--rate", &RATE.to_string(), "-o", "loop.folded"];
        let mut tracer = Tracer::spawn_short(command.args(arguments).current_dir(folder.path()))?;
        tracer.wait_until_attached()?;
        let_work(pid, SECONDS)?;
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &[]);
        let lines = hottest_lines(&outcome.stderr);
        let share = |which: &dyn Fn(Option<u32>) -> bool| {
            lines.iter().filter(|(line, _)| which(*line)).map(|(_, share)| share).sum::<f64>()
        };
        let [unknown, inside] =
            [share(&|line| line.is_none()), share(&|line| line.is_some_and(|line| (first..=last).contains(&line)))];
        let what = || format!("lines {first} to {last} of\n{text}{}", outcome.stderr);
        println!("{inside:.1}% in the loop, {unknown:.1}% in lines that are not known");
        // As chance makes of so many samples.
        let most = |percent: f64| percent + of_percent(percent, SECONDS * RATE);
        ensure!(unknown <= most(limit), "{unknown:.1}% in lines that are not known: {}", what());
        ensure!(100.0 - unknown - inside <= most(OUTSIDE), "{inside:.1}% in the loop: {}", what());
    }
    Ok(())
}

#[test]
fn on_luajit() -> Result<()> {
    check(LUAJIT).context("luajit")
}

#[test]
fn on_luajit2() -> Result<()> {
    check(LUAJIT2).context("luajit2")
}

#[test]
fn on_tarantool() -> Result<()> {
    check(TARANTOOL).context("tarantool")
}
