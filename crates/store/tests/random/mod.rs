//! Random profiles.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use lj_trace_profile::memory::StoredMemory;
use lj_trace_profile::model::labels::ThreadLabel;
use lj_trace_profile::model::{Labels, RequestKey, RequestLabels, StackTable};
use lj_trace_profile::profile::SampleInfo;
use lj_trace_profile::{CpuProfile, Frame, MemoryProfile, Profile, Weight};
use lj_trace_streams::VmState;

pub struct Random(fastrand::Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A name, as a hostile program may choose it.
    pub fn name(&mut self) -> String {
        match self.0.u32(0..10) {
            0 => String::new(),
            1 => self.0.choice(["../../etc/passwd", "a/b", ".", "..", "=", "%2F", "\0", "\n\"'"]).unwrap().to_owned(),
            2 => "\u{202e}\u{1f600}\u{fffd}".to_owned(),
            3 => "x".repeat(self.0.usize(0..3000)),
            // The shown form of a name that is not valid UTF-8.
            4 => lj_trace_text::untrusted::bytes(&[self.0.u8(..), 0xff, self.0.u8(..)]),
            5 => {
                let length = self.0.usize(0..9);
                std::iter::repeat_with(|| self.0.char(..)).take(length).collect()
            }
            6 => "\\x1b[2J\x1b[2J".to_owned(),
            _ => format!("name{}", self.0.u32(0..20)),
        }
    }

    /// A name that cannot be compressed.
    pub fn noise(&mut self) -> String {
        std::iter::repeat_with(|| self.0.alphanumeric()).take(120).collect()
    }

    fn text(&mut self) -> Arc<str> {
        self.name().into()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.0.bool().then(|| make(self))
    }

    fn line(&mut self) -> u32 {
        *self.0.choice(&[0, 1, 17, 100_000, u32::MAX]).unwrap()
    }

    pub fn state(&mut self) -> VmState {
        *self.0.choice(&VmState::ALL).unwrap()
    }

    pub fn frame(&mut self) -> Frame {
        match self.0.u32(0..14) {
            0 => Frame::Root { name: self.text() },
            1 | 2 => {
                let (name, chunk) = (self.maybe(Self::text), self.text());
                let (first_line, line) = (self.line(), self.maybe(Self::line));
                Frame::Lua { name, chunk, first_line, line, compiled: self.0.bool() }
            }
            3 => Frame::Chunk { chunk: self.text() },
            4 => Frame::Line { chunk: self.text(), line: self.line() },
            5 => Frame::FastFunction { name: self.text() },
            6 => Frame::C { symbol: self.text(), module: self.maybe(Self::text) },
            7 => Frame::Kernel { symbol: self.text() },
            8 => Frame::Trace { number: self.maybe(|random| random.0.u64(..)), start: self.maybe(Self::text) },
            9 => Frame::Vm(self.state()),
            10 => Frame::Internal,
            11 => Frame::left_out(self.0.u64(1..1 << 40)),
            12 => Frame::Rare,
            _ => Frame::Unresolved { reason: self.text() },
        }
    }

    /// A stack, root first. Sometimes it is very deep.
    fn stack(&mut self) -> Vec<Frame> {
        let depth = if self.0.u32(0..400) == 0 { self.0.usize(2000..20_000) } else { self.0.usize(0..30) };
        let root = self.maybe(|random| Frame::vm(random.0.usize(0..3)));
        root.into_iter().chain(std::iter::repeat_with(|| self.frame()).take(depth)).collect()
    }

    fn labels(&mut self) -> Labels {
        let thread = self.maybe(|random| ThreadLabel { tid: random.0.u32(..), name: random.maybe(Self::text) });
        let location = self.maybe(|random| (RequestKey::Location, random.text()));
        let request = RequestLabels::new(location);
        let fiber_id = self.maybe(|random| random.0.u64(..));
        Labels { thread, state: None, trace: self.maybe(|random| random.0.u64(..)), request, fiber_id }
    }

    pub fn cpu(&mut self) -> CpuProfile {
        let mut profile = CpuProfile::new("random");
        profile.rate = self.maybe(|random| random.0.u32(1..20_000));
        for _ in 0..self.0.usize(0..40) {
            let weight = if self.0.bool() { 1 } else { self.0.u64(1..1 << 30) };
            let info = SampleInfo { labels: self.labels(), weights: [weight, 0], ..SampleInfo::new(self.state()) };
            let stack = self.stack();
            profile.add_sample(info, stack);
        }
        for _ in 0..self.0.usize(0..4) {
            profile.lose(&self.name(), self.0.u64(1..1000));
        }
        profile
    }

    /// A profile with this many samples.
    pub fn samples(&mut self, samples: u64, rate: u32) -> CpuProfile {
        let mut profile = CpuProfile::new("random");
        profile.rate = Some(rate);
        for _ in 0..samples {
            let leaf = Frame::lua(None, b"@a.lua", self.0.u32(0..30), None);
            profile.add(VmState::Lfunc, [Frame::C { symbol: "main".into(), module: None }, leaf]);
        }
        profile
    }

    pub fn memory(&mut self) -> MemoryProfile {
        let mut stacks = StackTable::default();
        for _ in 0..self.0.usize(0..40) {
            let (labels, stack) = (self.labels(), self.stack());
            let frames: Vec<_> = stack.into_iter().map(|frame| stacks.intern(frame)).collect();
            let id = stacks.labelled(&labels, &frames);
            for index in 0..5 {
                if self.0.bool() {
                    stacks.add(id, index, self.0.u64(0..1 << 50));
                }
            }
        }
        let mut profile = MemoryProfile::of_stacks(Weight::Held, "random", stacks, StoredMemory::default());
        for _ in 0..self.0.usize(0..4) {
            profile.lose(&self.name(), self.0.u64(1..1000));
        }
        profile
    }
}

/// The stacks with their labels and weights.
type Stacks = Vec<(String, Vec<Frame>, [u64; 5])>;

/// The whole contents of a profile.
pub fn content(profile: &dyn Profile) -> (Stacks, BTreeMap<String, u64>) {
    let table = profile.weighted();
    let stack = |id| {
        let (labels, frames) = table.all_frames(id).unwrap();
        let frames = frames.iter().map(|id| table.frame(*id).unwrap().clone()).collect();
        (format!("{labels:?}"), frames, *table.row(id).unwrap().weights)
    };
    let mut stacks: Stacks = table
        .numbered()
        .filter(|(_, row)| row.weights.iter().any(|&weight| weight > 0))
        .map(|(id, _)| stack(id))
        .collect();
    stacks.sort_by_cached_key(|stack| format!("{stack:?}"));
    (stacks, profile.losses().clone())
}
