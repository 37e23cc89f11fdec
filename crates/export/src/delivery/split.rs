//! Requests that are too large for a server.

use crate::{Amount, Request, SinkKind};

/// The parts of a request, if they hold what it holds.
pub fn split(kind: SinkKind, request: &Request) -> Option<Vec<Request>> {
    /// What a request may be at most once it is not compressed.
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
