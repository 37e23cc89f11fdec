//! Records a program, and judges its samples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::complete::{Incomplete, Marks};
use super::generate::Program;
use super::judge::{Judge, Token, Verdict, Wrong};
use super::{SCRIPT, native, profile};
use crate::programs::Program as Host;
use crate::tracer::Tracer;
use crate::workload::Workload;

/// How a program is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For how long, in seconds.
    pub seconds: f64,
    /// Samples a second.
    pub rate: u32,
    /// Whether the JIT compiler is on.
    pub jit: bool,
}

/// What came of a recording.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Samples in the program's C functions, by verdict.
    pub own: BTreeMap<Verdict, u64>,
    /// All other samples.
    pub others: BTreeMap<Verdict, u64>,
    /// Samples that are right, by the line where their innermost function begins.
    pub innermost: BTreeMap<u32, u64>,
    /// Samples with a mark, by what it says; a sample may have several.
    pub marks: BTreeMap<String, u64>,
    /// Samples whose stacks are not complete.
    pub incomplete: Incomplete,
    /// The stacks that are not complete, those of most samples first.
    pub gaps: Vec<(u64, String)>,
    /// Samples that lj-trace says it has lost.
    pub lost: u64,
    /// Samples with frames whose line is not known.
    pub without_line: u64,
    /// By how many seconds the recording took longer than it was to.
    pub overrun: f64,
    /// The stacks that are wrong, those of most samples first.
    pub failures: Vec<(u64, Wrong, String)>,
}

impl Figures {
    /// Samples of a verdict, in C functions and elsewhere.
    pub fn of(&self, verdict: Verdict) -> u64 {
        [&self.own, &self.others].into_iter().filter_map(|counts| counts.get(&verdict)).sum()
    }

    /// All samples.
    pub fn samples(&self) -> u64 {
        self.own.values().chain(self.others.values()).sum()
    }

    /// Samples with a mark.
    pub fn marked(&self) -> u64 {
        self.of(Verdict::Marked)
    }

    /// Samples that are wrong.
    pub fn wrong(&self) -> u64 {
        self.failures.iter().map(|failure| failure.0).sum()
    }
}

/// What every program begins with.
const PRELUDE: &str = include_str!("../../lua/oracle/prelude.lua");

/// Writes a program's files.
///
/// # Errors
/// If they cannot be written.
pub fn write(program: &Program, folder: &Path) -> Result<()> {
    std::fs::write(folder.join(SCRIPT), &program.text)?;
    Ok(std::fs::write(folder.join("prelude.lua"), PRELUDE)?)
}

/// Runs a program in a folder and records it.
///
/// # Errors
/// The program or lj-trace fails.
///
/// # Panics
/// If lj-trace ends with an error.
pub fn record(host: &Host, program: &Program, settings: Settings, folder: &Path) -> Result<Figures> {
    write(program, folder)?;
    let library = folder.join(format!("{}.so", program.interface.name()));
    if !library.is_file() {
        native::build(program.interface, folder)?;
    }
    let mut command = Command::new(&host.path);
    let jit = if settings.jit { "on" } else { "off" };
    command.arg(SCRIPT).arg(library).args([program.interface.name(), jit]).current_dir(folder);
    let mut workload = Workload::spawn(&mut command).with_context(|| format!("seed {}", program.seed))?;
    let output = folder.join("oracle.pb.gz");
    workload.go()?;
    let arguments = [
        "--pid".to_owned(),
        workload.pid().to_string(),
        "--duration".into(),
        format!("{}s", settings.seconds),
        "--rate".into(),
        settings.rate.to_string(),
        // The folder is that of the seed before.
        "--force".into(),
        "-o".into(),
        output.to_string_lossy().into_owned(),
    ];
    // What samples cost in an emulated machine says nothing, and would leave few of them.
    let no_limit = (crate::slower() > 1).then(|| "--no-limit".to_owned());
    let mut tracer = Tracer::start(arguments.into_iter().chain(no_limit))?;
    tracer.wait_until_attached()?;
    let attached = Instant::now();
    let outcome = tracer.wait()?;
    let overrun = attached.elapsed().as_secs_f64() - settings.seconds;
    outcome.expect(0, &[]);
    // It must have been alive to the end.
    workload.kill()?;
    let mut figures = judge(program, &profile::read(&output)?);
    // lj-trace counts them, too, before it names frames.
    let complete = outcome.count("native complete")?;
    let counted = figures.samples() - figures.incomplete.native;
    ensure!(complete == counted, "the summary has {complete} complete native stacks, the profile {counted}");
    figures.overrun = overrun;
    figures.lost = outcome.lost();
    Ok(figures)
}

fn judge(program: &Program, sampled: &[profile::Sampled]) -> Figures {
    let stacks: Vec<(Vec<Token>, &profile::Sampled)> =
        sampled.iter().map(|sampled| (sampled.frames.iter().map(Token::of).collect(), sampled)).collect();
    let mut judge = Judge::new(&program.legal);
    judge.learn_entry(stacks.iter().map(|(stack, sampled)| (stack.as_slice(), sampled.samples)));
    let mut figures = Figures::default();
    let all_marks = Marks::default();
    for (stack, sampled) in &stacks {
        // Of a stack that was walked while it changed, which says so, nothing is claimed.
        let is_torn = sampled.frames.iter().any(|frame| frame.name.contains("Lua stack torn"));
        let verdict = if is_torn { Verdict::Marked } else { judge.judge(stack) };
        let marks = sampled.frames.iter().map(|frame| frame.name.as_str());
        let marks: BTreeSet<&str> =
            marks.filter(|name| name.starts_with("[unknown") || name.contains("torn")).collect();
        for mark in marks {
            *figures.marks.entry(mark.to_owned()).or_default() += sampled.samples;
        }
        let counts = if Judge::own(stack).is_some() { &mut figures.own } else { &mut figures.others };
        *counts.entry(verdict).or_default() += sampled.samples;
        let mut functions = stack.iter().filter_map(|token| match token {
            Token::Lua { first, .. } => Some(*first),
            _ => None,
        });
        if let (Verdict::Right, Some(first)) = (verdict, functions.next_back()) {
            *figures.innermost.entry(first).or_default() += sampled.samples;
        }
        if judge.without_line(stack) > 0 {
            figures.without_line += sampled.samples;
        }
        let text = || {
            let frames = sampled.frames.iter().map(|frame| match frame.line {
                0 => frame.name.clone(),
                line => format!("{}:{line}", frame.name),
            });
            frames.collect::<Vec<_>>().join(";")
        };
        let Incomplete { native, lua } = all_marks.count(sampled);
        figures.incomplete.native += native;
        figures.incomplete.lua += lua;
        if native.max(lua) > 0 {
            figures.gaps.push((sampled.samples, text()));
        }
        if let Verdict::Wrong(wrong) = verdict {
            figures.failures.push((sampled.samples, wrong, text()));
        }
    }
    figures.failures.sort_by_key(|failure| std::cmp::Reverse(failure.0));
    figures.gaps.sort_by_key(|gap| std::cmp::Reverse(gap.0));
    figures
}
