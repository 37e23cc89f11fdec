//! Samples by the trace that they hit, and bytes by the trace that allocates them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::report::frame::chunk_name;
use crate::stream::TraceSymbol;
use crate::trace::KnownTrace;
use crate::vm::Prototype;

/// A trace, as far as outputs show it.
#[derive(Clone, Debug)]
pub struct SampledTrace {
    trace: Arc<KnownTrace>,
    /// The function that it starts in, and the line.
    start: Option<(Arc<Prototype>, u32)>,
}

impl SampledTrace {
    /// Of a trace that was read.
    pub fn new(trace: Arc<KnownTrace>) -> Self {
        let start = trace.start().map(|(prototype, line)| (prototype.clone(), line));
        Self { trace, start }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.trace.body.trace.number
    }

    /// The function that it starts in.
    pub fn prototype(&self) -> Option<&Prototype> {
        self.start.as_ref().map(|(prototype, _)| &**prototype)
    }

    /// Its entry in a stream's symbol table.
    pub fn symbol(&self) -> Option<TraceSymbol> {
        let (prototype, line) = self.start.as_ref()?;
        Some(TraceSymbol {
            number: u64::from(self.number()),
            mcode: None,
            proto: prototype.key.address,
            line: u64::from(*line),
        })
    }

    fn key(&self) -> TraceKey {
        let trace = &self.trace.body.trace;
        (trace.number, trace.mcode.start, trace.startpc)
    }

    /// The columns of [`describe`](Self::describe).
    pub const COLUMNS: &str = "trace  side of  goes on to   bytes  exits  starts at";

    /// What it is and where it goes on, in columns.
    pub fn describe(&self) -> String {
        let trace = &self.trace.body.trace;
        let start = self.start.as_ref().map_or_else(
            || "[unknown]".to_owned(),
            |(prototype, line)| format!("{}:{line}", chunk_name(prototype.chunkname.as_bytes())),
        );
        let kind = match trace.root {
            0 => "root".to_owned(),
            root => format!("of {root}"),
        };
        let link = match trace.link {
            0 => "interpreter".to_owned(),
            link if link == trace.number => "loop".to_owned(),
            link => format!("{link}"),
        };
        let bytes = trace.mcode.end - trace.mcode.start;
        format!("{:>5}  {kind:<8} {link:<11} {bytes:>6} {:>6}  {start}", trace.number, self.trace.exits())
    }
}

/// Number, address of the machine code, and of the bytecode at which it starts: together they tell traces apart.
type TraceKey = (u16, u64, u64);

/// The samples, or the bytes, of each trace.
#[derive(Clone, Debug, Default)]
pub struct TraceTable {
    rows: HashMap<(usize, TraceKey), (SampledTrace, u64)>,
    /// Those of traces that were gone before they were read.
    gone: u64,
}

/// Traces that are listed.
const TOP: usize = 30;

impl TraceTable {
    /// Counts samples or bytes.
    pub fn add(&mut self, vm: usize, trace: &SampledTrace, weight: u64) {
        self.rows.entry((vm, trace.key())).or_insert_with(|| (trace.clone(), 0)).1 += weight;
    }

    /// Counts those of a trace that is gone.
    pub fn add_gone(&mut self, weight: u64) {
        self.gone += weight;
    }

    /// Adds all that another table has.
    pub fn merge(&mut self, other: &Self) {
        self.gone += other.gone;
        for (&(vm, _), (trace, weight)) in &other.rows {
            self.add(vm, trace, *weight);
        }
    }

    /// The table, the heaviest trace first. `unit` is what is counted, `total` that of the whole recording.
    pub fn text(&self, unit: &str, total: u64) -> String {
        let mut rows: Vec<_> = self.rows.values().collect();
        rows.sort_by_key(|(trace, count)| (std::cmp::Reverse(*count), trace.key()));
        let mut text = format!("{unit:>9}       %  {}\n", SampledTrace::COLUMNS);
        for (trace, count) in rows.iter().take(TOP) {
            let percent = 100.0 * *count as f64 / total.max(1) as f64;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{count:>9} {percent:>6.2}% {}", trace.describe());
        }
        if rows.len() > TOP {
            let _ = writeln!(text, "{:>19}{} more", "", rows.len() - TOP);
        }
        if self.gone > 0 {
            let percent = 100.0 * self.gone as f64 / total.max(1) as f64;
            let _ = writeln!(text, "{:>9} {percent:>6.2}% of traces that were gone before they were read", self.gone);
        }
        text
    }
}
