//! The Firefox profiler's processed profile, as gzipped JSON: threads as tracks, VM states as markers, the heap and the
//! resident memory as counters.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::SystemTime;

use flate2::Compression;
use flate2::write::GzEncoder;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame as FirefoxFrame, FrameFlags, FrameHandle, FrameInfo,
    MarkerLocations, MarkerTiming, ProcessHandle, Profile as FirefoxProfile, SamplingInterval, StackHandle,
    StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp, WeightType,
};
use lj_trace_streams::VmState;

use crate::frame::FrameKind;
use crate::model::labels::ThreadLabel;
use crate::model::{Profile, StackId, Unit};

/// The time between samples if it is unknown, in nanoseconds.
const DEFAULT_PERIOD: u64 = 10_000_000;
/// If samples are further apart than this many periods, something else came between them.
const LONGEST_GAP: u64 = 4;

/// Writes a profile for <https://profiler.firefox.com>.
///
/// If times are unknown, as in a profile from a stream, equal stacks follow each other. The call tree and the flame
/// graph are right, but the timeline only shows how much there is of each stack.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &dyn Profile, out: impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    serde_json::to_writer(io::BufWriter::new(&mut gzip), &Builder::new(profile).build())?;
    gzip.finish()?.flush()
}

/// A sample in the output.
#[derive(Clone, Copy)]
struct WrittenSample {
    /// Nanoseconds since the beginning.
    time: u64,
    stack: StackId,
    weight: u64,
}

struct Builder<'a> {
    source: &'a dyn Profile,
    target: FirefoxProfile,
    process: ProcessHandle,
    categories: Categories,
    /// Nanoseconds from one sample to the next.
    period: u64,
    /// How many further samples may be added to split up weights that are too large for one sample.
    more: u32,
}

/// How many pieces heavy stacks may have: enough for weeks of allocations, but too few for a damaged stream to fill the
/// memory.
const MOST_PIECES: u32 = 1 << 16;

impl<'a> Builder<'a> {
    fn new(source: &'a dyn Profile) -> Self {
        let cpu = source.measures().into_iter().find(|measure| measure.unit == Unit::Nanoseconds);
        let period = cpu.map_or(DEFAULT_PERIOD, |cpu| cpu.factor.max(1));
        let started = source.timeline().and_then(|timeline| timeline.started).unwrap_or(SystemTime::UNIX_EPOCH);
        let interval = SamplingInterval::from_nanos(period);
        let mut target = FirefoxProfile::new("lj-trace", started.into(), interval);
        target.set_os_name("Linux");
        target.set_symbolicated(true);
        let process = target.add_process(&source.title(), source.process().unwrap_or(0), at(0));
        let categories = Categories::new(&mut target);
        Self { source, target, process, categories, period, more: MOST_PIECES }
    }

    fn build(mut self) -> FirefoxProfile {
        for (thread, samples) in self.by_thread() {
            self.add_thread(thread, &samples);
        }
        self.add_counters();
        self.target
    }

    /// The samples of each thread, in order.
    fn by_thread(&self) -> Vec<(Option<ThreadLabel>, Vec<WrittenSample>)> {
        let stacks = self.source.weighted();
        let measure = self.source.shown();
        let timeline = self.source.timeline();
        let points = timeline.and_then(|timeline| timeline.points()).filter(|points| {
            // Some times may be missing; the picture must show all samples.
            measure.unit == Unit::Samples && points.len() as u64 == self.source.total()
        });
        let mut threads: BTreeMap<Option<u32>, (Option<ThreadLabel>, Vec<WrittenSample>)> = BTreeMap::new();
        let mut add = |thread: &Option<ThreadLabel>, sample: WrittenSample| {
            let entry = threads.entry(thread.as_ref().map(|thread| thread.tid));
            entry.or_insert_with(|| (thread.clone(), Vec::new())).1.push(sample);
        };
        match points {
            Some(points) => {
                let start = timeline.map_or(0, |timeline| timeline.start());
                for point in points {
                    let Some(row) = stacks.row(point.stack) else { continue };
                    let time = point.time.saturating_sub(start);
                    add(&row.labels.thread, WrittenSample { time, stack: point.stack, weight: 1 });
                }
            }
            None => {
                for (stack, row) in stacks.numbered() {
                    let weight = measure.value(row.weights);
                    if weight > 0 {
                        add(&row.labels.thread, WrittenSample { time: 0, stack, weight });
                    }
                }
            }
        }
        let has_times = points.is_some();
        let mut threads: Vec<_> = threads.into_values().collect();
        for (_, samples) in &mut threads {
            if has_times {
                samples.sort_by_key(|sample| sample.time);
            } else {
                self.spread(samples);
            }
        }
        threads
    }

    /// Gives samples without times a time: each lasts as long as it weighs.
    fn spread(&self, samples: &mut [WrittenSample]) {
        let mut time: u64 = 0;
        // There are many bytes: a microsecond for each KiB.
        let length = |weight: u64| match self.source.shown().unit {
            Unit::Bytes => weight / 1024 * 1000 + 1000,
            _ => weight.saturating_mul(self.period),
        };
        for sample in samples {
            sample.time = time;
            time = time.saturating_add(length(sample.weight));
        }
    }

    fn add_thread(&mut self, thread: Option<ThreadLabel>, samples: &[WrittenSample]) {
        let tid = thread.as_ref().map_or(0, |thread| thread.tid);
        let is_main = thread.is_none() || Some(tid) == self.source.process();
        let handle = self.target.add_thread(self.process, tid, at(0), is_main);
        let name = match thread.and_then(|thread| thread.name) {
            Some(name) => name.to_string(),
            None => self.source.title(),
        };
        self.target.set_thread_name(handle, &name);
        if self.source.shown().unit == Unit::Bytes {
            self.target.set_thread_samples_weight_type(handle, WeightType::Bytes);
        }
        self.target.set_thread_show_markers_in_timeline(handle, true);
        let mut frames = vec![None; self.source.weighted().frames().len()];
        let mut stacks: BTreeMap<usize, Option<StackHandle>> = BTreeMap::new();
        let mut before = 0;
        for sample in samples {
            let stack = match stacks.get(&sample.stack.index()) {
                Some(&stack) => stack,
                None => {
                    let stack = self.stack(handle, sample.stack, &mut frames);
                    stacks.insert(sample.stack.index(), stack);
                    stack
                }
            };
            // The time between two ticks of the CPU clock is CPU time.
            let busy = sample.time.saturating_sub(before).min(self.period);
            before = sample.time;
            let mut cpu = CpuDelta::from_nanos(busy);
            // The format's weights have 32 bits.
            let mut left = sample.weight;
            while left > 0 {
                let weight = i32::try_from(left).unwrap_or(i32::MAX);
                self.target.add_sample(handle, at(sample.time), stack, cpu, weight);
                left -= u64::from(weight.unsigned_abs());
                cpu = CpuDelta::ZERO;
                if left > 0 && self.more == 0 {
                    break;
                }
                self.more -= u32::from(left > 0);
            }
        }
        if let Some(last) = samples.last() {
            self.target.set_thread_end_time(handle, at(last.time.saturating_add(self.period)));
        }
        self.add_markers(handle, samples);
    }

    fn stack(
        &mut self,
        thread: ThreadHandle,
        stack: StackId,
        known: &mut [Option<FrameHandle>],
    ) -> Option<StackHandle> {
        let stacks = self.source.weighted();
        let mut handle = None;
        for &id in stacks.row(stack)?.frames {
            let frame = match known[id.index()] {
                Some(frame) => frame,
                None => {
                    let named = stacks.frame(id)?;
                    let info = FrameInfo {
                        frame: FirefoxFrame::Label(self.target.intern_string(&named.to_string())),
                        category_pair: self.categories.of_kind(named.kind()).into(),
                        flags: FrameFlags::empty(),
                    };
                    let frame = self.target.intern_frame(thread, info);
                    known[id.index()] = Some(frame);
                    frame
                }
            };
            handle = Some(self.target.intern_stack(thread, handle, frame));
        }
        handle
    }

    /// A marker for each run of samples in the same VM state.
    fn add_markers(&mut self, thread: ThreadHandle, samples: &[WrittenSample]) {
        let stacks = self.source.weighted();
        let state = |sample: &WrittenSample| stacks.row(sample.stack).and_then(|row| row.labels.state);
        let (period, gap) = (self.period, self.period.saturating_mul(LONGEST_GAP));
        let is_same = |a: &WrittenSample, b: &WrittenSample| {
            state(a) == state(b)
                && b.time.saturating_sub(a.time.saturating_add((a.weight - 1).saturating_mul(period))) <= gap
        };
        if self.source.shown().unit != Unit::Samples {
            return;
        }
        for run in samples.chunk_by(is_same) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let Some(state) = state(first) else { continue };
            let end = last.time.saturating_add(last.weight.saturating_mul(period));
            let name = self.target.intern_string(name_of(state));
            let marker = StateMarker { name, category: self.categories.of_state(state) };
            self.target.add_marker(thread, MarkerTiming::Interval(at(first.time), at(end)), marker);
        }
    }

    fn add_counters(&mut self) {
        let Some(timeline) = self.source.timeline() else { return };
        let start = timeline.start();
        for series in &timeline.counters {
            let counter = self.target.add_counter(self.process, &series.name, "Memory", &series.name);
            let mut before = 0;
            for &(time, value) in &series.values {
                // The viewer expects differences and adds them up.
                self.target.add_counter_sample(
                    counter,
                    at(time.saturating_sub(start)),
                    value as f64 - before as f64,
                    0,
                );
                before = value;
            }
        }
    }
}

fn at(nanoseconds: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(nanoseconds)
}

/// The name of a state on the marker chart.
fn name_of(state: VmState) -> &'static str {
    match state {
        VmState::Trace => "compiled",
        VmState::Interp | VmState::Lfunc | VmState::Ffunc => "interpreter",
        VmState::Cfunc => "C function",
        VmState::Gc => "GC",
        VmState::Exit => "trace exit",
        VmState::Record | VmState::Opt | VmState::Asm => "JIT compiler",
    }
}

/// The kinds of code, in the colours of the flame graph.
#[derive(Clone, Copy)]
struct Categories {
    lua: CategoryHandle,
    jit: CategoryHandle,
    c: CategoryHandle,
    kernel: CategoryHandle,
    gc: CategoryHandle,
    compiler: CategoryHandle,
}

impl Categories {
    fn new(profile: &mut FirefoxProfile) -> Self {
        Self {
            lua: profile.add_category("Lua", CategoryColor::Green),
            jit: profile.add_category("Compiled Lua", CategoryColor::Blue),
            c: profile.add_category("C", CategoryColor::Orange),
            kernel: profile.add_category("Kernel", CategoryColor::DarkGray),
            gc: profile.add_category("Garbage collector", CategoryColor::Red),
            compiler: profile.add_category("JIT compiler", CategoryColor::Purple),
        }
    }

    fn of_kind(self, kind: FrameKind) -> CategoryHandle {
        match kind {
            FrameKind::Lua => self.lua,
            FrameKind::Jit => self.jit,
            FrameKind::C => self.c,
            FrameKind::Kernel => self.kernel,
            FrameKind::Gc | FrameKind::Vm => self.gc,
            FrameKind::JitCompiler => self.compiler,
            FrameKind::Root | FrameKind::Unresolved => CategoryHandle::OTHER,
        }
    }

    fn of_state(self, state: VmState) -> CategoryHandle {
        match state {
            VmState::Trace | VmState::Exit => self.jit,
            VmState::Interp | VmState::Lfunc | VmState::Ffunc => self.lua,
            VmState::Cfunc => self.c,
            VmState::Gc => self.gc,
            VmState::Record | VmState::Opt | VmState::Asm => self.compiler,
        }
    }
}

/// A span of time in which the VM was in one state.
#[derive(Clone, Copy, Debug)]
struct StateMarker {
    name: StringHandle,
    category: CategoryHandle,
}

impl StaticSchemaMarker for StateMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "VmState";
    const DESCRIPTION: Option<&'static str> = Some("What the Lua VM was doing");
    const LOCATIONS: MarkerLocations =
        MarkerLocations::MARKER_CHART.union(MarkerLocations::MARKER_TABLE).union(MarkerLocations::TIMELINE_OVERVIEW);
    const FIELDS: &'static [StaticSchemaMarkerField] = &[];

    fn name(&self, _profile: &mut FirefoxProfile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut FirefoxProfile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _field_index: u32) -> StringHandle {
        self.name
    }

    fn number_field_value(&self, _field_index: u32) -> f64 {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use lj_trace_streams::memprof::{Event, Source};

    use super::*;
    use crate::model::Labels;
    use crate::profile::SampleInfo;
    use crate::{CpuProfile, Frame, MemoryProfile, Weight};

    fn written(profile: &dyn Profile) -> serde_json::Value {
        let mut out = Vec::new();
        write(profile, &mut out).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(out.as_slice()).read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn names(file: &serde_json::Value) -> Vec<&str> {
        file["threads"][0]["stringArray"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
    }

    #[test]
    fn threads_are_tracks_with_markers_and_counters() {
        let mut profile = CpuProfile::new("test");
        profile.rate = Some(100);
        profile.keep_times();
        let mut add = |tid, time: u64, state| {
            let labels = Labels { thread: Some(ThreadLabel { tid, name: Some("worker".into()) }), ..Labels::default() };
            let info = SampleInfo { labels, time: Some(time * 10_000_000), ..SampleInfo::new(state) };
            profile.add_sample(info, [Frame::lua(Some("f".into()), b"@a.lua", 3, None)]);
        };
        add(7, 101, VmState::Lfunc);
        add(7, 102, VmState::Gc);
        add(7, 103, VmState::Gc);
        add(8, 101, VmState::Trace);
        profile.count_bytes("GC heap", 1_010_000_000, 100);
        profile.count_bytes("GC heap", 1_020_000_000, 70);
        let file = written(&profile);
        let threads = file["threads"].as_array().unwrap();
        assert_eq!(threads.len(), 2);
        assert_eq!((&threads[0]["name"], &threads[0]["tid"]), (&"worker".into(), &"7".into()));
        assert_eq!(threads[0]["samples"]["length"], 3);
        // The GC is a single marker, from 10 ms to 30 ms.
        assert_eq!(threads[0]["markers"]["startTime"], serde_json::json!([0.0, 10.0]));
        assert_eq!(threads[0]["markers"]["endTime"], serde_json::json!([10.0, 30.0]));
        assert!(names(&file).contains(&"f@a.lua:3") && names(&file).contains(&"GC"), "{file:#}");
        assert_eq!(file["counters"][0]["samples"]["count"], serde_json::json!([100.0, -30.0]));
    }

    #[test]
    fn large_weights_are_split_but_kept() {
        let mut profile = MemoryProfile::new(Weight::Allocated, "");
        let size = 5 << 30;
        profile.add(0, &Event::Alloc { source: Source::Internal, addr: 0x10, size });
        let file = written(&profile);
        let weights = file["threads"][0]["samples"]["weight"].as_array().unwrap();
        assert_eq!(weights.iter().map(|weight| weight.as_u64().unwrap()).sum::<u64>(), size);
        assert_eq!(file["threads"][0]["samples"]["weightType"], "bytes");
    }
}
