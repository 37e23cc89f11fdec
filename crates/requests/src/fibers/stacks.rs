//! Which fiber a C stack belongs to. A fiber keeps its stack as long as it exists, also when it is used again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lj_trace_common::memory::ReadMemory;

use super::proof::ProvenFibers;
use super::ring::ring;

/// The most fibers to know.
const MOST_FIBERS: usize = 1 << 16;

/// The ring is not walked more often than this,
const LEAST_INTERVAL: Duration = Duration::from_millis(50);
/// and for this share of the time at most.
const SHARE: u32 = 50;

/// The stacks of a process's fibers. The newest may be missing: those after a place where the ring changes meanwhile.
#[derive(Debug, Default)]
pub struct FiberStacks {
    /// The fiber of each stack, and the stack's size, by its lowest address.
    known: BTreeMap<u64, (u64, u64)>,
    /// When the ring may be walked again.
    next: Option<Instant>,
}

impl FiberStacks {
    /// The fiber with this address in its stack. The stack may have got another fiber since: the fiber has to be asked.
    pub fn fiber(&mut self, memory: &impl ReadMemory, proven: &ProvenFibers, address: u64) -> Option<u64> {
        let found = self.get(address);
        if found.is_some() || self.next.is_some_and(|next| Instant::now() < next) {
            return found;
        }
        let began = Instant::now();
        self.walk(memory, proven);
        self.next = Some(Instant::now() + LEAST_INTERVAL.max(began.elapsed() * SHARE));
        self.get(address)
    }

    fn get(&self, address: u64) -> Option<u64> {
        let (stack, (fiber, size)) = self.known.range(..=address).next_back()?;
        (address - stack < *size).then_some(*fiber)
    }

    fn walk(&mut self, memory: &impl ReadMemory, proven: &ProvenFibers) {
        let nodes = ring(memory, proven.alive, MOST_FIBERS);
        self.known.clear();
        for node in nodes {
            let fiber = node.wrapping_sub(proven.link);
            let word = |offset: u32| memory.read::<u64>(fiber.wrapping_add(u64::from(offset)));
            if let (Ok(stack), Ok(size)) = (word(proven.layout.stack), word(proven.layout.stack_size)) {
                self.known.insert(stack, (fiber, size));
            }
        }
    }
}
