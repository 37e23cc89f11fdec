//! A request to a server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Amount;

/// A request as it is posted, without the server's address and the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it is, and how much it contains.
    pub about: RequestInfo,
    /// The body as it is sent; compressed if [`RequestInfo::is_gzipped`] says so.
    pub body: Vec<u8>,
}

/// What is known of a request apart from its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestInfo {
    /// The path below the server's URL, with a leading slash.
    pub path: String,
    /// The value of `Content-Type`.
    pub content_type: String,
    /// Whether the body has `Content-Encoding: gzip`.
    pub is_gzipped: bool,
    /// How many samples and bytes it contains.
    pub amount: Amount,
    /// The service of its first profile, to query whether the server has stored it.
    pub service: String,
    /// How many profiles it contains.
    pub profiles: u64,
    /// The time that it covers: beginning and end, in nanoseconds since 1970.
    pub time: [u64; 2],
}

impl RequestInfo {
    /// When its last interval ended.
    pub fn ended(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_nanos(self.time[1])).unwrap_or(UNIX_EPOCH)
    }
}

/// Nanoseconds since 1970; 0 for earlier times.
pub(crate) fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// A range of time that grows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeRange(Option<[u64; 2]>);

impl TimeRange {
    /// Extends the range to another one.
    pub fn add(&mut self, began: SystemTime, ended: SystemTime) {
        let [began, ended] = [began, ended].map(nanoseconds);
        let [first, last] = self.0.unwrap_or([began, ended]);
        self.0 = Some([first.min(began), last.max(ended)]);
    }

    /// Its beginning and end.
    pub fn get(self) -> [u64; 2] {
        self.0.unwrap_or_default()
    }
}
