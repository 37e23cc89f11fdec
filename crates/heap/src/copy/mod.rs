//! A copy of a process's memory: it is read once, in large pieces from beginning to end, and searched afterwards. That
//! takes a second for some gigabytes; following references in the process would take ten times as long.

mod allocator;
mod pages;
mod ranges;
mod store;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};
use lj_trace_luajit::Vm;
use lj_trace_luajit::overlay::plain_at;
use lj_trace_process::{Maps, PageKind, PageMap, Process, ProcessMemory};

use self::ranges::{common, union, without};
use self::store::CopyStore;
pub use self::store::{CopyStoreError, folders};
use super::blocks::ReadSome;
use super::not_on_stack::NotOnStack;

/// The number of bytes to read at a time: few enough to be in the CPU's cache when they are stored.
const PIECE: usize = 1 << 20;

/// The most ranges that one system call reads (`UIO_MAXIOV`).
const MAX_PLACES: usize = 1024;

/// A run of pages in the copy.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    length: u64,
    /// The offset of the run in the store.
    offset: u64,
}

/// Which memory of a process to copy.
#[derive(Debug)]
pub struct Plan<'a> {
    process: &'a Process,
    gc64: bool,
    pages: PageMap,
    folders: Vec<PathBuf>,
    allocators: Option<AllocatorMemory>,
}

/// The memory of the allocators of all VMs.
#[derive(Debug)]
struct AllocatorMemory {
    extents: Vec<Range<u64>>,
    /// The mappings that were searched for this memory.
    searched: Vec<Range<u64>>,
}

impl<'a> Plan<'a> {
    /// A plan for the heaps of `vms`, whose sizes are `totals`. One of `folders` must have room for the copy if it is
    /// larger than some megabytes.
    pub fn new(process: &'a Process, maps: &Maps, vms: &[Vm], totals: &[u64], folders: Vec<PathBuf>) -> Self {
        /// If a process has at most this much memory besides Lua's, all of it is copied.
        const ROOM: u64 = 128 << 20;
        let gc64 = vms.iter().any(|vm| vm.layout.is_gc64());
        let pages = PageMap::open(process.pid());
        let of_lua = totals.iter().fold(0, |sum: u64, total| sum.saturating_add(*total));
        let find = || {
            let mappings = pages::mappings(maps, gc64);
            let of = |vm| allocator::extents(process.memory(), &pages, vm, &mappings);
            let extents = vms.iter().map(of).collect::<Option<Vec<_>>>()?.concat();
            Some(AllocatorMemory { extents: union(extents), searched: mappings })
        };
        // Without GC64, addresses have 32 bits, which narrows the search enough.
        let is_much = gc64 && process.rss() > of_lua.saturating_mul(2).saturating_add(ROOM);
        let allocators = if is_much { find() } else { None };
        Self { process, gc64, pages, folders, allocators }
    }

    /// The memory to copy, now that `maps` are the mappings of the process.
    fn wanted(&self, maps: &Maps) -> Vec<Range<u64>> {
        let all = pages::mappings(maps, self.gc64);
        let Some(AllocatorMemory { extents, searched }) = &self.allocators else { return all };
        // Memory that was mapped since has not been searched, so it is copied, too.
        let mut wanted = common(extents, &all);
        wanted.extend(without(&all, searched));
        wanted.extend(pages::small(maps));
        union(wanted)
    }
}

/// A copy of the memory of a process. Memory that was not copied, such as files, is read from the process itself.
#[derive(Debug)]
pub struct HeapCopy {
    runs: Vec<Run>,
    store: CopyStore,
    /// The ranges that were read. A page in one of them that is in no run has only zeros.
    covered: Vec<Range<u64>>,
    maps: Maps,
    live: NotOnStack,
    /// The bytes that were read later, by the start of their mapping.
    outside: RefCell<BTreeMap<u64, u64>>,
    /// The index of the last run that was used.
    last: Cell<usize>,
}

impl HeapCopy {
    /// Copies the memory of the plan. Calls `progress` after each piece, with the bytes copied so far and the bytes to
    /// copy.
    ///
    /// # Errors
    /// [`CopyStoreError`] if there is no room for it.
    pub fn take(plan: Plan<'_>, maps: Maps, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, CopyStoreError> {
        let covered = plan.wanted(&maps);
        let Plan { process, pages, folders, .. } = plan;
        let runs: Vec<Range<u64>> = covered.iter().flat_map(|range| pages.runs(PageKind::Any, range)).collect();
        let mut copier = Copier {
            memory: process.memory(),
            page: pages.page_size(),
            all: runs.iter().map(|run| run.end - run.start).sum(),
            buffer: vec![0; PIECE],
            places: Vec::new(),
            wanted: 0,
            runs: Vec::new(),
            store: CopyStore::new(folders),
            progress,
        };
        for mut run in runs {
            while !run.is_empty() {
                let count = (run.end - run.start).min((PIECE - copier.wanted) as u64);
                copier.places.push((run.start, count as usize));
                copier.wanted += count as usize;
                run.start += count;
                if copier.wanted == PIECE || copier.places.len() == MAX_PLACES {
                    copier.read()?;
                }
            }
        }
        copier.read()?;
        let live = NotOnStack::new(process.memory(), &maps);
        let (runs, store) = (copier.runs, copier.store);
        let (outside, last) = (RefCell::default(), Cell::new(0));
        Ok(Self { runs, store, covered, maps, live, outside, last })
    }

    /// The mappings of the process at the time of the copy.
    pub const fn maps(&self) -> &Maps {
        &self.maps
    }

    /// The bytes that were read from the process, including those that were read later.
    pub fn bytes_read(&self) -> u64 {
        self.store.len() + self.outside().into_iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// The memory that was not copied but read from the process later: the names of mappings, and the bytes read from each.
    pub fn outside(&self) -> Vec<(String, u64)> {
        let name = |start: u64| match self.maps.find(start) {
            Some(mapping) if !mapping.path.is_empty() => mapping.path.clone(),
            _ => format!("{start:#x}"),
        };
        self.outside.borrow().iter().map(|(&start, &bytes)| (name(start), bytes)).collect()
    }

    /// Reads from the copy. Returns the number of bytes, and whether the process may have more after them.
    fn read_copied(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let Some(at) = address.checked_add(done as u64) else { break };
            let rest = &mut buffer[done..];
            let count = match self.run(at) {
                Ok(run) => {
                    let within = at - run.start;
                    let count = (run.length - within).min(rest.len() as u64) as usize;
                    self.store.read(run.offset + within, &mut rest[..count])
                }
                Err(next) => {
                    let index = self.covered.partition_point(|range| range.end <= at);
                    let Some(range) = self.covered.get(index).filter(|range| range.contains(&at)) else { break };
                    // A page of a private file mapping that was never written to has the contents of the file.
                    if self.maps.find(at).is_none_or(|mapping| mapping.is_file()) {
                        break;
                    }
                    let count = (range.end.min(next) - at).min(rest.len() as u64) as usize;
                    rest[..count].fill(0);
                    count
                }
            };
            if count == 0 {
                break;
            }
            done += count;
        }
        done
    }

    /// The run that contains an address, or the start of the next run.
    fn run(&self, address: u64) -> Result<&Run, u64> {
        let holds = |run: &&Run| (run.start..run.start + run.length).contains(&address);
        if let Some(run) = self.runs.get(self.last.get()).filter(holds) {
            return Ok(run);
        }
        let index = self.runs.partition_point(|run| run.start + run.length <= address);
        let run = self.runs.get(index);
        if run.filter(holds).is_some() {
            self.last.set(index);
        }
        run.filter(holds).ok_or(run.map_or(u64::MAX, |run| run.start))
    }
}

impl ReadSome for &HeapCopy {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let done = self.read_copied(address, buffer);
        if done > 0 {
            return done;
        }
        let Some(mapping) = self.maps.find(address).filter(|mapping| mapping.read) else { return 0 };
        let length = usize::try_from(mapping.end - address).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.live.read_some(address, &mut buffer[..length]);
        // Memory that cannot be written has not changed since the copy.
        if mapping.write {
            *self.outside.borrow_mut().entry(mapping.start).or_default() += count as u64;
        }
        count
    }

    fn read_block(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.read_copied(address, buffer)
    }
}

impl ReadMemory for &HeapCopy {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let mut bytes = vec![0; size_of::<T>()];
        let count = self.read_some(address, &mut bytes);
        plain_at(&bytes[..count], 0).ok_or(Unreadable)
    }
}

/// Reads ranges and stores them.
struct Copier<'a> {
    memory: ProcessMemory,
    page: u64,
    all: u64,
    buffer: Vec<u8>,
    places: Vec<(u64, usize)>,
    wanted: usize,
    runs: Vec<Run>,
    store: CopyStore,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Copier<'_> {
    fn read(&mut self) -> Result<(), CopyStoreError> {
        self.wanted = 0;
        let mut places = std::mem::take(&mut self.places);
        let mut rest = &mut places[..];
        while !rest.is_empty() {
            let mut count = self.memory.read_places(rest, &mut self.buffer);
            let mut offset = self.store.len();
            self.store.append(&self.buffer[..count])?;
            while let Some((start, length)) = rest.first_mut().filter(|(_, length)| count > 0 || *length == 0) {
                let read = count.min(*length);
                match self.runs.last_mut() {
                    Some(run) if run.start + run.length == *start => run.length += read as u64,
                    _ => self.runs.push(Run { start: *start, length: read as u64, offset }),
                }
                (count, offset) = (count - read, offset + read as u64);
                (*start, *length) = (*start + read as u64, *length - read);
                if *length > 0 {
                    break;
                }
                rest = &mut rest[1..];
            }
            // The next page is gone: a running process gives memory back.
            if let Some((start, length)) = rest.first_mut() {
                let next = (*start / self.page + 1) * self.page;
                let passed = ((next - *start) as usize).min(*length);
                (*start, *length) = (*start + passed as u64, *length - passed);
                if *length == 0 {
                    rest = &mut rest[1..];
                }
            }
        }
        places.clear();
        self.places = places;
        (self.progress)(self.store.len(), self.all);
        Ok(())
    }
}
