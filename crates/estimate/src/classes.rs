//! Classes of slices. In the slices of a class, the CPU did the same.

use std::collections::BTreeMap;

use super::sums::Batches;
use super::timeline::{Settled, Slice, Volume};
use super::used_time::CpuTime;
use crate::observation::{ActivityId, Nanos};

/// The most classes. Further slices are classified by their rate alone.
const MOST: usize = 256;

/// An activity with at least this share of a slice's samples is part of the slice's class.
const PRESENT: f64 = 0.2;

/// All slices so far, by class.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    by_key: BTreeMap<ClassKey, usize>,
    list: Vec<Class>,
    /// Bytes in slices without samples.
    pub unsampled: f64,
    /// Bytes that were counted for slices, but belong to windows that became known too late.
    pub late: Volume,
    /// Bytes that were allocated at once, in a slice that otherwise allocates much less.
    pub jumps: f64,
}

/// The properties that slices of a class share.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassKey {
    /// The most frequent activities, in order.
    pub activities: Vec<ActivityId>,
    /// The logarithm of the allocation rate to the base 2, in steps of [`STEP`].
    pub rate: i32,
}

/// The least bytes of a big block. Smaller amounts may come from a program that had no CPU for a while.
const BIG: f64 = 1_048_576.0;

/// A rate near a window is not trusted if it is less than this part of the rate of its slice.
const LEAST_NEAR: f64 = 0.1;

/// If samples show what ran, only rates that differ by more than this power of 2 count as different.
const STEP: i32 = 3;

/// The slices of one class.
#[derive(Clone, Debug, Default)]
pub struct Class {
    pub key: ClassKey,
    /// The total length of the slices, without windows.
    pub time: Nanos,
    /// The allocations in the slices, without those in windows.
    pub volume: Volume,
    /// The number of windows inside the slices.
    pub windows: u64,
    /// The sum of the rates around these windows.
    pub rates: f64,
    /// The CPU time of the slices.
    pub cpu_time: CpuTime,
    /// The sums over these windows.
    pub batches: Batches,
}

impl ClassKey {
    fn of(slice: &Slice) -> Self {
        let samples: u32 = slice.activities.iter().map(|(_, count)| count).sum();
        let least = f64::from(samples) * PRESENT;
        let present = slice.activities.iter().filter(|(_, count)| f64::from(*count) >= least);
        let mut activities: Vec<ActivityId> = present.map(|(activity, _)| *activity).collect();
        activities.sort_unstable();
        Self { rate: step_of(slice.rate(), if samples > 0 { STEP } else { 1 }), activities }
    }

    /// The key of slices that are classified by their rate alone.
    fn without_activities(slice: &Slice) -> Self {
        Self { rate: step_of(slice.rate(), 1), activities: Vec::new() }
    }

    /// The similarity of two classes, from 0 to 1.
    pub fn similarity(&self, other: &Self) -> f64 {
        let shared = self.activities.iter().filter(|activity| other.activities.contains(activity)).count();
        let all = self.activities.len() + other.activities.len() - shared;
        let activities = if all == 0 { 1.0 } else { shared as f64 / all as f64 };
        activities / (1.0 + 0.25 * f64::from((self.rate - other.rate).abs()))
    }
}

/// The step of a rate in bytes per nanosecond. All rates below 64 KB/s are on one step.
fn step_of(rate: f64, step: i32) -> i32 {
    let kilobytes = rate * 1e6;
    if kilobytes < 64.0 { 0 } else { (kilobytes.log2().min(60.0) as i32).div_euclid(step) * step }
}

impl Classes {
    /// Adds a slice with its windows.
    pub fn add(&mut self, slice: Slice) {
        if slice.activities.is_empty() {
            self.unsampled += slice.volume.sum();
        }
        self.jumps += jump(&slice);
        let rate = slice.rate();
        let class = self.class(&slice);
        class.time += slice.time;
        class.volume.add(&slice.volume);
        class.cpu_time.outside += f64::from(slice.activities.iter().map(|(_, count)| count).sum::<u32>());
        for Settled { window, rate: near, within, ran } in &slice.windows {
            class.cpu_time.add(window, *ran);
            // Right beside a window, the program may not have had a CPU; or it may be a program that does little in this
            // slice.
            let absent = || within.map_or(rate, |within| within.clamp(near.unwrap_or(0.0).clamp(0.0, rate), rate));
            let near = near.filter(|near| *near > LEAST_NEAR * rate).unwrap_or_else(absent);
            class.windows += 1;
            class.rates += near;
            class.batches.add(window, near, !class.key.activities.is_empty());
        }
    }

    fn class(&mut self, slice: &Slice) -> &mut Class {
        let mut key = ClassKey::of(slice);
        if self.list.len() >= MOST && !self.by_key.contains_key(&key) {
            key = ClassKey::without_activities(slice);
        }
        let next = self.list.len();
        let index = *self.by_key.entry(key.clone()).or_insert(next);
        if index == next {
            self.list.push(Class { key, ..Class::default() });
        }
        &mut self.list[index]
    }

    /// Notes allocations that were counted outside of windows, but were inside.
    pub fn deduct(&mut self, late: &Volume) {
        self.late.add(late);
    }

    /// All classes.
    pub fn all(&self) -> &[Class] {
        &self.list
    }
}

/// The bytes that a slice has allocated at once: more than [`BIG`] between two readings, and more than in the rest of the
/// slice.
fn jump(slice: &Slice) -> f64 {
    let rest = slice.volume.sum() - slice.peak;
    if slice.intervals >= 4 && slice.peak > BIG && slice.peak > rest { slice.peak - rest.max(0.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(activities: &[(u32, u32)], net: f64) -> Slice {
        Slice {
            time: 10_000_000,
            volume: Volume { gross: 0.0, net },
            activities: activities.iter().map(|&(id, count)| (ActivityId(id), count)).collect(),
            ..Slice::default()
        }
    }

    #[test]
    fn what_seldom_ran_does_not_make_a_class() {
        let key = ClassKey::of(&slice(&[(7, 2), (3, 7), (5, 1)], 1e6));
        assert_eq!(key.activities, [ActivityId(3), ActivityId(7)]);
        assert_eq!(ClassKey::of(&slice(&[(7, 5), (3, 5)], 1e6)), key, "the numbers and their order do not matter");
    }

    #[test]
    fn the_number_of_classes_is_bounded() {
        let mut classes = Classes::default();
        for i in 0..100_000 {
            classes.add(slice(&[(i, 1)], f64::from(i) * 1000.0));
        }
        assert!(classes.all().len() <= MOST + 64, "{}", classes.all().len());
        let net: f64 = classes.all().iter().map(|class| class.volume.net).sum();
        assert!((net / (99_999.0 * 50_000.0 * 1000.0) - 1.0).abs() < 1e-9, "nothing is left out");
    }

    #[test]
    fn similar_classes_share_activities_and_have_like_rates() {
        let key = |ids: &[u32], rate| ClassKey { activities: ids.iter().map(|&id| ActivityId(id)).collect(), rate };
        let one = key(&[1, 2], 9);
        assert_eq!(one.similarity(&one), 1.0);
        assert!(one.similarity(&key(&[1, 2], 12)) > one.similarity(&key(&[1, 3], 9)));
        assert_eq!(one.similarity(&key(&[3], 9)), 0.0);
        assert!(key(&[], 9).similarity(&key(&[], 10)) > key(&[], 9).similarity(&key(&[], 11)));
    }

    #[test]
    fn a_jump_is_a_big_block_and_no_steady_rate() {
        let mut slice = slice(&[], 10e6);
        (slice.intervals, slice.peak) = (10, 1.5e6);
        assert_eq!(jump(&slice), 0.0);
        slice.peak = 9e6;
        assert_eq!(jump(&slice), 8e6);
    }
}
