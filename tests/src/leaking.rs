//! nginx that leaks some 100 bytes with each request, and what lj-trace says of that.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::estimates::staying;
use crate::server::Server;
use crate::source::line_of;
use crate::tracer::{Outcome, Tracer, run};
use crate::wrk::Answers;

/// Its Lua module.
const MODULE: &str = "leaking";

/// The server.
#[derive(Debug)]
pub struct Leaking {
    server: Server,
}

/// When lj-trace attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// Before the load begins.
    Before,
    /// While clients wait for their answers already.
    UnderLoad,
}

/// A load on it that has been recorded.
#[derive(Debug)]
pub struct Recorded {
    /// What became of the requests.
    pub answers: Answers,
    /// What lj-trace said.
    pub outcome: Outcome,
    /// The lines that keep the most, by the report.
    pub staying: Vec<String>,
}

impl Leaking {
    /// Starts it. [`None`] where this system has no nginx.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start() -> Result<Option<Self>> {
        Ok(Server::start(MODULE)?.map(|server| Self { server }))
    }

    /// Puts load on it for so many seconds. [`None`] where this system has no wrk.
    ///
    /// # Errors
    /// As [`Server::load`].
    pub fn load(&self, what: &str, seconds: u64) -> Result<Option<Answers>> {
        self.server.load(what, seconds, || {
            sleep(Duration::from_millis(100));
            Ok(())
        })
    }

    /// Puts load on it for so many seconds, and records it meanwhile at a cost of 5%. [`None`] where this system has no wrk.
    ///
    /// # Errors
    /// As [`Server::load`], and if it cannot be recorded.
    pub fn record(&self, what: &str, seconds: u64, attach: Attach) -> Result<Option<Recorded>> {
        let folder = tempfile::tempdir()?;
        let text = folder.path().join("leak.txt");
        let (pid, output) = (self.server.worker().to_string(), text.display().to_string());
        let memprof = ["--pid", &pid, "--mode", "memprof", "--overhead", "5%", "--output", &output];
        let mut tracer = Tracer::start(memprof)?;
        let mut attached = attach == Attach::Before;
        if attached {
            tracer.wait_until_attached()?;
        }
        let answers = self.server.load(what, seconds, || {
            if !std::mem::replace(&mut attached, true) {
                tracer.wait_until_attached()?;
            }
            sleep(Duration::from_millis(50));
            Ok(())
        })?;
        let Some(answers) = answers else { return Ok(None) };
        tracer.signal(libc::SIGINT)?;
        let outcome = tracer.wait()?;
        outcome.expect(0, &["lost               0"]);
        self.server.expect_no_probe()?;
        let text = std::fs::read_to_string(text)?;
        let staying = staying(&text).into_iter().map(str::to_owned).collect();
        Ok(Some(Recorded { answers, outcome, staying }))
    }

    /// The way to the largest table of its heap.
    ///
    /// # Errors
    /// If lj-trace finds none.
    pub fn largest_table(&self) -> Result<String> {
        let outcome = run(["heap", "--json", "--pid", &self.server.worker().to_string()])?;
        outcome.expect(0, &[]);
        let heap: serde_json::Value = serde_json::from_str(&outcome.stdout)?;
        let way = heap["vms"][0]["tables"][0]["path"].as_str();
        Ok(way.with_context(|| format!("no tables in {}", outcome.stdout))?.to_owned())
    }
}

impl Recorded {
    /// Sees that the line that leaks is the first of those that keep memory.
    ///
    /// # Errors
    /// If it is not.
    pub fn expect_the_leak(&self) -> Result<()> {
        let line = format!("{MODULE}.lua:{} ", line_of(&format!("{MODULE}.lua"), "leak"));
        let first = self.staying.first().with_context(|| format!("nothing stays: {}", self.outcome.stderr))?;
        // The line, or where it is not certain, the trace that starts in its function.
        let trace = format!("@{MODULE}.lua:16 (TRACE");
        ensure!(first.contains(&line) || first.contains(&trace), "{line} is not first: {:#?}", self.staying);
        Ok(())
    }
}

/// What the table is called, and where, that the leak goes into.
pub const LEAKING_TABLE: &str = "visits";
