//! [OTLP profiles](https://opentelemetry.io/docs/specs/otlp/) over HTTP, as of `opentelemetry-proto` v1.11.0.

mod dictionary;
pub(crate) mod message;
mod split;

use std::collections::HashMap;

use lj_trace_profile::estimated::ALLOC_SPACE_ERROR;
use lj_trace_profile::frame::FrameKind;
use lj_trace_profile::model::{FrameId, Measure, NativeModules, RequestLabels, Unit};
use lj_trace_profile::{Frame, Interval, Resource};
use prost::Message as _;

use self::dictionary::DictionaryBuilder;
use self::message::{
    AnyValue, ExportRequest, KeyValue, Line, Location, Mapping, Profile, ResourceProfiles, Sample, Scope,
    ScopeProfiles, ValueType,
};
use crate::encode::{EncodeOptions, Encoder, gzip};
use crate::request::{TimeRange, nanoseconds};
use crate::stacks::{BoundedStack, VM_STATE, amount, bounded, resource_of, signed};
use crate::{Amount, Request, RequestInfo};

pub(crate) use self::split::split;

/// The path for profiles, below the server's URL.
pub const PATH: &str = "/v1development/profiles";

/// The content type of the body.
pub const CONTENT_TYPE: &str = "application/x-protobuf";

/// The newest release of `opentelemetry-proto` with these field numbers; v1.10.0 introduced them.
pub const PROTO_VERSION: &str = "1.11.0";

/// Turns profiles into OTLP requests.
pub struct OtlpEncoder {
    options: EncodeOptions,
    open: Open,
    full: Vec<Request>,
}

/// The request that is being built.
#[derive(Default)]
struct Open {
    dictionary: DictionaryBuilder,
    resources: Vec<ResourceProfiles>,
    amount: Amount,
    profiles: u64,
    time: TimeRange,
    bytes: usize,
}

impl OtlpEncoder {
    /// An empty encoder.
    pub fn new(options: EncodeOptions) -> Self {
        Self { options, open: Open::default(), full: Vec::new() }
    }

    fn close(&mut self) {
        let Open { dictionary, resources, amount, profiles, time, .. } = std::mem::take(&mut self.open);
        if resources.is_empty() {
            return;
        }
        let message = ExportRequest { resource_profiles: resources, dictionary: Some(dictionary.finish()) };
        let limit = self.options.max_bytes;
        split::fitting(message, amount, profiles, time.get(), limit, &mut self.full);
    }
}

impl Encoder for OtlpEncoder {
    fn add(&mut self, interval: &Interval<'_>) {
        let stacks = bounded(interval.profile, self.options.kernel_frames);
        let mut measures = interval.profile.measures();
        // Errors cannot be added up, and servers add up every measure that they get.
        measures.retain(|measure| measure.name != ALLOC_SPACE_ERROR.name);
        let amount = amount(&measures, &stacks);
        let mut profiles = Profiles { dictionary: &mut self.open.dictionary, interval, options: &self.options };
        let profiles = profiles.of(&measures, &stacks);
        if profiles.is_empty() {
            return;
        }
        let open = &mut self.open;
        open.bytes += profiles.iter().map(prost::Message::encoded_len).sum::<usize>() + 100;
        open.profiles += profiles.len() as u64;
        open.amount += amount;
        open.time.add(interval.began, interval.ended);
        let resource = message::Resource { attributes: attributes(&resource_of(interval), &self.options) };
        open.bytes += resource.encoded_len();
        let same = open.resources.iter_mut().find(|known| known.resource.as_ref() == Some(&resource));
        match same.and_then(|known| known.scope_profiles.first_mut()) {
            Some(scope) => scope.profiles.extend(profiles),
            None => {
                let scope = Scope { name: "lj-trace".into(), version: env!("CARGO_PKG_VERSION").into() };
                let scope_profiles = vec![ScopeProfiles { scope: Some(scope), profiles }];
                open.resources.push(ResourceProfiles { resource: Some(resource), scope_profiles });
            }
        }
        if self.open.bytes + self.open.dictionary.bytes() > self.options.max_bytes {
            self.close();
        }
    }

    fn take(&mut self) -> Vec<Request> {
        self.close();
        std::mem::take(&mut self.full)
    }
}

/// The attributes of a process; numbers are sent as numbers.
fn attributes(resource: &Resource, options: &EncodeOptions) -> Vec<KeyValue> {
    let value = |name: &str, text: &str| match text.parse() {
        Ok(number) if name == "process.pid" => AnyValue { string_value: None, int_value: Some(number) },
        _ => AnyValue { string_value: Some(text.to_owned()), int_value: None },
    };
    let key_value = |(name, text): (&str, &str)| KeyValue { key: name.to_owned(), value: Some(value(name, text)) };
    let mut attributes: Vec<KeyValue> =
        resource.attributes().filter(|(name, _)| options.has_attribute(name)).map(key_value).collect();
    if resource.get(Resource::SERVICE_NAME).is_none() {
        attributes.push(key_value((Resource::SERVICE_NAME, resource.service())));
    }
    attributes
}

/// The request for a message.
fn request(message: &ExportRequest, amount: Amount, profiles: u64, time: [u64; 2]) -> Request {
    Request {
        about: RequestInfo {
            path: PATH.into(),
            content_type: CONTENT_TYPE.into(),
            is_gzipped: true,
            amount,
            service: service(message).unwrap_or_default().to_owned(),
            profiles,
            time,
        },
        body: gzip(&message.encode_to_vec()),
    }
}

fn service(message: &ExportRequest) -> Option<&str> {
    let attributes = &message.resource_profiles.first()?.resource.as_ref()?.attributes;
    let service = attributes.iter().find(|attribute| attribute.key == Resource::SERVICE_NAME)?;
    service.value.as_ref()?.string_value.as_deref()
}

/// Builds the profiles of an interval.
struct Profiles<'a> {
    dictionary: &'a mut DictionaryBuilder,
    interval: &'a Interval<'a>,
    options: &'a EncodeOptions,
}

impl Profiles<'_> {
    /// One profile for each measure, over the same stacks.
    fn of(&mut self, measures: &[Measure], stacks: &[BoundedStack]) -> Vec<Profile> {
        let mut profiles = Vec::new();
        let mut samples: Vec<Option<Sample>> = stacks.iter().map(|_| None).collect();
        let mut locations = HashMap::new();
        let cpu = measures.iter().find(|measure| measure.unit == Unit::Nanoseconds);
        // The time follows from the samples and their period.
        for measure in measures.iter().filter(|measure| measure.unit != Unit::Nanoseconds) {
            let mut of_measure = Vec::new();
            for (stack, sample) in stacks.iter().zip(&mut samples) {
                let value = measure.value(&stack.weights);
                if value == 0 {
                    continue;
                }
                // Stacks without weight must not be in the tables either.
                let sample = sample.get_or_insert_with(|| self.sample(stack, &mut locations));
                of_measure.push(Sample { values: vec![signed(value)], ..sample.clone() });
            }
            if !of_measure.is_empty() {
                profiles.push(self.profile(measure, cpu, of_measure));
            }
        }
        profiles
    }

    fn profile(&mut self, measure: &Measure, cpu: Option<&Measure>, samples: Vec<Sample>) -> Profile {
        let unit = if measure.unit == Unit::Bytes { "bytes" } else { "count" };
        let sample_type = Some(self.value_type(measure.name, unit));
        // Pyroscope takes the name of every profile but CPU profiles from the period type.
        let (period_type, period) = match measure.unit {
            Unit::Samples => (self.value_type("cpu", "nanoseconds"), cpu.map_or(0, |cpu| signed(cpu.factor))),
            _ => (self.value_type("memory", "bytes"), 1),
        };
        let Interval { began, ended, .. } = *self.interval;
        let duration = ended.duration_since(began).unwrap_or_default().as_nanos();
        Profile {
            sample_type,
            samples,
            time_unix_nano: nanoseconds(began),
            duration_nano: u64::try_from(duration).unwrap_or(u64::MAX),
            period_type: Some(period_type),
            period,
            profile_id: fastrand::u128(1..).to_be_bytes().to_vec(),
        }
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { type_strindex: self.dictionary.string(name), unit_strindex: self.dictionary.string(unit) }
    }

    fn sample(&mut self, stack: &BoundedStack, locations: &mut HashMap<FrameId, i32>) -> Sample {
        let of_stack = stack.frames.iter();
        let of_stack = of_stack.map(|id| *locations.entry(*id).or_insert_with(|| self.location(*id)));
        let of_stack: Vec<i32> = of_stack.collect();
        let stack_index = self.dictionary.stack(of_stack);
        let state = stack.state.iter().map(|state| (VM_STATE, state.as_str()));
        let attributes = state.chain(stack.request.iter().flat_map(RequestLabels::iter));
        let attributes = attributes.map(|(key, value)| {
            let value = AnyValue { string_value: Some(value.to_owned()), int_value: None };
            self.dictionary.attribute(key, value)
        });
        Sample { stack_index, attribute_indices: attributes.collect(), ..Sample::default() }
    }

    fn location(&mut self, id: FrameId) -> i32 {
        let Some(frame) = self.interval.profile.weighted().frame(id) else { return 0 };
        let file = frame.file().unwrap_or_default();
        let first_line = frame.first_line().unwrap_or(0);
        let function_index = self.dictionary.function(&frame.to_string(), file, first_line.into());
        let line = frame.current_line().unwrap_or(first_line).into();
        let frame_type = self.options.frame_types.then(|| frame_type(frame)).flatten();
        let attribute = frame_type.map(|name| {
            let value = AnyValue { string_value: Some(name.into()), int_value: None };
            self.dictionary.attribute("profile.frame.type", value)
        });
        let mapping_index = match (frame, self.interval.profile.modules()) {
            (Frame::C { module: Some(module), .. }, Some(modules)) => self.mapping(modules, module),
            _ => 0,
        };
        self.dictionary.location(Location {
            mapping_index,
            address: 0,
            lines: vec![Line { function_index, line }],
            attribute_indices: attribute.into_iter().collect(),
        })
    }

    fn mapping(&mut self, modules: &NativeModules, name: &str) -> i32 {
        let Some(module) = modules.get(name) else { return 0 };
        let build_id = module.build_id.as_ref().map(|id| {
            let value = AnyValue { string_value: Some(id.clone()), int_value: None };
            self.dictionary.attribute("process.executable.build_id.gnu", value)
        });
        let filename_strindex = self.dictionary.string(&module.path);
        self.dictionary.mapping(Mapping {
            memory_start: module.start,
            memory_limit: module.end,
            file_offset: module.offset,
            filename_strindex,
            attribute_indices: build_id.into_iter().collect(),
        })
    }
}

/// The kind of code of a frame, as OpenTelemetry's profilers name it.
fn frame_type(frame: &Frame) -> Option<&'static str> {
    match frame.kind() {
        FrameKind::Lua | FrameKind::Jit | FrameKind::Gc | FrameKind::JitCompiler | FrameKind::Vm => Some("luajit"),
        FrameKind::C => Some("native"),
        FrameKind::Kernel => Some("kernel"),
        FrameKind::Root | FrameKind::Unresolved => None,
    }
}
