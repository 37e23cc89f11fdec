//! What the programs have counted so far, readable from any thread.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use aya::maps::{Map, MapData, PerCpuArray};
use lj_trace_common::config::{COUNTERS, Counter};

/// The counters of one process.
#[derive(Clone)]
pub struct Counts {
    /// The counters of its own set of programs, on all CPUs; [`None`] if the set has several processes, and so only
    /// samplers.
    of_cpus: Option<Arc<PerCpuArray<MapData, u64>>>,
    of_samplers: Arc<SamplerCounts>,
    process: u32,
}

impl Counts {
    pub(super) fn new(of_cpus: Option<PerCpuArray<MapData, u64>>, samplers: Arc<SamplerCounts>, process: u32) -> Self {
        Self { of_cpus: of_cpus.map(Arc::new), of_samplers: samplers, process }
    }

    /// The value of `counter`.
    pub fn count(&self, counter: Counter) -> u64 {
        let on_cpus = self.of_cpus.as_ref().and_then(|map| map.get(&(counter as u32), 0).ok());
        on_cpus.map_or(0, |values| values.iter().sum::<u64>()) + self.of_samplers.get(self.process, counter)
    }
}

/// The map of the samplers' counters, mapped into memory: with many processes, one system call per counter would cost
/// more than everything else.
pub(super) struct SamplerCounts {
    start: NonNull<AtomicU64>,
    entries: usize,
}

// SAFETY: the memory stays where it is until this is dropped, and is read and written by atomic operations only.
unsafe impl Send for SamplerCounts {}
// SAFETY: as above.
unsafe impl Sync for SamplerCounts {}

impl SamplerCounts {
    /// Maps the kernel's map, which has room for this many processes.
    pub fn map(map: &Map, processes: u32) -> anyhow::Result<Self> {
        let Map::Array(data) = map else { anyhow::bail!("what samplers count is no array") };
        let entries = (processes * COUNTERS) as usize;
        // SAFETY: a new mapping, where the kernel likes it, as large as the map is, rounded up to pages.
        let start = unsafe {
            let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, data.fd().as_fd().as_raw_fd());
            libc::mmap(std::ptr::null_mut(), entries * 8, access, libc::MAP_SHARED, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("the map of what samplers count");
        }
        let start = NonNull::new(start.cast()).context("a mapping at 0")?;
        Ok(Self { start, entries })
    }

    fn counter(&self, process: u32, counter: Counter) -> Option<&AtomicU64> {
        let index = (process * COUNTERS + counter as u32) as usize;
        // SAFETY: checked to be within the mapping, whose pages hold aligned words, each a valid atomic.
        (index < self.entries).then(|| unsafe { self.start.add(index).as_ref() })
    }

    fn get(&self, process: u32, counter: Counter) -> u64 {
        self.counter(process, counter).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Resets the counters for another process.
    pub fn clear(&self, process: u32) {
        Counter::ALL.iter().filter_map(|&counter| self.counter(process, counter)).for_each(|value| {
            value.store(0, Ordering::Relaxed);
        });
    }
}

impl Drop for SamplerCounts {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`, to which nobody has a reference any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.entries * 8) };
    }
}
