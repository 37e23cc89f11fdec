//! What became of all that was to be stored.

use std::collections::BTreeMap;
use std::fmt;

/// Why something is not in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// The memory for rows is full, since files cannot be written.
    MemoryFull,
    /// The store was closed while files could not be written.
    Closed,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MemoryFull => "no room in memory: the folder cannot be written",
            Self::Closed => "not written before the end: the folder cannot be written",
        })
    }
}

/// Rows, and what the shown measure of their profiles adds up to: samples, or bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredAmount {
    /// Intervals of processes.
    pub intervals: u64,
    /// Rows of a table.
    pub rows: u64,
    /// Samples of CPU time.
    pub samples: u64,
}

impl StoredAmount {
    /// Adds.
    pub fn add(&mut self, other: Self) {
        self.intervals += other.intervals;
        self.rows += other.rows;
        self.samples = self.samples.saturating_add(other.samples);
    }

    /// What is left.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            intervals: self.intervals.saturating_sub(other.intervals),
            rows: self.rows.saturating_sub(other.rows),
            samples: self.samples.saturating_sub(other.samples),
        }
    }
}

/// Counters of a store. What was added is written, pending or dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Handed to the store.
    pub added: StoredAmount,
    /// In files that are whole, and on the disk.
    pub written: StoredAmount,
    /// In memory.
    pub pending: StoredAmount,
    /// Lost, by reason.
    pub dropped: BTreeMap<Dropped, StoredAmount>,
    /// Files that are complete.
    pub files: u64,
    /// Bytes of all files of this host that are there.
    pub bytes: u64,
    /// Times a file could not be written; what was to be in it stays pending.
    pub failures: u64,
    /// Files that were removed, since they were older or more than is kept.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Complete files that went to other storage.
    pub uploaded: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Times one could not be sent; it is sent again later.
    pub upload_failures: u64,
}

impl StoreCounts {
    /// Whether what was added is what has become of it.
    pub fn add_up(&self) -> bool {
        let mut sum = self.written;
        sum.add(self.pending);
        self.dropped.values().for_each(|amount| sum.add(*amount));
        sum == self.added
    }
}
