//! `lj-trace agent`, as tests and benchmarks run it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::folded::Folded;
use crate::own_process::OwnProcess;
use crate::patience;
use crate::programs::{LUAJIT, Program};
use crate::tracer::{Tracer, binary, run};

/// An agent that records processes of this test alone.
#[derive(Debug)]
pub struct Agent {
    /// It.
    pub tracer: Tracer,
    /// Its own folder.
    pub folder: tempfile::TempDir,
    /// Where its metrics are.
    pub port: u16,
    /// What the processes of this test say of themselves, in `OTEL_RESOURCE_ATTRIBUTES`.
    pub own: String,
}

impl Agent {
    /// Starts one with `more` lines of configuration, that records the processes of this test alone.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(more: &str) -> Result<Self> {
        Self::with_intervals(Intervals::Short, more)
    }

    /// The same with intervals as short as tests can wait for, or as users have them.
    ///
    /// # Errors
    /// It does not start.
    pub fn with_intervals(intervals: Intervals, more: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let own = format!("test.run={}", folder.path().display());
        Self::of(own, folder, intervals, more)
    }

    /// The same, of processes that say `own` of themselves.
    ///
    /// # Errors
    /// It does not start.
    pub fn of(own: String, folder: tempfile::TempDir, intervals: Intervals, more: &str) -> Result<Self> {
        // Free a moment ago: nobody else takes ports here.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut agent = Command::new(binary());
        let config = folder.path().join("agent.toml");
        let text = config_text(folder.path(), port, &own, more);
        fs::write(&config, if intervals == Intervals::Usual { usual(&text) } else { text })?;
        agent.arg("agent").arg("--config").arg(&config);
        let mut tracer = Tracer::spawn_short(&mut agent)?;
        tracer.wait_until("recording all LuaJIT processes")?;
        Ok(Self { tracer, folder, port, own })
    }

    /// The folder where profiles are.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("profiles")
    }

    /// Writes another configuration, and has it read.
    ///
    /// # Errors
    /// It is gone.
    pub fn reload(&self, text: &str) -> Result<()> {
        fs::write(self.folder.path().join("agent.toml"), text)?;
        self.tracer.signal(libc::SIGHUP)
    }

    /// A configuration with `more` lines.
    pub fn with(&self, more: &str) -> String {
        config_text(self.folder.path(), self.port, &self.own, more)
    }

    /// One process more that it records, which pauses for so many milliseconds after each turn.
    ///
    /// # Errors
    /// It does not start.
    pub fn process(&self, number: u32, pause: u32, service: &str) -> Result<OwnProcess> {
        let luajit = Program::find(LUAJIT).context("the demo's luajit is everywhere")?;
        OwnProcess::start(&luajit, number, pause, service, &self.own)
    }

    /// The metrics: the value of each line.
    ///
    /// # Errors
    /// Nobody answers, or not as expected.
    pub fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let start = Instant::now();
        let text = loop {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            // The agent may be too busy to answer.
            if !text.starts_with("HTTP/1.1 503") || start.elapsed() > patience(20) {
                break text;
            }
        };
        ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
        let lines = text.lines().filter(|line| line.starts_with("lj_trace_"));
        lines
            .map(|line| line.rsplit_once(' ').context("a name and a value"))
            .map(|line| {
                let (name, value) = line?;
                Ok((name.to_owned(), value.parse()?))
            })
            .collect()
    }

    /// Waits until so many processes are recorded.
    ///
    /// # Errors
    /// That takes too long.
    pub fn wait_for(&self, processes: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            let metrics = self.metrics()?;
            if metrics["lj_trace_processes"] == processes as f64 {
                return Ok(());
            }
            ensure!(start.elapsed() < patience(20), "{processes} processes: {metrics:?}");
            sleep(Duration::from_millis(100));
        }
    }

    /// What is stored of a service, or of all.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn stored(&self, service: Option<&str>) -> Result<Folded> {
        let store = self.store().display().to_string();
        let mut arguments = vec!["report", &store, "--from", "-1h", "--format", "folded"];
        arguments.extend(service.iter().flat_map(|service| ["--service", *service]));
        let outcome = run(arguments)?;
        // Of a process that does next to nothing there may be no sample.
        let is_empty = outcome.stderr.contains("has nothing that is asked for");
        outcome.expect(if is_empty { 65 } else { 0 }, &[]);
        Folded::parse(&outcome.stdout)
    }
}

/// How long the intervals of profiles are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intervals {
    /// A second.
    Short,
    /// As they are where nothing is configured.
    Usual,
}

/// A configuration without what makes it quick.
fn usual(text: &str) -> String {
    let is_quick = |line: &str| line.ends_with("= \"1s\"") || line == ROTATE;
    text.lines().filter(|line| !is_quick(line)).fold(String::new(), |text, line| text + line + "\n")
}

/// Files are complete after as many intervals of a second as they are of 15 s. The rows of an incomplete file are in memory: it
/// goes up and down with each file.
const ROTATE: &str = "rotate = \"40s\"";

fn config_text(folder: &Path, port: u16, own: &str, more: &str) -> String {
    let store = folder.join("profiles");
    format!(
        "interval = \"1s\"\nmetrics = \"127.0.0.1:{port}\"\n{more}\n[store]\nfolder = \"{}\"\nflush = \"1s\"\n{ROTATE}\n\n\
         [[select]]\nlabel = \"{own}\"\n",
        store.display()
    )
}
