//! Code in the interpreter, and why it is not compiled.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lj_trace_engine::resolve::Resolved;
use lj_trace_luajit::jit::{BlacklistKind, CodePosition, Explained, Why, WhyInterpreted};
use lj_trace_luajit::{Prototype, PrototypeKey, Vm};
use lj_trace_process::Process;
use lj_trace_profile::Frame;
use lj_trace_text::chunk_name;

use super::window::{Span, TopWindow};
use crate::jit::{TimeKind, place};

/// A loop or function that is interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpretedRow {
    /// The reason, in a few words.
    pub why: Arc<str>,
    /// Where it begins: `file.lua:12`.
    pub place: Arc<str>,
    /// The function that it is in.
    pub function: Arc<str>,
    /// Samples.
    pub samples: u64,
}

/// Why a place is interpreted, and where the loop or function with that reason begins.
type Reason = (Arc<str>, Arc<str>);

/// Samples in the interpreter, by place.
#[derive(Clone, Debug)]
pub struct InterpretedPlaces {
    samples: TopWindow<(Option<CodePosition>, Arc<str>), u64>,
    reasons: HashMap<CodePosition, Reason>,
}

/// How many places to explain at a time: more than fit into any terminal. Each takes some µs.
const MOST: usize = 500;

/// The time limit for that: the picture has to wait for it.
const LIMIT: Duration = Duration::from_millis(100);

/// The reason if there is no explanation.
const UNKNOWN: &str = "not known";

impl InterpretedPlaces {
    /// No data; the last `window` intervals count as recent.
    pub fn new(window: usize) -> Self {
        Self { samples: TopWindow::folding(window, (None, "[rare]".into())), reasons: HashMap::new() }
    }

    /// Adds a sample.
    pub fn add(&mut self, sample: &Resolved) {
        if TimeKind::of(sample.state) != TimeKind::Interpreted {
            return;
        }
        let name = sample.frames.iter().find(|frame| matches!(*frame.named, Frame::Lua { .. }));
        let name = name.map_or_else(|| "[no Lua function]".into(), |frame| frame.named.to_string().into());
        self.samples.add(&(place(sample), name), 1);
    }

    /// Ends an interval.
    pub fn roll(&mut self) {
        self.samples.roll();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.samples.clear();
        self.reasons.clear();
    }

    /// Finds out why the hottest places are interpreted, from the current memory of the process.
    pub fn explain(&mut self, process: &Process, vms: &[Vm], span: Span) {
        let mut places: Vec<(CodePosition, u64)> =
            self.samples.sums(span).into_iter().filter_map(|((place, _), samples)| Some((place?, samples))).collect();
        places.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
        places.truncate(MOST);
        let Ok(maps) = process.maps() else { return };
        let memory = process.memory();
        let known: Vec<_> = vms.iter().map(|vm| (vm, WhyInterpreted::read(&memory, &maps, vm))).collect();
        let mut prototypes: HashMap<PrototypeKey, Option<Prototype>> = HashMap::new();
        self.reasons.clear();
        let began = Instant::now();
        for (place, _) in places {
            if began.elapsed() > LIMIT {
                break;
            }
            let read = || vms.first().and_then(|vm| Prototype::read(&memory, &vm.layout, place.prototype).ok());
            let Some(prototype) = prototypes.entry(place.prototype).or_insert_with(read) else { continue };
            let all = known.iter().map(|(_, why)| why.at(prototype, &why.parts(prototype), place.position));
            if let Some(explained) = best(all) {
                self.reasons.insert(place, describe(prototype, &explained));
            }
        }
    }

    /// All loops and functions, unsorted.
    pub fn rows(&self, span: Span) -> Vec<InterpretedRow> {
        let mut rows: HashMap<(Reason, Arc<str>), u64> = HashMap::new();
        for ((place, function), samples) in self.samples.sums(span) {
            let reason = place.and_then(|place| self.reasons.get(&place).cloned());
            let reason = reason.unwrap_or_else(|| (UNKNOWN.into(), "".into()));
            *rows.entry((reason, function)).or_default() += samples;
        }
        let row = |(((why, place), function), samples)| InterpretedRow { why, place, function, samples };
        rows.into_iter().map(row).collect()
    }
}

/// The VM of a function is not recorded. But its address belongs to only one VM, so an explanation from one of them
/// holds.
fn best(mut all: impl Iterator<Item = Explained>) -> Option<Explained> {
    let first = all.next()?;
    let is_better = |one: &Explained| !matches!(one.why, Why::Unknown | Why::CompilerOff);
    if is_better(&first) {
        return Some(first);
    }
    // If the compiler of one VM is off, the function may belong to another VM.
    let (mut better, mut rest) = (None, 0);
    for one in all {
        rest += usize::from(one.why != first.why);
        better = better.or_else(|| Some(one).filter(is_better));
    }
    better.or_else(|| (rest == 0).then_some(first))
}

fn describe(prototype: &Prototype, explained: &Explained) -> Reason {
    let source = chunk_name(prototype.chunkname.as_bytes());
    let place = match prototype.line_at(explained.start) {
        Some(line) => format!("{source}:{line}"),
        None => source,
    };
    let reason = || match &explained.abort {
        Some(abort) => {
            let about = abort.about.as_ref().map_or(String::new(), |about| format!(" {about}"));
            format!("{}{about}", abort.reason.text())
        }
        None => "reason not kept".to_owned(),
    };
    let is_loop = explained.kind != BlacklistKind::Function;
    let why = match explained.why {
        Why::Blacklisted => format!("blacklisted: {}", reason()),
        Why::Aborted => format!("aborted: {}", reason()),
        Why::LeavesTrace if is_loop => "leaves its trace (loop)".to_owned(),
        Why::LeavesTrace => "leaves its trace".to_owned(),
        Why::TurnedOff => "jit.off() for it".to_owned(),
        Why::CompilerOff => "JIT compiler is off".to_owned(),
        Why::Vararg => "variable arguments".to_owned(),
        Why::MainChunk => "main chunk".to_owned(),
        Why::Unknown => "no abort is known".to_owned(),
    };
    (why.into(), place.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(why: Why) -> Explained {
        let unrecordable = Vec::new();
        Explained { why, kind: BlacklistKind::Function, start: 0, abort: None, trace: None, unrecordable }
    }

    #[test]
    fn what_one_vm_knows_holds() {
        let of = |all: &[Why]| best(all.iter().map(|why| explained(*why))).map(|found| found.why);
        assert_eq!(of(&[Why::Unknown, Why::Blacklisted]), Some(Why::Blacklisted));
        assert_eq!(of(&[Why::CompilerOff, Why::Vararg]), Some(Why::Vararg));
        assert_eq!(of(&[Why::CompilerOff, Why::CompilerOff]), Some(Why::CompilerOff));
        assert_eq!(of(&[Why::CompilerOff, Why::Unknown]), None, "whose it is is not known");
        assert_eq!(of(&[]), None);
    }
}
