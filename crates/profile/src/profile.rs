//! A CPU profile: stacks and how often they were seen.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use lj_trace_streams::VmState;
use lj_trace_text::Room;

use super::frame::FrameKind;
use super::model::{FrameId, Labels, Measure, NativeModules, Point, Profile, Recorded, StackTable, Timeline, Unit};
use super::source_code::SourceCode;
use super::{Frame, cpu_text};

/// Where CPU time goes: samples by stack and by VM state, and what is missing. Or where memory is allocated: sampled
/// allocations by stack.
#[derive(Debug, Default)]
pub struct CpuProfile {
    stacks: StackTable,
    states: [u64; VmState::ALL.len()],
    losses: BTreeMap<String, u64>,
    unresolved: BTreeMap<Arc<str>, u64>,
    left_out: BTreeMap<u64, u64>,
    scratch: Vec<FrameId>,
    timeline: Option<Timeline>,
    /// The files that native code is in, if known.
    pub modules: NativeModules,
    /// What was profiled, as a title: a command line, a pid, a file.
    pub title: String,
    /// The process, if known.
    pub pid: Option<u32>,
    /// When it was recorded, if a stream says so.
    pub recorded: Option<Recorded>,
    /// Samples a second, if known.
    pub rate: Option<u32>,
    /// What is counted: samples, bytes of memory, or nanoseconds.
    pub unit: Unit,
    /// For nanoseconds: whether the profile has time on the CPU beside time off the CPU.
    pub has_cpu_time: bool,
    /// Where to read the Lua code.
    pub sources: SourceCode,
}

/// What is known of a sample apart from its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleInfo {
    /// What the VM was doing.
    pub state: VmState,
    /// The thread and the trace; the profile fills in the state.
    pub labels: Labels,
    /// When it was taken, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: Option<u64>,
    /// How much it counts: the first is samples or objects, the second bytes or nanoseconds.
    pub weights: [u64; 2],
}

impl SampleInfo {
    /// A single sample with nothing known but its state.
    pub fn new(state: VmState) -> Self {
        Self { state, labels: Labels::default(), time: None, weights: [1, 0] }
    }
}

impl CpuProfile {
    /// An empty profile.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Counts one sample. `frames` are root first.
    ///
    /// If the stack does not show the state itself, this adds a frame for it: `[GC]` or `[JIT compiler]` above the Lua
    /// frames in these two states, and `TRACE` at the leaf of a sample in JIT-compiled code whose trace is unknown.
    pub fn add(&mut self, vmstate: VmState, frames: impl IntoIterator<Item = Frame>) {
        self.add_sample(SampleInfo::new(vmstate), frames);
    }

    /// From now on shows the root of each stack, even if it is the only one: it is a group.
    pub fn show_roots(&mut self) {
        self.stacks.show_roots();
    }

    /// Counts a sample with more details; otherwise like [`add`](Self::add).
    pub fn add_sample(&mut self, info: SampleInfo, frames: impl IntoIterator<Item = Frame>) {
        let stack: Vec<FrameId> = frames.into_iter().map(|frame| self.intern(frame)).collect();
        self.count(info, &stack);
    }

    /// Folds the rarest stacks once all stacks take more than this many bytes of memory, down to half of that. Earlier
    /// frame numbers are then invalid.
    pub fn keep_within(&mut self, bytes: usize) {
        if self.stacks.bytes() <= bytes {
            return;
        }
        let moved = self.stacks.fold_rare(bytes / 2);
        if let Some(timeline) = &mut self.timeline {
            timeline.renumber(&moved);
        }
    }

    /// Adds the samples of another profile with their requests, but without their threads, traces and times.
    pub fn absorb(&mut self, other: &Self) {
        for row in other.stacks.rows() {
            // If a profile has only one root, the root is hidden.
            let hidden = row.root.filter(|root| row.frames.first() != Some(root));
            let frames = hidden.iter().chain(row.frames).filter_map(|id| other.frame(*id).cloned());
            let state = row.labels.state.unwrap_or(VmState::Cfunc);
            let [first, second, ..] = *row.weights;
            let labels = Labels { request: row.labels.request.clone(), ..Labels::default() };
            self.add_sample(SampleInfo { weights: [first, second], labels, ..SampleInfo::new(state) }, frames);
        }
        other.losses.iter().for_each(|(reason, samples)| self.lose(reason, *samples));
    }

    /// The index of the weight to show: the second weight if the unit is bytes or nanoseconds.
    fn shown_index(&self) -> usize {
        usize::from(matches!(self.unit, Unit::Bytes | Unit::Nanoseconds))
    }

    /// The weight of the stacks that were folded because they were rare: samples, or bytes.
    pub fn folded(&self) -> u64 {
        self.stacks.folded()[self.shown().index]
    }

    /// The number of a frame, for [`add_interned`](Self::add_interned).
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        self.stacks.intern(frame)
    }

    /// Counts one sample whose frames have numbers already; otherwise like [`add`](Self::add).
    pub fn add_interned(&mut self, vmstate: VmState, stack: &[FrameId]) {
        self.count(SampleInfo::new(vmstate), stack);
    }

    /// Keeps the order of samples from now on, for formats that show it.
    pub fn keep_times(&mut self) {
        self.timeline.get_or_insert_default();
    }

    /// Forgets all samples and losses. What was profiled, and how, stays; the recording begins now.
    pub fn begin_anew(&mut self) {
        let Self { timeline, modules, title, pid, rate, unit, has_cpu_time, sources, .. } = std::mem::take(self);
        let timeline = timeline.map(|_| Timeline::default());
        *self = Self { timeline, modules, title, pid, rate, unit, has_cpu_time, sources, ..Self::default() };
        self.started_now();
    }

    /// Notes that the recording begins now.
    pub fn started_now(&mut self) {
        if let Some(timeline) = &mut self.timeline {
            timeline.started = Some(SystemTime::now());
        }
    }

    /// Adds a value of another number that changes over time, in bytes, if times are kept.
    pub fn count_bytes(&mut self, name: &str, time: u64, bytes: u64) {
        if let Some(timeline) = &mut self.timeline {
            timeline.count(name, time, bytes);
        }
    }

    fn count(&mut self, info: SampleInfo, stack: &[FrameId]) {
        let SampleInfo { state, mut labels, time, weights } = info;
        let mut marked = std::mem::take(&mut self.scratch);
        marked.clear();
        marked.extend_from_slice(stack);
        self.mark(state, &mut marked);
        self.count_unresolved(&marked);
        labels.state = Some(state);
        let stack = self.stacks.labelled(&labels, &marked);
        for (index, weight) in weights.into_iter().enumerate() {
            self.stacks.add(stack, index, weight);
        }
        let weight = weights[self.shown_index()];
        let shown = &mut self.states[state as usize];
        *shown = shown.saturating_add(weight);
        if let (Some(timeline), Some(time)) = (&mut self.timeline, time) {
            timeline.add(Point { time, stack });
        }
        self.scratch = marked;
    }

    fn mark(&mut self, vmstate: VmState, stack: &mut Vec<FrameId>) {
        let is = |id: &FrameId, test: fn(&Frame) -> bool| self.frame(*id).is_some_and(test);
        if vmstate == VmState::Trace {
            if !stack.iter().any(|id| is(id, |frame| frame.kind() == FrameKind::Jit)) {
                let trace = self.intern(Frame::Trace { number: None, start: None });
                stack.push(trace);
            }
        } else if (vmstate == VmState::Gc || vmstate.is_jit_compiler())
            && !stack.iter().any(|id| is(id, |frame| matches!(frame, Frame::Vm(_))))
        {
            let lua = stack
                .iter()
                .rposition(|id| is(id, |frame| matches!(frame, Frame::Lua { .. } | Frame::FastFunction { .. })));
            // All three states of the JIT compiler have the same name, so they share one frame.
            let state = if vmstate == VmState::Gc { VmState::Gc } else { VmState::Record };
            let roots = stack.iter().take_while(|id| is(id, |frame| matches!(frame, Frame::Root { .. }))).count();
            let after_first = stack.len().min(roots + 1);
            let marker = self.intern(Frame::Vm(state));
            stack.insert(lua.map_or(after_first, |at| at + 1), marker);
        }
    }

    fn count_unresolved(&mut self, stack: &[FrameId]) {
        let mut reasons = BTreeSet::new();
        let mut left_out = None;
        for &id in stack {
            match self.frame(id) {
                Some(Frame::Unresolved { reason }) => drop(reasons.insert(reason.clone())),
                Some(Frame::LeftOut { least }) => left_out = Some(*least),
                _ => {}
            }
        }
        if let Some(least) = left_out {
            *self.left_out.entry(least).or_insert(0) += 1;
        }
        for reason in reasons {
            *self.unresolved.entry(reason).or_insert(0) += 1;
        }
    }

    /// Counts lost samples, by reason.
    pub fn lose(&mut self, reason: &str, samples: u64) {
        if samples > 0 {
            *self.losses.entry(reason.to_owned()).or_insert(0) += samples;
        }
    }

    /// The frame with this number, if this profile has it.
    pub fn frame(&self, id: FrameId) -> Option<&Frame> {
        self.stacks.frame(id)
    }

    /// All frames that occur, in the order of their numbers.
    pub fn frames(&self) -> &[Frame] {
        self.stacks.frames()
    }

    /// The numbers of all frames, in order.
    pub fn frame_ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        self.stacks.frame_ids()
    }

    /// The stacks, root first, and how often each was seen, in the order in which they were first seen.
    pub fn stacks(&self) -> impl Iterator<Item = (&[FrameId], u64)> {
        self.stacks.iter(self.shown().index)
    }

    /// The number of samples, or of bytes.
    pub fn samples(&self) -> u64 {
        self.states.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The number of samples in this state.
    pub fn in_state(&self, vmstate: VmState) -> u64 {
        self.states[vmstate as usize]
    }

    /// The number of samples with an unresolved frame, by its reason.
    pub fn unresolved(&self) -> &BTreeMap<Arc<str>, u64> {
        &self.unresolved
    }

    /// The number of samples whose stacks were deeper than what is kept, by the least number of left-out frames.
    pub fn left_out(&self) -> &BTreeMap<u64, u64> {
        &self.left_out
    }
}

impl Profile for CpuProfile {
    fn recorded(&self) -> Option<Recorded> {
        self.recorded
    }

    fn weighted(&self) -> &StackTable {
        &self.stacks
    }

    fn title(&self) -> String {
        if self.title.is_empty() { "CPU time".to_owned() } else { self.title.clone() }
    }

    fn subtitle(&self) -> String {
        let rate = self.rate.map_or(String::new(), |rate| format!(" at {rate} Hz"));
        let lost = match self.losses.values().sum::<u64>() {
            0 => String::new(),
            lost => format!(", {lost} lost"),
        };
        let what = match self.unit {
            Unit::Bytes => "memory",
            Unit::Nanoseconds if self.has_cpu_time => "wall-clock time of threads",
            Unit::Nanoseconds => "time of threads off the CPU",
            _ => "CPU time",
        };
        let unit = self.unit.name();
        format!(
            "{what}, {} {unit}{rate}{lost}: green Lua, blue compiled Lua, orange C, grey kernel, red GC, purple JIT compiler",
            self.samples()
        )
    }

    fn measures(&self) -> Vec<Measure> {
        if self.unit == Unit::Bytes {
            let objects = Measure::new("alloc_objects", Unit::Objects, 0);
            return vec![objects, Measure::new("alloc_space", Unit::Bytes, 1)];
        }
        let samples = Measure::new("samples", Unit::Samples, 0);
        if self.unit == Unit::Nanoseconds {
            return vec![samples, self.shown()];
        }
        let period = self.rate.filter(|&rate| rate > 0).map(|rate| 1_000_000_000 / u64::from(rate));
        let time = period.map(|period| Measure { name: "cpu", unit: Unit::Nanoseconds, index: 0, factor: period });
        std::iter::once(samples).chain(time).collect()
    }

    fn shown(&self) -> Measure {
        match self.unit {
            Unit::Bytes => Measure::new("alloc_space", Unit::Bytes, 1),
            Unit::Nanoseconds if self.has_cpu_time => Measure::new("wall", Unit::Nanoseconds, 1),
            Unit::Nanoseconds => Measure::new("off_cpu", Unit::Nanoseconds, 1),
            _ => Measure::new("samples", Unit::Samples, 0),
        }
    }

    fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    fn process(&self) -> Option<u32> {
        self.pid
    }

    fn modules(&self) -> Option<&NativeModules> {
        Some(&self.modules)
    }

    fn losses(&self) -> &BTreeMap<String, u64> {
        &self.losses
    }

    fn write_text(&self, room: Room, out: &mut dyn io::Write) -> io::Result<()> {
        cpu_text::write(self, room, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(symbol: &str) -> Frame {
        Frame::C { symbol: symbol.into(), module: None }
    }

    fn lua(line: u32) -> Frame {
        Frame::lua(None, b"@a.lua", line, None)
    }

    fn names(profile: &CpuProfile) -> Vec<Vec<String>> {
        let name = |id: &FrameId| profile.frame(*id).unwrap().to_string();
        profile.stacks().map(|(stack, _)| stack.iter().map(name).collect()).collect()
    }

    #[test]
    fn equal_stacks_are_counted_together() {
        let mut profile = CpuProfile::new("test");
        profile.add(VmState::Lfunc, [c("main"), lua(1)]);
        profile.add(VmState::Lfunc, [c("main"), lua(1)]);
        profile.add(VmState::Cfunc, [c("main")]);
        let mut counts: Vec<u64> = profile.stacks().map(|(_, count)| count).collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 2]);
        assert_eq!((profile.samples(), profile.in_state(VmState::Lfunc)), (3, 2));
    }

    #[test]
    fn the_vm_at_work_for_itself_is_a_frame_above_the_lua_code() {
        let mut profile = CpuProfile::new("test");
        profile.add(VmState::Gc, [c("main"), lua(1), c("lj_gc_step")]);
        profile.add(VmState::Gc, [c("main"), lua(1), c("lua_concat"), Frame::Vm(VmState::Gc), c("lj_gc_step")]);
        assert_eq!(
            names(&profile),
            [
                &["main", "@a.lua:1", "[GC]", "lj_gc_step"][..],
                &["main", "@a.lua:1", "lua_concat", "[GC]", "lj_gc_step"]
            ]
        );
    }

    #[test]
    fn compiled_code_has_a_trace_at_its_leaf() {
        let mut profile = CpuProfile::new("test");
        profile.add(VmState::Trace, [c("main"), lua(1)]);
        assert_eq!(names(&profile), [["main", "@a.lua:1", "TRACE"]]);
    }

    #[test]
    fn samples_in_the_order_of_time_know_their_stacks_after_folding() {
        let mut profile = CpuProfile::new("test");
        profile.keep_times();
        for time in 0..2000 {
            let leaf = if time % 2 == 0 { c("hot") } else { c(&format!("rare {time}")) };
            let info = SampleInfo { time: Some(time), ..SampleInfo::new(VmState::Cfunc) };
            profile.add_sample(info, [c("main"), leaf]);
            profile.keep_within(20_000);
        }
        assert_eq!((profile.samples(), profile.stacks().map(|(_, count)| count).sum::<u64>()), (2000, 2000));
        assert!((1..1000).contains(&profile.folded()), "{}", profile.folded());
        let points = profile.timeline().unwrap().points().unwrap();
        assert_eq!(points.len(), 2000);
        for point in points {
            let row = profile.weighted().row(point.stack).unwrap();
            let name = row.frames.last().and_then(|id| profile.frame(*id)).unwrap().to_string();
            let expected = if point.time % 2 == 0 { "hot".to_owned() } else { format!("rare {}", point.time) };
            assert!(name == expected || name == "[rare stacks]" && point.time % 2 == 1, "{name} at {}", point.time);
        }
    }

    #[test]
    fn a_new_piece_has_no_samples_of_the_one_before() {
        let mut profile = CpuProfile::new("test");
        profile.rate = Some(99);
        profile.keep_times();
        profile.add_sample(SampleInfo { time: Some(1), ..SampleInfo::new(VmState::Lfunc) }, [c("main"), lua(1)]);
        profile.lose("some", 1);
        profile.begin_anew();
        assert_eq!((profile.samples(), profile.stacks().count(), profile.losses().len()), (0, 0, 0));
        assert_eq!((profile.title.as_str(), profile.rate), ("test", Some(99)));
        assert_eq!(profile.timeline().and_then(Timeline::points), Some(&[][..]));
    }

    #[test]
    fn what_is_absorbed_is_added() {
        let mut whole = CpuProfile::new("");
        for root in [None, Some(Frame::vm(0)), Some(Frame::vm(1))] {
            let mut piece = CpuProfile::new("");
            for state in [VmState::Gc, VmState::Trace] {
                piece.add(state, root.clone().into_iter().chain([c("main"), lua(1)]));
                piece.add(state, [c("main"), lua(1)]);
            }
            piece.lose("some", 1);
            whole.absorb(&piece);
        }
        assert_eq!((whole.samples(), whole.in_state(VmState::Gc), whole.losses()["some"]), (12, 6, 3));
        let shown = names(&whole);
        assert!(shown.contains(&vec!["VM 2".into(), "main".into(), "@a.lua:1".into(), "[GC]".into()]), "{shown:?}");
        assert_eq!(shown.len(), 6);
    }

    #[test]
    fn a_sample_counts_once_for_each_reason() {
        let mut profile = CpuProfile::new("test");
        let unknown = |reason: &str| Frame::Unresolved { reason: reason.into() };
        profile.add(VmState::Cfunc, [unknown("no symbol"), unknown("no symbol"), unknown("cut off")]);
        assert_eq!(profile.unresolved()["no symbol"], 1);
        assert_eq!(profile.unresolved()["cut off"], 1);
    }
}
