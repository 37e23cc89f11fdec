//! The store: intervals in, files out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::time::{Duration, Instant, SystemTime};

use lj_trace_profile::Interval;
use parquet::errors::ParquetError;

use super::counts::{Dropped, StoreCounts, StoredAmount};
use super::encode;
use super::error::StoreError;
use super::kept::{KeptFile, KeptFiles};
use super::onward::Onward;
use super::rows::Rows;
use crate::StoreConfig;
use crate::folder::Folder;
use crate::names::{FileName, Partition, escaped, stamp};

/// Writes the profiles of a host into a folder.
///
/// Each date and service has one incomplete file, with its rows in memory. Every [`flush`](StoreConfig::flush), the store
/// writes all rows so far under the file's name, and replaces the previous contents. So every visible file is readable, and
/// a crash loses no more than that time. A file is complete after [`rotate`](StoreConfig::rotate), or once it is large.
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    root: Folder,
    /// The host, escaped for file names.
    host: String,
    /// The lock of the folder, held as long as this store exists.
    _lock: File,
    run: u64,
    number: u64,
    open: BTreeMap<Partition, OpenFile>,
    kept: KeptFiles,
    onward: Onward,
    counts: StoreCounts,
    notices: Vec<String>,
    /// Since when files cannot be written; [`None`] if they can.
    failing: Option<Instant>,
}

/// An incomplete file.
#[derive(Debug)]
struct OpenFile {
    name: FileName,
    rows: Rows,
    began: Instant,
    /// When the file was last written, and the amount that it then had.
    written: Option<(Instant, StoredAmount)>,
    /// The size of the file at that time, in bytes.
    size: u64,
}

impl OpenFile {
    /// The amount that is not on the disk.
    fn pending(&self) -> StoredAmount {
        self.rows.amount().less(self.written.map_or_else(StoredAmount::default, |(_, amount)| amount))
    }
}

/// The most incomplete files. Services choose their own names, so there could be any number of them.
const OPEN: usize = 1000;

/// The wait before a folder that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// How long uploads may take when the store is closed.
const LAST: Duration = Duration::from_secs(10);

/// The most notices that wait to be taken.
const NOTICES: usize = 16;

impl Store {
    /// Opens the folder, and creates it if it is missing.
    ///
    /// # Errors
    /// The folder cannot be written, or another process writes to it.
    pub fn open(config: StoreConfig) -> Result<Self, StoreError> {
        let failed = |error| StoreError::Folder { folder: config.folder.clone(), error };
        let root = Folder::open_or_make(&config.folder).map_err(failed)?;
        let host = config.host.clone().unwrap_or_else(host_name);
        let escaped = escaped(&host);
        let lock = root.lock(&format!(".lj-trace.{escaped}.lock")).map_err(failed)?;
        let lock = lock.ok_or_else(|| StoreError::InUse { folder: config.folder.clone() })?;
        let kept = KeptFiles::find(&root, &escaped).map_err(failed)?;
        let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let onward = Onward::start(config.remote.as_ref())?;
        let mut store = Self {
            onward,
            config: StoreConfig { host: Some(host), ..config },
            root,
            host: escaped,
            _lock: lock,
            // Two runs cannot begin in the same microsecond, because each needs the lock first.
            run: u64::try_from(run).unwrap_or(u64::MAX),
            number: 0,
            open: BTreeMap::new(),
            kept,
            counts: StoreCounts::default(),
            notices: Vec::new(),
            failing: None,
        };
        store.bound(SystemTime::now());
        Ok(store)
    }

    /// Adds an interval of a process. The store copies it, so the profile may change afterwards.
    pub fn add(&mut self, interval: &Interval<'_>) {
        let service = interval.resource.map_or("unknown_service", lj_trace_profile::Resource::service);
        let partition = Partition::new(interval.began, service);
        let is_new = !self.open.contains_key(&partition);
        if self.bytes() >= self.config.memory || is_new && self.open.len() >= OPEN {
            self.make_room();
        }
        let host = self.config.host.clone().unwrap_or_default();
        if self.bytes() >= self.config.memory {
            // The amount that it would have had.
            let amount = Rows::default().add(interval, &host);
            self.counts.added.add(amount);
            self.counts.dropped.entry(Dropped::MemoryFull).or_default().add(amount);
            return;
        }
        let number = self.number;
        let file = self.open.entry(partition).or_insert_with(|| {
            let name = FileName { host: self.host.clone(), began: stamp(interval.began), run: self.run, number };
            OpenFile { name, rows: Rows::default(), began: Instant::now(), written: None, size: 0 }
        });
        self.number += u64::from(file.name.number == number);
        let amount = file.rows.add(interval, &host);
        self.counts.added.add(amount);
        self.counts.pending.add(amount);
    }

    /// Call this from time to time, such as after each round of intervals. It writes the files that are due, completes old
    /// files, and removes files beyond the limits.
    pub fn end_round(&mut self) {
        self.end_round_at(Instant::now(), SystemTime::now());
    }

    fn end_round_at(&mut self, now: Instant, wall: SystemTime) {
        let since = |then: Instant| now.saturating_duration_since(then);
        if self.failing.is_some_and(|tried| since(tried) < RETRY) {
            return;
        }
        let due = |file: &OpenFile| {
            let is_complete = since(file.began) >= self.config.rotate || file.size >= self.config.rotate_size;
            let last = file.written.map_or(file.began, |(written, _)| written);
            (is_complete || since(last) >= self.config.flush).then_some(is_complete)
        };
        let due: Vec<_> =
            self.open.iter().filter_map(|(partition, file)| Some((partition.clone(), due(file)?))).collect();
        for (partition, is_complete) in due {
            if !self.write(&partition, is_complete, now) {
                break;
            }
        }
        self.send_on(now, Duration::ZERO);
        self.bound(wall);
    }

    /// Completes all files. Uploads get some seconds to finish. Remaining files are uploaded when the folder is next
    /// opened.
    pub fn close(mut self) -> StoreCounts {
        for partition in self.open.keys().cloned().collect::<Vec<_>>() {
            self.write(&partition, true, Instant::now());
        }
        for file in std::mem::take(&mut self.open).into_values() {
            self.counts.dropped.entry(Dropped::Closed).or_default().add(file.pending());
            self.counts.pending = self.counts.pending.less(file.pending());
        }
        let end = Instant::now() + LAST;
        while self.onward.is_on() && self.kept.files().next().is_some() && Instant::now() < end {
            if !self.send_on(Instant::now(), end.saturating_duration_since(Instant::now())) {
                break;
            }
        }
        self.bound(SystemTime::now());
        self.counts.clone()
    }

    /// Processes the results of uploads, and queues complete files. Returns whether an upload is under way.
    fn send_on(&mut self, now: Instant, mut wait: Duration) -> bool {
        let is_open: std::collections::BTreeSet<String> = self.open.values().map(|file| file.name.text()).collect();
        let complete = self.kept.files().filter(|file| !is_open.contains(&file.name));
        self.onward.offer(&self.root, complete, now);
        let is_sending = self.onward.is_sending();
        while let Some((file, outcome)) = self.onward.outcome(wait, now) {
            wait = Duration::ZERO;
            match outcome {
                Ok(bytes) => {
                    self.counts.uploaded += 1;
                    self.counts.uploaded_bytes += bytes;
                    if let Err(error) = self.kept.remove(&self.root, &file) {
                        self.say(format!("cannot remove {}, which was sent: {error}", file.name));
                    }
                }
                // The notice describes the error.
                Err(_) => self.counts.upload_failures += 1,
            }
        }
        self.onward.take_notice().into_iter().for_each(|notice| self.say(notice));
        is_sending
    }

    /// The counts of everything that was added so far.
    pub fn counts(&self) -> &StoreCounts {
        &self.counts
    }

    /// Messages to the user, one line each. There is one when a condition begins, and one when it ends.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// The approximate bytes of memory of all rows.
    fn bytes(&self) -> u64 {
        self.open.values().map(|file| file.rows.bytes() as u64).sum()
    }

    /// Completes the largest file, to free memory.
    fn make_room(&mut self) {
        let now = Instant::now();
        if self.failing.is_some_and(|tried| now.saturating_duration_since(tried) < RETRY) {
            return;
        }
        let largest =
            self.open.iter().max_by_key(|(_, file)| file.rows.bytes()).map(|(partition, _)| partition.clone());
        if let Some(largest) = largest {
            self.write(&largest, true, now);
        }
    }

    /// Writes the file of a partition with its rows so far; returns whether that succeeded.
    fn write(&mut self, partition: &Partition, is_complete: bool, now: Instant) -> bool {
        let Some(file) = self.open.get_mut(partition) else { return true };
        let pending = file.pending();
        if pending != StoredAmount::default() {
            match write_whole(&self.root, partition, file) {
                Ok(size) => {
                    file.size = size;
                    file.written = Some((now, file.rows.amount()));
                    self.counts.pending = self.counts.pending.less(pending);
                    self.counts.written.add(pending);
                    let name = file.name.text();
                    self.kept
                        .set(KeptFile { began: file.name.began.clone(), partition: partition.clone(), name }, size);
                    if self.failing.take().is_some() {
                        self.say(format!("{} can be written again", self.config.folder.display()));
                    }
                }
                Err(error) => {
                    self.counts.failures += 1;
                    if self.failing.replace(now).is_none() {
                        let folder = self.config.folder.display();
                        self.say(format!(
                            "cannot write profiles to {folder}: {error}; they wait in memory as long as it has room"
                        ));
                    }
                    return false;
                }
            }
        }
        if is_complete && self.open.remove(partition).is_some_and(|file| file.written.is_some()) {
            self.counts.files += 1;
        }
        true
    }

    /// Removes the oldest files as long as the limits are exceeded.
    fn bound(&mut self, now: SystemTime) {
        while let Some(file) = self.kept.excess(&self.config, now) {
            // If the file is still open, its rows in memory would be written under this name again.
            let is_open = |open: &OpenFile| open.name.text() == file.name;
            if self.open.get(&file.partition).is_some_and(is_open) && !self.write(&file.partition, true, Instant::now())
            {
                break;
            }
            match self.kept.remove(&self.root, &file) {
                Ok(bytes) => {
                    self.counts.removed += 1;
                    self.counts.removed_bytes += bytes;
                }
                Err(error) => self.say(format!("cannot remove {}: {error}", file.name)),
            }
        }
        self.counts.bytes = self.kept.bytes();
    }

    fn say(&mut self, notice: String) {
        if self.notices.len() < NOTICES {
            self.notices.push(notice);
        }
    }
}

/// Writes all rows of a file under a hidden name, syncs it to the disk, and renames it. Returns its size in bytes.
fn write_whole(root: &Folder, partition: &Partition, file: &OpenFile) -> io::Result<u64> {
    let folder = root.inside_or_made(&partition.date)?.inside_or_made(&partition.service)?;
    let (partial, name) = (file.name.partial(), file.name.text());
    let written = write_partial(&folder, &partial, &file.rows).and_then(|size| {
        folder.rename(&partial, &name)?;
        folder.sync()?;
        Ok(size)
    });
    if written.is_err() {
        // The partial file may not exist. If it does, it takes up disk space.
        let _ = folder.remove(&partial);
    }
    written
}

fn write_partial(folder: &Folder, name: &str, rows: &Rows) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 16, folder.create(name)?);
    encode::write(rows, &mut out).map_err(|error| match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    })?;
    out.flush()?;
    let file = out.get_ref();
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// The kernel's name for this host.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
