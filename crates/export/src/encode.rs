//! What all encoders have in common.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use lj_trace_profile::Interval;

use crate::Request;

/// Collects the profiles of a round, and makes requests of them.
pub trait Encoder: Send {
    /// Takes in what was recorded of a process.
    fn add(&mut self, interval: &Interval<'_>);

    /// All requests for what was taken in since the last time.
    fn take(&mut self) -> Vec<Request>;
}

/// What encoders are told.
#[derive(Clone, Debug)]
pub struct EncodeOptions {
    /// The largest request, in bytes before it is gzipped. A single sample may be larger.
    pub max_bytes: usize,
    /// Whether frames of the kernel are sent.
    pub kernel_frames: bool,
    /// Whether OTLP says what kind of code a frame is: some servers drop frames of kinds that they do not know.
    pub frame_types: bool,
    /// The attributes of processes that are sent; [`None`] for all with OTLP, and for a bounded choice with others.
    pub attributes: Option<Vec<String>>,
}

impl EncodeOptions {
    /// Whether an attribute of a process is sent, where all are that nobody chose among.
    pub fn has_attribute(&self, name: &str) -> bool {
        self.attributes.as_ref().is_none_or(|wanted| wanted.iter().any(|wanted| wanted == name))
    }
}

/// Compressed as servers take it.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
    // Nothing can go wrong in memory.
    let _ = gzip.write_all(bytes);
    gzip.finish().unwrap_or_default()
}

/// What was compressed, if it is that and has no more than `limit` bytes.
pub fn gunzip(bytes: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).take(limit as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= limit).then_some(plain)
}
