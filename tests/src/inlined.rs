//! The workload whose functions are inlined into traces: what it says of itself, and what that says of a profile.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, bail};

use crate::chance::of_percent;
use crate::folded::{COMPILED, Folded, Stack, line_in};
use crate::programs::Program;
use crate::recording::{Recorded, Recording};
use crate::workload::Workload;

/// What is said where the innermost function is not certain.
const UNCERTAIN: &str = "[unknown: inlined function not certain]";

/// What the workload says of its functions.
#[derive(Debug, Default)]
pub struct Functions {
    /// The file that they are in.
    script: String,
    /// Names by line.
    names: HashMap<u32, String>,
    /// Who calls whom.
    calls: HashSet<(String, String)>,
    /// Function, part of the workload, percent of the part's time.
    shares: Vec<(String, String, f64)>,
}

impl Functions {
    /// Takes its report apart.
    ///
    /// # Errors
    /// If it says something else.
    pub fn read(script: &str, lines: &[String]) -> Result<Self> {
        let mut functions = Self { script: script.to_owned(), ..Self::default() };
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["function", name, line] => {
                    functions.names.insert(line.parse()?, name.to_owned());
                }
                ["calls", caller, callee] => {
                    functions.calls.insert((caller.to_owned(), callee.to_owned()));
                }
                ["share", name, part, percent] => {
                    functions.shares.push((name.to_owned(), part.to_owned(), percent.parse()?));
                }
                _ => bail!("the workload reported {line:?}"),
            }
        }
        Ok(functions)
    }

    /// The names of the workload's functions on a stack, outermost first; `None` for those that it does not name.
    pub fn on(&self, stack: &Stack) -> Vec<Option<&str>> {
        let lines = stack.frames.iter().filter_map(|frame| line_in(frame, &self.script));
        lines.map(|line| self.names.get(&line).map(String::as_str)).collect()
    }

    /// Whether a stack can be: it begins in the main chunk, or where a mark says that the Lua stack was not readable below, as
    /// while it is moved; and each function is called by one that does call it.
    pub fn are_possible(&self, stack: &Stack) -> bool {
        let Some(names) = self.on(stack).into_iter().collect::<Option<Vec<_>>>() else {
            // The main chunk has functions without a name: the loops that declare.
            return false;
        };
        let is_call = |pair: &[&str]| self.calls.contains(&(pair[0].to_owned(), pair[1].to_owned()));
        // Coroutines of Tarantool's and of `coroutine.wrap` stand on those who resume them.
        let linked = |pair: &[&str]| is_call(pair) || pair == ["coroutines", "generate"];
        let lua = stack.frames.iter().position(|frame| line_in(frame, &self.script).is_some());
        let is_cut = lua.is_some_and(|first| stack.frames[..first].iter().any(|frame| frame == NOT_READABLE));
        (is_cut || names.first() == Some(&"main")) && names.windows(2).all(linked)
    }

    /// Functions whose share of their part is off by more than `points` percentage points, and what chance and the
    /// samples explain of which the innermost function is not certain: those may be of any of them.
    pub fn wrong_shares(&self, folded: &Folded, points: f64) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, part, expected) in &self.shares {
            let in_part = |stack: &Stack| is_compiled(stack) && self.on(stack).contains(&Some(part.as_str()));
            let all = folded.samples_where(in_part);
            let marked = folded.samples_where(|stack| in_part(stack) && !is_certain(stack));
            let marked = 100.0 * marked as f64 / all.max(1) as f64;
            let is_own = |stack: &Stack| {
                in_part(stack) && is_certain(stack) && self.on(stack).last() == Some(&Some(name.as_str()))
            };
            let share = 100.0 * folded.samples_where(is_own) as f64 / all.max(1) as f64;
            let tolerance = points + of_percent(*expected, all as f64);
            let verdict = format!(
                "{name}: {share:.1}% and at most {marked:.1}% more of {all} samples in {part}, expected {expected:.1}% ± {tolerance:.1}"
            );
            println!("{verdict}");
            if share > expected + tolerance || share + marked < expected - tolerance {
                failures.push(verdict);
            }
        }
        failures
    }
}

/// In place of the frames below, where reading them failed.
const NOT_READABLE: &str = "[unknown: Lua stack not readable]";

/// Records such a workload on a program, with its arguments; [`None`] if the program is left out.
///
/// # Errors
/// The workload or lj-trace fails.
pub fn record(
    program: &'static str,
    script: &'static str,
    arguments: &[&str],
    options: &[&str],
) -> Result<Option<(Functions, Recorded)>> {
    let Some(program) = Program::find(program) else { return Ok(None) };
    let mut workload = Workload::start(&program, script, arguments)?;
    let recording = Recording::attached(&workload, options)?;
    workload.go()?;
    let functions = Functions::read(script, &workload.report()?)?;
    let recorded = recording.stop()?;
    println!("{}: {}", program.name, recorded.outcome.stderr);
    Ok(Some((functions, recorded)))
}

/// Whether a stack has compiled frames.
pub fn is_compiled(stack: &Stack) -> bool {
    stack.frames.iter().any(|frame| frame.ends_with(COMPILED))
}

/// Whether its innermost frame is certain.
pub fn is_certain(stack: &Stack) -> bool {
    !stack.frames.iter().any(|frame| frame == UNCERTAIN)
}

/// Shows some of the stacks that are not as they should be.
pub fn examples<'a>(stacks: impl Iterator<Item = &'a Stack>) -> String {
    let mut wrong: Vec<&Stack> = stacks.collect();
    wrong.sort_by_key(|stack| std::cmp::Reverse(stack.samples));
    wrong.iter().take(8).map(|stack| format!("\n  {} {}", stack.samples, stack.frames.join(";"))).collect()
}
