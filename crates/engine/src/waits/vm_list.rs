//! Finds the coroutines of a VM on the collector's list of objects: those that are new at its head, and now and then all.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use lj_trace_luajit::heap::{ListEnd, newest_objects};
use lj_trace_luajit::object::type_of;
use lj_trace_process::ProcessMemory;

use super::newcomers::{Marker, Meeting, thin};
use super::vm_found::{Known, Looking, VmFound};
use super::vm_look::VmLooks;

/// More coroutines of a VM are not known at once: 64 bytes each.
const MAX_COROUTINES: usize = 1 << 22;
/// To find what is new takes no longer.
const WALK_LIMIT: Duration = Duration::from_millis(500);
/// Walks for what is new may cost this share of a core.
const WALK_SHARE: f64 = 0.004;
/// To walk the whole list takes no longer.
const CENSUS_LIMIT: Duration = Duration::from_secs(5);
/// A walk of the whole list may cost this share of a core,
const CENSUS_SHARE: f64 = 0.002;
/// and comes no more often.
const CENSUS_INTERVAL: Duration = Duration::from_secs(10);
/// Where walks fail, the whole list is walked sooner.
const HURRY: u32 = 8;

impl VmLooks {
    /// Finds the coroutines that are new, by walking the list from its head.
    pub(super) fn find_new(&mut self, memory: &ProcessMemory, found: &mut VmFound, now: Instant) {
        if now < self.next_walk {
            return;
        }
        let layout = &self.vm.layout;
        self.anchors.retain(|anchor| type_of(memory, layout, anchor.address) == Ok(anchor.kind));
        let mut meeting = Meeting::new(self.known.iter().map(|known| known.marker), &self.anchors);
        let end = newest_objects(memory, &self.vm, WALK_LIMIT, |object, kind| meeting.meet(object, kind));
        // Where much is allocated between two looks, the walk is long.
        self.next_walk = now + now.elapsed().mul_f64(1.0 / WALK_SHARE);
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
    pub(super) fn take_census(&mut self, looking: &mut Looking<'_>, found: &mut VmFound) {
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
}
