//! What has blocked an event loop: as programs say it by their own clocks, and as `lj-trace blockers` tells it.

use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use lj_trace_probes::off_cpu;
use serde_json::Value;

use crate::chance::of_count;
use crate::skips::skip;
use crate::tracer::{Outcome, Tracer};

/// Longer turns are told, in milliseconds.
pub const OVER: f64 = 20.0;

/// How far clocks may be apart that are read one after the other, in milliseconds: the thread may lose its CPU between.
pub const APART: f64 = 2.0;

/// What blocked a loop, by its own clock. Times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Planted {
    /// Since the Unix epoch.
    pub began: f64,
    /// The same.
    pub ended: f64,
    /// CPU time.
    pub cpu: f64,
    /// The function that blocked, or `none`.
    pub way: String,
    /// The line where it is defined.
    pub defined: u64,
    /// 0 if it is not one line that blocks.
    pub line: u64,
    /// The thread, if the program says.
    pub tid: Option<u64>,
}

impl Planted {
    /// Of the words BEGAN ENDED CPU WAY:DEFINED LINE.
    ///
    /// # Errors
    /// They are others.
    pub fn of(words: [&str; 5]) -> Result<Self> {
        let time = |word: &str| Ok::<_, anyhow::Error>(word.parse::<u64>()? as f64 / 1e6);
        let [began, ended, cpu, way, line] = words;
        let (began, ended, cpu) = (time(began)?, time(ended)?, cpu.parse()?);
        let (way, defined) = way.split_once(':').unwrap_or((way, "0"));
        let (way, defined) = (way.to_owned(), defined.parse()?);
        Ok(Self { began, ended, cpu, way, defined, line: line.parse()?, tid: None })
    }

    /// How long it was.
    pub fn length(&self) -> f64 {
        self.ended - self.began
    }
}

/// What a program says of itself: its long turns, and how many it made.
///
/// # Errors
/// It says something else.
pub fn turns(report: &[String]) -> Result<(Vec<Planted>, u64)> {
    let mut planted = Vec::new();
    for line in report {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["turn", began, ended, cpu, way, at, tid] => {
                let own = Planted::of([began, ended, cpu, way, at])?;
                planted.push(Planted { tid: Some(tid.parse()?), ..own });
            }
            ["turns", count] => return Ok((planted, count.parse()?)),
            _ => bail!("the loop said {line:?}"),
        }
    }
    bail!("the loop did not say how many turns it made")
}

/// A turn that was told.
#[derive(Clone, Debug)]
pub struct Told {
    /// Milliseconds since the Unix epoch.
    pub began: f64,
    /// In milliseconds.
    pub length: f64,
    /// All of it.
    pub json: Value,
}

impl Told {
    /// Those in lines of JSON.
    ///
    /// # Errors
    /// There are others.
    pub fn all(text: &str) -> Result<Vec<Self>> {
        text.lines().map(Self::of).collect()
    }

    fn of(line: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let time = humantime::parse_rfc3339(json["time"].as_str().context("no time")?)?;
        let began = time.duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as f64 / 1e6;
        Ok(Self { began, length: json["duration_ms"].as_f64().context("no duration")?, json })
    }

    /// Whether what was planted lies within.
    pub fn has(&self, planted: &Planted) -> bool {
        let is_of_thread = planted.tid.is_none_or(|tid| self.json["tid"] == tid);
        is_of_thread && self.began <= planted.began + APART && planted.ended - APART <= self.began + self.length
    }

    /// A part of it, in milliseconds.
    pub fn milliseconds(&self, part: &str) -> f64 {
        self.json[part].as_f64().unwrap_or(f64::NAN)
    }

    /// Whether the function of `blocking.lua` that is defined in this line is on its stack.
    pub fn is_in(&self, defined: u64) -> bool {
        let function = format!("blocking.lua:{defined}");
        let stack = self.json["stack"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let rests = stack.filter_map(|frame| Some(frame.split_once(&function)?.1));
        rests.into_iter().any(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
    }

    /// Checks that it is this that was planted: the line to blame, and sums.
    #[track_caller]
    pub fn assert_is(&self, planted: &Planted) {
        let json = &self.json;
        let parts = ["cpu_ms", "blocked_ms", "preempted_ms", "unknown_ms"].map(|part| self.milliseconds(part));
        assert!((parts.iter().sum::<f64>() - self.length).abs() < 0.01, "{json}");
        // Others may have had the CPU before or behind what blocks, and some kernels do not show who gets it from whom.
        if json["kind"] == "preempted" || self.milliseconds("unknown_ms") > 0.0 {
            return;
        }
        // What is inlined into a trace is not always known.
        let is_uncertain = json["stack"].to_string().contains("[unknown");
        assert!(self.is_in(planted.defined) || is_uncertain, "{planted:?}: {json}");
        if planted.line == 0 {
            return;
        }
        assert!(json["file"].as_str().is_some_and(|file| file.ends_with("blocking.lua")), "{planted:?}: {json}");
        assert_eq!(json["line"].as_u64(), Some(planted.line), "{planted:?}: {json}");
    }
}

/// Checks that all long turns of a loop were told, each once and as what it was, and no others. A turn with several blockers
/// counts as each of them.
#[track_caller]
pub fn assert_all_and_no_others(told: &[Told], planted: &[Planted], what: &str) {
    let (mut waits, mut preempted) = (0, 0);
    for planted_one in planted.iter().filter(|planted| planted.length() > OVER + 0.1) {
        let own: Vec<_> = told.iter().filter(|told| told.has(planted_one)).collect();
        assert_eq!(own.len(), 1, "{what}: {planted_one:?} in {told:#?}");
        let is_alone = planted.iter().filter(|other| own[0].has(other)).count() == 1;
        if planted_one.way == "none" || !is_alone || own[0].milliseconds("unknown_ms") > 0.0 {
            continue;
        }
        assert!(own[0].length > planted_one.length() - 0.1, "{what}: {planted_one:?}: {own:?}");
        own[0].assert_is(planted_one);
        let (kind, cpu) = (&own[0].json["kind"], planted_one.cpu / own[0].length);
        let is_waiting = ["executing", "opening", "reading"].contains(&&*planted_one.way);
        if is_waiting && cpu < 0.4 {
            waits += 1;
            // Who has been woken up may wait for a CPU, for longer than what it has waited for.
            if kind == "preempted" {
                preempted += 1;
                let parts = ["blocked_ms", "preempted_ms"].map(|part| own[0].milliseconds(part));
                assert!(parts[1] >= parts[0], "{what}: {planted_one:?}: {own:?}");
            } else {
                assert_eq!(kind, "blocked", "{what}: {planted_one:?}: {own:?}");
            }
        } else if cpu > 0.7 {
            assert_eq!(kind, "cpu", "{what}: {planted_one:?}: {own:?}");
        }
    }
    // That is rare: once in twenty times, and as often as chance makes of that.
    let rare = 0.05 * f64::from(waits);
    let most = rare + of_count(rare);
    assert!(f64::from(preempted) <= most, "{what}: {preempted} of {waits} waits are told as waits for a CPU");
    // Afterwards the program says what it knows and waits for its input, which it does not count.
    let last = planted.iter().map(|planted| planted.ended).fold(0.0, f64::max);
    let invented: Vec<_> = told
        .iter()
        .filter(|told| told.began + told.length < last)
        .filter(|told| {
            let own: f64 = planted.iter().filter(|planted| told.has(planted)).map(Planted::length).sum();
            // Threads lose their CPU between two looks at the clock.
            let elsewhere =
                ["preempted_ms", "blocked_ms", "unknown_ms"].iter().map(|part| told.milliseconds(part)).sum::<f64>();
            !(own > OVER - 1.0 || own == 0.0 && elsewhere > OVER - APART || own + elsewhere > OVER)
        })
        .collect();
    // Where the host of this virtual machine takes a CPU away, nobody sees it: the thread seems to run. One of some hundred turns may
    // have had that between two looks at the clock, not two.
    assert!(invented.len() <= 1, "{what}: invented {invented:?} of {planted:#?}");
}

/// Whether this machine has what is needed.
pub fn is_there() -> bool {
    match off_cpu::check() {
        Ok(()) => true,
        Err(error) => {
            skip(&format!("{error:#}"));
            false
        }
    }
}

/// Begins to follow a process.
///
/// # Errors
/// It cannot.
pub fn follow(pid: u32) -> Result<Tracer> {
    let (pid, over) = (pid.to_string(), format!("{OVER}ms"));
    let mut tracer = Tracer::start(["blockers", "--pid", &pid, "--over", &over, "--follow"])?;
    tracer.wait_until_attached()?;
    Ok(tracer)
}

/// Ends it, and gives what it has told.
///
/// # Errors
/// It says something that is not understood.
pub fn stop(tracer: Tracer) -> Result<Vec<Told>> {
    tracer.signal(libc::SIGINT)?;
    told(&tracer.wait()?)
}

/// What it has told.
///
/// # Errors
/// It says something that is not understood.
pub fn told(outcome: &Outcome) -> Result<Vec<Told>> {
    Told::all(&outcome.stdout).with_context(|| format!("{outcome:?}"))
}
