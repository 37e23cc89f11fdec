//! pprof's format: a gzipped protocol buffer, for `go tool pprof` and the services that collect profiles.

mod message;
mod push;

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use lj_trace_text::untrusted::Untrusted;
use prost::Message as _;
pub use push::PushedProfile;

use self::message::{Function, Label, Line, Location, Mapping, Sample, ValueType};
use super::functions::FunctionTable;
use crate::Frame;
use crate::estimated::ALLOC_SPACE_ERROR;
use crate::model::{FrameId, Measure, NativeModule, Profile, Recorded, RequestLabels, Row, Unit};

/// Writes a profile for pprof's tools: every measure, and labels for the VM, the thread, the VM's state, the trace
/// and the request.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &dyn Profile, recorded: Option<Recorded>, out: impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&Builder::default().message(profile, recorded).encode_to_vec())?;
    gzip.finish()?.flush()
}

/// Which parts of a profile are written.
#[derive(Clone, Copy)]
struct Selection {
    /// Whether to write only the label that has few values: the VM's state.
    is_bounded: bool,
    /// Whether to write the kernel's frames.
    kernel_frames: bool,
}

impl Default for Selection {
    fn default() -> Self {
        Self { is_bounded: false, kernel_frames: true }
    }
}

#[derive(Default)]
struct Builder {
    selection: Selection,
    strings: Vec<String>,
    indices: HashMap<String, i64>,
}

impl Builder {
    fn message(mut self, profile: &dyn Profile, recorded: Option<Recorded>) -> message::Profile {
        // The format requires the empty string first.
        self.string("");
        let stacks = profile.weighted();
        let mut measures = profile.measures();
        // Errors cannot be added up, and servers add up every measure that they get.
        measures.retain(|measure| !self.selection.is_bounded || measure.name != ALLOC_SPACE_ERROR.name);
        let mut modules: Vec<_> = profile.modules().into_iter().flatten().collect();
        // pprof's tools take the first mapping for the program, and programs are mapped below libraries.
        modules.sort_by_key(|(_, module)| module.start);
        let mapping_ids = modules.iter().map(|(name, _)| Arc::clone(name)).zip(1..).collect();
        let functions = FunctionTable::new(stacks);
        let shown = profile.shown();
        let cpu = measures.iter().find(|measure| measure.unit == Unit::Nanoseconds);
        // For memory each byte counts, as in the period of Go's heap profiles.
        let period = match cpu {
            Some(cpu) => Some((self.value_type(cpu), signed(cpu.factor))),
            None if measures.iter().any(|measure| measure.unit == Unit::Bytes) => {
                Some((ValueType { r#type: self.string("space"), unit: self.string("bytes") }, 1))
            }
            // The rate is unknown. Parca panics if a profile has no period type.
            None if self.selection.is_bounded => {
                Some((ValueType { r#type: self.string("cpu"), unit: self.string("nanoseconds") }, 0))
            }
            None => None,
        };
        let [began, duration] = recorded.map_or([0; 2], Recorded::nanoseconds);
        message::Profile {
            sample_type: measures.iter().map(|measure| self.value_type(measure)).collect(),
            sample: stacks.rows().filter_map(|row| self.sample(profile, &measures, &row)).collect(),
            mapping: self.mappings(&modules),
            location: self.locations(profile, &functions, &mapping_ids),
            function: self.functions(&functions),
            time_nanos: signed(began),
            duration_nanos: signed(duration),
            period_type: period.map(|period| period.0),
            period: period.map_or(0, |period| period.1),
            comment: vec![self.string(&profile.title())],
            // For CPU time, the tools show the last measure by default.
            default_sample_type: if cpu.is_some() { 0 } else { self.string(shown.name) },
            string_table: self.strings,
        }
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.indices.get(text) {
            return index;
        }
        let index = self.strings.len() as i64;
        self.strings.push(Untrusted(text).to_string());
        self.indices.insert(text.to_owned(), index);
        index
    }

    fn value_type(&mut self, measure: &Measure) -> ValueType {
        let unit = match measure.unit {
            Unit::Nanoseconds => "nanoseconds",
            Unit::Bytes => "bytes",
            Unit::Samples | Unit::Objects | Unit::Coroutines | Unit::Events => "count",
        };
        ValueType { r#type: self.string(measure.name), unit: self.string(unit) }
    }

    fn sample(&mut self, profile: &dyn Profile, measures: &[Measure], row: &Row<'_>) -> Option<Sample> {
        let value: Vec<i64> = measures.iter().map(|measure| signed(measure.value(row.weights))).collect();
        if value.iter().all(|&value| value == 0) {
            return None;
        }
        let stacks = profile.weighted();
        let Selection { is_bounded, kernel_frames } = self.selection;
        let is_wanted = |id: &&FrameId| kernel_frames || !matches!(stacks.frame(**id), Some(Frame::Kernel { .. }));
        let location_id = row.frames.iter().rev().filter(is_wanted).map(|frame| frame.index() as u64 + 1).collect();
        let mut label = Vec::new();
        let mut text = |builder: &mut Self, key, value: &str| {
            label.push(Label { key: builder.string(key), str: builder.string(value), num: 0 });
        };
        if let Some(root) = row.root.and_then(|root| stacks.frame(root)).filter(|_| !is_bounded) {
            text(self, "vm", &root.to_string());
        }
        if let Some(state) = row.labels.state {
            text(self, "vm_state", &state.to_string());
        }
        if is_bounded {
            return Some(Sample { location_id, value, label });
        }
        for (key, value) in row.labels.request.iter().flat_map(RequestLabels::iter) {
            text(self, key, value);
        }
        if let Some(thread) = &row.labels.thread {
            if let Some(name) = &thread.name {
                text(self, "thread", name);
            }
            label.push(Label { key: self.string("thread_id"), str: 0, num: thread.tid.into() });
        }
        if let Some(trace) = row.labels.trace {
            label.push(Label { key: self.string("trace"), str: 0, num: signed(trace) });
        }
        if let Some(fiber) = row.labels.fiber_id {
            label.push(Label { key: self.string("fiber_id"), str: 0, num: signed(fiber) });
        }
        Some(Sample { location_id, value, label })
    }

    fn mappings(&mut self, modules: &[(&Arc<str>, &NativeModule)]) -> Vec<Mapping> {
        let mapping = |(id, &(_, module)): (u64, &(&Arc<str>, &NativeModule))| Mapping {
            id,
            memory_start: module.start,
            memory_limit: module.end,
            file_offset: module.offset,
            filename: self.string(&module.path),
            build_id: self.string(module.build_id.as_deref().unwrap_or_default()),
            // Everything is symbolized already.
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        };
        (1..).zip(modules).map(mapping).collect()
    }

    /// A location for each frame.
    fn locations(
        &mut self,
        profile: &dyn Profile,
        functions: &FunctionTable<'_>,
        mapping_ids: &HashMap<Arc<str>, u64>,
    ) -> Vec<Location> {
        let stacks = profile.weighted();
        let location = |(id, frame): (_, &Frame)| {
            let mapping_id = match frame {
                Frame::C { module: Some(module), .. } => mapping_ids.get(module).copied().unwrap_or(0),
                _ => 0,
            };
            let line = frame.current_line().or_else(|| frame.first_line()).unwrap_or(0);
            let line = Line { function_id: u64::from(functions.of(id)) + 1, line: line.into() };
            Location { id: id.index() as u64 + 1, mapping_id, address: 0, line: vec![line] }
        };
        stacks.frame_ids().zip(stacks.frames()).map(location).collect()
    }

    fn functions(&mut self, functions: &FunctionTable<'_>) -> Vec<Function> {
        let function = |(id, function): (u64, &super::functions::NamedFunction<'_>)| Function {
            id,
            name: self.string(&function.name),
            filename: self.string(function.file.unwrap_or_default()),
            start_line: function.first_line.unwrap_or(0).into(),
        };
        (1..).zip(functions.all()).map(function).collect()
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use lj_trace_streams::VmState;
    use lj_trace_streams::memprof::{Event, Source};

    use super::*;
    use crate::model::labels::ThreadLabel;
    use crate::model::{Labels, RequestKey};
    use crate::profile::SampleInfo;
    use crate::{CpuProfile, MemoryProfile, Weight};

    fn written(profile: &dyn Profile) -> message::Profile {
        let mut out = Vec::new();
        write(profile, Recorded::of_nanoseconds([17, 4]), &mut out).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(out.as_slice()).read_to_end(&mut bytes).unwrap();
        message::Profile::decode(bytes.as_slice()).unwrap()
    }

    #[test]
    fn a_sample_has_its_stack_values_and_labels() {
        let mut profile = CpuProfile::new("test");
        profile.rate = Some(100);
        let module =
            NativeModule { path: "/lib/x.so".into(), build_id: Some("ab12".into()), ..NativeModule::default() };
        profile.modules.insert("x.so".into(), module);
        let thread = Some(ThreadLabel { tid: 7, name: Some("worker".into()) });
        let request = RequestLabels::new([(RequestKey::Location, "/cart".into())]);
        let labels = Labels { thread, trace: Some(3), request, fiber_id: Some(104), ..Labels::default() };
        let info = SampleInfo { labels, ..SampleInfo::new(VmState::Cfunc) };
        let native = Frame::C { symbol: "memcpy".into(), module: Some("x.so".into()) };
        profile.add_sample(info, [Frame::vm(0), Frame::lua(Some("f".into()), b"@a.lua", 3, Some(5)), native]);
        let file = written(&profile);
        let text = |index: i64| file.string_table[index as usize].as_str();
        assert_eq!(text(0), "");
        let types: Vec<_> = file.sample_type.iter().map(|t| (text(t.r#type), text(t.unit))).collect();
        assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
        assert_eq!((file.time_nanos, file.duration_nanos, file.period), (17, 4, 10_000_000));
        let sample = &file.sample[0];
        assert_eq!(sample.value, [1, 10_000_000]);
        let frame = |id: u64| {
            let location = &file.location[id as usize - 1];
            assert_eq!(location.id, id);
            let function = &file.function[location.line[0].function_id as usize - 1];
            (text(function.name), text(function.filename), location.line[0].line, location.mapping_id)
        };
        let frames: Vec<_> = sample.location_id.iter().map(|&id| frame(id)).collect();
        assert_eq!(frames, [("memcpy", "x.so", 0, 1), ("f@a.lua:3", "a.lua", 5, 0)]);
        assert_eq!((text(file.mapping[0].filename), text(file.mapping[0].build_id)), ("/lib/x.so", "ab12"));
        let labels: Vec<_> = sample.label.iter().map(|label| (text(label.key), text(label.str), label.num)).collect();
        let expected = [
            ("vm", "VM 1", 0),
            ("vm_state", "CFUNC", 0),
            ("location", "/cart", 0),
            ("thread", "worker", 0),
            ("thread_id", "", 7),
            ("trace", "", 3),
            ("fiber_id", "", 104),
        ];
        assert_eq!(labels, expected);
    }

    #[test]
    fn memory_has_four_measures() {
        let mut profile = MemoryProfile::new(Weight::Held, "");
        let source = Source::Internal;
        profile.add(0, &Event::Alloc { source, addr: 0x10, size: 40 });
        profile.add(0, &Event::Alloc { source, addr: 0x20, size: 2 });
        profile.add(0, &Event::Free { source, addr: 0x20, size: 2 });
        let file = written(&profile);
        let names: Vec<_> = file.sample_type.iter().map(|t| file.string_table[t.r#type as usize].as_str()).collect();
        assert_eq!(names, ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]);
        assert_eq!(file.sample[0].value, [2, 42, 1, 40]);
        let period = file.period_type.unwrap();
        let [kind, unit] = [period.r#type, period.unit].map(|index| file.string_table[index as usize].as_str());
        assert_eq!((kind, unit, file.period), ("space", "bytes", 1));
        assert_eq!(file.string_table[file.default_sample_type as usize], "inuse_space");
    }
}
