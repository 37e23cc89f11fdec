//! Finds the coroutines of a VM on the collector's list of objects: those that are new at its head, and now and then all.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use lj_trace_common::layout::gct;
use lj_trace_luajit::heap::{ObjectWalkEnd, newest_objects};

use super::newcomers::{Meeting, Met};
use super::vm_found::{Known, Looking, VmFound};
use super::vm_look::CoroutineLooks;

/// More coroutines of a VM are not known at once: a hundred bytes each.
const MAX_COROUTINES: usize = 1 << 22;
/// To find what is new takes no longer.
const WALK_LIMIT: Duration = Duration::from_millis(500);
/// To walk the whole list takes no longer.
const CENSUS_LIMIT: Duration = Duration::from_secs(5);
/// A walk of the whole list may cost this share of a core,
const CENSUS_SHARE: f64 = 0.002;
/// and comes no more often.
const CENSUS_INTERVAL: Duration = Duration::from_secs(10);
/// Where walks fail, the whole list is walked sooner.
const HURRY: u32 = 8;

impl CoroutineLooks {
    /// Finds the coroutines that are new, by walking the list from its head. Where there are few of them and very many other
    /// objects, all of these are walked: then looks come less often, rather than that some miss what is new.
    pub(super) fn find_new(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, now: Instant) {
        // The main thread, which is the first one, is where the list ends.
        let mut meeting = Meeting::new(self.known.iter().skip(1).map(|known| known.address));
        let end = newest_objects(looking.memory, &self.vm, WALK_LIMIT, |object, kind| {
            kind != gct::THREAD || meeting.meet(object)
        });
        if !matches!(end, ObjectWalkEnd::Enough | ObjectWalkEnd::Whole) {
            self.doubts.torn += 1;
            // The whole list is walked soon.
            let soon = self.next_census.map(|due| now + due.saturating_duration_since(now) / HURRY);
            self.next_census = soon.or(self.next_census);
            return;
        }
        self.merge(looking, found, meeting.finish(end == ObjectWalkEnd::Enough), now);
    }

    /// Walks the whole list.
    pub(super) fn take_census(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, now: Instant) {
        let mut meeting = Meeting::new(std::iter::empty());
        let end = newest_objects(looking.memory, &self.vm, CENSUS_LIMIT, |object, kind| {
            kind != gct::THREAD || meeting.meet(object)
        });
        self.next_census = Some(now + CENSUS_INTERVAL.max(now.elapsed().mul_f64(1.0 / CENSUS_SHARE)));
        if end != ObjectWalkEnd::Whole {
            self.doubts.torn += 1;
            // Of a first walk, what it has met is better than nothing.
            if self.looked.is_some() {
                return;
            }
        }
        self.merge(looking, found, meeting.finish(false), now);
    }

    /// Takes in what a walk has met. What is known and was not met is not there any more; what was met out of its order is
    /// something else by now.
    fn merge(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, met: Met, now: Instant) {
        let Met { newest, older } = met;
        let tail = self.known.split_off((older + 1).min(self.known.len()));
        let mut before: HashMap<u64, (usize, Known)> =
            tail.into_iter().enumerate().map(|(place, known)| (known.address, (place, known))).collect();
        // Addresses that were given away again: older coroutines are not there any more.
        let new: HashSet<u64> = newest.iter().copied().filter(|address| !before.contains_key(address)).collect();
        let gone: Vec<Known> = match new.is_empty() {
            true => Vec::new(),
            false => self.known.extract_if(self.known.len().min(1).., |known| new.contains(&known.address)).collect(),
        };
        let (mut last, mut unknown) = (0, 0);
        for address in newest {
            if self.known.len() >= MAX_COROUTINES {
                self.doubts.too_many += 1;
                continue;
            }
            match before.get(&address) {
                Some(&(place, known)) if place >= last => {
                    last = place + 1;
                    before.remove(&address);
                    // New ones are late if they are older than one that is known.
                    self.doubts.late += std::mem::take(&mut unknown);
                    self.known.push(Known { certain: now, ..known });
                }
                _ => {
                    unknown += 1;
                    self.known.push(Known::new(address, now));
                }
            }
        }
        for known in before.into_values().map(|(_, known)| known).chain(gone) {
            found.is_other(&known);
            // It may have counted as waiting in looks before, too.
            if let Some((waits, looked)) = known.waits.zip(self.looked) {
                self.doubts.stale += 1;
                looking.profile.take_back(waits, looked.saturating_duration_since(known.certain));
            }
        }
    }
}
