//! speedscope's own format: <https://www.speedscope.app/file-format-schema.json>.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::ser::{Serialize, Serializer};
use serde_json::json;

use super::functions::FunctionTable;
use crate::model::labels::ThreadLabel;
use crate::model::{Measure, Profile, Row, Unit};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// Writes a profile for speedscope: all samples together, and each thread's samples if there are several threads. A
/// memory profile is written once for each measure.
///
/// If times are known, the samples are in order; otherwise equal stacks are one sample with their weight.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &dyn Profile, mut out: impl Write) -> io::Result<()> {
    let functions = FunctionTable::new(profile.weighted());
    let shown = profile.shown();
    let mut parts = Vec::new();
    if shown.unit == Unit::Samples {
        let measure = profile.measures().into_iter().find(|measure| measure.unit == Unit::Nanoseconds).unwrap_or(shown);
        let samples = samples(profile);
        let threads = by_thread(&samples);
        if threads.len() > 1 {
            parts.push(Part {
                name: "all threads".to_owned(),
                measure,
                functions: &functions,
                samples: samples.clone(),
            });
        }
        for (thread, samples) in threads {
            let name = match thread {
                Some(ThreadLabel { tid, name: Some(name) }) => format!("{name} (thread {tid})"),
                Some(ThreadLabel { tid, name: None }) => format!("thread {tid}"),
                None => "CPU time".to_owned(),
            };
            parts.push(Part { name, measure, functions: &functions, samples });
        }
    } else {
        let others = profile.measures().into_iter().filter(|measure| *measure != shown);
        for measure in std::iter::once(shown).chain(others) {
            let samples = profile.weighted().rows().filter(|row| measure.value(row.weights) > 0);
            let samples = samples.map(|row| (row, measure.value(row.weights))).collect();
            parts.push(Part {
                name: measure.name.to_owned(),
                measure: Measure { factor: 1, ..measure },
                functions: &functions,
                samples,
            });
        }
    }
    let frames: Vec<_> = functions
        .all()
        .iter()
        .map(|function| {
            let mut frame = json!({ "name": function.name });
            if let Some(file) = function.file {
                frame["file"] = json!(file);
            }
            if let Some(line) = function.first_line {
                frame["line"] = json!(line);
            }
            frame
        })
        .collect();
    let file = File {
        schema: SCHEMA,
        name: profile.title(),
        exporter: concat!("lj-trace ", env!("CARGO_PKG_VERSION")),
        active_profile_index: 0,
        shared: Shared { frames },
        profiles: &parts,
    };
    serde_json::to_writer(&mut out, &file)?;
    out.flush()
}

/// Stacks with their weights.
type Samples<'a> = Vec<(Row<'a>, u64)>;

/// The samples in the order of time, if known; otherwise each stack once.
fn samples(profile: &dyn Profile) -> Samples<'_> {
    let stacks = profile.weighted();
    let points = profile.timeline().and_then(|timeline| timeline.points()).filter(|points| {
        // Some times may be missing; the picture must show all samples.
        points.len() as u64 == profile.total()
    });
    match points {
        Some(points) => {
            let mut points = points.to_vec();
            points.sort_by_key(|point| point.time);
            points.iter().filter_map(|point| Some((stacks.row(point.stack)?, 1))).collect()
        }
        None => stacks.rows().map(|row| (row, profile.shown().value(row.weights))).collect(),
    }
}

/// The samples of each thread, most samples first.
fn by_thread<'a>(samples: &Samples<'a>) -> Vec<(Option<ThreadLabel>, Samples<'a>)> {
    let mut threads: BTreeMap<Option<u32>, (Option<ThreadLabel>, Samples<'a>)> = BTreeMap::new();
    for sample in samples {
        let thread = &sample.0.labels.thread;
        let entry = threads.entry(thread.as_ref().map(|thread| thread.tid));
        entry.or_insert_with(|| (thread.clone(), Samples::new())).1.push(*sample);
    }
    let mut threads: Vec<_> = threads.into_values().collect();
    threads.sort_by_key(|(_, samples)| std::cmp::Reverse(samples.iter().map(|sample| sample.1).sum::<u64>()));
    threads
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'a str,
    name: String,
    exporter: &'a str,
    active_profile_index: usize,
    shared: Shared,
    profiles: &'a [Part<'a>],
}

#[derive(serde::Serialize)]
struct Shared {
    frames: Vec<serde_json::Value>,
}

/// One of speedscope's profiles: a sequence of samples.
struct Part<'a> {
    name: String,
    measure: Measure,
    functions: &'a FunctionTable<'a>,
    samples: Samples<'a>,
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        let unit = match self.measure.unit {
            Unit::Nanoseconds => "nanoseconds",
            Unit::Bytes => "bytes",
            Unit::Samples | Unit::Objects | Unit::Coroutines | Unit::Events => "none",
        };
        let weight = |sample: &(Row<'_>, u64)| sample.1.saturating_mul(self.measure.factor);
        let total = self.samples.iter().map(weight).fold(0, u64::saturating_add);
        let mut map = serializer.serialize_map(Some(7))?;
        map.serialize_entry("type", "sampled")?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("unit", unit)?;
        map.serialize_entry("startValue", &0)?;
        map.serialize_entry("endValue", &total)?;

        map.serialize_entry(
            "samples",
            &Sequence(|| self.samples.iter().map(|sample| Stack { row: sample.0, functions: self.functions })),
        )?;
        map.serialize_entry("weights", &Sequence(|| self.samples.iter().map(weight)))?;
        map.end()
    }
}

/// A sequence that is serialized item by item and never held as a whole.
struct Sequence<F>(F);

impl<I: Iterator<Item: Serialize>, F: Fn() -> I> Serialize for Sequence<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

/// The numbers of a stack's functions, root first.
struct Stack<'a> {
    row: Row<'a>,
    functions: &'a FunctionTable<'a>,
}

impl Serialize for Stack<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.row.frames.iter().map(|&frame| self.functions.of(frame)))
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;

    use super::*;
    use crate::model::Labels;
    use crate::profile::SampleInfo;
    use crate::{CpuProfile, Frame};

    fn written(profile: &dyn Profile) -> serde_json::Value {
        let mut out = Vec::new();
        write(profile, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    fn lua(first_line: u32, line: u32) -> Frame {
        Frame::lua(Some("f".into()), b"@a.lua", first_line, Some(line))
    }

    #[test]
    fn samples_of_threads_are_in_the_order_of_time() {
        let mut profile = CpuProfile::new("test");
        profile.rate = Some(100);
        profile.keep_times();
        let mut add = |tid, time, line| {
            let thread = Some(ThreadLabel { tid, name: None });
            let labels = Labels { thread, ..Labels::default() };
            let info = SampleInfo { labels, time: Some(time), ..SampleInfo::new(VmState::Lfunc) };
            profile.add_sample(info, [lua(1, 1), lua(line, line + 1)]);
        };
        add(7, 30, 5);
        add(7, 10, 9);
        add(8, 20, 5);
        let file = written(&profile);
        let names: Vec<_> = file["profiles"].as_array().unwrap().iter().map(|part| part["name"].clone()).collect();
        assert_eq!(names, ["all threads", "thread 7", "thread 8"]);
        assert_eq!(file["profiles"][0]["endValue"], 30_000_000);
        assert_eq!(file["profiles"][0]["unit"], "nanoseconds");
        // The sample at line 9 came first.
        let frame = |index: usize| {
            let index = file["profiles"][1]["samples"][index][1].as_u64().unwrap();
            file["shared"]["frames"][index as usize].clone()
        };
        assert_eq!(frame(0), json!({ "name": "f@a.lua:9", "file": "a.lua", "line": 9 }));
        assert_eq!(frame(1)["line"], 5);
    }

    #[test]
    fn without_times_equal_stacks_are_one_sample() {
        let mut profile = CpuProfile::new("test");
        profile.add(VmState::Lfunc, [lua(1, 2)]);
        profile.add(VmState::Lfunc, [lua(1, 2)]);
        let part = &written(&profile)["profiles"][0];
        assert_eq!((&part["weights"], &part["unit"]), (&json!([2]), &json!("none")));
    }
}
