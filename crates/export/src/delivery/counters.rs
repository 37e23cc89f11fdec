//! What became of what was recorded.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use crate::Amount;

/// Requests, and what is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// How many requests. One that is too large for a server becomes several.
    pub requests: u64,
    /// The samples and bytes in them.
    pub amount: Amount,
}

impl Held {
    /// A request with so much in it.
    pub(crate) fn one(amount: Amount) -> Self {
        Self { requests: 1, amount }
    }
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.amount += other.amount;
    }
}

impl SubAssign for Held {
    fn sub_assign(&mut self, other: Self) {
        self.requests = self.requests.saturating_sub(other.requests);
        self.amount = self.amount - other.amount;
    }
}

/// Why something was not sent and never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The queue in memory was full, and no spool took it.
    QueueFull,
    /// The spool was full: the oldest made room.
    SpoolFull,
    /// The server refused it for good: 400, 404 and others.
    Refused,
    /// The server wants other credentials: 401 or 403.
    Unauthorized,
    /// It is too large for the server, and cannot be halved.
    TooLarge,
    /// The server took a part of it only. How much of it was refused is estimated from the number of profiles.
    PartlyRejected,
    /// The server failed at it again and again, and not at others.
    Failing,
    /// What the spool has of it was not what had been written.
    Corrupt,
    /// lj-trace ended before it could be sent, and no spool took it.
    ShutDown,
}

impl DropReason {
    /// A word for it, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::SpoolFull => "spool_full",
            Self::Refused => "refused",
            Self::Unauthorized => "unauthorized",
            Self::TooLarge => "too_large",
            Self::PartlyRejected => "partly_rejected",
            Self::Failing => "failing",
            Self::Corrupt => "corrupt",
            Self::ShutDown => "shut_down",
        }
    }
}

/// What became of all that a sink was given: `recorded + found` is `queued + spooled + sent + dropped`, at each moment, in
/// requests, samples and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Taken in, in rounds that have ended.
    pub recorded: Held,
    /// In the spool when it was opened: from an earlier run.
    pub found: Held,
    /// In memory, with what is being sent.
    pub queued: Held,
    /// On disk.
    pub spooled: Held,
    /// Taken by the server.
    pub sent: Held,
    /// Lost, by reason.
    pub dropped: BTreeMap<DropReason, Held>,
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
    pub verified: Option<crate::check::Verdict>,
}

impl Counters {
    /// All that was dropped.
    pub fn all_dropped(&self) -> Held {
        self.dropped.values().fold(Held::default(), |mut sum, held| {
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

    pub(crate) fn drop(&mut self, reason: DropReason, held: Held) {
        *self.dropped.entry(reason).or_default() += held;
    }
}
