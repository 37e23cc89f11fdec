//! What the VM itself says of the stacks of a program: the judge must accept all of it, and nothing else.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::generate::{Interface, MAIN, Program};
use super::judge::{Judge, Token};
use super::legal::Legal;
use super::run::write;
use crate::programs::Program as Host;

/// How long a program may take to say it, in seconds.
const PATIENCE: u64 = 30;

/// What a run of a program in its own words showed.
#[derive(Debug)]
pub struct Truth {
    /// The different stacks.
    pub stacks: usize,
    /// Those that the program may not have.
    pub refused: Vec<String>,
    /// Calls that the program may have, and were not seen.
    pub unseen: Vec<String>,
    /// All calls that it may have.
    pub edges: usize,
}

/// Asks the VM for the stacks of a program, and holds them against what the generator says of it.
///
/// # Errors
/// The program fails.
pub fn ask(host: &Host, program: &Program, folder: &Path) -> Result<Truth> {
    write(program, folder)?;
    let chains = chains(host, program.interface, folder).with_context(|| format!("seed {}", program.seed))?;
    let judge = Judge::new(&program.legal);
    let (mut refused, mut seen) = (Vec::new(), BTreeSet::new());
    for chain in &chains {
        if !judge.accepts(&tokens(chain)?, &mut seen) {
            refused.push(chain.clone());
        }
    }
    // The loop of the main chunk is not the one that a recording sees.
    let calls = program.legal.edges.iter().filter(|edge| edge.caller != MAIN);
    let unseen = calls.clone().filter(|edge| !seen.contains(*edge)).map(|edge| format!("{edge:?}")).collect();
    Ok(Truth { stacks: chains.len(), refused, unseen, edges: calls.count() })
}

/// A program of which only the text is known: the VM says what it may have on its stacks. Each of its functions begins on
/// a line of its own.
///
/// # Errors
/// The program fails, or does what the oracle does not know.
pub fn adopt(host: &Host, text: &str, folder: &Path) -> Result<Program> {
    let first = text.lines().next().unwrap_or_default();
    let interface = if first.contains("by module") { Interface::Module } else { Interface::Ffi };
    let mut program = Program { seed: 0, text: text.to_owned(), interface, legal: Legal::default() };
    write(&program, folder)?;
    let stacks: Vec<_> = chains(host, interface, folder)?.iter().map(|chain| tokens(chain)).collect::<Result<_>>()?;
    program.legal = Legal::of_stacks(text, &stacks).context("it has calls that the oracle does not know")?;
    // The main chunk has one loop for this, and one for recordings.
    program.legal.open_main();
    Ok(program)
}

/// The different stacks of the program in a folder: each of its C functions notes them instead of working.
fn chains(host: &Host, interface: Interface, folder: &Path) -> Result<Vec<String>> {
    let mut command = Command::new(&host.path);
    command.args([super::SCRIPT, "no library", interface.name(), "off", "truth"]).current_dir(folder);
    let said = folder.join("said");
    let file = File::create(&said)?;
    let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > crate::patience(PATIENCE) {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = std::fs::read_to_string(said)?;
    let has_done = child.wait()?.success() && text.lines().any(|line| line == "done");
    ensure!(has_done, "{}: {}", host.name, text.lines().take(3).collect::<Vec<_>>().join(" "));
    Ok(text.lines().filter_map(|line| line.strip_prefix("chain ")).map(str::to_owned).collect())
}

fn tokens(chain: &str) -> Result<Vec<Token>> {
    chain.split(';').map(token).collect::<Option<_>>().with_context(|| chain.to_owned())
}

/// A frame as `prelude.lua` writes it.
fn token(frame: &str) -> Option<Token> {
    let mut parts = frame.splitn(3, ':');
    if let (Some(first), Some(line), Some(name)) = (parts.next(), parts.next(), parts.next())
        && let (Ok(first), Ok(line)) = (first.parse(), line.parse())
    {
        return Some(Token::Lua { name: name.to_owned(), first, line });
    }
    if let Some(number) = frame.strip_prefix("c_") {
        return number.parse().ok().map(Token::Own);
    }
    if let Some(number) = frame.strip_prefix("cb_") {
        return number.parse().ok().map(Token::Callback);
    }
    Some(Token::Library(frame.to_owned()))
}
