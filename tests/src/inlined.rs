//! The workload whose functions are inlined into traces: what it says of itself, and what that says of a profile.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, bail};

use crate::folded::{COMPILED, Stack, line_in};
use crate::programs::Program;
use crate::recording::{Recorded, Recording};
use crate::workload::{TRACES, Workload};

/// What is said where the innermost function is not certain.
const UNCERTAIN: &str = "[unknown: inlined function not certain]";

/// What the workload says of its functions.
#[derive(Debug, Default)]
pub struct Functions {
    /// Names by line.
    names: HashMap<u32, String>,
    /// Who calls whom.
    calls: HashSet<(String, String)>,
    /// Function, part of the workload, percent of the part's time.
    pub shares: Vec<(String, String, f64)>,
}

impl Functions {
    /// Takes its report apart.
    ///
    /// # Errors
    /// If it says something else.
    pub fn read(lines: &[String]) -> Result<Self> {
        let mut functions = Self::default();
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
        let lines = stack.frames.iter().filter_map(|frame| line_in(frame, TRACES));
        lines.map(|line| self.names.get(&line).map(String::as_str)).collect()
    }

    /// Whether a stack can be: it begins in the main chunk, and each function is called by one that does call it.
    pub fn are_possible(&self, stack: &Stack) -> bool {
        let Some(names) = self.on(stack).into_iter().collect::<Option<Vec<_>>>() else {
            // The main chunk has functions without a name: the loops that declare.
            return false;
        };
        let is_call = |pair: &[&str]| self.calls.contains(&(pair[0].to_owned(), pair[1].to_owned()));
        // Coroutines of Tarantool's and of `coroutine.wrap` stand on those who resume them.
        let linked = |pair: &[&str]| is_call(pair) || pair == ["coroutines", "generate"];
        names.first() == Some(&"main") && names.windows(2).all(linked)
    }
}

/// Records the workload on a program, with the arguments after its duration; [`None`] if the program is left out.
///
/// # Errors
/// The workload or lj-trace fails.
pub fn record(program: &'static str, arguments: &[&str], options: &[&str]) -> Result<Option<(Functions, Recorded)>> {
    let Some(program) = Program::find(program) else { return Ok(None) };
    let mut workload = Workload::start(&program, TRACES, arguments)?;
    let recording = Recording::attached(&workload, options)?;
    workload.go()?;
    let functions = Functions::read(&workload.report()?)?;
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
