//! What the JIT compiler of a VM has done and what it gave up on, read from memory without probes.
//!
//! [`JitReport::read`] shows one moment, [`AbortWatch`] what is aborted meanwhile.

mod about;
mod areas;
mod blacklist;
mod costs;
mod explain;
mod lines;
mod loops;
mod parameters;
mod penalties;
mod places;
mod reasons;
mod samples;
mod tree;
mod watch;
mod why;

use std::time::Duration;

use lj_trace_common::memory::ReadMemory;
use lj_trace_process::Maps;
use serde::Serialize;

pub use areas::{Areas, McodeArea};
pub use blacklist::{Blacklist, BlacklistKind, Blacklisted};
pub use costs::{InterpretedCode, InterpretedPart, LeftTrace, LineSamples, TakenExit};
pub use explain::{EXPLANATIONS, Explanation, WhyExplanation};
pub use lines::{CodeFile, CodeLine, LineState};
pub use loops::{CodePart, PartState, Unrecordable};
pub use parameters::JitParameters;
pub use penalties::{LastAbort, Penalties, PenaltiesError, Penalty};
pub use places::{CodePlaces, Place};
pub use reasons::{AbortReason, Reasons};
pub use samples::{CodeCounts, CodePosition, CodeSamples};
pub use tree::{Link, TraceExit, TraceKind, TraceNode, TraceTree};
pub use watch::{AbortWatch, SeenAborts};
pub use why::{Explained, KnownAbort, Why, WhyInterpreted};

use crate::{Jit, Vm, VmStatus};
use about::Subjects;
use blacklist::Suspects;

/// A place where recording was aborted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Aborted {
    /// Where recording began; [`None`] if that function was collected.
    pub place: Option<Place>,
    /// Address of the instruction.
    #[serde(serialize_with = "crate::status::hexadecimal")]
    pub pc: u64,
    /// How many aborts.
    pub aborts: u32,
    /// Its penalty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<u16>,
    /// Why the last of them was aborted.
    pub reason: AbortReason,
    /// The bytecode or function that this reason is about: `VARG`, `string.dump`. Of the penalties that stand in memory
    /// only that of the very last abort has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// What became of the place.
    pub now: Fate,
    /// For a bytecode that cannot be recorded: those in the loop or function itself. Others may be in what it calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unrecordable: Vec<Unrecordable>,
}

/// What became of a place where recording was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It will be tried again.
    Interpreted,
    /// It has been compiled since.
    Compiled,
    /// It was blacklisted.
    Blacklisted,
    /// A loop over `next()` that was made a general one: blacklisted, or called with another iterator.
    Generalized,
    /// The function is gone.
    Unknown,
}

/// All that the memory of a VM says about its JIT compiler.
#[derive(Clone, Debug, Serialize)]
pub struct JitReport {
    /// What stays in the interpreter.
    #[serde(flatten)]
    pub blacklist: Blacklist,
    /// The last aborts, of up to 64 places.
    pub penalties: Vec<Aborted>,
    /// Why these are not known, if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub penalties_unknown: Option<String>,
    /// What was aborted while it was watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched: Option<WatchedAborts>,
    /// The traces, in the order of their numbers.
    pub traces: Vec<TraceNode>,
    /// How many traces were flushed or replaced while they were read, and left out.
    pub traces_changed: usize,
    /// The areas of machine code.
    pub machine_code: Areas,
    /// The parameters of the compiler, if they are certain.
    pub parameters: Option<JitParameters>,
    /// What samples were in, of code that was interpreted, and why.
    #[serde(skip)]
    pub interpreted: InterpretedCode,
    /// The lines of the file that was asked for, for each chunk that can be meant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<CodeFile>,
    /// Whether all functions of the VM were looked at: a heap may be too large, or change too fast.
    pub complete: bool,
}

/// What was seen over a time.
#[derive(Clone, Debug, Serialize)]
pub struct WatchedAborts {
    /// How often it was looked.
    pub readings: u64,
    /// How often all traces were flushed, at least.
    pub flushes: u32,
    /// The aborts, by place and reason, the most frequent first.
    pub aborts: Vec<Aborted>,
}

/// What a report is to tell, and what it is joined with.
#[derive(Clone, Copy, Debug)]
pub struct JitQuery<'a> {
    /// How long the heap is looked through for functions.
    pub limit: Duration,
    /// What was seen before.
    pub watch: Option<&'a AbortWatch>,
    /// Samples of the process: those of this VM are found in them.
    pub samples: Option<&'a CodeSamples>,
    /// The file whose lines are wanted.
    pub file: Option<&'a str>,
}

impl JitReport {
    /// Reads it all. `maps` must be recent.
    pub fn read<M: ReadMemory>(memory: &M, maps: &Maps, vm: &Vm, query: JitQuery<'_>) -> Self {
        let JitQuery { limit, watch, samples, file } = query;
        let mut suspects = Suspects::default();
        let places = CodePlaces::collect(memory, vm, limit, |prototype| suspects.see(prototype));
        let blacklist = suspects.look(memory, &places, vm.bytecode_set());
        let reader = Reader { memory, subjects: Subjects::default(), vm, places: &places, reasons: Reasons::of(vm) };
        let (mut penalties, penalties_unknown) = match Penalties::read(memory, vm) {
            Ok(found) => {
                let shown = found.in_use().map(|penalty| reader.penalty(penalty, found.about(penalty)));
                (shown.collect(), None)
            }
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        penalties.sort_by_key(|aborted: &Aborted| std::cmp::Reverse(aborted.aborts));
        let watched = watch.map(|watch| WatchedAborts {
            readings: watch.readings,
            flushes: watch.flushes,
            aborts: watch
                .aborts()
                .iter()
                .map(|seen| reader.aborted(seen.pc, seen.reason, seen.count, seen.about))
                .collect(),
        });
        let tree = tree::read_tree(memory, maps, vm, &places);
        let is_on = VmStatus::read(memory, vm).is_ok_and(|status| status.jit == Jit::On);
        let why = WhyInterpreted::new(vm, is_on, &tree.traces, known_aborts(&penalties, watched.as_ref()));
        let interpreted = samples.map(|samples| costs::join(&places, &why, &tree.nodes, samples));
        let files = file.map(|file| lines::read_files(&places, &why, samples, file));
        Self {
            parameters: JitParameters::read(memory, vm),
            interpreted: interpreted.unwrap_or_default(),
            files: files.unwrap_or_default(),
            blacklist,
            penalties,
            penalties_unknown,
            watched,
            machine_code: areas::read_areas(memory, vm, &tree.traces),
            traces: tree.nodes,
            traces_changed: tree.changed,
            complete: places.complete,
        }
    }
}

/// What is known of aborts, by place: the penalties, and what was seen of those whose slots went to others.
fn known_aborts<'a>(
    penalties: &'a [Aborted],
    watched: Option<&'a WatchedAborts>,
) -> impl Iterator<Item = (u64, KnownAbort)> {
    let known = |aborted: &Aborted| {
        let Aborted { pc, aborts, reason, about, .. } = aborted;
        (*pc, KnownAbort { aborts: *aborts, reason: *reason, about: about.clone() })
    };
    // What comes later replaces what was before. A penalty counts all aborts, what was seen may tell what they were about.
    let seen = watched.into_iter().flat_map(|watched| watched.aborts.iter().rev()).map(known);
    let seen: std::collections::HashMap<u64, KnownAbort> = seen.collect();
    let about = |(pc, abort): (u64, KnownAbort)| {
        let same = seen.get(&pc).filter(|seen| seen.reason == abort.reason);
        let about = abort.about.or_else(|| same?.about.clone());
        (pc, KnownAbort { about, ..abort })
    };
    let kept: Vec<_> = penalties.iter().map(known).map(about).collect();
    seen.into_iter().chain(kept)
}

struct Reader<'a, M> {
    memory: &'a M,
    subjects: Subjects,
    vm: &'a Vm,
    places: &'a CodePlaces<'a, M>,
    reasons: Reasons,
}

impl<M: ReadMemory> Reader<'_, M> {
    fn penalty(&self, penalty: &Penalty, about: Option<u64>) -> Aborted {
        let aborted = self.aborted(penalty.pc, penalty.reason, penalty.aborts(), about);
        Aborted { value: Some(penalty.value), ..aborted }
    }

    fn aborted(&self, pc: u64, reason: u16, aborts: u32, about: Option<u64>) -> Aborted {
        use crate::bytecode::Op;
        let (set, reason) = (self.vm.bytecode_set(), self.reasons.get(reason));
        let mut aborted = Aborted {
            place: None,
            pc,
            aborts,
            value: None,
            reason,
            about: None,
            now: Fate::Unknown,
            unrecordable: Vec::new(),
        };
        aborted.about = about.and_then(|about| self.subjects.name(self.memory, self.vm, reason, about));
        let Some((prototype, position)) = self.places.instruction(pc) else { return aborted };
        let op = prototype.instruction(position).and_then(|now| Some(now.opcode(set)?.op));
        aborted.place = Some(self.places.of(&prototype, position));
        aborted.now = match op {
            Some(Op::IFORL | Op::IITERL | Op::ILOOP | Op::IFUNCF) => Fate::Blacklisted,
            Some(Op::JFORL | Op::JITERL | Op::JLOOP | Op::JFUNCF) => Fate::Compiled,
            // Recording never begins there: when it did, it was another instruction.
            Some(Op::ITERC) => Fate::Generalized,
            _ => Fate::Interpreted,
        };
        if reason.name == Some("NYIBC") {
            aborted.unrecordable = loops::unrecordable(&prototype, position, set);
        }
        aborted
    }
}
