//! How long coroutines have waited by group: by the location of their request, for example.

use std::collections::BTreeMap;
use std::sync::Arc;

use lj_trace_estimate::variance::Variance;

use super::{CERTAIN, WAIT, WaitLook, WaitProfile};
use crate::Frame;
use crate::model::FrameId;

/// How long coroutines of a group have waited.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTime {
    /// The group's name.
    pub name: Arc<str>,
    /// All their waits, in nanoseconds.
    pub nanoseconds: u64,
    /// The error of that in 19 of 20 cases, in nanoseconds.
    pub error: f64,
}

/// Notes what a look has found of each group. Coroutines of a group may wait for the same thing, so the error of their sum does not
/// follow from the errors of their stacks.
pub(super) fn note(profile: &mut WaitProfile, look: &WaitLook, nanoseconds: f64) {
    let mut sums: BTreeMap<Arc<str>, f64> = BTreeMap::new();
    for &(stack, count) in &look.waiting {
        if let Some(name) = profile.stacks.all_frames(stack).and_then(|(_, frames)| group(profile, frames)) {
            *sums.entry(name).or_default() += nanoseconds * count;
        }
    }
    for (name, sum) in sums {
        profile.groups.entry(name).or_default().note(sum, profile.about.looks);
    }
}

/// The group of a stack: the innermost of the roots that it begins with, since a process may be another.
fn group(profile: &WaitProfile, frames: &[FrameId]) -> Option<Arc<str>> {
    let roots = frames.iter().map_while(|id| match profile.stacks.frame(*id) {
        Some(Frame::Root { name }) => Some(name),
        _ => None,
    });
    roots.last().cloned()
}

/// The times of all groups.
pub(super) fn times(profile: &WaitProfile) -> Vec<GroupTime> {
    let mut sums: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for (stack, row) in profile.stacks.numbered() {
        if let Some(name) = profile.stacks.all_frames(stack).and_then(|(_, frames)| group(profile, frames)) {
            *sums.entry(name).or_default() += row.weights[WAIT.index];
        }
    }
    let time = |(name, nanoseconds): (Arc<str>, u64)| {
        let mut variance = Variance::default();
        if let Some(figures) = profile.groups.get(&name) {
            figures.add_to(&mut variance, profile.about.looks);
        }
        GroupTime { name, nanoseconds, error: variance.error(CERTAIN) }
    };
    sums.into_iter().filter(|(_, nanoseconds)| *nanoseconds > 0).map(time).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn groups_have_the_sum_of_their_stacks_and_an_error_of_their_own() {
        let mut profile = WaitProfile::new("");
        let lua = |line| Frame::lua(Some("f".into()), b"@a.lua", 1, Some(line));
        let root = |name: &str| Frame::Root { name: name.into() };
        let stacks = [("/a", 1), ("/a", 2), ("/b", 3)].map(|(name, line)| profile.stack([root(name), lua(line)]));
        // Two lines of /a take turns: their sum never changes.
        for turn in 0..10 {
            let waiting = vec![(stacks[turn % 2], 5.0), (stacks[2], (turn % 2) as f64 * 4.0)];
            profile.add(&WaitLook { stretch: Duration::from_secs(1), there: 9.0, waiting });
        }
        let groups = profile.groups();
        let seconds: Vec<(&str, u64)> =
            groups.iter().map(|own| (&*own.name, own.nanoseconds / 1_000_000_000)).collect();
        assert_eq!(seconds, [("/a", 50), ("/b", 20)]);
        assert!(groups[0].error < 1e10 && groups[1].error > 1e10, "{groups:?}");
    }
}
