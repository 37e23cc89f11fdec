//! The rows of an incomplete file in memory. Repeated values are stored once, so that a row takes about 40 bytes.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use lj_trace_profile::model::{Labels, RequestLabels, Unit};
use lj_trace_profile::{Frame, Interval, Resource};

use super::counts::StoredAmount;
use super::measures::measures;
use super::texts::Texts;
use crate::frames::FrameFields;
use crate::schema::{CPU, LOST, MEMORY, label};

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// All rows of a file.
#[derive(Debug, Default)]
pub struct Rows {
    pub texts: Texts,
    frames: Vec<FrameRow>,
    frame_numbers: Map<Frame, u32>,
    /// The stacks, leaf first.
    stacks: Vec<Box<[u32]>>,
    stack_numbers: Map<Box<[u32]>, u32>,
    /// The maps of labels and of attributes, as keys and values.
    maps: Vec<Box<[(u32, u32)]>>,
    map_numbers: Map<Box<[(u32, u32)]>, u32>,
    intervals: Vec<IntervalRow>,
    rows: Vec<StoredRow>,
    amount: StoredAmount,
    bytes: usize,
}

/// A frame. Its texts are numbers.
#[derive(Clone, Copy, Debug)]
pub struct FrameRow {
    pub shown: u32,
    pub kind: u32,
    pub name: Option<u32>,
    pub file: Option<u32>,
    pub first_line: Option<u32>,
    pub line: Option<u32>,
}

/// The values that all rows of an interval share.
#[derive(Clone, Copy, Debug)]
pub struct IntervalRow {
    pub time: i64,
    pub duration: i64,
    pub host: u32,
    pub service: u32,
    pub pid: Option<u32>,
    pub kind: u32,
    pub period: Option<i64>,
    pub attributes: u32,
}

/// The values of a single row.
#[derive(Clone, Copy, Debug)]
pub struct StoredRow {
    pub interval: u32,
    pub stack: u32,
    pub labels: u32,
    pub sample_type: u32,
    pub unit: u32,
    pub reason: Option<u32>,
    pub value: i64,
    pub error: Option<f64>,
}

const FRAME: usize = 2 * size_of::<Frame>() + size_of::<FrameRow>() + 40;
const LIST: usize = 100;

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Rows {
    /// Adds an interval; returns its amount.
    pub fn add(&mut self, interval: &Interval<'_>, host: &str) -> StoredAmount {
        let Interval { kind, profile, .. } = *interval;
        let number = self.interval(interval, host);
        let mut amount = StoredAmount { intervals: 1, ..StoredAmount::default() };
        for measure in measures(kind, profile) {
            let [sample_type, unit] = [measure.name, measure.unit.name()].map(|text| self.texts.intern(text));
            let errors = profile.errors(&measure);
            let mut is_empty = true;
            for (id, row) in profile.weighted().numbered() {
                let value = row.weights[measure.index];
                if value == 0 {
                    continue;
                }
                is_empty = false;
                // The stack begins with the root frame, unless the root is the only frame.
                let shown =
                    if row.frames.first() == row.root.as_ref() { row.frames.get(1..) } else { Some(row.frames) };
                let root = row.root.and_then(|root| profile.weighted().frame(root));
                let frames = shown.unwrap_or_default().iter().rev().filter_map(|id| profile.weighted().frame(*id));
                let frames: Vec<u32> = frames.map(|frame| self.frame(frame)).collect();
                let stack = self.stack(frames);
                let labels = self.labels(row.labels, root);
                let error = errors.get(&id).copied();
                self.push(StoredRow {
                    interval: number,
                    stack,
                    labels,
                    sample_type,
                    unit,
                    reason: None,
                    value: signed(value),
                    error,
                });
                amount.rows += 1;
                if measure.unit == Unit::Samples {
                    amount.samples = amount.samples.saturating_add(value);
                }
            }
            if is_empty {
                // The measure was taken, and its value is zero.
                self.push_plain(number, sample_type, unit, None, 0);
                amount.rows += 1;
            }
        }
        let unit = if kind.is_time() { Unit::Samples } else { Unit::Events };
        for (reason, &count) in profile.losses() {
            let [lost, unit, reason] = [LOST, unit.name(), reason].map(|text| self.texts.intern(text));
            self.push_plain(number, lost, unit, Some(reason), signed(count));
            amount.rows += 1;
        }
        self.amount.add(amount);
        amount
    }

    fn interval(&mut self, interval: &Interval<'_>, host: &str) -> u32 {
        let nobody = Resource::default();
        let resource = interval.resource.unwrap_or(&nobody);
        let since = |time: std::time::SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let duration = interval.ended.duration_since(interval.began).unwrap_or_default();
        let attributes: Vec<_> =
            resource.attributes().map(|(name, value)| (self.texts.intern(name), self.texts.intern(value))).collect();
        let attributes = self.map(attributes);
        let time = interval.profile.measures().into_iter().find(|measure| measure.unit == Unit::Nanoseconds);
        let kind = if interval.kind.is_time() { CPU } else { MEMORY };
        let pid = resource.get("process.pid").and_then(|pid| pid.parse().ok()).or_else(|| interval.profile.process());
        let row = IntervalRow {
            time: i64::try_from(since(interval.began).as_micros()).unwrap_or(i64::MAX),
            duration: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX),
            host: self.texts.intern(resource.get("host.name").unwrap_or(host)),
            service: self.texts.intern(resource.service()),
            pid,
            kind: self.texts.intern(kind),
            period: time.map(|time| signed(time.factor)),
            attributes,
        };
        self.bytes += size_of::<IntervalRow>();
        self.intervals.push(row);
        u32::try_from(self.intervals.len() - 1).unwrap_or(u32::MAX)
    }

    fn push_plain(&mut self, interval: u32, sample_type: u32, unit: u32, reason: Option<u32>, value: i64) {
        let (stack, labels) = (self.stack(Vec::new()), self.map(Vec::new()));
        self.push(StoredRow { interval, stack, labels, sample_type, unit, reason, value, error: None });
    }

    fn push(&mut self, row: StoredRow) {
        self.bytes += size_of::<StoredRow>();
        self.rows.push(row);
    }

    fn frame(&mut self, frame: &Frame) -> u32 {
        if let Some(&number) = self.frame_numbers.get(frame) {
            return number;
        }
        let shown = self.texts.intern(&frame.to_string());
        let fields = FrameFields::of(frame);
        let row = FrameRow {
            shown,
            kind: self.texts.intern(fields.kind),
            name: fields.name.map(|name| self.texts.intern(&name)),
            file: fields.file.map(|file| self.texts.intern(file)),
            first_line: fields.first_line,
            line: fields.line,
        };
        let number = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        self.frames.push(row);
        self.frame_numbers.insert(frame.clone(), number);
        self.bytes += FRAME;
        number
    }

    fn stack(&mut self, frames: Vec<u32>) -> u32 {
        if let Some(&number) = self.stack_numbers.get(frames.as_slice()) {
            return number;
        }
        let number = u32::try_from(self.stacks.len()).unwrap_or(u32::MAX);
        self.bytes += LIST + 2 * size_of_val(frames.as_slice());
        self.stacks.push(frames.as_slice().into());
        self.stack_numbers.insert(frames.into(), number);
        number
    }

    fn labels(&mut self, labels: &Labels, root: Option<&Frame>) -> u32 {
        let mut pairs = Vec::new();
        let mut pair = |key: &str, value: &str| pairs.push((self.texts.intern(key), self.texts.intern(value)));
        if let Some(Frame::Root { name }) = root {
            pair(label::VM, name);
        }
        if let Some(state) = labels.state {
            pair(label::VM_STATE, &state.to_string());
        }
        if let Some(thread) = &labels.thread {
            pair(label::THREAD_ID, &thread.tid.to_string());
            if let Some(name) = &thread.name {
                pair(label::THREAD, name);
            }
        }
        if let Some(trace) = labels.trace {
            pair(label::TRACE, &trace.to_string());
        }
        if let Some(fiber) = labels.fiber_id {
            pair(label::FIBER_ID, &fiber.to_string());
        }
        for (key, value) in labels.request.iter().flat_map(RequestLabels::iter) {
            pair(key, value);
        }
        self.map(pairs)
    }

    fn map(&mut self, pairs: Vec<(u32, u32)>) -> u32 {
        if let Some(&number) = self.map_numbers.get(pairs.as_slice()) {
            return number;
        }
        let number = u32::try_from(self.maps.len()).unwrap_or(u32::MAX);
        self.bytes += LIST + 2 * size_of_val(pairs.as_slice());
        self.maps.push(pairs.as_slice().into());
        self.map_numbers.insert(pairs.into(), number);
        number
    }

    /// All rows, in the order in which they were added.
    pub fn all(&self) -> &[StoredRow] {
        &self.rows
    }

    /// The interval of a row.
    pub fn interval_of(&self, row: &StoredRow) -> &IntervalRow {
        // Only this table gives out the numbers.
        &self.intervals[row.interval as usize]
    }

    /// The frames of a row, leaf first.
    pub fn frames_of(&self, row: &StoredRow) -> impl Iterator<Item = &FrameRow> {
        self.stacks[row.stack as usize].iter().map(|frame| &self.frames[*frame as usize])
    }

    /// The keys and values of a map, by its number.
    pub fn pairs(&self, map: u32) -> &[(u32, u32)] {
        &self.maps[map as usize]
    }

    /// The amount of data.
    pub fn amount(&self) -> StoredAmount {
        self.amount
    }

    /// The approximate bytes of memory that everything takes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.texts.bytes()
    }
}
