//! What `jit.v` prints of a program, and whether `lj-trace jit` says the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::tracer::run;
use crate::workload::Workload;

/// The abort that blacklists.
pub const LAST: usize = 11;

/// What `jit.v` has printed.
#[derive(Debug, Default)]
pub struct Verbose {
    /// The chunks that it is about: what a host runs of its own may have been compiled before `jit.v` was listening.
    sources: Vec<String>,
    /// Reasons of aborted root traces, by place, in their order.
    pub aborts: BTreeMap<String, Vec<String>>,
    /// Traces by number: what they continue, where they start, how they go on.
    pub traces: BTreeMap<u64, (String, String, String)>,
}

impl Verbose {
    /// Reads what it has written into `log`, as far as it is about these chunks.
    ///
    /// # Errors
    /// It is not there, or says something that is not understood.
    pub fn read(log: &Path, sources: &[&str]) -> Result<Self> {
        let sources = sources.iter().map(|source| (*source).to_owned()).collect();
        let mut verbose = Self { sources, ..Self::default() };
        for line in std::fs::read_to_string(log)?.lines() {
            let line = line.strip_prefix("[TRACE ").and_then(|line| line.strip_suffix(']')).context(line.to_owned())?;
            let (number, rest) = line.trim_start().split_once(' ').context(line.to_owned())?;
            // `(1/3) file.lua:12 ...`
            let (parent, rest) = match rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")) {
                Some((parent, rest)) => (parent, rest),
                None => ("", rest),
            };
            let (place, rest) = rest.split_once(' ').context(line.to_owned())?;
            if number == "---" {
                let reason = rest.trim_start_matches("-- ");
                let reason = reason.rsplit_once(" at ").map_or(reason, |(reason, _)| reason);
                if parent.is_empty() && verbose.is_about(place) {
                    verbose.aborts.entry(place.to_owned()).or_default().push(reason.to_owned());
                }
            } else if verbose.is_about(place) {
                verbose.traces.insert(number.parse()?, (parent.to_owned(), place.to_owned(), rest.to_owned()));
            }
        }
        Ok(verbose)
    }

    /// Whether a place is in one of the chunks.
    pub fn is_about(&self, place: &str) -> bool {
        self.sources.iter().any(|source| place.strip_prefix(source).is_some_and(|line| line.starts_with(':')))
    }

    /// Places that were aborted often enough to be blacklisted.
    pub fn blacklisted(&self) -> BTreeSet<String> {
        self.aborts.iter().filter(|(_, all)| all.len() >= LAST).map(|(place, _)| place.clone()).collect()
    }
}

/// `file.lua:12`, as `jit.v` has it.
pub fn place(value: &Value) -> String {
    format!("{}:{}", value["source"].as_str().unwrap_or_default(), value["line"])
}

/// The list of that name in `value`; an empty one if there is none.
pub fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// What `lj-trace jit` says of a workload.
///
/// # Errors
/// It fails.
pub fn jit(workload: &Workload, more: &[&str]) -> Result<Value> {
    let pid = workload.pid().to_string();
    let outcome = run(["jit", "--pid", &pid, "--json"].iter().chain(more))?;
    outcome.expect(0, &[]);
    Ok(serde_json::from_str(&outcome.stdout)?)
}

/// What it says of the only VM.
///
/// # Errors
/// There are others, or not all of it was looked at.
pub fn compiler(dump: &Value) -> Result<&Value> {
    let [vm] = list(dump, "vms") else { anyhow::bail!("not one VM: {dump:#}") };
    ensure!(vm["jit_compiler"]["complete"] == true && vm["jit"] == "on", "{vm:#}");
    Ok(&vm["jit_compiler"])
}

/// Checks that it says the same of all aborts and of what is blacklisted.
///
/// # Errors
/// It does not.
pub fn check_aborts(found: &Value, verbose: &Verbose) -> Result<()> {
    let shown: BTreeMap<String, &Value> =
        list(found, "penalties").iter().map(|aborted| (place(&aborted["place"]), aborted)).collect();
    let shown: BTreeMap<_, _> = shown.into_iter().filter(|(place, _)| verbose.is_about(place)).collect();
    let places: BTreeSet<_> = shown.keys().collect();
    ensure!(places == verbose.aborts.keys().collect(), "{places:?} instead of {:?}", verbose.aborts);
    for (place, reasons) in &verbose.aborts {
        let aborted = shown[place];
        // What blacklists leaves no penalty of its own.
        let kept = reasons.len().min(LAST - 1);
        ensure!(aborted["aborts"] == kept, "{place}: {aborted:#} instead of {reasons:?}");
        let text = aborted["reason"]["text"].as_str().context("no reason")?;
        // `jit.v` goes on with the number of the bytecode.
        ensure!(reasons[kept - 1].starts_with(text), "{place}: {text} instead of {reasons:?}");
        ensure!(aborted["reason"]["remedy"].is_string(), "{aborted:#}");
        let is_blacklisted = aborted["now"] == "blacklisted";
        ensure!(is_blacklisted == (reasons.len() >= LAST), "{place}: {aborted:#}");
    }
    let blacklisted: BTreeSet<String> = list(found, "blacklisted")
        .iter()
        .map(|blacklisted| place(&blacklisted["place"]))
        .filter(|it| verbose.is_about(it))
        .collect();
    ensure!(blacklisted == verbose.blacklisted(), "{blacklisted:?} instead of {:?}", verbose.blacklisted());
    Ok(())
}
