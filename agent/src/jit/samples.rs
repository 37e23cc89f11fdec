//! CPU samples for the JIT report: what ran, and where in Lua code.

use std::collections::BTreeMap;

use lj_trace_engine::cpu::SampleListener;
use lj_trace_engine::resolve::{Code, Resolved};
use lj_trace_luajit::jit::{CodeCounts, CodePosition, CodeSamples};
use lj_trace_profile::Frame;
use lj_trace_streams::VmState;
use serde::Serialize;

/// What a process spends CPU time on, as seen by the JIT compiler. Each sample counts for one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeKind {
    /// Compiled Lua code.
    Compiled,
    /// Lua code in the interpreter.
    Interpreted,
    /// Library functions of LuaJIT, called by the interpreter.
    Library,
    /// C functions from outside LuaJIT, called by the interpreter.
    CFunctions,
    /// The garbage collector.
    Collector,
    /// The JIT compiler itself.
    Compiler,
    /// Exits from traces.
    Leaving,
    /// Outside of any VM.
    Elsewhere,
}

impl TimeKind {
    /// The kind of a sample whose VM is in this state; [`None`] stands for no VM.
    pub fn of(state: Option<VmState>) -> Self {
        match state {
            None => Self::Elsewhere,
            Some(VmState::Interp | VmState::Lfunc) => Self::Interpreted,
            Some(VmState::Ffunc) => Self::Library,
            Some(VmState::Cfunc) => Self::CFunctions,
            Some(VmState::Gc) => Self::Collector,
            Some(VmState::Exit) => Self::Leaving,
            Some(VmState::Record | VmState::Opt | VmState::Asm) => Self::Compiler,
            Some(VmState::Trace) => Self::Compiled,
        }
    }

    /// The kind in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Compiled => "compiled Lua code",
            Self::Interpreted => "interpreted Lua code",
            Self::Library => "library functions called by the interpreter",
            Self::CFunctions => "C functions called by the interpreter",
            Self::Collector => "garbage collector",
            Self::Compiler => "JIT compiler: recording, optimizing and assembling traces",
            Self::Leaving => "leaving traces",
            Self::Elsewhere => "outside of any LuaJIT VM",
        }
    }
}

/// The samples of a process.
#[derive(Clone, Debug, Default)]
pub struct TimeSamples {
    /// The number of samples of each kind.
    pub kinds: BTreeMap<TimeKind, u64>,
    /// The samples by place.
    pub code: CodeSamples,
}

impl TimeSamples {
    /// The number of all samples.
    pub fn total(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// Adds a sample.
    pub fn add(&mut self, sample: &Resolved) {
        let kind = TimeKind::of(sample.state);
        *self.kinds.entry(kind).or_default() += 1;
        let mut counts = CodeCounts::default();
        match kind {
            TimeKind::Interpreted => counts.interpreted = 1,
            TimeKind::Library => counts.library = 1,
            TimeKind::Compiled => counts.compiled = 1,
            _ => counts.other = 1,
        }
        self.code.add(place(sample), counts);
    }
}

impl SampleListener for TimeSamples {
    fn sample(&mut self, sample: &Resolved, _root: Frame) {
        self.add(sample);
    }
}

/// The place of a sample's innermost Lua function; [`None`] if anything about it is uncertain.
pub fn place(sample: &Resolved) -> Option<CodePosition> {
    for frame in &sample.frames {
        match (frame.code, &*frame.named) {
            (Code::Lua { prototype, position }, _) if prototype.address != 0 => {
                return Some(CodePosition { prototype, position });
            }
            (_, Frame::Unresolved { .. }) => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use lj_trace_engine::resolve::{ResolvedFrame, SampleRequest};
    use lj_trace_luajit::PrototypeKey;

    fn frame(named: Frame, code: Code) -> ResolvedFrame {
        ResolvedFrame { named: named.into(), code }
    }

    fn lua() -> ResolvedFrame {
        let prototype = PrototypeKey { address: 8, chunkname: 1, firstline: 2, sizebc: 3 };
        frame(Frame::lua(None, b"@a.lua", 2, Some(5)), Code::Lua { prototype, position: Some(1) })
    }

    pub fn sample(state: Option<VmState>, frames: Vec<ResolvedFrame>) -> Resolved {
        let (vm, tid, time) = (Some(0), 1, 0);
        Resolved {
            state,
            vm,
            tid,
            time,
            allocation: None,
            thread_name: None,
            wait: None,
            turn: 0,
            entry: None,
            trace: None,
            request: SampleRequest::default(),
            frames,
        }
    }

    #[test]
    fn every_sample_is_of_one_kind() {
        let mut samples = TimeSamples::default();
        let states = VmState::ALL.into_iter().map(Some).chain([None]);
        states.for_each(|state| samples.add(&sample(state, vec![lua()])));
        assert_eq!(samples.total(), VmState::ALL.len() as u64 + 1);
        assert_eq!((samples.kinds[&TimeKind::Interpreted], samples.kinds[&TimeKind::Compiler]), (2, 3));
        let (_, counts) = samples.code.places().next().unwrap();
        assert_eq!((counts.all(), counts.interpreted, counts.compiled), (samples.total(), 2, 1));
    }

    #[test]
    fn what_is_not_certain_has_no_place() {
        let c = frame(Frame::C { symbol: "lj_tab_get".into(), module: None }, Code::Name);
        let mark = frame(Frame::Unresolved { reason: "interpreter between two frames".into() }, Code::Name);
        let of = |frames| place(&sample(Some(VmState::Lfunc), frames)).map(|place| place.position);
        assert_eq!(of(vec![c.clone(), lua(), lua()]), Some(Some(1)));
        assert_eq!(of(vec![mark, lua()]), None);
        assert_eq!(of(vec![c]), None);
    }
}
