//! Where CPU time goes, from samples: functions, lines, VM states and traces.

use std::collections::HashSet;
use std::ops::AddAssign;
use std::sync::Arc;

use lj_trace_profile::Frame;
use lj_trace_profile::frame::FrameKind;
use lj_trace_streams::VmState;

use super::window::{Span, TopWindow};
use lj_trace_engine::resolve::Resolved;

/// Samples of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Samples with it at the leaf.
    own: u64,
    /// Samples with it anywhere on the stack.
    total: u64,
    /// The part of `own` in JIT-compiled code.
    compiled: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.own += other.own;
        self.total += other.total;
        self.compiled += other.compiled;
    }
}

/// A function and its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRow {
    /// Its name, the same in all outputs, without the mark for compiled code.
    pub name: Arc<str>,
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Samples in which it was the innermost function.
    pub own: u64,
    /// Samples in which it was on the stack.
    pub total: u64,
    /// The part of `own` in JIT-compiled code.
    pub compiled: u64,
}

/// A line of Lua code, with the samples at whose leaf it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRow {
    /// `file.lua:15`.
    pub place: Arc<str>,
    /// The function that it is in.
    pub function: Arc<str>,
    /// Samples.
    pub samples: u64,
}

/// A trace, with the samples in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// The VM it belongs to.
    pub vm: usize,
    /// Its description, in the columns of [`SampledTrace::COLUMNS`](lj_trace_engine::resolve::SampledTrace::COLUMNS).
    pub text: Arc<str>,
    /// Samples.
    pub samples: u64,
}

/// Stands for functions, lines and traces without recent samples, once there are too many of them.
const RARE: &str = "[rare]";

/// What identifies a function.
type FunctionKey = (Arc<str>, FrameKind);

/// The sums of samples.
#[derive(Clone, Debug)]
pub struct Functions {
    functions: TopWindow<FunctionKey, Counts>,
    lines: TopWindow<(Arc<str>, Arc<str>), u64>,
    states: TopWindow<VmState, u64>,
    traces: TopWindow<(usize, Arc<str>), u64>,
    samples: TopWindow<(), u64>,
}

impl Functions {
    /// No data; the last `window` intervals count as recent.
    pub fn new(window: usize) -> Self {
        Self {
            functions: TopWindow::folding(window, (RARE.into(), FrameKind::Unresolved)),
            lines: TopWindow::folding(window, (RARE.into(), "".into())),
            states: TopWindow::new(window),
            traces: TopWindow::folding(window, (0, RARE.into())),
            samples: TopWindow::new(window),
        }
    }

    /// Adds a sample.
    pub fn add(&mut self, sample: &Resolved) {
        self.samples.add(&(), 1);
        self.states.add(&sample.state.unwrap_or(VmState::Cfunc), 1);
        if let Some(trace) = &sample.trace {
            self.traces.add(&(sample.vm.unwrap_or(0), trace.describe().into()), 1);
        }
        let frames = || sample.frames.iter().map(|frame| &*frame.named);
        self.count_functions(frames());
        if let Some(Frame::Lua { chunk, line: Some(line), .. }) = frames().find(|frame| is_lua(frame))
            && let Some(function) = frames().find(|frame| is_lua(frame)).map(name)
        {
            self.lines.add(&(format!("{chunk}:{line}").into(), function), 1);
        }
    }

    /// `frames` are innermost first.
    fn count_functions<'a>(&mut self, frames: impl Iterator<Item = &'a Frame>) {
        let mut seen: HashSet<Arc<str>> = HashSet::new();
        // A frame that could not be resolved is not a function: it is shown, but the known function below it counts as
        // the one that did the work.
        for (index, frame) in frames.filter(|frame| frame.kind() != FrameKind::Root).enumerate() {
            let name = name(frame);
            if !seen.insert(name.clone()) {
                continue;
            }
            let own = u64::from(index == 0);
            let is_compiled = frame.kind() == FrameKind::Jit;
            let kind = if is_lua(frame) { FrameKind::Lua } else { frame.kind() };
            let counts = Counts { own, total: 1, compiled: own * u64::from(is_compiled) };
            self.functions.add(&(name, kind), counts);
        }
    }

    /// Ends an interval.
    pub fn roll(&mut self) {
        self.functions.roll();
        self.lines.roll();
        self.states.roll();
        self.traces.roll();
        self.samples.roll();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.functions.clear();
        self.lines.clear();
        self.states.clear();
        self.traces.clear();
        self.samples.clear();
    }

    /// How many intervals are recent by now.
    pub fn intervals(&self) -> usize {
        self.samples.intervals()
    }

    /// The number of samples.
    pub fn samples(&self, span: Span) -> u64 {
        self.samples.sums(span).values().sum()
    }

    /// All functions, unsorted.
    pub fn functions(&self, span: Span) -> Vec<FunctionRow> {
        let row = |((name, kind), Counts { own, total, compiled })| FunctionRow { name, kind, own, total, compiled };
        self.functions.sums(span).into_iter().map(row).collect()
    }

    /// All lines, unsorted.
    pub fn lines(&self, span: Span) -> Vec<LineRow> {
        let row = |((place, function), samples)| LineRow { place, function, samples };
        self.lines.sums(span).into_iter().map(row).collect()
    }

    /// All traces, unsorted.
    pub fn traces(&self, span: Span) -> Vec<TraceRow> {
        let row = |((vm, text), samples)| TraceRow { vm, text, samples };
        self.traces.sums(span).into_iter().map(row).collect()
    }

    /// The VM states, most samples first.
    pub fn states(&self, span: Span) -> Vec<(VmState, u64)> {
        let mut states: Vec<_> = self.states.sums(span).into_iter().collect();
        states.sort_by_key(|&(state, samples)| (std::cmp::Reverse(samples), state));
        states
    }
}

fn is_lua(frame: &Frame) -> bool {
    matches!(frame, Frame::Lua { .. })
}

/// The name of a frame's function, whether it is compiled or not.
fn name(frame: &Frame) -> Arc<str> {
    let name = frame.to_string();
    name.strip_suffix("_[j]").filter(|_| is_lua(frame)).unwrap_or(&name).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::test_sample::sample;

    fn lua(name: &str, line: u32) -> Frame {
        Frame::lua(Some(name.into()), b"@a.lua", 1, Some(line))
    }

    #[test]
    fn recursion_counts_once_and_compiled_code_belongs_to_its_function() {
        let mut functions = Functions::new(2);
        let c = Frame::C { symbol: "strlen".into(), module: None };
        functions.add(&sample(VmState::Lfunc, &[lua("f", 2), lua("f", 3), lua("main", 9)]));
        functions.add(&sample(VmState::Trace, &[lua("f", 2).compiled(), lua("main", 9)]));
        functions.add(&sample(VmState::Cfunc, &[c, lua("f", 4), lua("main", 9)]));
        let mut rows = functions.functions(Span::Recent);
        rows.sort_by_key(|row| row.name.clone());
        let counts: Vec<_> = rows.iter().map(|row| (&*row.name, row.own, row.total, row.compiled)).collect();
        assert_eq!(counts, [("f@a.lua:1", 2, 3, 1), ("main@a.lua:1", 0, 3, 0), ("strlen", 1, 1, 0)]);
        let mut lines: Vec<_> = functions.lines(Span::All).into_iter().map(|row| (row.place, row.samples)).collect();
        lines.sort();
        assert_eq!(lines, [("a.lua:2".into(), 2), ("a.lua:4".into(), 1)]);
        assert_eq!(functions.samples(Span::All), 3);
        assert_eq!(functions.states(Span::Recent).len(), 3);
    }
}
