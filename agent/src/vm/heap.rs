//! A walk over all objects of a VM, as its garbage collector would see them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory;

use super::machine::Vm;
use super::object::{field, type_of};
use super::page_cache::PageCache;

/// A walk takes no longer: the target should not change too much meanwhile, and somebody is waiting.
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// The clock is looked at once for this many objects.
const OBJECTS_PER_LOOK: usize = 1024;

/// Addresses of all prototypes of `vm`.
///
/// The target runs on, so what it links or frees meanwhile may be missed, and the walk may end early.
pub fn prototypes<M: ReadMemory>(memory: &M, vm: &Vm) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    walk(memory, vm, |object, kind| {
        if kind == gct::PROTO {
            found.insert(object);
        }
        true
    });
    found
}

/// The coroutines of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coroutines {
    /// Addresses of their `lua_State`s, the main thread first, then from the newest to the oldest.
    pub threads: Vec<u64>,
    /// Whether these are all: a heap may have too many objects to look at, or change too fast.
    pub complete: bool,
}

/// All coroutines of `vm`, whatever they do: those that nobody needs any more are there until they are collected.
pub fn coroutines<M: ReadMemory>(memory: &M, vm: &Vm) -> Coroutines {
    let mut threads = vec![vm.main_thread];
    // The main thread is the VM's first object, so the last one on the list; userdata follow it (`lj_udata_new`).
    let mut complete = false;
    walk(memory, vm, |object, kind| {
        complete = object == vm.main_thread;
        if kind == gct::THREAD && !complete {
            threads.push(object);
        }
        !complete
    });
    Coroutines { threads, complete }
}

/// Shows each object on the list that starts at `gc.root` (`lj_gc.h`) to `visit`, with its type, until that says
/// false, the list ends or leads elsewhere, or the time is over.
fn walk<M: ReadMemory>(memory: &M, vm: &Vm, mut visit: impl FnMut(u64, u8) -> bool) {
    let pages = PageCache::new(memory);
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let mut object = pages.read_ref(gc64, field(vm.global, layout.g_gc_root)).unwrap_or(0);
    let started = Instant::now();
    for count in 1.. {
        // A list that changes while it is walked may even have become a ring.
        if object == 0 || count % OBJECTS_PER_LOOK == 0 && started.elapsed() > TIME_LIMIT {
            return;
        }
        let (Ok(kind), Ok(next)) = (type_of(&pages, layout, object), pages.read_ref(gc64, object)) else { return };
        // The collectable types: a list that leads elsewhere has just been changed.
        if !(gct::STR..=13).contains(&kind) || !visit(object, kind) {
            return;
        }
        object = next;
    }
}
