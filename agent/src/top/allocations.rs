//! Sources of allocations: how much they allocate, and how much of that is still held.

use std::collections::{BTreeMap, HashMap};
use std::ops::AddAssign;
use std::sync::Arc;

use lj_trace_profile::Frame;
use lj_trace_profile::memory::sources::{SourceLine, Sources};
use lj_trace_profile::model::{StackId, StackTable};
use lj_trace_streams::hash::HeapMap;
use lj_trace_streams::memprof::{Event, Source};

use super::window::{Span, TopWindow};
use lj_trace_engine::allocations::AllocationListener;

/// What a source has allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Allocated {
    bytes: u64,
    count: u64,
}

impl AddAssign for Allocated {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.count += other.count;
    }
}

/// A source of allocations: a line of Lua code, a C function, a trace, the VM itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationRow {
    /// Its name, the same in all outputs.
    pub name: Arc<str>,
    /// Allocated bytes; a reallocation counts with its new size.
    pub bytes: u64,
    /// The number of allocations and reallocations.
    pub count: u64,
    /// Bytes that were allocated since the beginning and are not freed yet.
    pub held: u64,
}

/// The memory for the stacks of sources, in bytes. Sources beyond it share one row.
const STACKS: usize = 8 << 20;

/// The sums of allocation events.
#[derive(Debug)]
pub struct Allocations {
    length: usize,
    sources: Vec<Sources>,
    stacks: StackTable,
    allocated: TopWindow<StackId, Allocated>,
    held: HashMap<StackId, u64>,
    blocks: HeapMap<(u64, StackId)>,
    events: u64,
}

impl Allocations {
    /// No data; the last `window` intervals count as recent.
    pub fn new(window: usize) -> Self {
        Self {
            length: window,
            sources: Vec::new(),
            stacks: StackTable::default(),
            allocated: TopWindow::new(window),
            held: HashMap::new(),
            blocks: HeapMap::default(),
            events: 0,
        }
    }

    fn add(&mut self, vm: usize, event: &Event) {
        self.register_vm(vm);
        match *event {
            // The gauges show losses.
            Event::Symbol(ref symbol) => {
                self.sources[vm].symbol(symbol, &mut self.stacks, &mut BTreeMap::new());
                return;
            }
            Event::Alloc { source, addr, size } => {
                let stack = self.sources[vm].stack(source, &mut self.stacks);
                self.allocate(stack, stack, addr, size);
            }
            Event::Realloc { source, old_addr, addr, size, .. } => {
                let stack = self.sources[vm].stack(source, &mut self.stacks);
                // A block that shrinks keeps its owner; see `MemoryProfile`.
                let shrunk = self.release(old_addr).filter(|(old, _)| size <= *old);
                self.allocate(stack, shrunk.map_or(stack, |(_, holder)| holder), addr, size);
            }
            Event::Free { addr, .. } => drop(self.release(addr)),
        }
        self.events += 1;
    }

    fn register_vm(&mut self, vm: usize) {
        for new in self.sources.len()..=vm {
            self.sources.push(Sources::of_vm(Frame::vm(new)).within(STACKS));
        }
    }

    fn allocate(&mut self, source: StackId, holder: StackId, addr: u64, size: u64) {
        self.allocated.add(&source, Allocated { bytes: size, count: 1 });
        *self.held.entry(holder).or_default() += size;
        if let Some((size, holder)) = self.blocks.insert(addr, (size, holder)) {
            // The free of the earlier block was lost.
            self.let_go(holder, size);
        }
    }

    fn release(&mut self, addr: u64) -> Option<(u64, StackId)> {
        let (size, holder) = self.blocks.remove(&addr)?;
        self.let_go(holder, size);
        Some((size, holder))
    }

    fn let_go(&mut self, holder: StackId, size: u64) {
        if let Some(held) = self.held.get_mut(&holder) {
            *held = held.saturating_sub(size);
        }
    }

    /// Ends an interval.
    pub fn roll(&mut self) {
        self.allocated.roll();
    }

    /// Forgets the sums. Keeps the meaning of names and the live blocks: what is held stays held.
    pub fn clear(&mut self) {
        self.allocated = TopWindow::new(self.length);
        self.events = 0;
    }

    /// How many intervals are recent by now.
    pub fn intervals(&self) -> usize {
        self.allocated.intervals()
    }

    /// The number of events: allocations, reallocations and frees.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// All sources, unsorted.
    pub fn rows(&self, span: Span) -> Vec<AllocationRow> {
        let mut sums = self.allocated.sums(span);
        // A source that holds memory is shown even if it has not allocated lately.
        for (&stack, _) in self.held.iter().filter(|(_, held)| **held > 0) {
            sums.entry(stack).or_default();
        }
        let row = |(stack, Allocated { bytes, count })| AllocationRow {
            name: self.name(stack),
            bytes,
            count,
            held: self.held.get(&stack).copied().unwrap_or(0),
        };
        sums.into_iter().map(row).collect()
    }

    /// The name of the innermost frame, with the function that it belongs to.
    fn name(&self, stack: StackId) -> Arc<str> {
        let frames: Vec<&Frame> = self
            .stacks
            .row(stack)
            .map_or(&[][..], |row| row.frames)
            .iter()
            .filter_map(|&id| self.stacks.frame(id))
            .collect();
        match frames[..] {
            [.., function @ Frame::Lua { .. }, line @ Frame::Line { .. }] => format!("{line}  in {function}").into(),
            [.., last] => last.to_string().into(),
            [] => "[unknown: no source]".into(),
        }
    }
}

impl AllocationListener for Allocations {
    fn event(&mut self, vm: usize, event: &Event) {
        self.add(vm, event);
    }

    fn line(&mut self, vm: usize, source: Source, line: SourceLine) {
        self.register_vm(vm);
        self.sources[vm].line(source, line);
    }

    fn name_function(&mut self, vm: usize, proto: u64, name: &Arc<str>) {
        self.register_vm(vm);
        self.sources[vm].name_function(proto, name, &mut self.stacks);
    }

    fn forget_prototype(&mut self, vm: usize, proto: u64) {
        self.register_vm(vm);
        self.sources[vm].forget_prototype(proto);
    }

    fn forget_lines(&mut self, vm: usize) {
        self.register_vm(vm);
        self.sources[vm].forget_lines();
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::Symbol;

    use super::*;

    const LINE: Source = Source::Lua { proto: 0x1000, line: 4 };

    fn rows(allocations: &Allocations, span: Span) -> Vec<(String, u64, u64, u64)> {
        let mut rows: Vec<_> = allocations
            .rows(span)
            .into_iter()
            .map(|row| (row.name.to_string(), row.bytes, row.count, row.held))
            .collect();
        rows.sort();
        rows
    }

    #[test]
    fn what_is_held_outlives_the_window() {
        let mut allocations = Allocations::new(1);
        allocations.add(0, &Event::Symbol(Symbol::lua(0x1000, b"@a.lua", 3)));
        allocations.add(0, &Event::Alloc { source: LINE, addr: 0x10, size: 100 });
        allocations.add(0, &Event::Alloc { source: LINE, addr: 0x20, size: 7 });
        allocations.add(0, &Event::Free { source: Source::Internal, addr: 0x20, size: 7 });
        let name = "a.lua:4  in @a.lua:3".to_owned();
        assert_eq!(rows(&allocations, Span::Recent), [(name.clone(), 107, 2, 100)]);
        allocations.roll();
        allocations.roll();
        assert_eq!(rows(&allocations, Span::Recent), [(name.clone(), 0, 0, 100)]);
        let grown = Event::Realloc { source: Source::Internal, old_addr: 0x10, old_size: 100, addr: 0x30, size: 300 };
        allocations.add(0, &grown);
        assert_eq!(rows(&allocations, Span::Recent), [("INTERNAL".to_owned(), 300, 1, 300)]);
        assert_eq!(allocations.events(), 4);
    }
}
