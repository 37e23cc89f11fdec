//! Walks all objects of a VM, as its garbage collector would.
//!
//! LuaJIT's sources: [`gc.root`], [`lj_udata_new`].
//!
//! [`gc.root`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L606
//! [`lj_udata_new`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_udata.c#L14-L29

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory;

use super::machine::Vm;
use super::object::{field, type_of};
use super::page_cache::PageCache;

/// The most memory reads of a walk for prototypes: the target should not change too much meanwhile, and a user is waiting. It
/// takes some 0.1 s on an idle machine. Unlike a time limit, this limit makes the result independent of the machine's load.
const MAX_READS: usize = 1 << 16;

/// Objects between two checks of the clock.
const OBJECTS_PER_LOOK: usize = 1024;

/// Addresses of all prototypes of `vm`.
///
/// The target keeps running, so the walk may miss objects that it links or frees meanwhile. In a heap of some 256 MiB
/// and more, the walk ends early.
pub fn prototypes<M: ReadMemory>(memory: &M, vm: &Vm) -> BTreeSet<u64> {
    prototypes_within(memory, vm, MAX_READS)
}

fn prototypes_within<M: ReadMemory>(memory: &M, vm: &Vm, reads: usize) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    walk(memory, vm, Limit::Reads(reads), |object, kind| {
        if kind == gct::PROTO {
            found.insert(object);
        }
        found.len() < MAX_PROTOTYPES
    });
    found
}

/// The limit of a walk over a list that is too long.
#[derive(Clone, Copy)]
enum Limit {
    /// The longest time: callers choose how long they wait, and learn that the walk was not complete.
    Time(Duration),
    /// The most reads of memory.
    Reads(usize),
}

/// The prototypes of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllPrototypes {
    /// Their addresses.
    pub addresses: BTreeSet<u64>,
    /// Whether these are all prototypes: a heap may have too many objects to look at, or change too fast.
    pub complete: bool,
}

/// All prototypes of `vm`, as far as `limit` allows. If the running program leads a walk astray, it is repeated.
pub fn all_prototypes<M: ReadMemory>(memory: &M, vm: &Vm, limit: Duration) -> AllPrototypes {
    const WALKS: u32 = 3;
    let began = Instant::now();
    let mut found = AllPrototypes::default();
    for _ in 0..WALKS {
        walk(memory, vm, Limit::Time(limit.saturating_sub(began.elapsed())), |object, kind| {
            // The main thread is the VM's first object, so it is the last one on the list before userdata.
            found.complete |= object == vm.main_thread;
            if kind == gct::PROTO {
                found.addresses.insert(object);
            }
            !found.complete && found.addresses.len() < MAX_PROTOTYPES
        });
        if found.complete || found.addresses.len() >= MAX_PROTOTYPES || began.elapsed() >= limit {
            break;
        }
    }
    found
}

/// The most prototypes that are listed, because the list needs memory.
const MAX_PROTOTYPES: usize = 1 << 21;

/// The most coroutines that are listed, because their results need memory.
const MAX_COROUTINES: usize = 1 << 22;

/// The coroutines of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coroutines {
    /// Addresses of their `lua_State`s, the main thread first, then from the newest to the oldest.
    pub threads: Vec<u64>,
    /// Whether these are all coroutines: a heap may have too many objects to look at, or change too fast.
    pub complete: bool,
}

/// All coroutines of `vm`, whatever their state, as far as `limit` allows. Unreachable coroutines are included until
/// they are collected.
pub fn coroutines<M: ReadMemory>(memory: &M, vm: &Vm, limit: Duration) -> Coroutines {
    /// If the list changes during a walk, the walk is repeated: even a torn walk finds most of them.
    const WALKS: u32 = 3;
    let began = Instant::now();
    let mut best = Coroutines::default();
    for _ in 0..WALKS {
        let found = walk_coroutines(memory, vm, limit.saturating_sub(began.elapsed()));
        if found.complete || found.threads.len() > best.threads.len() {
            best = found;
        }
        if best.complete || best.threads.len() >= MAX_COROUTINES || began.elapsed() >= limit {
            break;
        }
    }
    best
}

/// How a walk over the list of objects ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectWalkEnd {
    /// The visitor had seen enough.
    Enough,
    /// At the main thread: the walk has seen all objects.
    Whole,
    /// The list led astray, because the program had just changed it.
    Torn,
    /// The time limit was reached.
    TimeOver,
}

/// Passes the objects of `vm` with their types to `visit`, from the newest to the oldest, until `visit` returns false.
/// On this list an object comes after all newer ones (`lj_mem_newgco`) and before all older ones.
pub fn newest_objects<M: ReadMemory>(
    memory: &M,
    vm: &Vm,
    limit: Duration,
    mut visit: impl FnMut(u64, u8) -> bool,
) -> ObjectWalkEnd {
    let began = Instant::now();
    let mut end = ObjectWalkEnd::Torn;
    walk(memory, vm, Limit::Time(limit), |object, kind| {
        if object == vm.main_thread {
            end = ObjectWalkEnd::Whole;
        } else if !visit(object, kind) {
            end = ObjectWalkEnd::Enough;
        }
        end == ObjectWalkEnd::Torn
    });
    if end == ObjectWalkEnd::Torn && began.elapsed() > limit { ObjectWalkEnd::TimeOver } else { end }
}

fn walk_coroutines<M: ReadMemory>(memory: &M, vm: &Vm, limit: Duration) -> Coroutines {
    let mut threads = vec![vm.main_thread];
    // The main thread is the VM's first object, so it is the last one on the list; userdata follow it (`lj_udata_new`).
    let mut complete = false;
    walk(memory, vm, Limit::Time(limit), |object, kind| {
        complete = object == vm.main_thread;
        if kind == gct::THREAD && !complete {
            threads.push(object);
        }
        !complete && threads.len() < MAX_COROUTINES
    });
    Coroutines { threads, complete }
}

/// Passes each object on the list that starts at `gc.root` (`lj_obj.h`) to `visit`, with its type, until `visit`
/// returns false, the list ends or leads elsewhere, or the limit is reached.
fn walk<M: ReadMemory>(memory: &M, vm: &Vm, limit: Limit, mut visit: impl FnMut(u64, u8) -> bool) {
    let pages = PageCache::new(memory);
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    let mut object = pages.read_ref(gc64, field(vm.global, layout.g_gc_root)).unwrap_or(0);
    let started = Instant::now();
    // A list that changes during the walk may even become a ring. Then the walk comes back to the noted object, which
    // is replaced each time that the walk has become twice as long (Brent's algorithm).
    let mut noted = 0;
    for count in 1_usize.. {
        let is_over = match limit {
            Limit::Time(limit) => count % OBJECTS_PER_LOOK == 0 && started.elapsed() > limit,
            Limit::Reads(reads) => pages.reads() >= reads,
        };
        if object == 0 || object == noted || is_over {
            return;
        }
        if count.is_power_of_two() {
            noted = object;
        }
        // Each object may be on a page of its own: keep no more than 32 MiB of them.
        if count % 8192 == 0 {
            pages.clear();
        }
        let (Ok(kind), Ok(next)) = (type_of(&pages, layout, object), pages.read_ref(gc64, object)) else { return };
        // The collectable types: any other type means that the list has just been changed.
        if !(gct::STR..=13).contains(&kind) || !visit(object, kind) {
            return;
        }
        object = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::InterpreterText;
    use crate::testing::{Saved, x64_layout};

    const LONG: Duration = Duration::from_secs(20);

    /// A VM whose list of objects begins at 0x5000. The objects have these types, are 16 bytes apart, and each links to
    /// the object with the given index.
    fn vm_with(objects: &[(u8, u64)]) -> (Saved, Vm) {
        let layout = x64_layout("Debian", "x64gc64");
        let mut bytes = vec![0; 0x2000];
        let mut put = |address: u64, word: u64| {
            let at = (address - 0x4000) as usize;
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        let place = |number: u64| 0x5000 + 16 * number;
        put(0x4000 + u64::from(layout.g_gc_root), place(0));
        for (number, (kind, next)) in (0..).zip(objects) {
            put(place(number), if *next == u64::MAX { 0 } else { place(*next) });
            put(place(number) + 8, u64::from(*kind) << 8);
        }
        let text = InterpreterText { range: 0..0, exact: true, edges: lj_trace_unwind::vm_edges::Edges::default() };
        let main_thread = place(objects.len() as u64 - 1);
        let vm = Vm { global: 0x4000, main_thread, layout, builds: Vec::new(), undecided: Vec::new(), text };
        (Saved::new(0x4000, bytes), vm)
    }

    #[test]
    fn coroutines_end_with_the_main_thread() {
        let objects = [(gct::TAB, 1), (gct::THREAD, 2), (gct::PROTO, 3), (gct::THREAD, 4), (gct::THREAD, 0)];
        let (memory, vm) = vm_with(&objects);
        let found = coroutines(&memory, &vm, LONG);
        assert_eq!(found.threads, [0x5040, 0x5010, 0x5030]);
        assert!(found.complete);
        assert_eq!(prototypes(&memory, &vm), [0x5020].into());
    }

    #[test]
    fn the_newest_objects_come_first_until_it_is_enough() {
        let objects = [(gct::TAB, 1), (gct::THREAD, 2), (gct::PROTO, 3), (gct::THREAD, 0)];
        let (memory, vm) = vm_with(&objects);
        let seen = |most: usize| {
            let mut seen = Vec::new();
            let end = newest_objects(&memory, &vm, LONG, |object, kind| {
                seen.push((object, kind));
                seen.len() < most
            });
            (seen, end)
        };
        let all = [(0x5000, gct::TAB), (0x5010, gct::THREAD), (0x5020, gct::PROTO)];
        assert_eq!(seen(9), (all.to_vec(), ObjectWalkEnd::Whole));
        assert_eq!(seen(2), (all[..2].to_vec(), ObjectWalkEnd::Enough));
        let (memory, vm) = vm_with(&[(gct::TAB, 1), (99, 2), (gct::THREAD, u64::MAX)]);
        assert_eq!(newest_objects(&memory, &vm, LONG, |_, _| true), ObjectWalkEnd::Torn);
    }

    #[test]
    fn a_list_that_is_torn_or_a_ring_ends_the_walk() {
        // The second object has an impossible type; then a list that leads back to its beginning.
        let (memory, vm) = vm_with(&[(gct::THREAD, 1), (99, 2), (gct::THREAD, u64::MAX)]);
        assert_eq!(coroutines(&memory, &vm, LONG), Coroutines { threads: vec![0x5020, 0x5000], complete: false });
        // Rings of every length, entered at each place.
        for length in 1..40 {
            for entry in 0..length {
                let mut objects: Vec<_> = (1..length).map(|next| (gct::THREAD, next)).collect();
                objects.push((gct::THREAD, entry));
                objects.push((gct::THREAD, u64::MAX));
                let (memory, vm) = vm_with(&objects);
                let started = Instant::now();
                let found = coroutines(&memory, &vm, LONG);
                assert!(!found.complete && started.elapsed() < LONG / 2);
                assert!((length as usize..5 * length as usize + 2).contains(&found.threads.len()), "{found:?}");
                assert!((0..length).all(|number| found.threads.contains(&(0x5000 + 16 * number))));
            }
        }
    }

    /// An endless list of objects of one type; an object exists as soon as it is read. Each read takes some time.
    struct Endless(Saved, u8, Duration);

    impl ReadMemory for Endless {
        fn read<T: lj_trace_common::memory::Pod>(
            &self,
            address: u64,
        ) -> Result<T, lj_trace_common::memory::Unreadable> {
            if address < 0x10_0000 {
                return self.0.read(address);
            }
            std::thread::sleep(self.2);
            let mut page = vec![0; 2 * 4096];
            for (index, object) in page.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                object[..8].copy_from_slice(&((address & !4095) + 16 * (index as u64 + 1)).to_le_bytes());
                object[9] = self.1;
            }
            crate::overlay::plain_at(&page, address % 4096).ok_or(lj_trace_common::memory::Unreadable)
        }
    }

    #[test]
    fn a_list_without_an_end_takes_no_longer_than_it_may() {
        let (memory, vm) = vm_with(&[(gct::TAB, 0x10_0000), (gct::THREAD, u64::MAX)]);
        let started = Instant::now();
        let limit = Duration::from_millis(50);
        let memory = Endless(memory, gct::TAB, Duration::ZERO);
        assert_eq!(coroutines(&memory, &vm, limit), Coroutines { threads: vec![0x5010], complete: false });
        assert!(started.elapsed() >= limit && started.elapsed() < limit * 20, "{:?}", started.elapsed());
    }
    #[test]
    fn as_many_prototypes_are_found_however_slow_the_machine_is() {
        let found = |reads, delay| {
            let (memory, vm) = vm_with(&[(gct::TAB, 0x10_0000), (gct::THREAD, u64::MAX)]);
            prototypes_within(&Endless(memory, gct::PROTO, delay), &vm, reads)
        };
        for reads in [3, 4, 7, 20] {
            let quick = found(reads, Duration::ZERO);
            assert_eq!(found(reads, Duration::from_millis(10)), quick);
            // The VM and its first object are on one page each. Of the last page read, the walk looks at one object.
            assert_eq!(quick.len(), (reads - 3) * 256 + 1);
        }
    }
}
