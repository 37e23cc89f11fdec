//! A memory profile: who allocates, by one of three measures.

use std::collections::BTreeMap;

use clap::ValueEnum;

use super::Frame;
use super::memory_sources::Sources;
use super::stacks::{Profile, StackId, Stacks};
use crate::stream::hash::HeapMap;
use crate::stream::memprof::Event;

/// What a memory profile weighs its stacks by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
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
    /// What the weight is of: `bytes allocated`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Allocated => "bytes allocated",
            Self::Events => "allocation events",
            Self::Held => "bytes still held",
        }
    }
}

/// Who allocates, by [`Weight`]. An event has one source and no callers, so a stack is what the source belongs to:
/// the file, the function, and the line; or a C function, a trace, or the VM itself.
///
/// A live recording and a stream fill it with the same events. It needs memory for each source, and for
/// [`Weight::Held`] for each block that is allocated at the time.
///
/// What is held belongs to whoever made it that large: a block that grows, whether it moves or not, changes over to
/// the source of the reallocation; one that shrinks stays with its source, for it is the garbage collector that
/// shrinks stacks and buffers. Blocks from before the recording count from their first reallocation on. The text of
/// the reference parser differs for blocks that several sources have reallocated: it adds each new size to the source
/// of the size before (`form_heap_delta` of `tools/memprof/process.lua`), and so shows as held what has been freed.
#[derive(Debug, Default)]
pub struct MemoryProfile {
    weight: Weight,
    stacks: Stacks,
    /// By VM: each has its own addresses of prototypes and its own numbers of traces.
    sources: Vec<Sources>,
    /// What is allocated, for [`Weight::Held`] only. The VMs of a process share its addresses.
    heap: HeapMap<Block>,
    losses: BTreeMap<String, u64>,
    events: u64,
    /// Of which program, as a title: a command line, a pid, a file.
    pub title: String,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    size: u64,
    holder: StackId,
}

impl MemoryProfile {
    /// An empty profile.
    pub fn new(weight: Weight, title: impl Into<String>) -> Self {
        Self { weight, title: title.into(), ..Self::default() }
    }

    /// Adds an event of the VM with this number, which counts from zero. The symbols of the VM are events too.
    #[inline]
    pub fn add(&mut self, vm: usize, event: &Event) {
        for new in self.sources.len()..=vm {
            self.sources.push(Sources::of_vm(Frame::vm(new)));
        }
        let source = match event {
            Event::Symbol(symbol) => return self.sources[vm].symbol(symbol, &mut self.losses),
            Event::Alloc { source, .. } | Event::Realloc { source, .. } | Event::Free { source, .. } => *source,
        };
        self.events += 1;
        let stack = |this: &mut Self| this.sources[vm].stack(source, &mut this.stacks);
        match (self.weight, event) {
            (Weight::Events, _) => {
                let stack = stack(self);
                self.stacks.add(stack, 1);
            }
            (Weight::Allocated, Event::Alloc { size, .. } | Event::Realloc { size, .. }) => {
                let stack = stack(self);
                self.stacks.add(stack, *size);
            }
            (Weight::Held, &Event::Alloc { addr, size, .. }) => {
                let holder = stack(self);
                self.hold(addr, Block { size, holder });
            }
            (Weight::Held, &Event::Realloc { old_addr, addr, size, .. }) => {
                let holder = stack(self);
                let shrunk = self.release(old_addr).filter(|old| size <= old.size);
                self.hold(addr, Block { size, holder: shrunk.map_or(holder, |old| old.holder) });
            }
            (Weight::Held, Event::Free { addr, .. }) => drop(self.release(*addr)),
            _ => {}
        }
    }

    fn hold(&mut self, addr: u64, block: Block) {
        self.stacks.add(block.holder, block.size);
        if let Some(old) = self.heap.insert(addr, block) {
            // Its free was lost.
            self.stacks.take(old.holder, old.size);
        }
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let block = self.heap.remove(&addr)?;
        self.stacks.take(block.holder, block.size);
        Some(block)
    }

    /// Counts events that were lost, by reason.
    pub fn lose(&mut self, reason: &str, events: u64) {
        if events > 0 {
            *self.losses.entry(reason.to_owned()).or_insert(0) += events;
        }
    }

    /// What the stacks are weighed by.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// How many events there were: allocations, reallocations and frees.
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl Profile for MemoryProfile {
    fn weighted(&self) -> &Stacks {
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
        let total = self.stacks.total();
        let measured = match self.weight {
            Weight::Allocated => format!("{} allocated in {} events", amount(total), self.events),
            Weight::Events => format!("{} allocations, reallocations and frees", self.events),
            Weight::Held => format!("{} still held after {} events", amount(total), self.events),
        };
        let lost = match self.losses.values().sum::<u64>() {
            0 => String::new(),
            lost => format!(", {lost} lost"),
        };
        format!("{measured}{lost}: green Lua, blue compiled Lua, orange C, red the VM itself")
    }

    fn unit(&self) -> &'static str {
        match self.weight {
            Weight::Allocated | Weight::Held => "bytes",
            Weight::Events => "events",
        }
    }
}

/// An amount of memory, for people.
fn amount(bytes: u64) -> String {
    let mut amount = bytes as f64;
    let mut unit = "bytes";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if amount < 1024.0 {
            break;
        }
        amount /= 1024.0;
        unit = larger;
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{amount:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::folded;
    use crate::stream::Symbol;
    use crate::stream::memprof::Source;

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
        assert_eq!([0, 1023, 1024].map(amount), ["0 bytes", "1023 bytes", "1.0 KiB"]);
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let events = [alloc(A, 1, u64::MAX), alloc(A, 2, u64::MAX), free(A, 1, u64::MAX), free(A, 2, u64::MAX)];
        assert!(folded(Weight::Held, &events).is_empty());
        assert_eq!(folded(Weight::Allocated, &events), [format!("a.lua;@a.lua:3;a.lua:4 {}", u64::MAX)]);
    }
}
