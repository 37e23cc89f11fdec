//! What is asked for.

use std::time::{SystemTime, UNIX_EPOCH};

use lj_trace_profile::{ProfileKind, Weight};

use crate::names::{Partition, escaped};

/// Which intervals are read. One belongs to the time at which it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Those that began then or later.
    pub from: Option<SystemTime>,
    /// Those that began before.
    pub to: Option<SystemTime>,
    /// Those of this service.
    pub service: Option<String>,
    /// Those of this host.
    pub host: Option<String>,
    /// Those of this process.
    pub pid: Option<u32>,
    /// Those of this kind.
    pub kind: Option<ProfileKind>,
    /// Those of processes with these attributes.
    pub attributes: Vec<(String, String)>,
    /// What memory profiles weigh their stacks by.
    pub weight: Weight,
}

fn microseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Query {
    /// The first microsecond that is asked for, and the first that is not any more.
    pub(super) fn range(&self) -> [i64; 2] {
        [self.from.map_or(i64::MIN, microseconds), self.to.map_or(i64::MAX, microseconds)]
    }

    /// Whether the folder of a date can have some of it.
    pub(super) fn has_date(&self, folder: &str) -> bool {
        let date = |time| Partition::new(time, "").date;
        self.from.is_none_or(|from| *folder >= *date(from)) && self.to.is_none_or(|to| *folder <= *date(to))
    }

    /// Whether the folder of a service can have some of it.
    pub(super) fn has_service(&self, folder: &str) -> bool {
        self.service.as_ref().is_none_or(|service| folder.strip_prefix("service=") == Some(&escaped(service)))
    }
}
