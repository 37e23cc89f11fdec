//! Looks now and then at what the VMs of a process execute, because no sample hits a process that waits.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lj_trace_engine::{Recording, Session};
use lj_trace_luajit::VmStatus;
use lj_trace_profile::answer::SeenAt;

use crate::host::doing::activity;

/// The least time between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// The pause is also this many times as long as a look takes, even on an overloaded machine. That limits it to 2% of a
/// CPU.
const REST: u32 = 50;

/// How many VMs to look at, at most.
const VMS: usize = 4;

/// How many places to distinguish; the most frequent place is among the first ones.
const PLACES: usize = 1000;

/// The places of the VMs of a process at each look.
#[derive(Debug, Default)]
pub struct VmLooks {
    places: HashMap<Option<String>, u64>,
    looks: u64,
    next: Option<Instant>,
}

impl VmLooks {
    /// Looks if it is time to. With several processes, it does nothing.
    pub fn look(&mut self, session: &Session<'_>) {
        let begin = Instant::now();
        let mut recordings = session.recordings();
        let (Some(recording), None) = (recordings.next(), recordings.next()) else { return };
        if self.next.is_some_and(|next| begin < next) || recording.cpu.is_none() {
            return;
        }
        places(recording).into_iter().for_each(|place| self.note(place));
        self.next = Some(Instant::now() + INTERVAL.max(begin.elapsed() * REST));
    }

    fn note(&mut self, place: Option<String>) {
        self.looks += 1;
        if self.places.len() < PLACES || self.places.contains_key(&place) {
            *self.places.entry(place).or_default() += 1;
        }
    }

    /// The place that was seen most often.
    pub fn most(&self) -> Option<SeenAt> {
        let most = self.places.iter().max_by_key(|(place, hits)| (**hits, *place))?;
        Some(SeenAt { place: most.0.clone(), hits: *most.1, looks: self.looks })
    }
}

/// What each VM executes: the Lua function and line, if its host is calling into it.
fn places(recording: &Recording) -> Vec<Option<String>> {
    let memory = recording.process().memory();
    let vms = recording.vms().unwrap_or_default();
    let looked = vms.iter().take(VMS).filter_map(|vm| {
        let status = VmStatus::read(&memory, vm).ok()?;
        let Some(activity) = activity(&memory, vm, &status) else { return Some(None) };
        let function = activity.function?;
        let line = activity.line.map_or(String::new(), |line| format!(", line {line}"));
        Some(Some(format!("{function}{line}")))
    });
    looked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_place_is_told_among_many() {
        let mut looks = VmLooks::default();
        assert_eq!(looks.most(), None);
        for number in 0..3000 {
            looks.note(Some("nap@a.lua:3, line 5".to_owned()));
            looks.note(Some(format!("f@a.lua:{number}")));
        }
        assert!(looks.places.len() <= PLACES);
        let seen = SeenAt { place: Some("nap@a.lua:3, line 5".to_owned()), hits: 3000, looks: 6000 };
        assert_eq!(looks.most(), Some(seen));
    }
}
