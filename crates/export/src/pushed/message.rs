//! The bodies of the push APIs: series with labels and profiles, as a protobuf message and as JSON.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;

/// Pyroscope's `PushRequest`; Parca's `WriteRawRequest` has the same content, as JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    pub series: Vec<Series>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Series {
    #[prost(message, repeated, tag = "1")]
    pub labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Label {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    pub raw_profile: Vec<u8>,
    #[prost(string, tag = "2")]
    pub id: String,
}

/// A `WriteRawRequest`.
pub fn json(series: &[Series]) -> Vec<u8> {
    let one = |series: &Series| {
        let label = |label: &Label| serde_json::json!({ "name": label.name, "value": label.value });
        let labels: Vec<_> = series.labels.iter().map(label).collect();
        let sample = |sample: &RawSample| serde_json::json!({ "rawProfile": BASE64.encode(&sample.raw_profile) });
        let samples: Vec<_> = series.samples.iter().map(sample).collect();
        serde_json::json!({ "labels": { "labels": labels }, "samples": samples })
    };
    let series: Vec<_> = series.iter().map(one).collect();
    serde_json::json!({ "series": series, "normalized": true }).to_string().into_bytes()
}

/// Parses the output of [`json`].
pub fn series_of_json(body: &[u8]) -> Option<Vec<Series>> {
    let json: serde_json::Value = serde_json::from_slice(body).ok()?;
    let one = |series: &serde_json::Value| {
        let text = |value: &serde_json::Value, key: &str| Some(value.get(key)?.as_str()?.to_owned());
        let label = |value| Some(Label { name: text(value, "name")?, value: text(value, "value")? });
        let labels: Option<Vec<_>> = series.get("labels")?.get("labels")?.as_array()?.iter().map(label).collect();
        let sample =
            |value| Some(RawSample { raw_profile: BASE64.decode(text(value, "rawProfile")?).ok()?, id: String::new() });
        let samples: Option<Vec<_>> = series.get("samples")?.as_array()?.iter().map(sample).collect();
        Some(Series { labels: labels?, samples: samples? })
    };
    json.get("series")?.as_array()?.iter().map(one).collect()
}
