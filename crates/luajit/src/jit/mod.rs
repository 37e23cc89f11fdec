//! What the JIT compiler of a VM has done and what it gave up on, read from memory without probes.
//!
//! [`JitReport::read`] reads one moment, [`AbortWatch`] collects the aborts over a time.

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
    /// Where recording began; [`None`] if the function was collected.
    pub place: Option<Place>,
    /// Address of the bytecode instruction at which recording began.
    #[serde(serialize_with = "crate::status::hexadecimal")]
    pub pc: u64,
    /// Number of aborts.
    pub aborts: u32,
    /// Penalty value of the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<u16>,
    /// Why the last abort happened.
    pub reason: AbortReason,
    /// The bytecode or function that this reason is about: `VARG`, `string.dump`. Of the penalties in memory, only the
    /// penalty of the very last abort has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The current state of the place.
    pub now: Fate,
    /// If a bytecode cannot be recorded: the bytecodes of that kind in the loop or function itself. Others may be in
    /// functions that it calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unrecordable: Vec<Unrecordable>,
}

/// The current state of a place where recording was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The place is interpreted, and recording will be tried again.
    Interpreted,
    /// The place has been compiled since.
    Compiled,
    /// The place was blacklisted.
    Blacklisted,
    /// A loop over `next()` that fell back to a general iterator loop: it was blacklisted, or called with another iterator.
    Generalized,
    /// The function was collected.
    Unknown,
}

/// Everything that the memory of a VM shows about its JIT compiler.
#[derive(Clone, Debug, Serialize)]
pub struct JitReport {
    /// What stays in the interpreter.
    #[serde(flatten)]
    pub blacklist: Blacklist,
    /// The last aborts, of up to 64 places.
    pub penalties: Vec<Aborted>,
    /// Why the penalties are not known, if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub penalties_unknown: Option<String>,
    /// Aborts that were seen while the VM was watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched: Option<WatchedAborts>,
    /// The traces, in the order of their numbers.
    pub traces: Vec<TraceNode>,
    /// How many traces were left out because they were flushed or replaced while they were read.
    pub traces_changed: usize,
    /// The areas of machine code and their use.
    pub machine_code: Areas,
    /// The parameters of the compiler, if they are known for certain.
    pub parameters: Option<JitParameters>,
    /// Interpreted code that samples hit, and why it is not compiled.
    #[serde(skip)]
    pub interpreted: InterpretedCode,
    /// The lines of the file in [`JitQuery::file`], for each chunk that the name can mean.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<CodeFile>,
    /// Whether all functions of the VM were read: a heap may be too large, or change too fast.
    pub complete: bool,
}

/// What was seen while a VM was watched.
#[derive(Clone, Debug, Serialize)]
pub struct WatchedAborts {
    /// How often memory was read.
    pub readings: u64,
    /// How often all traces were flushed; this is a lower bound.
    pub flushes: u32,
    /// The aborts, by place and reason, the most frequent first.
    pub aborts: Vec<Aborted>,
}

/// What a report should contain, and the data that it is joined with.
#[derive(Clone, Copy, Debug)]
pub struct JitQuery<'a> {
    /// The longest time to search the heap for functions.
    pub limit: Duration,
    /// The watch over the VM before this report.
    pub watch: Option<&'a AbortWatch>,
    /// Samples of the process; the report picks out the samples of this VM.
    pub samples: Option<&'a CodeSamples>,
    /// The file whose lines the report should list.
    pub file: Option<&'a str>,
}

impl JitReport {
    /// Reads the whole report. `maps` must be recent.
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

/// What is known about aborts, by place: the penalties, and watched aborts of places whose slots other places have taken.
fn known_aborts<'a>(
    penalties: &'a [Aborted],
    watched: Option<&'a WatchedAborts>,
) -> impl Iterator<Item = (u64, KnownAbort)> {
    let known = |aborted: &Aborted| {
        let Aborted { pc, aborts, reason, about, .. } = aborted;
        (*pc, KnownAbort { aborts: *aborts, reason: *reason, about: about.clone() })
    };
    // Later entries replace earlier ones. A penalty counts all aborts, but a watched abort may tell what its reason was about.
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
            // Recording never begins at this instruction: when it did, the instruction was another one.
            Some(Op::ITERC) => Fate::Generalized,
            _ => Fate::Interpreted,
        };
        if reason.name == Some("NYIBC") {
            aborted.unrecordable = loops::unrecordable(&prototype, position, set);
        }
        aborted
    }
}
