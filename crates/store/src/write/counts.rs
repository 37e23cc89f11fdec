//! Counts what became of the data that the store received.

use std::collections::BTreeMap;
use std::fmt;

/// Why data is not in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// The memory for rows was full, because files could not be written.
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

/// An amount of stored data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredAmount {
    /// Intervals, each of one process.
    pub intervals: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Samples of CPU time.
    pub samples: u64,
}

impl StoredAmount {
    /// Adds another amount.
    pub fn add(&mut self, other: Self) {
        self.intervals += other.intervals;
        self.rows += other.rows;
        self.samples = self.samples.saturating_add(other.samples);
    }

    /// The difference to a smaller amount.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            intervals: self.intervals.saturating_sub(other.intervals),
            rows: self.rows.saturating_sub(other.rows),
            samples: self.samples.saturating_sub(other.samples),
        }
    }
}

/// The counters of a store. All added data is written, pending, or dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Data that the store received.
    pub added: StoredAmount,
    /// Data in complete files, or in valid files that are still open, on the disk.
    pub written: StoredAmount,
    /// Data that is only in memory.
    pub pending: StoredAmount,
    /// Lost data, by reason.
    pub dropped: BTreeMap<Dropped, StoredAmount>,
    /// The number of complete files.
    pub files: u64,
    /// The bytes of all existing files of this host.
    pub bytes: u64,
    /// How often a file could not be written. Its data stays pending.
    pub failures: u64,
    /// The number of files that were removed because of their age or of the size limit.
    pub removed: u64,
    /// The bytes of the removed files.
    pub removed_bytes: u64,
    /// The number of complete files that were moved to other storage.
    pub uploaded: u64,
    /// The bytes of these files.
    pub uploaded_bytes: u64,
    /// How often a file could not be sent. The store sends it again later.
    pub upload_failures: u64,
}

impl StoreCounts {
    /// Whether written, pending and dropped data add up to the added data.
    pub fn add_up(&self) -> bool {
        let mut sum = self.written;
        sum.add(self.pending);
        self.dropped.values().for_each(|amount| sum.add(*amount));
        sum == self.added
    }
}
