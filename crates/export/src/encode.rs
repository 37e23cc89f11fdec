//! What all encoders share.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use lj_trace_profile::Interval;

use crate::Request;

/// Collects the profiles of a round, and turns them into requests.
pub trait Encoder: Send {
    /// Adds what was recorded of a process.
    fn add(&mut self, interval: &Interval<'_>);

    /// The requests for everything that was added since the last call.
    fn take(&mut self) -> Vec<Request>;
}

/// The options of an encoder.
#[derive(Clone, Debug)]
pub struct EncodeOptions {
    /// The largest request, in bytes before compression. A request with a single sample may be larger.
    pub max_bytes: usize,
    /// Whether to send the kernel's frames.
    pub kernel_frames: bool,
    /// Whether OTLP profiles give the kind of code of each frame: some servers drop frames of kinds that they do not
    /// know.
    pub frame_types: bool,
    /// The attributes of processes to send; [`None`] means all of them with OTLP, and a bounded choice with others.
    pub attributes: Option<Vec<String>>,
}

impl EncodeOptions {
    /// Whether to send an attribute of a process, if [`None`] means all.
    pub fn has_attribute(&self, name: &str) -> bool {
        self.attributes.as_ref().is_none_or(|wanted| wanted.iter().any(|wanted| wanted == name))
    }
}

/// Compresses bytes with gzip, as servers accept it.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
    // Writing to memory cannot fail.
    let _ = gzip.write_all(bytes);
    gzip.finish().unwrap_or_default()
}

/// Decompresses bytes; [`None`] if they are not gzip, or are more than `limit` bytes.
pub fn gunzip(bytes: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).take(limit as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= limit).then_some(plain)
}
