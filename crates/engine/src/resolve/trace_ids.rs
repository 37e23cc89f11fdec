//! The trace IDs of the requests of a process of nginx.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use lj_trace_common::trace_id::{TraceIdLayout, TraceIdMarks};
use lj_trace_process::ProcessMemory;
use lj_trace_requests::{TraceIdOutcome, TraceIds};
use lj_trace_unwind::NativeStack;

use super::naming::Namer;

/// Functions that give a variable its value while Lua code runs: of nginx, and of lua-nginx-module for `ngx.var.name = value`.
/// Modules and Lua libraries call them by these names. Sources: [`ngx_http_get_indexed_variable`], [`ngx_http_lua_ffi_var_set`].
///
/// [`ngx_http_get_indexed_variable`]: https://github.com/nginx/nginx/blob/352a7d2bc4aa6b51e6e5c13f811bf961201c763d/src/http/ngx_http_variables.c#L604-L660
/// [`ngx_http_lua_ffi_var_set`]: https://github.com/openresty/lua-nginx-module/blob/bbed32a6e500895b248df915a3b77b5a2d1b285e/src/ngx_http_lua_variable.c#L103-L225
const WRITERS: [&str; 2] = ["ngx_http_get_indexed_variable", "ngx_http_lua_ffi_var_set"];

/// How long to wait between two looks at requests, as long as it is not known where they have their IDs.
const PAUSE: Duration = Duration::from_millis(5);

/// Finds the trace IDs of the requests of one process.
pub struct ProcessTraceIds {
    /// The variable that was asked for.
    variable: Option<String>,
    ids: TraceIds,
    /// The code of [`WRITERS`].
    writers: Vec<Range<u64>>,
    again: Instant,
    tally: TraceIdTally,
}

/// Why IDs are not looked for in a program that has none of [`WRITERS`]: a value that is half written could not be told.
const NO_WRITERS: &str = "the program has no function ngx_http_get_indexed_variable";

/// How many trace IDs were found, and why the others were not.
#[derive(Clone, Debug, Default)]
pub struct TraceIdTally {
    /// Samples of requests with an ID.
    pub found: u64,
    /// Samples of requests that had no ID yet.
    pub not_set: u64,
    /// Samples of requests whose ID is not known, by reason.
    pub unknown: BTreeMap<String, u64>,
    /// The variables that have IDs.
    pub variables: Vec<String>,
    /// Why no request has an ID; [`None`] if some may have.
    pub why_not: Option<String>,
    /// Whether no request that was looked at had an ID.
    pub is_none_seen: bool,
}

impl TraceIdTally {
    /// Adds the tally of another process.
    pub fn add(&mut self, other: Self) {
        self.found += other.found;
        self.not_set += other.not_set;
        self.is_none_seen &= other.is_none_seen;
        for (reason, count) in other.unknown {
            *self.unknown.entry(reason).or_default() += count;
        }
        if self.variables.is_empty() {
            self.variables = other.variables;
        }
        self.why_not = self.why_not.take().or(other.why_not);
    }

    /// Writes what became of the look for trace IDs, with `share` of what was counted.
    ///
    /// # Errors
    /// As `out`.
    pub fn write_counts(&self, share: impl Fn(u64) -> String, out: &mut impl std::fmt::Write) -> std::fmt::Result {
        let variables = self.variables.join(", else ");
        writeln!(out, "  {:<18} {}: {variables}", "trace ID known", share(self.found))?;
        writeln!(out, "  {:<18} {}", "no trace ID yet", share(self.not_set))?;
        for (reason, count) in &self.unknown {
            writeln!(out, "  {:<18} {}: {reason}", "trace ID not known", share(*count))?;
        }
        Ok(())
    }

    /// Why none of the counted things has a trace ID, each called `sample` in the text; [`None`] if some have.
    pub fn why_none(&self, sample: &str) -> Option<String> {
        if self.found > 0 {
            return None;
        }
        if let Some(why) = &self.why_not {
            return Some(why.clone());
        }
        Some(match self.unknown.iter().max_by_key(|(_, count)| **count) {
            _ if self.is_none_seen && !self.variables.is_empty() || self.not_set > 0 => {
                let variables = self.variables.join(" and ");
                format!("nginx fills {variables} only when something needs it: see docs/requests.md")
            }
            Some((reason, _)) => reason.clone(),
            None => format!("no {sample} hit a request"),
        })
    }
}

impl ProcessTraceIds {
    /// IDs in this variable, or in those that are known to have some. `namer` knows the functions of the process.
    pub fn of_variable(name: Option<&str>, namer: &mut Namer) -> Self {
        let writers = WRITERS.iter().filter_map(|name| namer.function_range(name)).collect();
        let (variable, ids) = (name.map(str::to_owned), TraceIds::of_variable(name));
        Self { variable, ids, writers, again: Instant::now(), tally: TraceIdTally::default() }
    }

    /// The variable that was asked for; [`None`] for those that are known to have IDs.
    pub fn variable(&self) -> Option<&str> {
        self.variable.as_deref()
    }

    /// The layout for the kernel half.
    pub fn layout(&self) -> TraceIdLayout {
        self.ids.layout()
    }

    /// Whether there is nothing more to learn.
    pub fn is_settled(&self) -> bool {
        self.writers.is_empty() || self.ids.is_proven() || self.ids.why_not().is_some()
    }

    /// Looks at the request at this address. True if it is known only now where requests have their IDs.
    pub fn learn(&mut self, memory: &ProcessMemory, request: u64) -> bool {
        !self.is_settled() && self.ids.learn(memory, request)
    }

    /// The same, if the last look is some time ago.
    pub fn learn_once_in_a_while(&mut self, memory: &ProcessMemory, request: u64) -> bool {
        if self.is_settled() || Instant::now() < self.again {
            return false;
        }
        let is_new = self.learn(memory, request);
        self.again = Instant::now() + PAUSE;
        is_new
    }

    /// The ID of the request of a sample.
    pub fn of_sample(&mut self, marks: &TraceIdMarks, native: &NativeStack, weight: u64) -> TraceIdOutcome {
        let writers = &self.writers;
        let is_being_set = || {
            let mut frames = native.frames.iter();
            frames.any(|frame| writers.iter().any(|code| code.contains(&frame.lookup_address())))
        };
        let outcome = self.ids.resolve(marks, is_being_set);
        self.count(&outcome, weight);
        outcome
    }

    /// The ID of the request at this address, for which a coroutine waits. It is right if the coroutine has not moved when it is
    /// known.
    pub fn of_waiting(&mut self, memory: &ProcessMemory, request: u64) -> TraceIdOutcome {
        let mut marks = TraceIdMarks::default();
        if self.ids.is_proven() {
            marks.read(memory, &self.ids.layout(), request);
        }
        let outcome = self.ids.resolve(&marks, || false);
        self.count(&outcome, 1);
        outcome
    }

    fn count(&mut self, outcome: &TraceIdOutcome, weight: u64) {
        match outcome {
            TraceIdOutcome::NotLooked => {}
            TraceIdOutcome::NotSet => self.tally.not_set += weight,
            TraceIdOutcome::Found(_) => self.tally.found += weight,
            TraceIdOutcome::Not(reason) => *self.tally.unknown.entry(reason.to_string()).or_default() += weight,
        }
    }

    /// The number of samples whose ID is called `[other]`, because there are too many.
    pub fn others(&self) -> u64 {
        self.ids.others()
    }

    /// The tally of all samples.
    pub fn tally(&self) -> TraceIdTally {
        let variables = self.ids.variables();
        let why_not = if self.writers.is_empty() { Some(NO_WRITERS.to_owned()) } else { self.ids.why_not() };
        let is_none_seen = !self.ids.is_any_seen();
        TraceIdTally { variables, why_not, is_none_seen, ..self.tally.clone() }
    }
}
