//! The query of a reader.

use std::time::{SystemTime, UNIX_EPOCH};

use lj_trace_profile::{ProfileKind, Weight};

use crate::names::{Partition, escaped};

/// Which intervals to read. An interval counts for the time at which it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Only intervals that began at this time or later.
    pub from: Option<SystemTime>,
    /// Only intervals that began before this time.
    pub to: Option<SystemTime>,
    /// Only intervals of this service.
    pub service: Option<String>,
    /// Only intervals of this host.
    pub host: Option<String>,
    /// Only intervals of this process.
    pub pid: Option<u32>,
    /// Only intervals of this kind of profile.
    pub kind: Option<ProfileKind>,
    /// Only intervals of processes with these attributes.
    pub attributes: Vec<(String, String)>,
    /// The weight of stacks in memory profiles.
    pub weight: Weight,
}

fn microseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Query {
    /// The first microsecond of the query, and the first one after it.
    pub(super) fn range(&self) -> [i64; 2] {
        [self.from.map_or(i64::MIN, microseconds), self.to.map_or(i64::MAX, microseconds)]
    }

    /// Whether the folder of a date may have matching intervals.
    pub(super) fn has_date(&self, folder: &str) -> bool {
        let date = |time| Partition::new(time, "").date;
        self.from.is_none_or(|from| *folder >= *date(from)) && self.to.is_none_or(|to| *folder <= *date(to))
    }

    /// Whether the folder of a service may have matching intervals.
    pub(super) fn has_service(&self, folder: &str) -> bool {
        self.service.as_ref().is_none_or(|service| folder.strip_prefix("service=") == Some(&escaped(service)))
    }
}
