//! A kernel ring buffer that is emptied in time.
//!
//! The consumer takes records at its own pace and may be late: an output may stall, or reading a trace may take long.
//! So the programs wake a thread when the buffer is a quarter full (`probe-ebpf/src/wakeup.rs`), and this thread moves
//! the records into memory. As long as the consumer keeps up, the thread sleeps. Once memory is full as well, records
//! stay in the buffer. Once the buffer is full, the kernel drops records and counts each of them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use aya::maps::{Map, MapData, RingBuf};
use lj_trace_process::privileges::{self, Capabilities};

use super::set::lock;

/// How many bytes of records may wait in memory: twice the size of the largest buffer.
const MOST_MOVED: usize = 32 << 20;

/// How many bytes to move before others may take the lock.
const PIECE: usize = 64 << 10;

/// While memory is full: how often to check whether there is room again, in milliseconds.
const FULL: i32 = 20;

/// Records, one after the other.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Where each record ends.
    ends: Vec<usize>,
    /// How many records were taken.
    taken: usize,
}

impl Batch {
    fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }

    /// The next record that was not taken yet.
    pub fn next(&mut self) -> Option<&[u8]> {
        let end = *self.ends.get(self.taken)?;
        let start = self.taken.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.taken += 1;
        self.bytes.get(start..end)
    }

    /// Whether all records were taken.
    pub fn is_taken(&self) -> bool {
        self.taken == self.ends.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.taken = 0;
    }
}

/// A ring buffer, and the records that were moved out of it.
pub(super) struct Ring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// An eventfd that becomes readable when the thread should end.
    end: OwnedFd,
}

struct State {
    ring: RingBuf<MapData>,
    moved: VecDeque<Batch>,
    /// The total size of these batches, in bytes.
    bytes: usize,
}

impl Ring {
    /// Starts the thread that looks after `ring`.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        let end = event()?;
        let state = Mutex::new(State { ring, moved: VecDeque::new(), bytes: 0 });
        let shared = Arc::new(Shared { state, end });
        let epoll = shared.epoll()?;
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("drain".to_owned()).spawn(move || own.look_after(&epoll))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The ring buffer of a map.
    ///
    /// # Errors
    /// The map is no ring buffer; or as [`Self::new`].
    pub fn of_map(map: Map) -> anyhow::Result<Self> {
        Ok(Self::new(RingBuf::try_from(map)?)?)
    }

    /// Whether there are records. Looks without a system call.
    pub fn has_some(&self) -> bool {
        let mut state = lock(&self.shared.state);
        state.moved.iter().any(|batch| !batch.is_taken()) || state.move_some()
    }

    /// Takes the next record into `batch`, which must have no records left; [`None`] if there is none.
    pub fn next<'a>(&self, batch: &'a mut Batch) -> Option<&'a [u8]> {
        self.take(batch, 1);
        batch.next()
    }

    /// Replaces the content of `into` with the next records, up to `most`; false if there are none.
    pub fn take(&self, into: &mut Batch, most: usize) -> bool {
        into.clear();
        let mut state = lock(&self.shared.state);
        for _ in 0..most {
            if !state.take(into) {
                break;
            }
        }
        !into.ends.is_empty()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let one = 1_u64;
        // SAFETY: `one` is eight readable bytes, and the descriptor is an event's. Writing 1 to it does not block.
        unsafe { libc::write(self.shared.end.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
        // If the thread has panicked, there is nothing to end.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl State {
    /// Takes the oldest record; false if there is none.
    fn take(&mut self, into: &mut Batch) -> bool {
        while let Some(oldest) = self.moved.front_mut() {
            if let Some(record) = oldest.next() {
                into.push(record);
                return true;
            }
            self.bytes -= oldest.bytes.len();
            self.moved.pop_front();
        }
        let record = self.ring.next();
        record.map(|record| into.push(&record)).is_some()
    }

    /// Moves one piece of the buffer's content into memory; false if the buffer is empty.
    fn move_some(&mut self) -> bool {
        let mut batch = Batch::default();
        while batch.bytes.len() < PIECE
            && let Some(record) = self.ring.next()
        {
            batch.push(&record);
        }
        let is_some = !batch.ends.is_empty();
        if is_some {
            self.bytes += batch.bytes.len();
            self.moved.push_back(batch);
        }
        is_some
    }
}

impl Shared {
    /// An epoll file that reports when the buffer is a quarter full, and when the thread should end.
    fn epoll(&self) -> io::Result<OwnedFd> {
        // SAFETY: epoll_create1(2) takes a plain integer.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else closes it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let ring = lock(&self.state).ring.as_fd().as_raw_fd();
        // Edge-triggered: the buffer is nearly never empty, so a level trigger would always fire.
        for (fd, events, data) in
            [(ring, libc::EPOLLIN | libc::EPOLLET, RING), (self.end.as_raw_fd(), libc::EPOLLIN, END)]
        {
            let mut event = libc::epoll_event { events: events as u32, u64: data };
            // SAFETY: both descriptors are open, and `event` is initialized.
            if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(epoll)
    }

    /// The thread's main function: whenever the buffer is a quarter full, moves its content into memory, until the end.
    fn look_after(&self, epoll: &OwnedFd) {
        // The thread started with all of lj-trace's privileges, and needs none of them.
        let _ = privileges::keep_only(Capabilities::of(&[]));
        let mut is_full = false;
        loop {
            let mut event = libc::epoll_event { events: 0, u64: RING };
            let wait = if is_full { FULL } else { -1 };
            // SAFETY: there is room for the one event that is asked for.
            let ready = unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, wait) };
            if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
            let data = event.u64;
            if ready == 1 && data == END {
                return;
            }
            is_full = self.relieve();
        }
    }

    /// Moves the buffer's content into memory, as far as there is room. Returns whether memory is full.
    fn relieve(&self) -> bool {
        loop {
            let mut state = lock(&self.state);
            if state.bytes >= MOST_MOVED {
                return true;
            }
            if !state.move_some() {
                return false;
            }
        }
    }
}

const RING: u64 = 0;
const END: u64 = 1;

fn event() -> io::Result<OwnedFd> {
    // SAFETY: eventfd(2) takes two plain integers.
    let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_as_they_were_put_in() {
        let mut batch = Batch::default();
        assert!(batch.next().is_none());
        let records: [&[u8]; 4] = [b"one", b"", b"three", b"4"];
        records.iter().for_each(|record| batch.push(record));
        for record in records {
            assert_eq!(batch.next(), Some(record));
        }
        assert!(batch.next().is_none());
        batch.clear();
        batch.push(b"again");
        assert_eq!(batch.next(), Some(&b"again"[..]));
    }
}
