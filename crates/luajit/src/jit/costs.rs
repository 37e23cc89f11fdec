//! The cost of interpretation: samples joined with the reasons for being in the interpreter.

use std::collections::HashMap;

use lj_trace_common::memory::ReadMemory;
use serde::Serialize;

use super::blacklist::BlacklistKind;
use super::loops::{CodePart, Unrecordable};
use super::places::{CodePlaces, Place};
use super::samples::{CodeCounts, CodeSamples};
use super::tree::{Link, TraceKind, TraceNode};
use super::why::{Explained, KnownAbort, Why, WhyInterpreted};
use crate::PrototypeKey;

/// The most instructions that are read in all; samples of further functions get no reason. No program that people write
/// has so many in the functions that it runs.
const MOST_WORK: u64 = 1 << 28;

/// The most lines that are reported for a loop or function.
const LINES: usize = 5;

/// A loop or function that was interpreted, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterpretedPart {
    /// Why it was interpreted.
    pub why: Why,
    /// Whether it is a loop or a function.
    pub kind: BlacklistKind,
    /// Where it begins.
    pub place: Place,
    /// Samples in the interpreter whose innermost Lua code is in this part.
    pub samples: u64,
    /// Samples in library functions that this part called; they are not in `samples`.
    pub library: u64,
    /// The lines with the most samples.
    pub lines: Vec<LineSamples>,
    /// The aborts of its recordings.
    pub abort: Option<KnownAbort>,
    /// If its trace is left for the interpreter: the state of the trace's exits.
    pub left: Option<LeftTrace>,
    /// Bytecodes in it that cannot be recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unrecordable: Vec<Unrecordable>,
}

/// A line and the samples in the interpreter that hit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LineSamples {
    /// The line.
    pub line: u32,
    /// The samples.
    pub samples: u64,
}

/// A root trace that is left for the interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftTrace {
    /// Its number.
    pub trace: u16,
    /// How many side traces it has.
    pub sides: usize,
    /// Where the code after an exit was given up, so that the interpreter continues for good.
    pub given_up: Vec<Place>,
    /// Exits that were taken and are not compiled yet, with their counts and targets.
    pub exits: Vec<TakenExit>,
}

/// An exit that no side trace continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TakenExit {
    /// The number of the trace.
    pub trace: u16,
    /// The number of its exit.
    pub exit: usize,
    /// How often it was taken.
    pub taken: u8,
    /// Where the exit leads.
    pub place: Option<Place>,
}

/// What samples show about the interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterpretedCode {
    /// Each loop or function with samples, the most expensive first.
    pub parts: Vec<InterpretedPart>,
    /// The samples of all of `parts`. The other samples hit functions that do not exist any more.
    pub found: CodeCounts,
}

/// A loop or function, identified by its beginning, and why it is interpreted.
type PartOfFunction = (PrototypeKey, u32, Why);

/// Joins `samples` with the facts that explain them.
pub fn join<M: ReadMemory>(
    places: &CodePlaces<'_, M>,
    why: &WhyInterpreted,
    nodes: &[TraceNode],
    samples: &CodeSamples,
) -> InterpretedCode {
    let mut found = CodeCounts::default();
    let mut parts: HashMap<PartOfFunction, (InterpretedPart, HashMap<u32, u64>)> = HashMap::new();
    let mut by_function: HashMap<PrototypeKey, Vec<(Option<u32>, CodeCounts)>> = HashMap::new();
    for (place, counts) in samples.places() {
        by_function.entry(place.prototype).or_default().push((place.position, *counts));
    }
    let mut work = 0_u64;
    for (key, of_function) in by_function {
        work += u64::from(key.sizebc);
        if work > MOST_WORK {
            break;
        }
        let Some((prototype, _)) = places.instruction(places.address(&key, 0)).filter(|(it, _)| it.key == key) else {
            continue;
        };
        let loops: Vec<CodePart> = why.parts(&prototype);
        for (position, counts) in of_function {
            found += counts;
            if counts.interpreted + counts.library == 0 {
                continue;
            }
            let explained = why.at(&prototype, &loops, position);
            let at = (key, explained.start, explained.why);
            let (part, lines) = parts.entry(at).or_insert_with(|| {
                let place = places.of(&prototype, explained.start);
                (new_part(explained, place, nodes), HashMap::new())
            });
            part.samples += counts.interpreted;
            part.library += counts.library;
            if let Some(line) = position.and_then(|position| prototype.line_at(position)) {
                *lines.entry(line).or_default() += counts.interpreted;
            }
        }
    }
    let mut parts: Vec<InterpretedPart> = parts.into_values().map(|(part, lines)| with_lines(part, lines)).collect();
    parts.sort_by(|a, b| {
        let key = |part: &InterpretedPart| (std::cmp::Reverse((part.samples, part.library)), part.why);
        key(a).cmp(&key(b)).then_with(|| (&a.place.source, a.place.line).cmp(&(&b.place.source, b.place.line)))
    });
    InterpretedCode { parts, found }
}

fn new_part(explained: Explained, place: Place, nodes: &[TraceNode]) -> InterpretedPart {
    let Explained { why, kind, abort, trace, unrecordable, .. } = explained;
    let left = trace.map(|trace| left_trace(trace, nodes));
    InterpretedPart { why, kind, place, samples: 0, library: 0, lines: Vec::new(), abort, left, unrecordable }
}

fn with_lines(mut part: InterpretedPart, lines: HashMap<u32, u64>) -> InterpretedPart {
    let lines = lines.into_iter().filter(|(_, samples)| *samples != 0);
    part.lines = lines.map(|(line, samples)| LineSamples { line, samples }).collect();
    part.lines.sort_by_key(|line| (std::cmp::Reverse(line.samples), line.line));
    part.lines.truncate(LINES);
    part
}

fn left_trace(trace: u16, nodes: &[TraceNode]) -> LeftTrace {
    let family = || nodes.iter().filter(|node| node.number == trace || node.root == Some(trace));
    let sides = family().filter(|node| node.kind == TraceKind::Side).count();
    let is_given_up = |node: &&TraceNode| {
        node.stitch_given_up || (node.kind == TraceKind::Side && node.link == Some(Link::Interpreter))
    };
    let mut given_up: Vec<Place> = family().filter(is_given_up).filter_map(|node| node.start.clone()).collect();
    given_up.dedup();
    given_up.truncate(LINES);
    let taken = family().flat_map(|node| {
        let exits = node.exits.iter().flatten();
        exits.filter_map(|exit| {
            let taken = exit.taken.filter(|_| exit.to.is_none())?;
            Some(TakenExit { trace: node.number, exit: exit.number, taken, place: exit.place.clone() })
        })
    });
    let mut exits: Vec<TakenExit> = taken.collect();
    exits.sort_by_key(|exit| (std::cmp::Reverse(exit.taken), exit.trace, exit.exit));
    exits.truncate(LINES);
    LeftTrace { trace, sides, given_up, exits }
}
