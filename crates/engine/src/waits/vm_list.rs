//! Finds the coroutines of a VM on the collector's list of objects: new ones at its head, and all of them from time to
//! time.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use lj_trace_common::layout::gct;
use lj_trace_luajit::heap::{ObjectWalkEnd, newest_objects};

use super::newcomers::{Meeting, Met};
use super::vm_found::{Known, Looking, VmFound};
use super::vm_look::CoroutineLooks;

/// The most coroutines of a VM to know: each takes about a hundred bytes.
const MAX_COROUTINES: usize = 1 << 22;
/// The time limit of a walk for new coroutines.
const WALK_LIMIT: Duration = Duration::from_millis(500);
/// The time limit of a walk of the whole list.
const CENSUS_LIMIT: Duration = Duration::from_secs(5);
/// The share of a core that walks of the whole list may cost.
const CENSUS_SHARE: f64 = 0.002;
/// The shortest interval between walks of the whole list.
const CENSUS_INTERVAL: Duration = Duration::from_secs(10);
/// By which factor the whole list is walked sooner after a failed walk.
const HURRY: u32 = 8;

impl CoroutineLooks {
    /// Finds new coroutines by walking the list from its head. If there are few coroutines and very many other objects, the
    /// walk passes all of these. Then looks come less often, but none of them misses new coroutines.
    pub(super) fn find_new(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, now: Instant) {
        // The list ends with the main thread, which is the first one known.
        let mut meeting = Meeting::new(self.known.iter().skip(1).map(|known| known.address));
        let end = newest_objects(looking.memory, &self.vm, WALK_LIMIT, |object, kind| {
            kind != gct::THREAD || meeting.meet(object)
        });
        if !matches!(end, ObjectWalkEnd::Enough | ObjectWalkEnd::Whole) {
            self.doubts.torn += 1;
            // Walk the whole list soon.
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
            // For a first walk, the coroutines met so far are better than nothing.
            if self.looked.is_some() {
                return;
            }
        }
        self.merge(looking, found, meeting.finish(false), now);
    }

    /// Merges the result of a walk. A known coroutine that was not met is gone. A coroutine that was met out of order is
    /// another one by now.
    fn merge(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, met: Met, now: Instant) {
        let Met { newest, older } = met;
        let tail = self.known.split_off((older + 1).min(self.known.len()));
        let mut before: HashMap<u64, (usize, Known)> =
            tail.into_iter().enumerate().map(|(place, known)| (known.address, (place, known))).collect();
        // If addresses are reused, older coroutines may be gone.
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
                    // New coroutines are late if they are older than a known one.
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
            // The coroutine may have counted as waiting in earlier looks, too.
            if let Some((waits, looked)) = known.waits.zip(self.looked) {
                self.doubts.stale += 1;
                looking.profile.take_back(waits, looked.saturating_duration_since(known.certain));
            }
        }
    }
}
