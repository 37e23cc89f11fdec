//! Runs of the `lj-trace` binary.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::capabilities::{self, Capability, NOBODY};
use crate::patience;
use crate::target_folder;

/// Exit codes of `lj-trace`, after sysexits.h.
pub mod exit_code {
    /// The command line is wrong.
    pub const USAGE: i32 = 64;
    /// There is nothing in the input that could be shown.
    pub const DATA: i32 = 65;
    /// There is no such process.
    pub const NO_PROCESS: i32 = 66;
    /// There is no LuaJIT in the process, or none that is supported.
    pub const NO_LUAJIT: i32 = 69;
    /// The kernel lacks what is asked for.
    pub const UNAVAILABLE: i32 = 69;
    /// A file cannot be read or written.
    pub const IO: i32 = 74;
    /// Privileges are missing.
    pub const PRIVILEGES: i32 = 77;
}

/// The word in the line on standard error by which lj-trace says that it samples from now on.
const ATTACHED: &str = "attached";
/// No run may take longer to attach, or to write its files after it was stopped: in seconds.
const PATIENCE: u64 = 30;

/// The binary under test: `LJ_TRACE_BIN`, or what `cargo xtask build` leaves.
///
/// # Panics
/// If it is not there.
pub fn binary() -> PathBuf {
    let built = || target_folder().join("release/lj-trace");
    let path = env::var_os("LJ_TRACE_BIN").map_or_else(built, PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `cargo xtask build`", path.display());
    path
}

/// What a run left.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Outcome {
    /// Checks that it ended with an exit code and a message that names each of `causes`, and did not panic.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn expect(&self, code: i32, causes: &[&str]) {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        assert!(!self.stderr.contains("panicked at"), "{self:#?}");
        for cause in causes {
            assert!(self.stderr.contains(cause), "no {cause:?} in {self:#?}");
        }
    }
}

impl Outcome {
    /// What a sample counts as, at most: more than 1 if the rate was lowered because samples cost too much.
    pub fn weight(&self) -> f64 {
        let said = self.stderr.split("counts as ").skip(1);
        said.filter_map(|said| said.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).fold(1.0, f64::max)
    }

    /// The share, in percent, that the summary gives for `what`.
    ///
    /// # Errors
    /// If the summary has no line `what  NUMBER (PERCENT%)`.
    pub fn share(&self, what: &str) -> Result<f64> {
        let (_, percent) = self.figure(what)?;
        percent.parse().with_context(|| format!("{what}: {percent}% is no share"))
    }

    /// The number that the summary gives for `what`.
    ///
    /// # Errors
    /// As [`Self::share`].
    pub fn count(&self, what: &str) -> Result<u64> {
        let (number, _) = self.figure(what)?;
        number.parse().with_context(|| format!("{what}: {number} is no count"))
    }

    /// How many samples or other events the summary says were lost.
    pub fn lost(&self) -> u64 {
        let losses = self.stderr.lines().filter_map(|line| line.strip_prefix("LOST: "));
        losses.filter_map(|loss| loss.split(' ').next()?.parse::<u64>().ok()).sum()
    }

    fn figure(&self, what: &str) -> Result<(&str, &str)> {
        let figure = self.stderr.lines().find_map(|line| {
            let (number, percent) = line.trim_start().strip_prefix(what)?.trim_start().split_once(" (")?;
            Some((number, percent.strip_suffix("%)")?))
        });
        figure.with_context(|| format!("the summary has no line of {what:?}: {}", self.stderr))
    }
}

/// A running `lj-trace`. It is ended when this is dropped.
#[derive(Debug)]
pub struct Tracer {
    child: Child,
    stdout: Option<thread::JoinHandle<String>>,
    stderr: mpsc::Receiver<String>,
    said: String,
}

impl Tracer {
    /// Starts `lj-trace` with arguments.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Self> {
        let mut command = Command::new(binary());
        command.args(arguments);
        Self::spawn(&mut command)
    }

    /// Starts it as the unprivileged user `nobody`, from a copy that this user can reach in `folder`.
    ///
    /// # Errors
    /// If it cannot be copied or started.
    pub fn start_as_nobody(folder: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start_as_nobody_with(&[], folder, arguments)
    }

    /// The same with capabilities, as systemd's `AmbientCapabilities=` gives them. The folder belongs to that user.
    ///
    /// # Errors
    /// As [`Self::start_as_nobody`].
    pub fn start_as_nobody_with(capabilities: &[Capability], folder: &Path, arguments: &[&str]) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY))?;
        let copy = folder.join("lj-trace");
        std::fs::copy(binary(), &copy)?;
        let mut command = Command::new(copy);
        command.args(arguments).current_dir("/");
        capabilities::run_as(&mut command, NOBODY, capabilities);
        Self::spawn(&mut command)
    }

    /// Starts what a command runs: lj-trace, in whatever surroundings. A recording tells all its numbers.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        if records(command) {
            command.arg("--verbose");
        }
        Self::spawn_short(command)
    }

    /// Starts it as people do, who get the short answer.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn_short(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut stdout = child.stdout.take().context("standard output is not piped")?;
        let stderr = child.stderr.take().context("standard error is not piped")?;
        let stdout = thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read up to an error is what there is.
            let _ = stdout.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            // The receiver is gone when the test has failed: then nobody wants the rest.
            BufReader::new(stderr)
                .split(b'\n')
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(String::from_utf8_lossy(&line).into_owned()))
        });
        Ok(Self { child, stdout: Some(stdout), stderr: receiver, said: String::new() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it samples.
    ///
    /// # Errors
    /// If it ends instead, or does not get there in time.
    pub fn wait_until_attached(&mut self) -> Result<()> {
        self.wait_until(ATTACHED).context("lj-trace has not attached")
    }

    /// Waits until it says a line with this in it.
    ///
    /// # Errors
    /// If it ends instead, or does not say so in time.
    pub fn wait_until(&mut self, words: &str) -> Result<()> {
        self.wait_until_one_of(&[words])
    }

    /// Waits until it says a line with one of these in it.
    ///
    /// # Errors
    /// If it ends instead, or does not say so in time.
    pub fn wait_until_one_of(&mut self, words: &[&str]) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = patience(PATIENCE).saturating_sub(start.elapsed());
            let line = self.stderr.recv_timeout(left);
            let line = line.with_context(|| format!("it does not say {words:?}: {}", self.said))?;
            self.said.push_str(&line);
            self.said.push('\n');
            if words.iter().any(|words| line.contains(words)) {
                return Ok(());
            }
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn signal(&self, signal: libc::c_int) -> Result<()> {
        let pid = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: kill touches no memory, and the pid is our child's, not reused before it is waited for.
        if unsafe { libc::kill(pid, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("cannot signal lj-trace");
        }
        Ok(())
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// If it does not end within `limit`.
    pub fn wait_for(mut self, limit: Duration) -> Result<Outcome> {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if start.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
                None => {
                    self.child.kill()?;
                    self.child.wait()?;
                    self.said.extend(self.stderr.iter());
                    bail!("lj-trace has not ended within {limit:?}; it said: {}", self.said);
                }
            }
        };
        for line in &self.stderr {
            self.said.push_str(&line);
            self.said.push('\n');
        }
        let stdout = self.stdout.take().context("a run is waited for once")?;
        let stdout = stdout.join().expect("reading a pipe does not panic");
        Ok(Outcome { status, stdout, stderr: std::mem::take(&mut self.said) })
    }

    /// Waits until it has ended, as long as ending may take.
    ///
    /// # Errors
    /// If it takes longer.
    pub fn wait(self) -> Result<Outcome> {
        self.wait_for(patience(PATIENCE))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // It has usually ended by itself: then there is nothing to end, only to collect.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the last words of a command make lj-trace record.
fn records(command: &Command) -> bool {
    let words = || command.get_args().filter_map(|word| word.to_str());
    let is_shell = words().any(|word| word == "-c");
    let is_other = ["blockers", "report", "top", "dump", "heap", "jit", "list", "doctor", "unit", "completions", "man"];
    let is_other = words().any(|word| is_other.contains(&word));
    let is_record = words().any(|word| word == "record" || word.starts_with("--pid") || word == "--name");
    is_record && !is_other && !is_shell
}

/// Runs `lj-trace` with arguments to its end.
///
/// # Errors
/// If it cannot be started, or does not end.
pub fn run<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Outcome> {
    Tracer::start(arguments)?.wait()
}
