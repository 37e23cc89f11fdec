//! A walk over all objects of a VM, as its garbage collector would see them.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use lj_trace_common::layout::gct;
use lj_trace_common::memory::{Plain, ReadMemory, Unreadable};

use super::machine::Vm;
use crate::target::ProcessMemory;

/// A walk takes no longer: the target should not change too much meanwhile, and somebody is waiting.
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// The clock is looked at once for this many objects.
const OBJECTS_PER_LOOK: usize = 1024;

/// Addresses of all prototypes of `vm`: everything on the list that starts at `gc.root` (`lj_gc.h`).
///
/// The target runs on, so what it links or frees meanwhile may be missed, and the walk may end early.
pub fn prototypes(memory: &ProcessMemory, vm: &Vm) -> BTreeSet<u64> {
    let pages = Pages { memory, pages: RefCell::default() };
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let gct_at = lj_trace_common::frame::gct_offset(gc64);
    let mut found = BTreeSet::new();
    let mut object = pages.read_ref(gc64, vm.global + u64::from(layout.g_gc_root)).unwrap_or(0);
    let started = Instant::now();
    for count in 1.. {
        // A list that changes while it is walked may even have become a ring.
        if object == 0 || count % OBJECTS_PER_LOOK == 0 && started.elapsed() > TIME_LIMIT {
            break;
        }
        let (Ok(kind), Ok(next)) = (pages.read::<u8>(object + gct_at), pages.read_ref(gc64, object)) else { break };
        match kind {
            gct::PROTO => drop(found.insert(object)),
            // The collectable types: a list that leads elsewhere has just been changed.
            gct::STR..=13 => {}
            _ => break,
        }
        object = next;
    }
    found
}

/// Memory that is read page by page and kept: a walk reads few bytes each at many places.
struct Pages<'a> {
    memory: &'a ProcessMemory,
    pages: RefCell<HashMap<u64, Option<Box<[u8]>>>>,
}

const PAGE: u64 = 4096;

impl ReadMemory for Pages<'_> {
    fn read<T: Plain>(&self, address: u64) -> Result<T, Unreadable> {
        let (page, offset) = (address & !(PAGE - 1), (address % PAGE) as usize);
        if offset + size_of::<T>() > PAGE as usize {
            return self.memory.read(address);
        }
        let mut pages = self.pages.borrow_mut();
        let read = || self.memory.read_bytes(page, PAGE as usize).ok().map(Vec::into_boxed_slice);
        let bytes = pages.entry(page).or_insert_with(read).as_ref().ok_or(Unreadable)?;
        super::overlay::plain_at(bytes, offset as u64).ok_or(Unreadable)
    }
}
