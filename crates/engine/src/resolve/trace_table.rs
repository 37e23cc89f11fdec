//! Samples by the trace that they hit, and bytes by the trace that allocates them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use lj_trace_luajit::Prototype;
use lj_trace_luajit::trace::KnownTrace;
use lj_trace_streams::TraceSymbol;
use lj_trace_text::chunk_name;

/// A trace, with what outputs show of it.
#[derive(Clone, Debug)]
pub struct SampledTrace {
    trace: Arc<KnownTrace>,
    /// The function and the line at which it starts.
    start: Option<(Arc<Prototype>, u32)>,
}

impl SampledTrace {
    /// A trace that was read.
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

    /// The entry of the trace in a stream's symbol table.
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

    /// The trace and its link, in columns.
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

/// The number, the address of the machine code, and the address of the first bytecode. Together they identify a trace.
type TraceKey = (u16, u64, u64);

/// Samples or bytes per trace.
///
/// The table keeps only the text of each trace: a program may compile traces as long as it runs. If there is no room left,
/// the table adds up the lightest traces into one row.
#[derive(Clone, Debug, Default)]
pub struct TraceTable {
    rows: HashMap<(usize, TraceKey), (String, u64)>,
    /// The samples or bytes of traces that were gone before lj-trace could read them.
    gone: u64,
    /// The samples or bytes of traces without room, and the number of rows that were dropped.
    light: u64,
    light_rows: usize,
}

/// The number of traces to list.
const TOP: usize = 30;

/// The most traces to keep: more than LuaJIT has at a time, unless `maxtrace` is raised.
const MAX_ROWS: usize = 1 << 12;

impl TraceTable {
    /// Adds samples or bytes to a trace.
    pub fn add(&mut self, vm: usize, trace: &SampledTrace, weight: u64) {
        self.add_row((vm, trace.key()), weight, || trace.describe());
    }

    fn add_row(&mut self, key: (usize, TraceKey), weight: u64, describe: impl FnOnce() -> String) {
        self.rows.entry(key).or_insert_with(|| (describe(), 0)).1 += weight;
        if self.rows.len() > MAX_ROWS {
            self.fold();
        }
    }

    /// Drops the lighter half of the rows and adds up their weight.
    fn fold(&mut self) {
        let mut rows: Vec<_> = self.rows.drain().collect();
        rows.sort_by_key(|(key, (_, weight))| (Reverse(*weight), *key));
        for (_, (_, weight)) in rows.drain(MAX_ROWS / 2..) {
            self.light += weight;
            self.light_rows += 1;
        }
        self.rows.extend(rows);
    }

    /// Adds the samples or bytes of a trace that is gone.
    pub fn add_gone(&mut self, weight: u64) {
        self.gone += weight;
    }

    /// Adds all that another table has.
    pub fn merge(&mut self, other: &Self) {
        self.gone += other.gone;
        self.light += other.light;
        self.light_rows += other.light_rows;
        for (&key, (text, weight)) in &other.rows {
            self.add_row(key, *weight, || text.clone());
        }
    }

    /// The table as text, the heaviest trace first. `unit` names what is counted, `total` is the total of the whole
    /// recording.
    pub fn text(&self, unit: &str, total: u64) -> String {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|(key, (_, count))| (Reverse(*count), key.1, key.0));
        let mut text = format!("{unit:>9}       %  {}\n", SampledTrace::COLUMNS);
        // Writing to a string cannot fail.
        let percent = |count: u64| 100.0 * count as f64 / total.max(1) as f64;
        for (_, (trace, count)) in rows.iter().take(TOP) {
            let _ = writeln!(text, "{count:>9} {:>6.2}% {trace}", percent(*count));
        }
        if rows.len() > TOP {
            let _ = writeln!(text, "{:>19}{} more", "", rows.len() - TOP);
        }
        for (count, what) in [
            (self.gone, "of traces that were gone before they were read".to_owned()),
            (self.light, format!("of {} traces that there was no room for, the lightest", self.light_rows)),
        ] {
            if count > 0 {
                let _ = writeln!(text, "{count:>9} {:>6.2}% {what}", percent(count));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_end_to_traces_and_all_are_counted() {
        let mut table = TraceTable::default();
        let most = 3 * MAX_ROWS as u64;
        for mcode in 0..most {
            table.add_row((0, (1, mcode, 0)), 1, || format!("light {mcode}"));
            table.add_row((0, (2, 0, 0)), 1, || "heavy".to_owned());
        }
        assert!(table.rows.len() <= MAX_ROWS);
        assert_eq!(table.rows[&(0, (2, 0, 0))], ("heavy".to_owned(), most));
        let kept: u64 = table.rows.values().map(|(_, weight)| weight).sum();
        assert_eq!(kept + table.light, 2 * most);
        assert_eq!(table.light_rows as u64 + table.rows.len() as u64, most + 1);
        let text = table.text("samples", 2 * most);
        assert!(text.lines().nth(1).is_some_and(|line| line.ends_with("50.00% heavy")), "{text}");
        assert!(text.contains("traces that there was no room for, the lightest"), "{text}");
    }
}
