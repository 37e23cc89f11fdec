//! Chooses which blocks of a window are followed: some of each source, so that rare sources are included.

use std::collections::{BTreeMap, HashSet};

use lj_trace_estimate::life::ObjectWeight;
use lj_trace_estimate::observation::SourceId;
use lj_trace_estimate::random::Random;
use lj_trace_streams::memprof::Event;

use super::part::RecentObjects;

/// Chooses among the new blocks of each source, each with the same probability.
#[derive(Debug)]
pub struct Choice {
    sources: BTreeMap<SourceId, Reservoir>,
    /// The addresses of chosen blocks. Some of these are no longer chosen.
    addresses: HashSet<u64>,
    /// The number of blocks to choose from each source.
    each: usize,
    random: Random,
}

#[derive(Debug, Default)]
struct Reservoir {
    /// New blocks so far.
    blocks: u64,
    chosen: Vec<ChosenBlock>,
}

/// A chosen block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenBlock {
    /// The source that allocated the block.
    pub source: SourceId,
    /// The number of the VM.
    pub vm: usize,
    /// The address of the block.
    pub address: u64,
    /// Its size.
    pub size: u64,
    /// What it stands for, of its source.
    pub weight: ObjectWeight,
    /// Whether the program has freed or resized the block by now.
    pub freed: bool,
    /// The objects that were allocated right before the block. One of them may own it.
    pub recent: RecentObjects,
}

impl Choice {
    /// Chooses up to `each` of each source.
    pub fn new(each: usize) -> Self {
        Self { sources: BTreeMap::new(), addresses: HashSet::new(), each, random: Random::new(2) }
    }

    /// Takes a call of the allocator by VM number `vm`, in the order of time. `recent` are the objects that were allocated
    /// before it.
    pub fn event(&mut self, source: SourceId, vm: usize, event: &Event, recent: &RecentObjects) {
        let freed = match *event {
            Event::Free { addr, .. } | Event::Realloc { old_addr: addr, .. } => Some(addr),
            _ => None,
        };
        if let Some(address) = freed.filter(|address| self.addresses.remove(address)) {
            let chosen = self.sources.values_mut().flat_map(|reservoir| &mut reservoir.chosen);
            chosen.filter(|block| block.address == address).for_each(|block| block.freed = true);
        }
        if let Event::Alloc { addr: address, size, .. } | Event::Realloc { addr: address, size, .. } = *event {
            self.new_block(ChosenBlock {
                source,
                vm,
                address,
                size,
                weight: ObjectWeight::default(),
                freed: false,
                recent: *recent,
            });
        }
    }

    fn new_block(&mut self, block: ChosenBlock) {
        let reservoir = self.sources.entry(block.source).or_default();
        reservoir.blocks += 1;
        if reservoir.chosen.len() < self.each {
            reservoir.chosen.push(block);
        } else {
            let place = self.random.below(usize::try_from(reservoir.blocks).unwrap_or(usize::MAX));
            let Some(chosen) = reservoir.chosen.get_mut(place) else { return };
            *chosen = block;
        }
        self.addresses.insert(block.address);
    }

    /// Returns the chosen blocks with their weights, and begins anew. `window` is any number that tells their window from
    /// others.
    pub fn take(&mut self, each: usize, window: u64) -> Vec<ChosenBlock> {
        self.addresses.clear();
        self.each = each;
        let mut blocks = Vec::new();
        for reservoir in std::mem::take(&mut self.sources).into_values() {
            let times = reservoir.blocks as f64 / reservoir.chosen.len().max(1) as f64;
            let weight = |block: &ChosenBlock| ObjectWeight { bytes: block.size as f64 * times, window };
            blocks.extend(reservoir.chosen.iter().map(|block| ChosenBlock { weight: weight(block), ..*block }));
        }
        blocks
    }
}

#[cfg(test)]
impl ChosenBlock {
    /// A block of which only this is known.
    pub fn at(address: u64, size: u64) -> Self {
        Self {
            source: SourceId(0),
            vm: 0,
            address,
            size,
            weight: ObjectWeight { bytes: 1.0, window: 0 },
            freed: false,
            recent: RecentObjects::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::memprof::Source;

    use super::*;

    const BY: Source = Source::Internal;

    fn made(addr: u64, size: u64) -> Event {
        Event::Alloc { source: BY, addr, size }
    }

    fn freed(addr: u64) -> Event {
        Event::Free { source: BY, addr, size: 40 }
    }

    #[test]
    fn rare_sources_are_chosen_from_as_well_and_weights_add_up() {
        let mut choice = Choice::new(4);
        for i in 0..1000 {
            choice.event(SourceId(0), 0, &made(0x1000 + i * 64, 40), &RecentObjects::default());
        }
        choice.event(SourceId(1), 0, &made(0x99, 8), &RecentObjects::default());
        let blocks = choice.take(4, 0);
        assert_eq!(blocks.len(), 5);
        let weight = |id| blocks.iter().filter(|b| b.source == SourceId(id)).map(|b| b.weight.bytes).sum::<f64>();
        assert!((weight(0) - 40_000.0).abs() < 1e-6 && (weight(1) - 8.0).abs() < 1e-6);
        assert_eq!(choice.take(4, 0), []);
    }

    #[test]
    fn each_block_is_chosen_as_often_as_any() {
        let mut choice = Choice::new(4);
        let mut first_half = 0;
        for _ in 0..500 {
            for i in 0..100 {
                choice.event(SourceId(0), 0, &made(0x1000 + i * 64, 40), &RecentObjects::default());
            }
            first_half += choice.take(4, 0).iter().filter(|block| block.address < 0x1000 + 50 * 64).count();
        }
        // 2000 blocks were chosen; four standard deviations are 90.
        assert!((910..1090).contains(&first_half), "{first_half}");
    }

    #[test]
    fn what_is_freed_explicitly_is_known() {
        let mut choice = Choice::new(4);
        choice.event(SourceId(0), 0, &made(0x100, 40), &RecentObjects::default());
        choice.event(SourceId(0), 0, &freed(0x100), &RecentObjects::default());
        // Another block at the same place.
        choice.event(SourceId(0), 0, &made(0x100, 16), &RecentObjects::default());
        let blocks = choice.take(4, 0);
        assert_eq!(blocks.iter().map(|block| block.freed).collect::<Vec<_>>(), [true, false]);
        // The block is resized twice, the second time in place.
        choice.event(SourceId(3), 0, &made(0x200, 64), &RecentObjects::default());
        for old_addr in [0x200, 0x300] {
            let resized = Event::Realloc { source: BY, old_addr, old_size: 64, addr: 0x300, size: 128 };
            choice.event(SourceId(3), 0, &resized, &RecentObjects::default());
        }
        assert_eq!(choice.take(4, 0).iter().map(|block| block.freed).collect::<Vec<_>>(), [true, true, false]);
    }
}
