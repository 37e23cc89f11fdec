//! Splits requests that are too large for a server.

use crate::{Amount, Request, SinkKind};

/// The parts of a request, if together they contain what it contains.
pub fn split(kind: SinkKind, request: &Request) -> Option<Vec<Request>> {
    /// The largest request to split, in bytes after decompression.
    const MOST: usize = 64 << 20;
    let parts = match kind {
        SinkKind::Otlp => crate::otlp::split(request, MOST),
        SinkKind::Pyroscope => crate::pushed::split(request, crate::pushed::Form::Pyroscope, MOST),
        SinkKind::Parca => crate::pushed::split(request, crate::pushed::Form::Parca, MOST),
    }?;
    let mut sum = Amount::NONE;
    parts.iter().for_each(|part| sum += part.about.amount);
    (sum == request.about.amount).then_some(parts)
}
