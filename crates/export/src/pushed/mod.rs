//! Profiles in pprof's format with the labels of a series, for the push APIs of Pyroscope and Parca.

mod message;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use lj_trace_profile::formats::pprof::PushedProfile;
use lj_trace_profile::model::Recorded;
use lj_trace_profile::{Interval, ProfileKind, Resource};
use prost::Message as _;

use self::message::{Label, PushRequest, RawSample, Series, json, series_of_json};
use crate::encode::{EncodeOptions, Encoder, gunzip, gzip};
use crate::request::TimeRange;
use crate::stacks::{VM_STATE, resource_of};
use crate::{Amount, Request, RequestInfo};

/// The path of Pyroscope's push API.
pub const PYROSCOPE_PATH: &str = "/push.v1.PusherService/Push";

/// The path of Parca's push API.
pub const PARCA_PATH: &str = "/api/profiles/writeraw";

/// The attributes of a process that become labels if the configuration chooses no others: they have few values, and
/// outlive a process.
pub const DEFAULT_LABELS: [&str; 12] = [
    "service.namespace",
    "service.version",
    "deployment.environment.name",
    "host.name",
    "container.name",
    "k8s.cluster.name",
    "k8s.namespace.name",
    "k8s.deployment.name",
    "k8s.pod.name",
    "k8s.container.name",
    "luajit.fork",
    "luajit.version",
];

/// Pyroscope refuses more than 30 labels and longer values than this. The samples use one of these labels.
const MAX_LABELS: usize = 29;
const MAX_VALUE: usize = 2048;

/// Pyroscope refuses profiles with more samples.
const MAX_SAMPLES: usize = 16_000;

/// Pyroscope's older storage, with replicas, takes two profiles of a series for one if they begin within the same tick.
const TICK: Duration = Duration::from_millis(1);

/// How a body encodes series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A protobuf message.
    Pyroscope,
    /// JSON.
    Parca,
}

/// Turns profiles into push requests.
pub struct PushEncoder {
    options: EncodeOptions,
    form: Form,
    max_samples: usize,
    series: Vec<(Series, Amount)>,
    bytes: usize,
    time: TimeRange,
    full: Vec<Request>,
    /// When the last profile of each series begins in this round.
    last: HashMap<Vec<Label>, SystemTime>,
}

impl PushEncoder {
    /// For Pyroscope.
    pub fn pyroscope(options: EncodeOptions) -> Self {
        Self::new(options, Form::Pyroscope)
    }

    /// For Parca.
    pub fn parca(options: EncodeOptions) -> Self {
        Self::new(options, Form::Parca)
    }

    fn new(options: EncodeOptions, form: Form) -> Self {
        Self {
            options,
            form,
            max_samples: MAX_SAMPLES,
            series: Vec::new(),
            bytes: 0,
            time: TimeRange::default(),
            full: Vec::new(),
            last: HashMap::new(),
        }
    }

    /// When a profile begins: a tick after the last profile of its series, since several processes may have the same
    /// labels.
    fn begin(&mut self, labels: &[Label], began: SystemTime) -> SystemTime {
        let free = self.last.get(labels).and_then(|last| last.checked_add(TICK));
        let began = free.map_or(began, |free| began.max(free));
        self.last.insert(labels.to_vec(), began);
        began
    }

    fn close(&mut self) {
        let series = std::mem::take(&mut self.series);
        self.bytes = 0;
        if !series.is_empty() {
            let time = std::mem::take(&mut self.time).get();
            self.full.push(request(self.form, series, time));
        }
    }

    fn push(&mut self, labels: &[Label], profile: PushedProfile, interval: &Interval<'_>) {
        let bytes = profile.encode();
        if (bytes.len() > self.options.max_bytes || profile.samples() > self.max_samples)
            && let Some(halves) = profile.clone().halves()
        {
            return halves.into_iter().for_each(|half| self.push(labels, half, interval));
        }
        if self.bytes + bytes.len() > self.options.max_bytes {
            self.close();
        }
        self.bytes += bytes.len() + labels.iter().map(|label| label.name.len() + label.value.len() + 8).sum::<usize>();
        self.time.add(interval.began, interval.ended);
        self.series.push((series(labels.to_vec(), gzip(&bytes)), amount(&profile)));
    }
}

impl Encoder for PushEncoder {
    fn add(&mut self, interval: &Interval<'_>) {
        let duration = interval.ended.duration_since(interval.began).unwrap_or_default();
        let labels = labels(self.form, interval.kind, &resource_of(interval), &self.options);
        let recorded = Recorded { began: self.begin(&labels, interval.began), duration };
        let profile = PushedProfile::new(interval.profile, Some(recorded), self.options.kernel_frames);
        if !profile.is_empty() {
            self.push(&labels, profile, interval);
        }
    }

    fn take(&mut self) -> Vec<Request> {
        self.close();
        self.last.clear();
        std::mem::take(&mut self.full)
    }
}

fn series(labels: Vec<Label>, raw_profile: Vec<u8>) -> Series {
    let id = fastrand::u128(..);
    // A UUID of version 4.
    let id = (id & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{id:032x}");
    let id = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    Series { labels, samples: vec![RawSample { raw_profile, id }] }
}

/// The labels of a process's series, sorted by name.
fn labels(form: Form, kind: ProfileKind, resource: &Resource, options: &EncodeOptions) -> Vec<Label> {
    let is_wanted = |name: &str| match &options.attributes {
        Some(wanted) => wanted.iter().any(|wanted| wanted == name),
        None => DEFAULT_LABELS.contains(&name),
    };
    let name = match kind {
        ProfileKind::Cpu => "process_cpu",
        ProfileKind::OffCpu => "off_cpu",
        ProfileKind::Wall => "wall",
        ProfileKind::Allocations => "memory",
        ProfileKind::Waits => "waits",
    };
    let mut labels = BTreeMap::from([("__name__".to_owned(), name), ("service_name".to_owned(), resource.service())]);
    if form == Form::Pyroscope && kind == ProfileKind::Allocations {
        // Otherwise Pyroscope would take the sums of an interval for sums since the process began, as Go's are, and
        // store differences.
        labels.insert("__delta__".to_owned(), "false");
    }
    for (name, value) in resource.attributes().filter(|(name, _)| is_wanted(name)) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        // The samples have this label.
        if labels.len() < MAX_LABELS && name != VM_STATE {
            labels.entry(name).or_insert(value);
        }
    }
    let label = |(name, value): (String, &str)| Label { name, value: cut(value).to_owned() };
    labels.into_iter().map(label).collect()
}

/// The part of a text that fits into a label.
fn cut(text: &str) -> &str {
    let end = (0..=MAX_VALUE.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

fn amount(profile: &PushedProfile) -> Amount {
    let mut amount = Amount::NONE;
    for (name, total) in profile.totals() {
        match name {
            "samples" => amount.cpu.count = total,
            "cpu" => amount.cpu.sum = total,
            "alloc_objects" => amount.allocations.count = total,
            "alloc_space" => amount.allocations.sum = total,
            _ => {}
        }
    }
    amount
}

fn request(form: Form, series: Vec<(Series, Amount)>, time: [u64; 2]) -> Request {
    let mut amount = Amount::NONE;
    let profiles = series.len() as u64;
    let series: Vec<Series> = series
        .into_iter()
        .map(|(series, of_series)| {
            amount += of_series;
            series
        })
        .collect();
    let labels = series.first().map(|series| series.labels.as_slice()).unwrap_or_default();
    let service = labels.iter().find(|label| label.name == "service_name").map(|label| label.value.clone());
    let service = service.unwrap_or_default();
    let (path, content_type, body) = match form {
        Form::Pyroscope => (PYROSCOPE_PATH, "application/proto", PushRequest { series }.encode_to_vec()),
        Form::Parca => (PARCA_PATH, "application/json", json(&series)),
    };
    let about = RequestInfo {
        path: path.into(),
        content_type: content_type.into(),
        // The large parts of it are compressed already, and Parca's gateway would not decompress it.
        is_gzipped: false,
        amount,
        service,
        profiles,
        time,
    };
    Request { about, body }
}

/// A request in two halves; [`None`] if it has a single sample, or is no push request.
pub(crate) fn split(whole: &Request, form: Form, limit: usize) -> Option<Vec<Request>> {
    let mut all = match form {
        Form::Pyroscope => PushRequest::decode(whole.body.as_slice()).ok()?.series,
        Form::Parca => series_of_json(&whole.body)?,
    };
    let profile_of = |series: &Series| PushedProfile::decode(&gunzip(&series.samples.first()?.raw_profile, limit)?);
    let second = match all.as_mut_slice() {
        [] => return None,
        [single] => {
            let [first, second] = profile_of(single)?.halves()?;
            let labels = single.labels.clone();
            *single = series(labels.clone(), gzip(&first.encode()));
            vec![series(labels, gzip(&second.encode()))]
        }
        _ => all.split_off(all.len() / 2),
    };
    let request_of = |half: Vec<Series>| {
        let counted = |series: Series| Some((amount(&profile_of(&series)?), series));
        let counted: Option<Vec<_>> = half.into_iter().map(counted).collect();
        let series = counted?.into_iter().map(|(amount, series)| (series, amount)).collect();
        Some(request(form, series, whole.about.time))
    };
    [all, second].into_iter().map(request_of).collect()
}

#[cfg(test)]
mod tests;
