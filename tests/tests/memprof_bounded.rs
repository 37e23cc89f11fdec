//! `--overhead`: a memory profile from windows, whose estimates must agree with what the workload knows of itself, within
//! the errors that they state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use lj_trace_tests::code;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::tracer::{Outcome, Tracer, exit_code, run};
use lj_trace_tests::windows;
use lj_trace_tests::workload::Workload;

const BOUNDED: &str = "bounded.lua";

/// A figure of a report, and by how much it may be off.
#[derive(Clone, Copy, Debug)]
struct Figure {
    value: f64,
    error: f64,
}

/// What a recorded run has left.
struct Recorded {
    folder: tempfile::TempDir,
    /// What the workload knows: bytes by line.
    truth: BTreeMap<u32, f64>,
    outcome: Outcome,
    /// Shares of lines, in percent, from the text report.
    shares: BTreeMap<u32, Figure>,
    text: String,
}

impl Recorded {
    /// Lets the workload work and records it meanwhile.
    fn of(program: &'static str, arguments: &[&str], mode: &str) -> Result<Option<Self>> {
        let Some(program) = Program::find(program) else { return Ok(None) };
        let folder = tempfile::tempdir()?;
        let mut workload = Workload::start(&program.copy_to(folder.path())?, BOUNDED, arguments)?;
        let pid = workload.pid().to_string();
        let [stream, text] = ["profile.bin", "profile.txt"].map(|name| folder.path().join(name).display().to_string());
        let arguments = ["--pid", &pid, "--mode", mode, "--overhead", "5%", "--output", &stream, "--output", &text];
        let mut tracer = Tracer::start(arguments)?;
        tracer.wait_until_attached()?;
        workload.go()?;
        let said = workload.report()?;
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &["lost               0"]);
        // The program has come to the same results, and runs its own code again.
        ensure!(said.iter().any(|line| line == "right"), "{said:?}");
        let left = code::differences(workload.pid())?;
        ensure!(left.is_empty(), "left behind: {left:?}");
        let text = match mode {
            "all" => folder.path().join("profile.memprof.txt"),
            _ => text.into(),
        };
        let text = std::fs::read_to_string(text)?;
        let truth = said.iter().filter_map(|line| known(line)).collect();
        Ok(Some(Self { folder, truth, outcome, shares: shares(&text), text }))
    }

    fn stream(&self) -> PathBuf {
        self.folder.path().join("profile.bin")
    }

    /// A number of the text report: the first one behind `words`.
    fn told(&self, words: &str) -> Result<f64> {
        let line = self.text.lines().find_map(|line| line.split_once(words));
        let (_, rest) = line.with_context(|| format!("no {words:?} in {}", self.text))?;
        let mut words = rest.split_whitespace();
        let number: f64 = words.next().context("no number")?.trim_end_matches(['%', ',']).parse()?;
        let factor = match words.next() {
            Some("KiB") => 1024.0,
            Some("MiB") => 1024.0 * 1024.0,
            Some("GiB") => 1024.0 * 1024.0 * 1024.0,
            _ => 1.0,
        };
        Ok(number * factor)
    }

    /// Holds the shares of all lines against the truth.
    fn check_shares(&self) -> Result<()> {
        let all: f64 = self.truth.values().sum();
        // Where no window was, nothing is known, and a stated error says nothing either: on a machine with much else to do
        // there are few windows in these seconds.
        let unseen = self.told("up to").unwrap_or(0.0);
        for (line, bytes) in &self.truth {
            let truth = bytes / all * 100.0;
            let seen = self.shares.get(line).copied().unwrap_or(Figure { value: 0.0, error: 0.0 });
            println!("line {line}: {truth:.2}% true, {:.2}% ±{:.2} told, {unseen}% unseen", seen.value, seen.error);
            // Stated errors are those of 19 in 20 cases (2 sigma); twice that is 1 in 15,000. The VM's own blocks, and the
            // string table, are no line's.
            let tolerance = 2.0 * seen.error + unseen + 3.0;
            ensure!((seen.value - truth).abs() < tolerance, "line {line}: {truth} true, {seen:?} in\n{}", self.text);
        }
        Ok(())
    }

    /// Holds the total against the truth.
    fn check_total(&self) -> Result<()> {
        let all: f64 = self.truth.values().sum();
        // The workload frees nothing itself.
        let told = self.told("less explicit frees")?;
        println!("{all} bytes true, {told} told");
        ensure!((told / all - 1.0).abs() < 0.15, "{all} bytes true, {told} told: {}", self.text);
        Ok(())
    }

    /// The share of CPU time that it has cost, as it says.
    fn cost(&self) -> Result<f64> {
        let line = self.outcome.stderr.lines().filter_map(|line| line.strip_prefix("  cost to it ")).next_back();
        let (_, rest) = line.and_then(|line| line.split_once(" s, ")).context("the summary does not tell the cost")?;
        Ok(rest.split_once('%').context("no share")?.0.parse()?)
    }
}

/// `line NUMBER BYTES`.
fn known(line: &str) -> Option<(u32, f64)> {
    let (number, bytes) = line.strip_prefix("line ")?.split_once(' ')?;
    Some((number.parse().ok()?, bytes.parse().ok()?))
}

/// The shares in a text report: interpreted and compiled, a line is told twice.
fn shares(text: &str) -> BTreeMap<u32, Figure> {
    let mut shares = BTreeMap::<u32, Figure>::new();
    let marked = format!("{BOUNDED}:");
    for line in text.lines() {
        let share = |text: &str| text.trim().trim_end_matches('%').parse::<f64>().ok();
        let Some((figures, place)) = line.split_once(&marked) else { continue };
        let Some(number) = place.split(' ').next().and_then(|number| number.parse().ok()) else { continue };
        let Some((value, rest)) = figures.split_once('%') else { continue };
        let error = rest.trim_start().strip_prefix('±').and_then(|rest| share(rest.split_once('%')?.0));
        let Some(value) = share(value) else { continue };
        let sum = shares.entry(number).or_insert(Figure { value: 0.0, error: 0.0 });
        sum.value += value;
        sum.error += error.unwrap_or(0.0);
    }
    shares
}

/// What the stream says, and what it refuses to.
fn check_stream(stream: &Path, text: &str) -> Result<()> {
    let stream = stream.to_string_lossy();
    let report = run(["report", &*stream])?;
    report.expect(0, &[]);
    // The same figures, under the name of the file.
    let figures = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    ensure!(figures(&report.stdout) == figures(text), "{}\nis not\n{text}", report.stdout);
    for wish in [&["--leak-only"][..], &["--weight", "held", "-o", "x.svg"], &["--format", "tarantool"]] {
        let refused = run(["report", &*stream].iter().chain(wish))?;
        refused.expect(exit_code::USAGE, &["is a sample", "lj-trace heap"]);
    }
    Ok(())
}

#[test]
fn a_steady_mix_is_estimated_on_all_forks() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    for program in [LUAJIT, LUAJIT2, TARANTOOL] {
        let Some(recorded) = Recorded::of(program, &["mix", "3"], "memprof")? else { continue };
        println!("{program}: {}", recorded.outcome.stderr);
        recorded.check_shares()?;
        recorded.check_total()?;
        // 5% are asked for. Where others work, too, the probes are taken out late; but in full it would be 80% and more.
        ensure!(recorded.cost()? < 25.0, "{}", recorded.outcome.stderr);
        check_stream(&recorded.stream(), &recorded.text)?;
    }
    Ok(())
}

#[test]
fn phases_are_no_surprise() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let recorded = Recorded::of(LUAJIT, &["phases", "5"], "all")?.context("it is everywhere")?;
    println!("{}", recorded.outcome.stderr);
    recorded.check_shares()?;
    recorded.check_total()
}

#[test]
fn what_is_compiled_is_told_by_its_lines() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let recorded = Recorded::of(LUAJIT, &["mix", "3", "jit"], "memprof")?.context("it is everywhere")?;
    println!("{}", recorded.outcome.stderr);
    recorded.check_shares()?;
    recorded.check_total()
}

#[test]
fn what_is_cheap_is_seen_in_full() -> Result<()> {
    if !windows::are_possible() {
        return Ok(());
    }
    let recorded = Recorded::of(LUAJIT, &["slow", "2"], "memprof")?.context("it is everywhere")?;
    println!("{}{}", recorded.outcome.stderr, recorded.text);
    ensure!(recorded.outcome.stderr.contains("seen in full"), "{}", recorded.outcome.stderr);
    let folded = run(["report", &*recorded.stream().to_string_lossy(), "--format", "folded"])?;
    folded.expect(0, &[]);
    for (line, bytes) in recorded.truth.iter().filter(|(_, bytes)| **bytes > 0.0) {
        let end = format!("{BOUNDED}:{line} ");
        let told = folded.stdout.lines().filter_map(|stack| stack.split_once(&end));
        let told: f64 = told.filter_map(|(_, told)| told.parse::<f64>().ok()).sum();
        println!("line {line}: {bytes} bytes true, {told} told");
        // Every single call, and what buffers take that grow after a collection.
        ensure!((told / bytes - 1.0).abs() < 0.05, "line {line}: {bytes} bytes true, {told} told");
    }
    Ok(())
}

#[test]
fn what_windows_cannot_do_is_refused() -> Result<()> {
    let pid = std::process::id().to_string();
    let cases: [(&[&str], &str); 5] = [
        (&["--mode", "sysprof"], "--mode memprof"),
        (&["--weight", "held"], "lj-trace heap"),
        (&["--stream-version", "2"], "version 3"),
        (&["--alloc-stacks", "100"], "cannot be used with"),
        (&["--max-overhead", "10%"], "cannot be used with"),
    ];
    for (options, reason) in cases {
        let arguments = ["--pid", &pid, "--overhead", "5%"];
        let mode = if options[0] == "--mode" { &[][..] } else { &["--mode", "memprof"] };
        run(arguments.iter().chain(mode).chain(options))?.expect(exit_code::USAGE, &[reason]);
    }
    Ok(())
}

/// As on kernels before 6.6.
#[test]
fn a_kernel_without_windows_is_said_to_have_none() -> Result<()> {
    let program = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
    let workload = Workload::start(&program, BOUNDED, &["mix", "1"])?;
    let pid = workload.pid().to_string();
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("run.bin").display().to_string();
    let options = ["--mode", "memprof", "--overhead", "5%", "--no-uprobe-multi"];
    let outcome = run(["--pid", &pid, "--output", &output].into_iter().chain(options))?;
    outcome.expect(exit_code::UNAVAILABLE, &["Linux 6.6 has", "--max-overhead"]);
    Ok(())
}
