//! A memory profile: which code allocates, which code holds memory, and what became garbage.

pub mod growth;
mod request;
pub mod sources;
mod stored;
pub mod text;
mod unnamed;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::ops::AddAssign;
use std::sync::Arc;

use growth::Growth;
use lj_trace_streams::hash::{AddrMap, HeapMap};
use lj_trace_streams::memprof::{Event, Source};
use lj_trace_text::{Room, bytes};
pub use request::EventRequest;
use sources::{NamedStacks, SourceLine, Sources};
pub use stored::{GrowthStep, StoredMemory};

use super::Frame;
use super::model::{Labels, Measure, Profile, Recorded, StackId, StackTable, Unit};

/// The weight of a memory profile's stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Weight {
    /// Bytes of all allocations, and of all reallocations at their new sizes, freed since or not.
    #[default]
    Allocated,
    /// How many allocations, reallocations and frees there were.
    Events,
    /// Bytes that were allocated during the recording and not freed by its end.
    Held,
}

impl Weight {
    /// The measure of this weight.
    pub const fn measure(self) -> Measure {
        match self {
            Self::Allocated => ALLOC_SPACE,
            Self::Events => EVENTS,
            Self::Held => INUSE_SPACE,
        }
    }

    /// The weight in words: `bytes allocated`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Allocated => "bytes allocated",
            Self::Events => "allocation events",
            Self::Held => "bytes still held",
        }
    }
}

/// Allocations; reallocations count too, because they make a new block.
pub(super) const ALLOC_OBJECTS: Measure = Measure::new("alloc_objects", Unit::Objects, 0);
pub(super) const ALLOC_SPACE: Measure = Measure::new("alloc_space", Unit::Bytes, 1);
const INUSE_OBJECTS: Measure = Measure::new("inuse_objects", Unit::Objects, 2);
const INUSE_SPACE: Measure = Measure::new("inuse_space", Unit::Bytes, 3);
const EVENTS: Measure = Measure::new("events", Unit::Events, 4);

/// Which code allocates, by every measure. An event has one source and no callers, so its stack is what the source
/// belongs to: file, function, and line; or a C function, a trace, or the VM itself.
///
/// A live recording and a stream fill it with the same events. It needs memory for each source. If it [follows
/// blocks](MemoryProfile::follow_blocks), it also needs memory for each live block; only then does it know what is
/// held.
///
/// A block belongs to the source that made it its current size. A block that grows, whether it moves or not, goes to
/// the source of the reallocation. A block that shrinks stays with its source, because it is the garbage collector that
/// shrinks stacks and buffers. Blocks from before the recording count from their first reallocation on. The reference
/// parser's text differs for blocks that several sources have reallocated: it adds each new size to the source of the
/// previous size (`form_heap_delta` of `tools/memprof/process.lua`), and so shows freed memory as held.
#[derive(Debug, Default)]
pub struct MemoryProfile {
    weight: Weight,
    stacks: StackTable,
    /// By VM: each VM has its own prototype addresses and its own trace numbers.
    sources: Vec<Sources>,
    /// The stacks of sources, by the numbers of their stacks without labels and of requests.
    of_requests: AddrMap<(StackId, u32), StackId>,
    /// The live blocks, if they are followed. The VMs of a process share one address space.
    heap: HeapMap<HeldBlock>,
    follows_blocks: bool,
    /// By stack.
    garbage: Vec<Garbage>,
    growth: Growth,
    losses: BTreeMap<String, u64>,
    events: u64,
    /// Bytes of all allocations so far: this clock measures the age of blocks.
    allocated: u64,
    /// More about a profile that was merged from many.
    stored: Option<StoredMemory>,
    /// What was profiled, as a title: a command line, a pid, a file.
    pub title: String,
}

#[derive(Clone, Copy, Debug)]
struct HeldBlock {
    size: u64,
    holder: StackId,
    /// How many KiB had been allocated before this block.
    birth: u32,
}

/// Blocks that were allocated during the recording, and freed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    /// How many.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sum, over all of them, of the KiB that were allocated during each block's life.
    pub age: u64,
}

impl AddAssign for Garbage {
    fn add_assign(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.age = self.age.saturating_add(other.age);
    }
}

impl MemoryProfile {
    /// An empty profile. Formats with room for one measure show `weight`.
    pub fn new(weight: Weight, title: impl Into<String>) -> Self {
        let follows_blocks = weight == Weight::Held;
        Self { weight, title: title.into(), follows_blocks, ..Self::default() }
    }

    /// Makes the profile follow each block from now on, so that it knows what is held.
    pub fn follow_blocks(&mut self) {
        self.follows_blocks = true;
    }

    /// Whether the profile knows what is held.
    pub fn follows_blocks(&self) -> bool {
        self.follows_blocks
    }

    /// How many bytes its largest table will need at once when it grows; 0 as long as the table has room.
    pub fn next_growth(&self) -> u64 {
        let (used, room) = (self.heap.len(), self.heap.capacity());
        // The table doubles, and exists beside the old one while it grows; at most 7 of 8 entries are in use.
        let doubled = 2 * (room * 8 / 7) * (size_of::<(u64, HeldBlock)>() + 1);
        if used >= room / 2 { doubled as u64 } else { 0 }
    }

    /// Adds an event of the VM with this number, which counts from zero. The symbols of the VM are events, too.
    #[inline]
    pub fn add(&mut self, vm: usize, event: &Event) {
        self.add_for(vm, event, None);
    }

    /// The same of an event that is for this request, where that is known.
    #[inline]
    pub fn add_for(&mut self, vm: usize, event: &Event, request: Option<&EventRequest>) {
        self.register_vm(vm);
        let source = match event {
            Event::Symbol(symbol) => {
                let named = self.sources[vm].symbol(symbol, &mut self.stacks, &mut self.losses);
                return named.map_or((), |named| self.name_of_requests(&named));
            }
            Event::Alloc { source, .. } | Event::Realloc { source, .. } | Event::Free { source, .. } => *source,
        };
        if request.is_some_and(|request| request.is_left_out) {
            return self.leave_out(event);
        }
        self.events += 1;
        let mut stack = self.sources[vm].stack(source, &mut self.stacks);
        if let Some(request) = request.filter(|request| request.labels.is_some() || request.group.is_some()) {
            stack = self.of_request(stack, request);
        }
        self.stacks.add(stack, EVENTS.index, 1);
        match *event {
            Event::Alloc { addr, size, .. } => {
                self.allocate(stack, size);
                self.growth.add(size, 0);
                if self.follows_blocks {
                    self.hold(addr, HeldBlock { size, holder: stack, birth: self.clock() });
                }
            }
            Event::Realloc { old_addr, old_size, addr, size, .. } => {
                self.allocate(stack, size);
                self.growth.add(size, old_size);
                if self.follows_blocks {
                    let old = self.release(old_addr);
                    // For the program it is the same block, so it keeps its age.
                    let birth = old.map_or_else(|| self.clock(), |old| old.birth);
                    let holder = old.filter(|old| size <= old.size).map_or(stack, |old| old.holder);
                    self.hold(addr, HeldBlock { size, holder, birth });
                }
            }
            Event::Free { addr, size, .. } => {
                self.growth.add(0, size);
                if self.follows_blocks
                    && let Some(block) = self.release(addr)
                {
                    self.bury(block);
                }
            }
            Event::Symbol(_) => {}
        }
    }

    /// The stack of a source that is for a request.
    #[inline]
    fn of_request(&mut self, stack: StackId, request: &EventRequest) -> StackId {
        match self.of_requests.get(&(stack, request.number)) {
            Some(&known) => known,
            None => self.make_stack_of(stack, request),
        }
    }

    #[cold]
    fn make_stack_of(&mut self, stack: StackId, request: &EventRequest) -> StackId {
        let Some((labels, frames)) = self.stacks.all_frames(stack) else { return stack };
        let labels = Labels { request: request.labels.clone(), ..labels.clone() };
        let mut frames = frames.to_vec();
        if let Some(group) = &request.group {
            let group = self.stacks.intern(group.clone());
            // A group takes the place of the VM, with which each stack of this profile begins.
            match frames.first_mut() {
                Some(root) => *root = group,
                None => frames.push(group),
            }
        }
        let made = self.stacks.labelled(&labels, &frames);
        self.of_requests.insert((stack, request.number), made);
        made
    }

    /// Takes an event of a request that is not kept: the block that it frees, or makes larger, is not held any more by who is.
    #[cold]
    fn leave_out(&mut self, event: &Event) {
        match *event {
            Event::Alloc { addr, size, .. } => {
                self.growth.add(size, 0);
                self.allocated = self.allocated.saturating_add(size);
                // Its free was lost.
                self.release(addr);
            }
            Event::Realloc { old_addr, old_size, addr, size, .. } => {
                self.growth.add(size, old_size);
                self.allocated = self.allocated.saturating_add(size);
                if let Some(old) = self.release(old_addr).filter(|old| size <= old.size) {
                    self.hold(addr, HeldBlock { size, ..old });
                }
            }
            Event::Free { addr, size, .. } => {
                self.growth.add(0, size);
                if let Some(block) = self.release(addr) {
                    self.bury(block);
                }
            }
            Event::Symbol(_) => {}
        }
    }

    /// Gives the Lua line of a source on a trace: a stream has no room for it.
    pub fn line(&mut self, vm: usize, source: Source, line: SourceLine) {
        self.register_vm(vm);
        self.sources[vm].line(source, line);
    }

    /// Names a function in lines that were given without its name.
    pub fn name_function(&mut self, vm: usize, proto: u64, name: &Arc<str>) {
        self.register_vm(vm);
        if let Some(named) = self.sources[vm].name_function(proto, name, &mut self.stacks) {
            self.name_of_requests(&named);
        }
    }

    /// Names the stacks of requests that were made from stacks that have a name now.
    #[cold]
    fn name_of_requests(&mut self, named: &NamedStacks) {
        let is_named = |stack: &StackId| named.stacks.contains(stack);
        // A group takes the place of the VM, so stacks of several VMs may be one.
        let others = self.of_requests.iter().filter(|((stack, _), _)| !is_named(stack));
        let others: HashSet<StackId> = others.map(|(_, made)| *made).collect();
        let stacks = &mut self.stacks;
        self.of_requests.retain(|(stack, _), made| {
            let is_kept = !is_named(stack) || !others.contains(made);
            if is_kept && is_named(stack) {
                stacks.name_function(*made, &named.name);
            }
            is_kept
        });
    }

    /// Notes that a prototype of a VM was freed: its address may mean something else later.
    pub fn forget_prototype(&mut self, vm: usize, proto: u64) {
        self.register_vm(vm);
        self.sources[vm].forget_prototype(proto);
    }

    /// Forgets everything that [`line`](Self::line) was told of a VM.
    pub fn forget_lines(&mut self, vm: usize) {
        self.register_vm(vm);
        self.sources[vm].forget_lines();
    }

    /// Folds the rarest stacks once all stacks take more than this many bytes of memory, down to half of that. Their
    /// held bytes and their garbage are folded with them.
    #[inline]
    pub fn keep_within(&mut self, bytes: usize) {
        if self.stacks.bytes() > bytes {
            self.fold(bytes / 2);
        }
    }

    #[cold]
    fn fold(&mut self, keep: usize) {
        let moved = self.stacks.fold_rare(keep);
        let new = |stack: StackId| moved.get(stack.index()).copied().unwrap_or(stack);
        self.heap.values_mut().for_each(|block| block.holder = new(block.holder));
        let mut garbage = vec![Garbage::default(); self.stacks.numbered().count()];
        for (old, sum) in moved.iter().zip(&self.garbage) {
            garbage[old.index()] += *sum;
        }
        self.garbage = garbage;
        self.sources.iter_mut().for_each(|sources| sources.renumber(&moved));
        self.of_requests.clear();
    }

    /// The weight of the stacks that were folded because they were rare, in allocated bytes.
    pub fn folded(&self) -> u64 {
        self.stacks.folded()[ALLOC_SPACE.index]
    }

    #[inline]
    fn register_vm(&mut self, vm: usize) {
        for new in self.sources.len()..=vm {
            self.sources.push(Sources::of_vm(Frame::vm(new)));
        }
    }

    fn allocate(&mut self, stack: StackId, size: u64) {
        self.stacks.add(stack, ALLOC_OBJECTS.index, 1);
        self.stacks.add(stack, ALLOC_SPACE.index, size);
        self.allocated = self.allocated.saturating_add(size);
    }

    fn clock(&self) -> u32 {
        u32::try_from(self.allocated >> 10).unwrap_or(u32::MAX)
    }

    fn hold(&mut self, addr: u64, block: HeldBlock) {
        self.stacks.add(block.holder, INUSE_OBJECTS.index, 1);
        self.stacks.add(block.holder, INUSE_SPACE.index, block.size);
        if let Some(old) = self.heap.insert(addr, block) {
            // The profile missed its free.
            self.let_go(old);
        }
    }

    fn release(&mut self, addr: u64) -> Option<HeldBlock> {
        let block = self.heap.remove(&addr)?;
        self.let_go(block);
        Some(block)
    }

    fn let_go(&mut self, block: HeldBlock) {
        self.stacks.take(block.holder, INUSE_OBJECTS.index, 1);
        self.stacks.take(block.holder, INUSE_SPACE.index, block.size);
    }

    fn bury(&mut self, block: HeldBlock) {
        let index = block.holder.index();
        if self.garbage.len() <= index {
            self.garbage.resize_with(index + 1, Garbage::default);
        }
        let age = self.clock().saturating_sub(block.birth);
        self.garbage[index] += Garbage { objects: 1, bytes: block.size, age: u64::from(age) };
    }

    /// The blocks of a stack that were freed again.
    pub fn garbage(&self, stack: StackId) -> Garbage {
        self.garbage.get(stack.index()).copied().unwrap_or_default()
    }

    /// How the heap grew, event by event.
    pub fn growth(&self) -> &Growth {
        &self.growth
    }

    /// Counts events that were lost, by reason.
    pub fn lose(&mut self, reason: &str, events: u64) {
        if events > 0 {
            *self.losses.entry(reason.to_owned()).or_insert(0) += events;
        }
    }

    /// The weight of the stacks.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// How many events there were: allocations, reallocations and frees.
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl Profile for MemoryProfile {
    fn weighted(&self) -> &StackTable {
        &self.stacks
    }

    fn title(&self) -> String {
        if self.title.is_empty() {
            self.weight.describe().to_owned()
        } else {
            format!("{}: {}", self.title, self.weight.describe())
        }
    }

    fn subtitle(&self) -> String {
        let total = self.total();
        let measured = match self.weight {
            // An estimate does not know the number of events.
            Weight::Allocated if self.events == 0 => format!("{} allocated", bytes(total)),
            Weight::Allocated => format!("{} allocated in {} events", bytes(total), self.events),
            Weight::Events => format!("{} allocations, reallocations and frees", self.events),
            Weight::Held => format!("{} still held after {} events", bytes(total), self.events),
        };
        let lost = match self.losses.values().sum::<u64>() {
            0 => String::new(),
            lost => format!(", {lost} lost"),
        };
        format!("{measured}{lost}: green Lua, blue compiled Lua, orange C, red the VM itself")
    }

    fn measures(&self) -> Vec<Measure> {
        let mut measures = vec![ALLOC_OBJECTS, ALLOC_SPACE];
        if self.follows_blocks {
            measures.extend([INUSE_OBJECTS, INUSE_SPACE]);
        }
        measures
    }

    fn shown(&self) -> Measure {
        self.weight.measure()
    }

    fn recorded(&self) -> Option<Recorded> {
        self.stored.as_ref()?.recorded
    }

    fn losses(&self) -> &BTreeMap<String, u64> {
        &self.losses
    }

    fn write_text(&self, room: Room, out: &mut dyn io::Write) -> io::Result<()> {
        text::write(self, text::MemoryTextOptions::default(), room, out)
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::Symbol;
    use lj_trace_streams::memprof::Source;

    use super::*;
    use crate::formats::folded;

    const A: Source = Source::Lua { proto: 0x1000, line: 4 };
    const B: Source = Source::Lua { proto: 0x1000, line: 5 };

    fn folded(weight: Weight, events: &[Event]) -> Vec<String> {
        let mut profile = MemoryProfile::new(weight, "");
        profile.add(0, &Event::Symbol(Symbol::lua(0x1000, b"@a.lua", 3)));
        events.iter().for_each(|event| profile.add(0, event));
        folded::lines(&profile)
    }

    fn alloc(source: Source, addr: u64, size: u64) -> Event {
        Event::Alloc { source, addr, size }
    }

    fn free(source: Source, addr: u64, size: u64) -> Event {
        Event::Free { source, addr, size }
    }

    #[test]
    fn each_weight_counts_its_own() {
        let events = [
            alloc(A, 0x10, 100),
            alloc(A, 0x20, 7),
            Event::Realloc { source: B, old_addr: 0x10, old_size: 100, addr: 0x30, size: 150 },
            free(Source::Internal, 0x20, 7),
        ];
        assert_eq!(folded(Weight::Allocated, &events), ["a.lua;@a.lua:3;a.lua:4 107", "a.lua;@a.lua:3;a.lua:5 150"]);
        let counted = ["INTERNAL 1", "a.lua;@a.lua:3;a.lua:4 2", "a.lua;@a.lua:3;a.lua:5 1"];
        assert_eq!(folded(Weight::Events, &events), counted);
        assert_eq!(folded(Weight::Held, &events), ["a.lua;@a.lua:3;a.lua:5 150"]);
    }

    #[test]
    fn memory_from_before_the_recording_is_not_held_until_it_is_reallocated() {
        assert!(folded(Weight::Held, &[free(A, 0x10, 100)]).is_empty());
        let grown = Event::Realloc { source: B, old_addr: 0x10, old_size: 8, addr: 0x10, size: 16 };
        assert_eq!(folded(Weight::Held, std::slice::from_ref(&grown)), ["a.lua;@a.lua:3;a.lua:5 16"]);
        assert!(folded(Weight::Held, &[grown, free(A, 0x10, 16)]).is_empty());
    }

    #[test]
    fn who_shrinks_a_block_does_not_hold_it() {
        let shrunk = Event::Realloc { source: Source::Internal, old_addr: 0x10, old_size: 100, addr: 0x10, size: 50 };
        assert_eq!(folded(Weight::Held, &[alloc(A, 0x10, 100), shrunk]), ["a.lua;@a.lua:3;a.lua:4 50"]);
    }

    #[test]
    fn a_block_whose_free_was_lost_is_not_held_twice() {
        let events = [alloc(A, 0x10, 100), alloc(B, 0x10, 20)];
        assert_eq!(folded(Weight::Held, &events), ["a.lua;@a.lua:3;a.lua:5 20"]);
    }

    #[test]
    fn folded_sources_keep_what_they_hold() {
        let line = |number: u64| Source::Lua { proto: 0x1000 + 16 * number, line: 4 };
        let mut profile = MemoryProfile::new(Weight::Held, "");
        profile.follow_blocks();
        for number in 0..4000 {
            profile.add(0, &Event::Symbol(Symbol::lua(0x1000 + 16 * number, format!("@{number}.lua").as_bytes(), 3)));
            // One block is kept, one is freed, one is freed later.
            for (block, source) in [(0, line(number)), (1, line(number)), (2, line(number)), (3, line(0))] {
                profile.add(0, &alloc(source, 4 * number + block, 10));
            }
            profile.add(0, &free(Source::Internal, 4 * number + 1, 10));
            if number >= 1000 {
                profile.add(0, &free(Source::Internal, 4 * (number - 1000) + 2, 10));
            }
            profile.forget_prototype(0, 0x1000 + 16 * number.max(1));
            profile.keep_within(100_000);
            assert!(profile.stacks.bytes() <= 101_000);
        }
        let sum = |measure: Measure| profile.stacks.totals()[measure.index];
        assert_eq!((sum(ALLOC_SPACE), sum(INUSE_SPACE)), (160_000, 160_000 - 70_000));
        let garbage = profile.stacks.numbered().map(|(id, _)| profile.garbage(id).bytes).sum::<u64>();
        assert_eq!(garbage, 70_000);
        let lines = folded::lines(&profile);
        assert!(lines.contains(&"0.lua;@0.lua:3;0.lua:4 40010".to_owned()), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("[rare stacks] ")), "{lines:?}");
        assert!((100_000..120_000).contains(&profile.folded()), "{}", profile.folded());
    }

    #[test]
    fn vms_have_their_own_symbols() {
        let mut profile = MemoryProfile::new(Weight::Allocated, "");
        profile.add(0, &Event::Symbol(Symbol::lua(0x1000, b"@a.lua", 0)));
        profile.add(1, &Event::Symbol(Symbol::lua(0x1000, b"@b.lua", 0)));
        profile.add(0, &alloc(A, 0x10, 1));
        profile.add(1, &alloc(A, 0x20, 2));
        let lines = ["VM 1;a.lua;main chunk@a.lua:0;a.lua:4 1", "VM 2;b.lua;main chunk@b.lua:0;b.lua:4 2"];
        assert_eq!(folded::lines(&profile), lines);
    }

    #[test]
    fn the_picture_says_what_was_measured() {
        let mut profile = MemoryProfile::new(Weight::Held, "luajit (pid 7)");
        profile.add(0, &alloc(Source::Internal, 0x10, 3 << 19));
        profile.lose("the ring buffer was full", 2);
        assert_eq!(profile.title(), "luajit (pid 7): bytes still held");
        assert!(
            profile.subtitle().starts_with("1.5 MiB still held after 1 events, 2 lost: "),
            "{}",
            profile.subtitle()
        );
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let events = [alloc(A, 1, u64::MAX), alloc(A, 2, u64::MAX), free(A, 1, u64::MAX), free(A, 2, u64::MAX)];
        assert!(folded(Weight::Held, &events).is_empty());
        assert_eq!(folded(Weight::Allocated, &events), [format!("a.lua;@a.lua:3;a.lua:4 {}", u64::MAX)]);
    }
}
