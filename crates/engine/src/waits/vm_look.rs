//! Looks at all coroutines of a VM: what each is doing, and whether it is still in the wait that it was in.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use lj_trace_common::frame::WalkEnd;
use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::heap::{ListEnd, newest_objects};
use lj_trace_luajit::object::{field, type_of};
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_luajit::{Vm, VmStatus};
use lj_trace_process::clocks::ClockId;
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::WaitProfile;
use lj_trace_profile::model::StackId;

use super::c_stacks::{CStacks, UsedStacks};
use super::heads::{AT_ONCE, Head, Places};
use super::names::Names;
use super::newcomers::{Marker, Meeting, thin};
use crate::coroutines::snapshots::{self, TOGETHER};
use crate::coroutines::view::View;
use crate::coroutines::{CoroutineSnapshot, LuaStack, Status};

/// How often a coroutine that moves while it is read is read again.
const ATTEMPTS: u32 = 3;
/// More coroutines of a VM are not known at once: 64 bytes each.
const MAX_COROUTINES: usize = 1 << 22;
/// To find what is new takes no longer.
const WALK_LIMIT: Duration = Duration::from_millis(500);
/// To walk the whole list takes no longer.
const CENSUS_LIMIT: Duration = Duration::from_secs(5);
/// A walk of the whole list may cost this share of a core,
const CENSUS_SHARE: f64 = 0.002;
/// and comes no more often.
const CENSUS_INTERVAL: Duration = Duration::from_secs(10);
/// To walk the stacks of those that have moved takes no longer in one look, in seconds,
const WALK_TIME: f64 = 0.003;
/// but so many are walked at least.
const LEAST_WALKS: usize = 256;
/// Where walks fail, the whole list is walked sooner.
const HURRY: u32 = 8;

/// A coroutine, as the last look has seen it.
#[derive(Clone, Copy, Debug)]
struct Known {
    marker: Marker,
    /// What tells its wait from others.
    print: u64,
    /// Its stack, if it waits.
    waits: Option<StackId>,
    /// Whether it has moved since its stack was walked, or never was: that is to be done.
    has_moved: bool,
    /// Whether this look has found it.
    is_new: bool,
    /// When it was known for certain to be there.
    certain: Instant,
}

impl Known {
    /// One of which nothing is known yet.
    fn new(marker: Marker, now: Instant) -> Self {
        Self { marker, print: 0, waits: None, has_moved: true, is_new: true, certain: now }
    }
}

/// What looks at a process's coroutines need.
pub struct Looking<'a> {
    /// The process.
    pub process: &'a Process,
    /// Its memory.
    pub memory: &'a ProcessMemory,
    /// What names frames.
    pub names: &'a mut Names,
    /// Where the figures go.
    pub profile: &'a mut WaitProfile,
    /// How many VMs the process has.
    pub vms: usize,
    /// The C stacks that threads use, found out once for all VMs of the process, if it is asked for.
    pub used_stacks: &'a mut Option<UsedStacks>,
    /// Where they are.
    pub c_stacks: &'a mut CStacks,
}

impl Looking<'_> {
    /// Whether a thread uses the C stack with this C frame.
    fn uses(&mut self, cframe: u64, is_current: bool) -> bool {
        let Self { process, used_stacks, c_stacks, .. } = self;
        used_stacks.get_or_insert_with(|| c_stacks.look(process)).has(cframe, is_current)
    }
}

/// What a look at a VM has found.
#[derive(Debug, Default)]
pub struct VmFound {
    /// How many coroutines there are that are not over.
    pub there: f64,
    /// How many wait, by their stacks.
    pub waiting: HashMap<StackId, f64>,
    /// How many of each stack are in the same wait as at the last look, and how many have gone on since.
    pub pairs: HashMap<StackId, [u64; 2]>,
}

impl VmFound {
    /// What counted as the same coroutine, in the same wait, is another one.
    fn is_other(&mut self, known: &Known) {
        let Some(waits) = known.waits.filter(|_| !known.has_moved) else { return };
        if let Some(count) = self.waiting.get_mut(&waits) {
            *count = (*count - 1.0).max(0.0);
        }
        if let Some([same, gone]) = self.pairs.get_mut(&waits) {
            (*same, *gone) = (same.saturating_sub(1), *gone + 1);
        }
        self.there = (self.there - 1.0).max(0.0);
    }
}

/// What may be wrong with what looks have found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Coroutines that moved each time that they were read: they do not count as waiting.
    pub moving: u64,
    /// Coroutines that were not on the list any more, though their memory looked as if they were.
    pub stale: u64,
    /// Coroutines that only a walk of the whole list has found.
    pub late: u64,
    /// Walks for new coroutines that the program led astray, or that took too long.
    pub torn: u64,
    /// There are more than are looked at.
    pub too_many: u64,
    /// Functions that have no name, since that would have taken too much work to find.
    pub unsearched: u64,
}

/// A VM and what is known of its coroutines.
pub struct VmLooks {
    /// The VM.
    pub vm: Vm,
    index: usize,
    /// The oldest first.
    known: Vec<Known>,
    anchors: Vec<Marker>,
    next_order: u64,
    /// When the whole list is walked next.
    next_census: Option<Instant>,
    /// Walks may take this much of the time: when the next one may be.
    next_walk: Instant,
    looked: Option<Instant>,
    places: Places,
    rng: fastrand::Rng,
    /// What it takes to walk the stack of one, in seconds of CPU time.
    walk_cost: f64,
    /// What may be wrong so far.
    pub doubts: Doubts,
}

impl VmLooks {
    /// Of a VM with this index.
    pub fn new(vm: Vm, index: usize, now: Instant) -> Self {
        // It is not on the list before its end.
        let main_thread = Marker { address: vm.main_thread, kind: gct::THREAD, order: 0 };
        let (known, anchors) = (vec![Known::new(main_thread, now)], Vec::new());
        let (places, doubts) = (Places::default(), Doubts::default());
        Self {
            vm,
            index,
            known,
            anchors,
            next_order: 1,
            next_census: None,
            next_walk: now,
            looked: None,
            places,
            rng: fastrand::Rng::new(),
            walk_cost: 1e-5,
            doubts,
        }
    }

    /// Its VM's index among those of the process.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The numbers of stacks have changed.
    pub fn renumber(&mut self, moved: &[StackId]) {
        for waits in self.known.iter_mut().filter_map(|known| known.waits.as_mut()) {
            if let Some(to) = moved.get(waits.index()) {
                *waits = *to;
            }
        }
    }

    /// Looks at all coroutines; gives the time since the last look with what was found.
    pub fn look(&mut self, looking: &mut Looking<'_>) -> VmFound {
        let mut found = VmFound::default();
        let began = Instant::now();
        self.look_at_known(looking, &mut found, None);
        if self.next_census.is_none_or(|due| due <= began) {
            self.take_census(looking, &mut found);
        } else {
            self.find_new(looking.memory, &mut found, began);
        }
        self.walk_moved(looking, &mut found, began);
        self.looked = Some(began);
        found
    }

    /// Looks again at some of those that wait: whether they are still in the same wait. Gives the time since the last look
    /// with what was found.
    pub fn echo(
        &mut self,
        looking: &mut Looking<'_>,
        most: usize,
        rng: &mut fastrand::Rng,
    ) -> Option<(Duration, VmFound)> {
        let looked = self.looked?;
        let waiting: Vec<usize> = (0..self.known.len()).filter(|&index| self.known[index].waits.is_some()).collect();
        let chosen: Vec<usize> = match waiting.len() {
            few if few <= most => waiting,
            many => (0..most).map(|_| waiting[rng.usize(..many)]).collect(),
        };
        let mut found = VmFound::default();
        let lag = looked.elapsed();
        self.look_at_known(looking, &mut found, Some(&chosen));
        Some((lag, found))
    }

    /// The collector's current white.
    fn white(&self, memory: &ProcessMemory) -> Option<u8> {
        memory.read::<u8>(field(self.vm.global, self.vm.layout.g_gc_currentwhite)).ok()
    }

    /// Reads all that are known, or those that are `chosen`, and compares. Nothing is changed in what is known of chosen ones.
    fn look_at_known(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, chosen: Option<&[usize]>) {
        let all: Vec<usize> = if chosen.is_none() { (0..self.known.len()).collect() } else { Vec::new() };
        let indices = chosen.unwrap_or(&all);
        let size = usize::from(self.vm.layout.sizeof_l);
        let gc64 = self.vm.layout.is_gc64();
        let current = VmStatus::read(looking.memory, &self.vm).ok().and_then(|status| status.current);
        let mut gone: HashSet<usize> = HashSet::new();
        let mut heads: Vec<Option<Head>> = Vec::with_capacity(AT_ONCE);
        for group in indices.chunks(AT_ONCE) {
            let places: Vec<(u64, usize)> =
                group.iter().map(|&index| (self.known[index].marker.address, size)).collect();
            heads.clear();
            let white = self.white(looking.memory);
            let Self { vm, places: reader, .. } = &mut *self;
            reader.read(looking.memory, &places, |_, bytes| heads.push(bytes.and_then(|bytes| Head::parse(vm, bytes))));
            // A collector that has just changed the colours says nothing.
            let white = white.filter(|_| self.white(looking.memory) == white);
            // What may wait, with what is next to it.
            let mut may_wait: Vec<(usize, Head, (u64, usize))> = Vec::new();
            for (&index, head) in group.iter().zip(&heads) {
                let known = self.known[index];
                let Some(head) = head.filter(|head| {
                    // The main thread is never collected.
                    known.marker.order == 0 || !white.is_some_and(|white| head.is_dead(white))
                }) else {
                    count_pair(found, known.waits, false);
                    gone.insert(index);
                    continue;
                };
                let status = head.status(gc64);
                let may = match status {
                    Status::Suspended => true,
                    // The main thread of a VM is its host's.
                    Status::Running => !looking.uses(head.cframe, current == Some(known.marker.address)),
                    _ => false,
                };
                found.there += there(status);
                self.known[index].is_new = false;
                if may {
                    may_wait.push((index, head, head.window()));
                    continue;
                }
                count_pair(found, known.waits, false);
                if chosen.is_none() {
                    self.known[index] = Known { waits: None, print: 0, has_moved: false, is_new: false, ..known };
                }
            }
            let windows: Vec<(u64, usize)> = may_wait.iter().map(|(_, _, window)| *window).collect();
            let Self { known, places: reader, .. } = &mut *self;
            reader.read(looking.memory, &windows, |number, bytes| {
                let (index, head, _) = may_wait[number];
                let known = &mut known[index];
                let print = bytes.map(|bytes| head.print(bytes));
                if let Some(waits) = known.waits.filter(|_| print == Some(known.print)) {
                    count_pair(found, Some(waits), true);
                    *found.waiting.entry(waits).or_insert(0.0) += 1.0;
                } else {
                    count_pair(found, known.waits, false);
                    if chosen.is_none() {
                        (known.waits, known.print, known.has_moved) = (None, 0, true);
                    }
                }
            });
        }
        if chosen.is_none() && !gone.is_empty() {
            let mut index = 0;
            self.known.retain(|_| {
                index += 1;
                !gone.contains(&(index - 1))
            });
        }
    }

    /// Finds the coroutines that are new, by walking the list from its head.
    fn find_new(&mut self, memory: &ProcessMemory, found: &mut VmFound, now: Instant) {
        if now < self.next_walk {
            return;
        }
        let layout = &self.vm.layout;
        self.anchors.retain(|anchor| type_of(memory, layout, anchor.address) == Ok(anchor.kind));
        let mut meeting = Meeting::new(self.known.iter().map(|known| known.marker), &self.anchors);
        let end = newest_objects(memory, &self.vm, WALK_LIMIT, |object, kind| meeting.meet(object, kind));
        // Where much is allocated between two looks, the walk is long.
        self.next_walk = now + now.elapsed().mul_f64(1.0 / CENSUS_SHARE / 2.0);
        if !matches!(end, ListEnd::Enough | ListEnd::Whole) {
            self.doubts.torn += 1;
            self.hurry(now);
            return;
        }
        let met = meeting.finish(end == ListEnd::Enough, &mut self.next_order);
        let again: HashSet<u64> = met.new.iter().map(|marker| marker.address).collect();
        let known = self.known.len();
        // What is at the same place is not the same.
        self.known.retain(|known| {
            let is_same = !again.contains(&known.marker.address);
            if !is_same {
                found.is_other(known);
            }
            is_same
        });
        if self.known.len() < known || self.known.last().is_some_and(|known| known.marker.order >= met.known_below) {
            self.hurry(now);
        }
        self.anchors.extend(met.anchors);
        thin(&mut self.anchors);
        self.add(met.new, now);
    }

    fn add(&mut self, new: Vec<Marker>, now: Instant) {
        let room = MAX_COROUTINES.saturating_sub(self.known.len());
        self.doubts.too_many = self.doubts.too_many.max(new.len().saturating_sub(room) as u64);
        self.known.extend(new.into_iter().take(room).map(|marker| Known::new(marker, now)));
    }

    /// Has the whole list walked soon.
    fn hurry(&mut self, now: Instant) {
        let soon = self.next_census.map(|due| now + due.saturating_duration_since(now) / HURRY);
        self.next_census = soon.or(self.next_census);
    }

    /// Walks the whole list: what is not on it is not there.
    fn take_census(&mut self, looking: &mut Looking<'_>, found: &mut VmFound) {
        let began = Instant::now();
        let mut meeting = Meeting::with_all();
        let end = newest_objects(looking.memory, &self.vm, CENSUS_LIMIT, |object, kind| meeting.meet(object, kind));
        let cost = began.elapsed();
        self.next_census = Some(began + CENSUS_INTERVAL.max(cost.mul_f64(1.0 / CENSUS_SHARE)));
        if end != ListEnd::Whole {
            self.doubts.torn += 1;
            if self.looked.is_some() {
                return;
            }
        }
        let mut order = self.next_order;
        let met = meeting.finish(false, &mut order);
        self.next_order = order;
        let before: HashMap<u64, (usize, Known)> =
            self.known.iter().enumerate().map(|(index, known)| (known.marker.address, (index, *known))).collect();
        let mut last = 0;
        let mut stays: HashSet<u64> = HashSet::with_capacity(met.new.len());
        // New ones are late if they are older than some that are known.
        let mut unknown = 0;
        self.known.retain(|known| known.marker.order == 0);
        for marker in met.new.into_iter().take(MAX_COROUTINES) {
            // What is met out of its order is something else by now.
            let same = before.get(&marker.address).filter(|(index, _)| *index >= last);
            match same {
                Some(&(index, known)) => {
                    last = index + 1;
                    stays.insert(marker.address);
                    self.doubts.late += std::mem::take(&mut unknown);
                    self.known.push(Known { marker, certain: began, ..known });
                }
                None => {
                    unknown += 1;
                    self.known.push(Known::new(marker, began));
                }
            }
        }
        for (address, (_, known)) in before {
            if stays.contains(&address) || known.marker.order == 0 {
                continue;
            }
            found.is_other(&known);
            // It may have counted as waiting in looks before, too.
            if let Some((waits, looked)) = known.waits.zip(self.looked) {
                self.doubts.stale += 1;
                looking.profile.take_back(waits, looked.saturating_duration_since(known.certain));
            }
        }
        self.anchors = met.anchors;
        thin(&mut self.anchors);
    }

    /// Walks the stacks of those that have moved since the last look, and of those that are new.
    fn walk_moved(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, now: Instant) {
        let gc64 = self.vm.layout.is_gc64();
        let current = VmStatus::read(looking.memory, &self.vm).ok().and_then(|status| status.current);
        let mut moved: Vec<usize> = (0..self.known.len()).filter(|&index| self.known[index].has_moved).collect();
        // All of them may be too many for one look: then some stand for all. Those that wait on come to be known by and by.
        let most = ((WALK_TIME / self.walk_cost.max(1e-7)) as usize).max(LEAST_WALKS);
        let each = (moved.len() as f64 / most as f64).max(1.0);
        if moved.len() > most {
            for number in 0..most {
                let other = self.rng.usize(number..moved.len());
                moved.swap(number, other);
            }
            moved.truncate(most);
        }
        let began = ClockId::THIS_THREAD.read().unwrap_or_default();
        for some in moved.chunks(TOGETHER) {
            let threads: Vec<u64> = some.iter().map(|&index| self.known[index].marker.address).collect();
            let live = PageCache::new(looking.memory);
            let mut number = 0;
            let Self { vm, known, index: own, doubts, .. } = &mut *self;
            snapshots::twice(looking.memory, vm, &threads, |thread, mut before, mut after| {
                let known = &mut known[some[number]];
                number += 1;
                let is_new = std::mem::take(&mut known.is_new);
                (known.waits, known.print, known.has_moved) = (None, 0, false);
                for _ in 0..ATTEMPTS {
                    if before == after {
                        break;
                    }
                    before = after;
                    after = CoroutineSnapshot::read(looking.memory, vm, thread);
                }
                let is_moving = before != after;
                let Some(snapshot) = after else { return };
                let Some(head) = Head::of_snapshot(&snapshot) else { return };
                let status = snapshot.status(gc64);
                if is_new {
                    found.there += each * there(status);
                }
                let may = match status {
                    Status::Suspended => true,
                    Status::Running => !looking.uses(head.cframe, current == Some(thread)),
                    _ => false,
                };
                if !may {
                    return;
                }
                if is_moving {
                    doubts.moving += 1;
                    known.has_moved = true;
                    return;
                }
                let view = View { live: &live, copies: snapshot.copies().to_vec() };
                let walk = LuaStack::of_waiting(&view, vm, *own, &snapshot);
                // A fiber that has resumed a coroutine waits where that one does. Others have left their C stack behind, which
                // is somebody else's by now.
                let is_left_behind = walk.frames.is_empty() && walk.end != WalkEnd::Complete;
                if status == Status::Running && (looking.names.is_resuming(&walk) || is_left_behind) {
                    return;
                }
                let (at, size) = head.window();
                let (stack, start) = snapshot.lua_stack();
                let from = (at.saturating_sub(start)) as usize;
                let Some(window) = stack.get(from..from + size) else { return };
                let waits = looking.names.stack(looking.profile, *own, looking.vms, &walk);
                known.print = head.print(window);
                known.waits = Some(waits);
                known.certain = now;
                *found.waiting.entry(waits).or_insert(0.0) += each;
            });
        }
        if !moved.is_empty() {
            let cost = ClockId::THIS_THREAD.read().unwrap_or_default().saturating_sub(began).as_secs_f64();
            self.walk_cost += 0.3 * (cost / moved.len() as f64 - self.walk_cost);
        }
    }
}

/// How much a coroutine counts among those that are there.
fn there(status: Status) -> f64 {
    if matches!(status, Status::Finished | Status::Dead) { 0.0 } else { 1.0 }
}

/// Counts a coroutine that waited with a stack: whether it is still in the same wait.
fn count_pair(found: &mut VmFound, waits: Option<StackId>, is_same: bool) {
    if let Some(waits) = waits {
        found.pairs.entry(waits).or_insert([0; 2])[usize::from(!is_same)] += 1;
    }
}

impl Doubts {
    /// Adds those of another VM.
    pub fn add(&mut self, other: Self) {
        self.moving += other.moving;
        self.stale += other.stale;
        self.late += other.late;
        self.torn += other.torn;
        self.too_many += other.too_many;
        self.unsearched += other.unsearched;
    }
}
