//! Merges the rows of many intervals into one profile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher as _;
use std::time::{Duration, UNIX_EPOCH};

use lj_trace_profile::memory::{GrowthStep, StoredMemory};
use lj_trace_profile::model::labels::ThreadLabel;
use lj_trace_profile::model::{FrameId, Labels, Recorded, RequestKey, RequestLabels, StackTable};
use lj_trace_profile::profile::SampleInfo;
use lj_trace_profile::{CpuProfile, Frame, MemoryProfile};
use lj_trace_streams::VmState;

use super::error::RefusedFile;
use super::query::Query;
use super::rows::{OfInterval, ReadRow};
use crate::frames::{ReadFrame, state};
use crate::schema::{LOST, label};

/// The profiles that match a query.
#[derive(Debug, Default)]
pub struct Selection {
    /// The CPU profile; [`None`] if no row matches.
    pub cpu: Option<CpuProfile>,
    /// The memory profile; [`None`] if no row matches.
    pub memory: Option<MemoryProfile>,
    /// The first files that were left out, and why.
    pub refused: Vec<(String, RefusedFile)>,
    /// The number of files that were left out.
    pub refused_files: u64,
    /// The number of rows with measures that this version does not know.
    pub unknown_rows: u64,
    /// The sampling rates, if there are several. All samples are weighted as if they were taken at the highest rate.
    pub rates: Vec<u32>,
}

/// The most left-out files to list with a reason.
const TOLD: usize = 5;

/// The approximate most bytes of memory for stacks. Beyond it, the rarest stacks lose their innermost frames.
const STACKS: usize = 256 << 20;

/// The rows that were merged so far.
#[derive(Debug, Default)]
pub struct Merged {
    cpu: OfKind,
    memory: OfKind,
    refused: Vec<(String, RefusedFile)>,
    refused_files: u64,
    unknown_rows: u64,
}

/// The merged rows of one kind of profile.
#[derive(Debug, Default)]
struct OfKind {
    stacks: StackTable,
    frames: HashMap<[u64; 2], FrameId>,
    hashers: [foldhash::quality::RandomState; 2],
    losses: BTreeMap<String, u64>,
    /// Which weights were measured, even if their value was zero.
    measured: [bool; 5],
    /// The sampling periods, in nanoseconds per sample.
    periods: BTreeSet<i64>,
    /// Bytes allocated and bytes held, by time in microseconds.
    times: BTreeMap<i64, [u64; 2]>,
    /// The sum of the squared errors of bytes.
    errors: f64,
    last: Option<OfInterval>,
    intervals: u64,
    range: Option<[i64; 2]>,
    services: BTreeSet<String>,
    hosts: BTreeSet<String>,
    pids: BTreeSet<u32>,
}

/// The most names and ids of processes to keep for titles.
const NAMES: usize = 1000;

/// The most points in time to keep.
const TIMES: usize = 100_000;

/// Indices of weights: the samples, and the nanoseconds that they count for. A memory profile has its own indices.
const SAMPLES: usize = 0;
const NANOSECONDS: usize = 1;

fn index_of(sample_type: &[u8], is_cpu: bool) -> Option<usize> {
    let names: &[&[u8]] = if is_cpu {
        &[b"samples"]
    } else {
        &[b"alloc_objects", b"alloc_space", b"inuse_objects", b"inuse_space", b"events"]
    };
    names.iter().position(|name| *name == sample_type)
}

impl Merged {
    /// Notes that a file was left out.
    pub fn refuse(&mut self, name: String, why: RefusedFile) {
        self.refused_files += 1;
        if self.refused.len() < TOLD {
            self.refused.push((name, why));
        }
    }

    /// Adds a row.
    pub fn add(&mut self, interval: &OfInterval, row: &ReadRow) {
        let of_kind = if interval.is_cpu { &mut self.cpu } else { &mut self.memory };
        of_kind.note(interval);
        let value = u64::try_from(row.value).unwrap_or(0);
        if row.sample_type.data() == LOST.as_bytes() {
            let reason = row.reason.as_deref().unwrap_or("no reason");
            let sum = of_kind.losses.entry(reason.to_owned()).or_default();
            *sum = sum.saturating_add(value);
        } else if let Some(index) = index_of(row.sample_type.data(), interval.is_cpu) {
            of_kind.weigh(interval, row, index, value);
        } else {
            self.unknown_rows += 1;
        }
    }

    /// The merged rows as profiles.
    pub fn selection(self, query: &Query) -> Selection {
        let Self { cpu, memory, refused, refused_files, unknown_rows } = self;
        let rates = if cpu.periods.len() > 1 {
            cpu.periods.iter().filter_map(|period| rate(*period)).collect()
        } else {
            Vec::new()
        };
        Selection {
            cpu: (cpu.intervals > 0).then(|| cpu.cpu_profile()),
            memory: (memory.intervals > 0).then(|| memory.memory_profile(query)),
            refused,
            refused_files,
            unknown_rows,
            rates,
        }
    }
}

/// The sampling rate of a period in nanoseconds, in samples per second.
fn rate(period: i64) -> Option<u32> {
    let period = u64::try_from(period).ok().filter(|&period| period > 0)?;
    u32::try_from((1_000_000_000 + period / 2) / period).ok()
}

impl OfKind {
    fn note(&mut self, interval: &OfInterval) {
        if self.last.as_ref() == Some(interval) {
            return;
        }
        self.last = Some(interval.clone());
        self.intervals += 1;
        let end = interval.time.saturating_add(interval.duration / 1000);
        let [first, last] = self.range.unwrap_or([interval.time, end]);
        self.range = Some([first.min(interval.time), last.max(end)]);
        for (names, name) in [(&mut self.services, &interval.service), (&mut self.hosts, &interval.host)] {
            if names.len() < NAMES {
                names.insert(name.clone());
            }
        }
        if self.pids.len() < NAMES {
            self.pids.extend(interval.pid);
        }
    }

    fn weigh(&mut self, interval: &OfInterval, row: &ReadRow, index: usize, value: u64) {
        self.measured[index] = true;
        if interval.is_cpu {
            self.periods.extend(row.period);
        }
        if value == 0 {
            return;
        }
        let (labels, root) = labels(&row.labels);
        let root = root.map(|name| self.stacks.intern(Frame::Root { name: name.into() }));
        let frames: Vec<FrameId> = root.into_iter().chain(row.frames().rev().map(|frame| self.frame(frame))).collect();
        let stack = self.stacks.labelled(&labels, &frames);
        self.stacks.add(stack, index, value);
        if interval.is_cpu {
            let period = row.period.and_then(|period| u64::try_from(period).ok()).unwrap_or(0);
            self.stacks.add(stack, NANOSECONDS, value.saturating_mul(period));
        } else if let Some(place) = [1, 3].iter().position(|&bytes| bytes == index) {
            self.errors += row.error.filter(|_| place == 0).map_or(0.0, |error| error * error);
            if self.times.len() < TIMES || self.times.contains_key(&interval.time) {
                let sum = &mut self.times.entry(interval.time).or_default()[place];
                *sum = sum.saturating_add(value);
            }
        }
        if self.stacks.bytes() > STACKS {
            self.stacks.fold_rare(STACKS / 2);
            self.frames.clear();
        }
    }

    /// The number of a frame. Most frames are known, and comparing two hashes copies no names.
    fn frame(&mut self, frame: ReadFrame<'_>) -> FrameId {
        let key = [0, 1].map(|index: usize| {
            let ReadFrame { shown, kind, name, file, first_line, line } = frame;
            self.hashers[index].hash_one((shown, kind, name, file, first_line, line))
        });
        if let Some(&id) = self.frames.get(&key) {
            return id;
        }
        let id = self.stacks.intern(frame.frame());
        self.frames.insert(key, id);
        id
    }

    /// The title, which names the processes.
    fn title(&self, what: &str) -> String {
        let one = |names: &BTreeSet<String>, all: &str| match names.iter().next() {
            Some(name) if names.len() == 1 => name.clone(),
            _ => format!("{} {all}", names.len()),
        };
        let when = self.recorded().map_or(String::new(), |recorded| format!(", {recorded}"));
        format!("{what} of {} on {}{when}", one(&self.services, "services"), one(&self.hosts, "hosts"))
    }

    fn recorded(&self) -> Option<Recorded> {
        let [first, last] = self.range?.map(|time| u64::try_from(time).unwrap_or(0));
        let began = UNIX_EPOCH.checked_add(Duration::from_micros(first))?;
        Some(Recorded { began, duration: Duration::from_micros(last.saturating_sub(first)) })
    }

    /// The process id, if all rows are of one process.
    fn pid(&self) -> Option<u32> {
        self.pids.first().copied().filter(|_| self.pids.len() == 1)
    }

    fn cpu_profile(self) -> CpuProfile {
        let mut profile = CpuProfile::new(self.title("CPU profile"));
        profile.pid = self.pid();
        profile.recorded = self.recorded();
        let shortest = self.periods.first().copied();
        profile.rate = shortest.and_then(rate);
        let shortest = shortest.and_then(|period| u64::try_from(period).ok()).filter(|&period| period > 0);
        // Nanoseconds below a whole sample carry over to the next stack, so that the sum is right.
        let mut left = 0;
        for (id, row) in self.stacks.numbered() {
            let samples = match shortest {
                Some(shortest) if self.periods.len() > 1 => {
                    let nanoseconds = row.weights[NANOSECONDS].saturating_add(left);
                    left = nanoseconds % shortest;
                    nanoseconds / shortest
                }
                _ => row.weights[SAMPLES],
            };
            if samples == 0 {
                continue;
            }
            let Some((labels, frames)) = self.stacks.all_frames(id) else { continue };
            let info = SampleInfo {
                labels: labels.clone(),
                weights: [samples, 0],
                ..SampleInfo::new(labels.state.unwrap_or(VmState::Cfunc))
            };
            profile.add_sample(info, frames.iter().filter_map(|id| self.stacks.frame(*id).cloned()));
        }
        self.losses.iter().for_each(|(reason, count)| profile.lose(reason, *count));
        profile
    }

    fn memory_profile(self, query: &Query) -> MemoryProfile {
        let (title, recorded) = (self.title("Memory profile"), self.recorded());
        let steps = self.times.iter().map(|(time, &[allocated, held])| GrowthStep {
            time: UNIX_EPOCH + Duration::from_micros(u64::try_from(*time).unwrap_or(0)),
            allocated,
            held,
        });
        let stored =
            StoredMemory { recorded, steps: steps.collect(), error: (self.errors > 0.0).then(|| self.errors.sqrt()) };
        let mut profile = MemoryProfile::of_stacks(query.weight, title, self.stacks, stored);
        if self.measured[2] || self.measured[3] {
            profile.follow_blocks();
        }
        self.losses.iter().for_each(|(reason, count)| profile.lose(reason, *count));
        profile
    }
}

/// The labels of a row, and the name of its root frame.
fn labels(pairs: &[(String, String)]) -> (Labels, Option<&str>) {
    let get = |wanted| pairs.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.as_str());
    let thread = get(label::THREAD_ID).and_then(|tid| tid.parse().ok());
    let thread = thread.map(|tid| ThreadLabel { tid, name: get(label::THREAD).map(Into::into) });
    let trace = get(label::TRACE).and_then(|trace| trace.parse().ok());
    let fiber_id = get(label::FIBER_ID).and_then(|fiber| fiber.parse().ok());
    let request = RequestKey::ALL.into_iter().filter_map(|key| Some((key, get(key.name())?.into())));
    let (state, request) = (get(label::VM_STATE).and_then(state), RequestLabels::new(request));
    let labels = Labels { thread, state, trace, request, fiber_id };
    (labels, get(label::VM))
}
