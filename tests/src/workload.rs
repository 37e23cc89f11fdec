//! A real program that runs one of the Lua workloads of `tests/lua`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};

use crate::compiled::compile;
use crate::programs::Program;

/// A running workload. It is ended when this is dropped.
#[derive(Debug)]
pub struct Workload {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// The name of the workload whose shares are known.
pub const TRUTH: &str = "truth.lua";
/// How much CPU time, in seconds, a workload uses up for a statistical test: those who want to know more exactly set
/// `LJ_TRACE_TEST_SECONDS`.
pub fn seconds(usual: u32) -> String {
    std::env::var("LJ_TRACE_TEST_SECONDS").unwrap_or_else(|_| usual.to_string())
}

/// The name of the workload whose functions are inlined into traces.
pub const TRACES: &str = "traces.lua";
/// The name of the workload whose allocations are known.
pub const MEMORY: &str = "memory.lua";
/// The name of the workload whose profiles are looked at.
pub const FORMATS: &str = "formats.lua";
/// The name of the workload that works part of the time, and does as it is told.
pub const SERVICE: &str = "service.lua";
/// The name of the workload that allocates as fast as it can.
pub const STORM: &str = "storm.lua";
/// The name of the workload that calls and returns in all ways.
pub const STEPPING: &str = "stepping.lua";
/// The name of the workload that allocates at an even pace.
pub const PACE: &str = "pace.lua";

impl Workload {
    /// Starts `script` on a program, with arguments, and waits until it says that it is ready. It does nothing until
    /// [`go`](Self::go).
    ///
    /// # Errors
    /// If the program cannot be started or says something else first.
    pub fn start(program: &Program, script: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(&program.path);
        command.arg(script).args(arguments).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"));
        Self::spawn(&mut command).with_context(|| format!("{script} on {}", program.name))
    }

    /// Compiles a program from `tests/hosts` into `folder`, starts it with arguments, and waits until it says that it
    /// is ready.
    ///
    /// # Errors
    /// If it cannot be compiled or started, or says something else first.
    pub fn start_host(source: &str, folder: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start_host_with(&[], source, folder, arguments)
    }

    /// The same with options for the compiler.
    ///
    /// # Errors
    /// As [`Self::start_host`].
    pub fn start_host_with(options: &[&str], source: &str, folder: &Path, arguments: &[&str]) -> Result<Self> {
        let binary = folder.join("host");
        compile(source, &binary, options)?;
        Self::spawn(Command::new(binary).args(arguments)).with_context(|| source.to_owned())
    }

    /// Starts the workload that a command runs, and waits until it says that it is ready. Its host may say something of
    /// its own before.
    ///
    /// # Errors
    /// If it cannot be started or ends first.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start {command:?}"))?;
        let stdout = child.stdout.take().context("the workload's output is not piped")?;
        let mut workload = Self { child, stdout: BufReader::new(stdout) };
        let mut said = String::new();
        loop {
            match workload.line().with_context(|| format!("it said {said:?}"))? {
                line if line == "ready" => return Ok(workload),
                line => said.push_str(&line),
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says `word`.
    ///
    /// # Errors
    /// If it ends, or says something else first.
    pub fn expect(&mut self, word: &str) -> Result<()> {
        let line = self.line()?;
        if line != word {
            bail!("the workload said {line:?} instead of {word:?}");
        }
        Ok(())
    }

    /// Lets it work; or, when it has reported, lets it exit.
    ///
    /// # Errors
    /// If it is gone.
    pub fn go(&mut self) -> Result<()> {
        self.tell("go")
    }

    /// Gives it a line of input.
    ///
    /// # Errors
    /// If it is gone.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("the workload's input is not piped")?;
        Ok(stdin.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Waits until it has done its work, and gives the lines of its report. It then waits for another
    /// [`go`](Self::go).
    ///
    /// # Errors
    /// If it ends without having reported.
    pub fn report(&mut self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        loop {
            match self.line()? {
                line if line == "done" => return Ok(lines),
                line => lines.push(line),
            }
        }
    }

    /// Waits until [`TRUTH`] has done its work, and gives its report.
    ///
    /// # Errors
    /// If it ends without having reported, or reports something that is not understood.
    pub fn truth(&mut self) -> Result<Truth> {
        let mut truth = Truth::default();
        for line in self.report()? {
            truth.add(&line).with_context(|| format!("the workload reported {line:?}"))?;
        }
        Ok(truth)
    }

    /// The CPU time of the fastest of the next turns of [`STORM`] or [`PACE`]: other work on this machine makes the others
    /// slower.
    ///
    /// # Errors
    /// As [`Self::next_turns`].
    pub fn fastest_turn(&mut self) -> Result<f64> {
        // On a slow machine, where each takes long, fewer have to do.
        let turns = (20 / crate::slower()).max(3);
        Ok(self.next_turns(usize::try_from(turns)?)?.into_iter().fold(f64::INFINITY, f64::min))
    }

    /// The CPU times of the next turns of [`STORM`] or [`PACE`], in seconds. Turns that have begun before, which the pipe
    /// is still full of, do not count.
    ///
    /// # Errors
    /// If it ends, or reports something that is not understood.
    pub fn next_turns(&mut self, count: usize) -> Result<Vec<f64>> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let mut turns = Vec::new();
        while turns.len() < count {
            let line = self.line()?;
            let (began, took) = line.split_once(' ').with_context(|| format!("the workload reported {line:?}"))?;
            if began.parse::<u64>()? > now {
                turns.push(took.parse()?);
            }
        }
        Ok(turns)
    }

    /// Reads all that it says from here on and forgets it: it never waits for a reader.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn leave_unread(&mut self) -> Result<()> {
        let mut said = std::fs::File::from(self.stdout.get_ref().as_fd().try_clone_to_owned()?);
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Ok(())
    }

    /// Ends it at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// If it has ended.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("the workload has ended: {}", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // It may have ended by itself: then there is nothing to end, only to collect.
        let _ = self.kill();
    }
}

/// What `truth.lua` measured of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Truth {
    /// The functions, in the order of their definition.
    pub shares: Vec<Share>,
    /// Functions that end in a tail call: the name, and the line they are defined at.
    pub replaced: Vec<(String, u32)>,
    /// Functions that only C calls, so that complete Lua stacks end in one of them.
    pub roots: Vec<(String, u32)>,
    /// All CPU time of the program while it worked, in seconds.
    pub total: f64,
}

/// A function and the CPU time that was spent with it on the stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Its name in the workload.
    pub name: String,
    /// The line it is defined at.
    pub line: u32,
    /// The time, in seconds.
    pub seconds: f64,
}

impl Truth {
    /// The line of the function of that name.
    ///
    /// # Panics
    /// If the workload has no such function.
    pub fn line(&self, name: &str) -> u32 {
        let share = self.shares.iter().find(|share| share.name == name);
        share.unwrap_or_else(|| panic!("{TRUTH} has no function {name}")).line
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        match words.next()? {
            "share" => self.shares.push(Share {
                name: words.next()?.to_owned(),
                line: words.next()?.parse().ok()?,
                seconds: words.next()?.parse().ok()?,
            }),
            "replaced" => self.replaced.push((words.next()?.to_owned(), words.next()?.parse().ok()?)),
            "root" => self.roots.push((words.next()?.to_owned(), words.next()?.parse().ok()?)),
            "total" => self.total = words.next()?.parse().ok()?,
            _ => return None,
        }
        words.next().is_none().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_report() {
        let mut truth = Truth::default();
        for line in ["share sort 12 0.5", "replaced first 3", "total 2.25"] {
            truth.add(line).unwrap();
        }
        assert_eq!(truth.line("sort"), 12);
        assert_eq!((truth.shares[0].seconds, truth.total), (0.5, 2.25));
        assert_eq!(truth.replaced, [("first".to_owned(), 3)]);
        assert_eq!(truth.add("share sort 12"), None);
        assert_eq!(truth.add("lost"), None);
    }
}
