//! What became of what was recorded.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use crate::{Amount, DropReason};

/// Requests, and what is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSum {
    /// How many requests. One that is too large for a server becomes several.
    pub requests: u64,
    /// The samples and bytes in them.
    pub amount: Amount,
}

impl RequestSum {
    /// A request with so much in it.
    pub(crate) fn one(amount: Amount) -> Self {
        Self { requests: 1, amount }
    }
}

impl AddAssign for RequestSum {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.amount += other.amount;
    }
}

impl SubAssign for RequestSum {
    fn sub_assign(&mut self, other: Self) {
        self.requests = self.requests.saturating_sub(other.requests);
        self.amount = self.amount - other.amount;
    }
}

/// What became of all that a sink was given: `recorded + found` is `queued + spooled + sent + dropped`, at each moment, in
/// requests, samples and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkCounters {
    /// Taken in, in rounds that have ended.
    pub recorded: RequestSum,
    /// In the spool when it was opened: from an earlier run.
    pub found: RequestSum,
    /// In memory, with what is being sent.
    pub queued: RequestSum,
    /// On disk.
    pub spooled: RequestSum,
    /// Taken by the server.
    pub sent: RequestSum,
    /// Lost, by reason.
    pub dropped: BTreeMap<DropReason, RequestSum>,
    /// How often something was posted.
    pub tries: u64,
    /// Tries that failed, and were or will be repeated.
    pub retries: u64,
    /// Profiles that the server said it did not take, in answers that were good otherwise.
    pub rejected_profiles: u64,
    /// Bytes of memory that the queue takes.
    pub queue_bytes: u64,
    /// Bytes of disk that the spool takes.
    pub spool_bytes: u64,
    /// Files of the spool that were there when it was opened, and could not be read at all: removed.
    pub unreadable_files: u64,
    /// Times that the spool could not be written.
    pub spool_failures: u64,
    /// What went wrong last; [`None`] once something was sent again.
    pub last_error: Option<String>,
    /// What became of the first push, if that was looked at.
    pub verified: Option<crate::check::StoredVerdict>,
}

impl SinkCounters {
    /// All that was dropped.
    pub fn all_dropped(&self) -> RequestSum {
        self.dropped.values().fold(RequestSum::default(), |mut sum, held| {
            sum += *held;
            sum
        })
    }

    /// Whether all that was taken in is somewhere.
    pub fn add_up(&self) -> bool {
        let (mut given, mut there) = (self.recorded, self.queued);
        given += self.found;
        [self.spooled, self.sent, self.all_dropped()].into_iter().for_each(|held| there += held);
        given == there
    }

    pub(crate) fn drop(&mut self, reason: DropReason, held: RequestSum) {
        *self.dropped.entry(reason).or_default() += held;
    }
}
