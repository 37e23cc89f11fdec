//! What a server's answer means for a request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;

use super::Reply;
use crate::otlp::message::ExportResponse;
use crate::{DropReason, SinkKind};

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The server accepted it, except for some profiles.
    Taken {
        /// How many profiles it rejected.
        rejected: u64,
        /// Why, in the server's words.
        said: String,
    },
    /// The server may accept it later.
    Later {
        /// Why not now.
        reason: String,
        /// How long the server wants to be left alone.
        after: Option<Duration>,
        /// Whether the server itself answered this very request.
        answered: bool,
    },
    /// The request is too large.
    TooLarge {
        /// The server's answer.
        reason: String,
    },
    /// The server will never accept it.
    Never {
        /// The kind of refusal.
        kind: DropReason,
        /// The server's answer.
        reason: String,
    },
}

/// The longest wait that a server may ask for.
const LONGEST: Duration = Duration::from_secs(3600);

/// Interprets an answer.
pub fn read(kind: SinkKind, reply: &Reply) -> Answer {
    let Reply { status, retry_after, body, .. } = reply;
    let status = *status;
    let reason = || {
        let text = String::from_utf8_lossy(&body[..body.len().min(300)]);
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("HTTP {status} {}", text.trim()).trim_end().to_owned()
    };
    match status {
        // Parca answers unknown requests with its web page; so do servers that require a login.
        200..300 if is_page(reply) => Answer::Never {
            kind: DropReason::Refused,
            reason: format!("HTTP {status} with a page for browsers: this path takes no profiles"),
        },
        200..300 => taken(kind, body),
        413 => Answer::TooLarge { reason: reason() },
        400 if kind == SinkKind::Pyroscope && says_too_large(body) => Answer::TooLarge { reason: reason() },
        // 500 and others may be temporary. A request that fails again and again, while others succeed, is dropped
        // later.
        408 | 425 | 429 | 500..600 => Answer::Later {
            reason: reason(),
            after: retry_after.as_deref().and_then(|text| wait(text, SystemTime::now())),
            answered: !matches!(status, 429 | 503),
        },
        401 | 403 | 407 => Answer::Never { kind: DropReason::Unauthorized, reason: reason() },
        _ => Answer::Never { kind: DropReason::Refused, reason: reason() },
    }
}

fn is_page(reply: &Reply) -> bool {
    reply.content_type.as_deref().is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/html"))
}

/// Whether the text says that a profile is too large: Pyroscope's push API has no 413.
fn says_too_large(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let words = ["max_profile_size_byte", "max_profile_stacktrace_samples", "size exceeds limit of"];
    words.iter().any(|words| text.contains(words))
}

fn taken(kind: SinkKind, body: &[u8]) -> Answer {
    // Whatever the body says, the server accepted the request.
    let partial = (kind == SinkKind::Otlp).then(|| ExportResponse::decode(body).ok()?.partial_success).flatten();
    let partial = partial.unwrap_or_default();
    let said: String = partial.error_message.chars().filter(|c| !c.is_control()).take(300).collect();
    Answer::Taken { rejected: u64::try_from(partial.rejected_profiles).unwrap_or(0), said }
}

/// The wait in `Retry-After`: seconds, or a date.
fn wait(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => date(text)?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(LONGEST))
}

/// A date such as `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers may send.
fn date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split(' ').skip(1);
    let day: u64 = words.next()?.parse().ok()?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as u64 + 1;
    let year: u64 = words.next()?.parse().ok().filter(|year| (1970..10_000).contains(year))?;
    let mut clock = words.next()?.split(':').map(|number| number.parse::<u64>().ok().filter(|number| *number < 61));
    let [hour, minute, second] = [clock.next()??, clock.next()??, clock.next()??];
    // Days since 1970. Years begin in March here, so that the leap day is the last day of a year.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day.checked_sub(1)?;
    let days = days.checked_sub(719_468)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(days * 86_400 + hour * 3600 + minute * 60 + second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::message::PartialSuccess;

    fn reply(status: u16, body: &[u8]) -> Reply {
        Reply { status, retry_after: Some("7".to_owned()), content_type: None, body: body.to_vec() }
    }

    #[test]
    fn answers_mean_what_the_protocol_says() {
        let read = |status| read(SinkKind::Otlp, &reply(status, b"no\nmore"));
        for status in [429, 500, 501, 502, 503, 504, 408] {
            let Answer::Later { after, reason, .. } = read(status) else { panic!("{status}") };
            assert_eq!((after, reason), (Some(Duration::from_secs(7)), format!("HTTP {status} no more")));
        }
        for (status, kind) in [
            (400, DropReason::Refused),
            (301, DropReason::Refused),
            (404, DropReason::Refused),
            (401, DropReason::Unauthorized),
        ] {
            let Answer::Never { kind: actual, .. } = read(status) else { panic!("{status}") };
            assert_eq!(actual, kind, "{status}");
        }
        assert!(matches!(read(413), Answer::TooLarge { .. }));
        assert_eq!(read(200), Answer::Taken { rejected: 0, said: String::new() });
    }

    #[test]
    fn a_page_is_no_answer() {
        for kind in [SinkKind::Otlp, SinkKind::Pyroscope, SinkKind::Parca] {
            for (content_type, is_taken) in [("text/html; charset=utf-8", false), ("application/json", true)] {
                let reply = Reply { content_type: Some(content_type.to_owned()), ..reply(200, b"") };
                assert_eq!(matches!(read(kind, &reply), Answer::Taken { .. }), is_taken, "{kind:?}: {content_type}");
            }
        }
    }

    #[test]
    fn pyroscope_says_in_words_what_is_too_large() {
        // The message of version 2.2.1.
        let large = br#"{"code":"invalid_argument","message":"the profile with labels '{service_name=\"x\"}' exceeds the samples count limit (max_profile_stacktrace_samples, actual: 9, limit: 1)"}"#;
        assert!(matches!(read(SinkKind::Pyroscope, &reply(400, large)), Answer::TooLarge { .. }));
        assert!(matches!(read(SinkKind::Parca, &reply(400, large)), Answer::Never { .. }));
    }

    #[test]
    fn what_was_taken_in_part_is_read() {
        let partial = PartialSuccess { rejected_profiles: 3, error_message: "bad\n".into() };
        let body = ExportResponse { partial_success: Some(partial) }.encode_to_vec();
        let rejected = Answer::Taken { rejected: 3, said: "bad".into() };
        assert_eq!(read(SinkKind::Otlp, &reply(200, &body)), rejected);
        let taken = Answer::Taken { rejected: 0, said: String::new() };
        assert_eq!(read(SinkKind::Parca, &reply(200, &body)), taken);
    }

    #[test]
    fn dates_are_read() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(at(784_111_777)));
        assert_eq!(date("Thu, 29 Feb 2024 00:00:00 GMT"), Some(at(1_709_164_800)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT", at(784_111_770)), Some(Duration::from_secs(7)));
        assert_eq!(wait("99999999999", at(0)), Some(LONGEST));
        for wrong in ["", "soon", "-1", "Sun, 00 Nov 1994 08:49:37 GMT", "Sun, 06 Foo 1994 08:49:37 GMT"] {
            assert_eq!(wait(wrong, at(0)), None, "{wrong}");
        }
    }
}
