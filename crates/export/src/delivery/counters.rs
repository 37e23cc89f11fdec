//! Counts what became of the recorded data.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use crate::{Amount, DropReason};

/// A number of requests, with their content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSum {
    /// The number of requests. A request that is too large for a server becomes several.
    pub requests: u64,
    /// The samples and bytes in them.
    pub amount: Amount,
}

impl RequestSum {
    /// A single request with this content.
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

/// What became of everything that a sink was given: at each moment `recorded + found` equals `queued + spooled + sent +
/// dropped`, in requests, samples and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkCounters {
    /// What was collected, in rounds that have ended.
    pub recorded: RequestSum,
    /// What was in the spool when it was opened, from an earlier run.
    pub found: RequestSum,
    /// What is in memory, including what is being sent.
    pub queued: RequestSum,
    /// What is on disk.
    pub spooled: RequestSum,
    /// What the server has accepted.
    pub sent: RequestSum,
    /// What was lost, by reason.
    pub dropped: BTreeMap<DropReason, RequestSum>,
    /// How many times a request was posted.
    pub tries: u64,
    /// Tries that failed, and were or will be repeated.
    pub retries: u64,
    /// How many profiles the server said that it rejected, in answers that were successful otherwise.
    pub rejected_profiles: u64,
    /// The size of the queue, in bytes of memory.
    pub queue_bytes: u64,
    /// The size of the spool, in bytes on disk.
    pub spool_bytes: u64,
    /// How many files in the spool could not be read when it was opened, and were removed.
    pub unreadable_files: u64,
    /// How many writes to the spool failed.
    pub spool_failures: u64,
    /// The last error; [`None`] once a request was sent again.
    pub last_error: Option<String>,
    /// The result of verifying the first push, if that was done.
    pub verified: Option<crate::check::StoredVerdict>,
}

impl SinkCounters {
    /// Everything that was dropped.
    pub fn all_dropped(&self) -> RequestSum {
        self.dropped.values().fold(RequestSum::default(), |mut sum, held| {
            sum += *held;
            sum
        })
    }

    /// Whether the counters add up: all that was collected is somewhere.
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
