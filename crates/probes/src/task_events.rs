//! Waits until a process or a thread starts or ends, anywhere on the host: a perf event on each CPU that counts nothing, whose
//! records the kernel writes when a task is forked or exits (`perf_event_task` in Linux's `kernel/events/core.c`).
//!
//! A look for new processes is then made when there may be one, and not twenty times a second.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lj_trace_process::page_size;

use super::online::online;
use super::perf_event;

/// Offsets of `data_head` and `data_tail` in `struct perf_event_mmap_page` (linux/perf_event.h), in bytes.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// One event on each CPU.
pub struct TaskEvents {
    rings: Vec<TaskRing>,
    /// The CPUs that were online at first.
    cpus: Vec<u32>,
}

impl TaskEvents {
    /// Opens the events of all CPUs that are online.
    ///
    /// # Errors
    /// Whatever `perf_event_open(2)` or `mmap(2)` gives: `EACCES` without privileges.
    pub fn open() -> io::Result<Self> {
        let cpus = online()?;
        let rings = cpus.iter().map(|cpu| TaskRing::open(*cpu)).collect::<io::Result<_>>()?;
        Ok(Self { rings, cpus })
    }

    /// Waits until a task has started or ended since the last call, or for so long; returns whether one has.
    ///
    /// # Errors
    /// Whatever `poll(2)` gives; or a CPU went offline, whose event reports nothing any more. [`Self::is_complete`] tells of CPUs that came
    /// online.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut polled: Vec<libc::pollfd> = self.rings.iter().map(TaskRing::polled).collect();
        let milliseconds = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the array is writable, and as long as the kernel is told.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, milliseconds) };
        match ready {
            0 => Ok(false),
            1.. => {
                // An event whose CPU went offline reports POLLHUP for good.
                if polled.iter().any(|ring| ring.revents & !libc::POLLIN != 0) {
                    return Err(io::Error::other("a CPU went offline"));
                }
                self.rings.iter().for_each(TaskRing::skip);
                Ok(true)
            }
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(true),
                error => Err(error),
            },
        }
    }

    /// Whether there are events on all CPUs that are online now.
    pub fn is_complete(&self) -> bool {
        online().is_ok_and(|now| now == self.cpus)
    }
}

/// The event of one CPU, and the ring of two pages that its records are written to.
struct TaskRing {
    event: OwnedFd,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping stays where it is until this is dropped; its two words are read and written by atomic operations only.
unsafe impl Send for TaskRing {}

impl TaskRing {
    fn open(cpu: u32) -> io::Result<Self> {
        let event = perf_event::open_for_tasks(cpu)?;
        let length = 2 * usize::try_from(page_size()).map_err(io::Error::other)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, where the kernel likes it: the control page and one page of records.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, event.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { event, start, length })
    }

    fn polled(&self) -> libc::pollfd {
        libc::pollfd { fd: self.event.as_raw_fd(), events: libc::POLLIN, revents: 0 }
    }

    /// Drops all records: that there are some is all that matters.
    fn skip(&self) {
        let word = |offset: usize| {
            // SAFETY: within the control page, which holds aligned words there, each a valid atomic.
            unsafe { self.start.add(offset).cast::<AtomicU64>().as_ref() }
        };
        word(DATA_TAIL).store(word(DATA_HEAD).load(Ordering::Acquire), Ordering::Release);
    }
}

impl Drop for TaskRing {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `open`, to which nobody has a reference any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Starts a process after `after`, and returns how long the wait took, and whether it saw the process.
    fn wait_for_a_start(events: &TaskEvents, after: Duration) -> (Duration, bool) {
        thread::scope(|scope| {
            let began = Instant::now();
            scope.spawn(move || {
                thread::sleep(after);
                Command::new("true").status().unwrap();
            });
            // The thread itself has started, too, and others may.
            while began.elapsed() < after {
                events.wait(Duration::from_millis(1)).unwrap();
            }
            let seen = events.wait(Duration::from_secs(10)).unwrap();
            (began.elapsed().saturating_sub(after), seen)
        })
    }

    /// Without a watermark, a process woke nobody before some forty records had come together.
    #[test]
    fn a_process_that_starts_ends_the_wait() {
        let events = TaskEvents::open().unwrap();
        assert!(events.is_complete());
        let mut waits: Vec<_> =
            (0..21).map(|turn| wait_for_a_start(&events, Duration::from_millis(5 + turn))).collect();
        waits.sort_unstable();
        // Other tests start threads meanwhile, and the machine may be busy: most of the waits are short.
        assert!(waits[10].0 < Duration::from_millis(100), "{waits:?}");
        assert!(waits.iter().all(|(_, seen)| *seen), "{waits:?}");
    }

    /// The rings have one page each, far less than the records of so many tasks.
    #[test]
    fn a_full_ring_does_not_end_the_waiting() {
        let events = TaskEvents::open().unwrap();
        for _ in 0..500 {
            thread::spawn(|| ()).join().unwrap();
        }
        assert!(events.wait(Duration::ZERO).unwrap());
        let (took, seen) = wait_for_a_start(&events, Duration::from_millis(20));
        assert!(seen && took < Duration::from_secs(5), "{took:?}");
    }
}
