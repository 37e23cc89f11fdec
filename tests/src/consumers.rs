//! The programs that people open profiles with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::programs::{CHROMIUM, GO, NPM_PACKAGES, Program, consumers_folder};

/// `go tool pprof`.
#[derive(Debug)]
pub struct Pprof(Program);

impl Pprof {
    /// [`None`] where the system does not have it.
    pub fn find() -> Option<Self> {
        Program::find(GO).map(Self)
    }

    /// What it prints.
    ///
    /// # Errors
    /// If it does not understand the profile.
    pub fn print(&self, profile: &Path, options: &[&str]) -> Result<String> {
        output(Command::new(&self.0.path).args(["tool", "pprof"]).args(options).arg(profile))
    }

    /// For each function, what is at the leaf and what is anywhere, by its list of the top functions.
    ///
    /// # Errors
    /// If it does not understand the profile.
    pub fn top(&self, profile: &Path, measure: &str, unit: &str) -> Result<BTreeMap<String, (u64, u64)>> {
        let index = format!("-sample_index={measure}");
        let unit_option = format!("-unit={unit}");
        let all = ["-top", "-nodecount=100000", "-nodefraction=0", "-edgefraction=0", &index, &unit_option];
        let text = self.print(profile, &all)?;
        let is_head = |line: &&str| line.trim_start().starts_with("flat ");
        let mut lines = text.lines().skip_while(|line| !is_head(line)).skip(1).peekable();
        lines.peek().with_context(|| format!("no list in {text}"))?;
        lines.map(|line| top_line(line).with_context(|| format!("not understood: {line:?}"))).collect()
    }

    /// What all samples have of each measure, in order.
    ///
    /// # Errors
    /// If it does not understand the profile.
    pub fn totals(&self, profile: &Path) -> Result<Vec<(String, u64)>> {
        let text = self.print(profile, &["-raw"])?;
        let mut lines = text.lines().skip_while(|line| *line != "Samples:").skip(1);
        let types = lines.next().context("no types")?.split_whitespace();
        let mut totals: Vec<(String, u64)> =
            types.map(|name| (name.split('/').next().unwrap_or_default().to_owned(), 0)).collect();
        for line in lines.take_while(|line| *line != "Locations") {
            let Some((values, _)) = line.split_once(':') else { continue };
            let values: Option<Vec<u64>> = values.split_whitespace().map(|value| value.parse().ok()).collect();
            // Lines of labels have names in place of numbers.
            let values = values.unwrap_or_default();
            totals.iter_mut().zip(values).for_each(|(total, value)| total.1 += value);
        }
        Ok(totals)
    }
}

/// `517 53.08% 53.08%  521 53.49%  fib@a.lua:1`, with a unit behind the numbers perhaps.
fn top_line(line: &str) -> Option<(String, (u64, u64))> {
    let number = |word: &str| word.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok();
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(word)
    };
    let flat = number(word()?)?;
    word()?;
    word()?;
    let all = number(word()?)?;
    word()?;
    Some((rest.trim_start().to_owned(), (flat, all)))
}

/// Packages of the npm registry, run by node; some in Chromium.
#[derive(Debug)]
pub struct Node {
    modules: PathBuf,
    chromium: Option<Program>,
}

impl Node {
    /// [`None`] where the system does not have them.
    pub fn find() -> Option<Self> {
        Program::find(NPM_PACKAGES)?;
        Some(Self { modules: consumers_folder().join("node_modules"), chromium: None })
    }

    /// With Chromium; [`None`] where the system does not have it.
    pub fn with_chromium() -> Option<Self> {
        let chromium = Program::find(CHROMIUM)?;
        Some(Self { chromium: Some(chromium), ..Self::find()? })
    }

    /// Runs a script of `tests/consumers`; gives what it prints.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(&self, script: &str, arguments: &[String]) -> Result<Value> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("consumers").join(script);
        let text = output(self.node().arg(path).args(arguments))?;
        serde_json::from_str(&text).with_context(|| format!("{script} printed {text}"))
    }

    fn node(&self) -> Command {
        // A browser that never comes back must not take the whole test run with it.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "120", "node"]).env("NODE_PATH", &self.modules);
        if let Some(chromium) = &self.chromium {
            command.env("CHROMIUM", &chromium.path);
        }
        command
    }

    /// The Firefox profiler, without its windows, with a profile open.
    ///
    /// # Errors
    /// If it does not open the profile.
    pub fn open_in_firefox_profiler(&self, profile: &Path) -> Result<FirefoxProfiler> {
        let folder = tempfile::tempdir()?;
        let script = self.modules.join("@firefox-devtools/profiler-cli/dist/profiler-cli.js");
        let mut server = Command::new("node");
        // Its own way to start the server gives up after half a second.
        server.arg(&script).arg("--daemon").arg(profile).args(["--session", SESSION]);
        server.envs(environment(&folder)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let [session, log] = ["json", "log"].map(|ending| folder.path().join(SESSION).with_extension(ending));
        let mut profiler = FirefoxProfiler { server: server.spawn().context("cannot run node")?, script, folder };
        let start = Instant::now();
        loop {
            // A client that comes before the server has written this removes it as a dead server's: then
            // they never meet.
            let open = session.exists() && profiler.print(&["profile", "info"]).is_ok();
            if open {
                return Ok(profiler);
            }
            let ended = profiler.server.try_wait()?;
            if ended.is_some() || start.elapsed() > crate::patience(PATIENCE) {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("it does not open the profile ({ended:?}); it said:\n{said}");
            }
            sleep(Duration::from_millis(200));
        }
    }
}

const SESSION: &str = "test";
/// It takes a second on an idle machine.
const PATIENCE: u64 = 60;

fn environment(folder: &tempfile::TempDir) -> [(&'static str, &std::ffi::OsStr); 2] {
    // All is named already: nothing is to be asked of any server.
    [("PROFILER_CLI_SESSION_DIR", folder.path().as_os_str()), ("PROFILER_CLI_NO_SYMBOLICATE", "1".as_ref())]
}

/// A profile that is open in the Firefox profiler, which is ended when this is dropped.
#[derive(Debug)]
pub struct FirefoxProfiler {
    server: Child,
    script: PathBuf,
    folder: tempfile::TempDir,
}

impl FirefoxProfiler {
    /// What it answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn print(&self, question: &[&str]) -> Result<String> {
        let mut client = Command::new("timeout");
        client.args(["--kill-after=5", "60", "node"]).arg(&self.script).args(question).args(["--session", SESSION]);
        output(client.envs(environment(&self.folder)))
    }
}

impl Drop for FirefoxProfiler {
    fn drop(&mut self) {
        // It may have ended by itself: then there is nothing to end, only to collect.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The build-id of a program, in hexadecimal digits.
///
/// # Errors
/// If it has none.
pub fn build_id(program: &Path) -> Result<String> {
    use object::Object as _;
    let bytes = std::fs::read(program)?;
    let file = object::File::parse(&*bytes)?;
    let id = file.build_id()?.with_context(|| format!("{} has no build-id", program.display()))?;
    Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("{command:?}: {}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
    }
    Ok(text(&output.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_of_the_top_list() {
        let line = "       517 53.08% 53.08%        521 53.49%  main chunk@a.lua:0";
        assert_eq!(top_line(line), Some(("main chunk@a.lua:0".to_owned(), (517, 521))));
        assert_eq!(top_line("         0     0%   100%    974B   100%  _start"), Some(("_start".to_owned(), (0, 974))));
        assert_eq!(top_line("something else"), None);
    }
}
