//! The lifetimes of objects, from the objects that were followed.

use std::collections::BTreeMap;

use crate::observation::SourceId;
use crate::{Figure, Line};

/// The number of cycles for which survival is reported. Objects that survive more count as having survived these.
pub const CYCLES: usize = 8;

/// The least number of objects that tell anything about survival.
const FEW: f64 = 4.0;

/// What became of the objects of each source.
#[derive(Clone, Debug, Default)]
pub struct Fates {
    sources: BTreeMap<SourceId, Fate>,
}

#[derive(Clone, Debug, Default)]
struct Fate {
    /// Objects that have died, by the number of cycles that they had survived.
    died: [Weights; CYCLES + 1],
    /// Objects that were lost.
    lost: Weights,
    /// The bytes of blocks whose owner is not known.
    parts: f64,
}

/// A number of objects, and the bytes that they represent.
#[derive(Clone, Copy, Debug, Default)]
struct Weights {
    count: u64,
    bytes: f64,
    squares: f64,
}

/// A live object.
#[derive(Clone, Copy, Debug)]
pub struct Living {
    /// The source that has allocated it.
    pub source: SourceId,
    /// The bytes that it represents.
    pub weight: f64,
    /// The number of cycles that it has survived.
    pub survived: u32,
}

/// The lifetimes of a source's objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// The source that has allocated them.
    pub source: SourceId,
    /// The number of objects that were followed until they died, or until now.
    pub followed: u64,
    /// The share of their bytes that is alive.
    pub alive: Figure,
    /// The cycle after the allocation in which dead objects were found to be dead, on average: 1 is the first cycle.
    /// [`None`] if no object has died.
    pub cycles: Option<Figure>,
    /// The share of bytes that survives one cycle, two, and so on. The list is shorter if too few objects are that old.
    pub survival: Vec<f64>,
    /// The share of allocated bytes that is neither an object nor known to be part of one, such as string buffers, and
    /// table slots without a known table.
    pub parts: f64,
    /// The share of the objects' bytes that was lost.
    pub lost: f64,
}

/// The memory that a source keeps alive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// The source.
    pub source: SourceId,
    /// Bytes that the source has allocated during the recording and that are still alive.
    pub alive: Figure,
    /// The part of these bytes that will stay if the future is like the past: the share that survives the most observed
    /// cycles.
    pub stays: f64,
}

impl Weights {
    fn add(&mut self, bytes: f64) {
        self.count += 1;
        self.bytes += bytes;
        self.squares += bytes * bytes;
    }

    fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.squares += other.squares;
    }

    /// The number of objects of equal weight that would be as informative.
    fn equal(&self) -> f64 {
        if self.squares > 0.0 { self.bytes * self.bytes / self.squares } else { 0.0 }
    }
}

impl Fates {
    /// Notes that an object has died after surviving this many cycles.
    pub fn died(&mut self, source: SourceId, weight: f64, survived: u32) {
        let survived = usize::try_from(survived).unwrap_or(CYCLES).min(CYCLES);
        self.sources.entry(source).or_default().died[survived].add(weight);
    }

    /// Notes that an object was lost.
    pub fn lost(&mut self, source: SourceId, weight: f64) {
        self.sources.entry(source).or_default().lost.add(weight);
    }

    /// Notes a block that is not an object, and whose owner was not found.
    pub fn part(&mut self, source: SourceId, bytes: f64) {
        self.sources.entry(source).or_default().parts += bytes;
    }

    /// The lifetimes of each source's objects.
    pub fn lives(&self, living: impl IntoIterator<Item = Living>) -> Vec<Life> {
        let mut alive: BTreeMap<SourceId, [Weights; CYCLES + 1]> = BTreeMap::new();
        for object in living {
            let survived = usize::try_from(object.survived).unwrap_or(CYCLES).min(CYCLES);
            alive.entry(object.source).or_default()[survived].add(object.weight);
        }
        let mut sources: Vec<SourceId> = self.sources.keys().chain(alive.keys()).copied().collect();
        sources.sort_unstable();
        sources.dedup();
        let none = Fate::default();
        let life = |source| {
            let fate = self.sources.get(&source).unwrap_or(&none);
            life(source, fate, &alive.get(&source).copied().unwrap_or_default())
        };
        sources.into_iter().map(life).collect()
    }
}

fn life(source: SourceId, fate: &Fate, living: &[Weights; CYCLES + 1]) -> Life {
    let (mut dead, mut alive) = (Weights::default(), Weights::default());
    fate.died.iter().for_each(|weights| dead.join(weights));
    living.iter().for_each(|weights| alive.join(weights));
    let mut all = alive;
    all.join(&dead);
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    Life {
        source,
        followed: all.count,
        alive: proportion(alive.bytes, &all),
        cycles: mean_cycle(&fate.died, &dead),
        survival: survival(&fate.died, living),
        parts: share(fate.parts, fate.parts + all.bytes + fate.lost.bytes),
        lost: share(fate.lost.bytes, all.bytes + fate.lost.bytes),
    }
}

/// The share of a part, and its error (Agresti and Coull: *Approximate is better than "exact"*, 1998). The error is also
/// valid if all or none of a few objects belong to the part.
fn proportion(part: f64, all: &Weights) -> Figure {
    let n = all.equal();
    if n == 0.0 {
        return Figure::estimated(0.0, 1.0);
    }
    let share = part / all.bytes;
    let middle = (share * n + 2.0) / (n + 4.0);
    let half = 2.0 * (middle * (1.0 - middle) / (n + 4.0)).sqrt();
    Figure::estimated(share, (half + (middle - share).abs()).min(1.0))
}

fn mean_cycle(died: &[Weights; CYCLES + 1], dead: &Weights) -> Option<Figure> {
    let each = || died.iter().zip(1..).map(|(weights, cycle)| (weights.bytes, f64::from(cycle)));
    let mean = each().map(|(bytes, cycle)| bytes * cycle).sum::<f64>() / dead.bytes;
    let variance = each().map(|(bytes, cycle)| bytes * (cycle - mean).powi(2)).sum::<f64>() / dead.bytes;
    (dead.bytes > 0.0).then(|| Figure::estimated(mean, 2.0 * (variance / (dead.equal() - 1.0).max(1.0)).sqrt()))
}

/// The share that survives each number of cycles, from objects of all ages (Kaplan and Meier, 1958). At each cycle, it uses
/// the objects that existed then, so that the others may still be too young.
fn survival(died: &[Weights; CYCLES + 1], living: &[Weights; CYCLES + 1]) -> Vec<f64> {
    let mut left = 1.0;
    let mut survival = Vec::new();
    for cycle in 0..CYCLES {
        // Objects that died in this cycle or later, and objects that have survived it.
        let mut there = Weights::default();
        died[cycle..].iter().chain(&living[cycle + 1..]).for_each(|weights| there.join(weights));
        if there.equal() < FEW {
            break;
        }
        left *= 1.0 - died[cycle].bytes / there.bytes;
        survival.push(left);
    }
    survival
}

/// The sources that keep the most memory alive, from the lines of an estimate and from the fates of objects. Sorted by the
/// bytes that stay. Sources without any followed object are left out.
pub fn rank<'a>(lives: impl IntoIterator<Item = &'a Life>, lines: &[Line]) -> Vec<Kept> {
    let kept = |life: &Life| {
        let bytes = lines.iter().find(|line| line.source == life.source)?.bytes;
        let (share, off) = (life.alive.value, life.alive.error.unwrap_or(0.0));
        let alive = bytes.value * share;
        let error = (bytes.value * off).hypot(bytes.error.unwrap_or(0.0) * share);
        // Nothing is known about objects that have not seen a cycle yet, so use the lower bound.
        let stays = bytes.value * life.survival.last().map_or((share - off).max(0.0), |last| last.min(share));
        (life.followed > 0).then(|| Kept { source: life.source, alive: Figure::estimated(alive, error), stays })
    };
    let mut ranked: Vec<Kept> = lives.into_iter().filter_map(kept).collect();
    ranked.sort_by(|a, b| b.stays.total_cmp(&a.stays).then(b.alive.value.total_cmp(&a.alive.value)));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const SOURCE: SourceId = SourceId(0);

    fn living(count: usize, survived: u32) -> impl Iterator<Item = Living> {
        (0..count).map(move |_| Living { source: SOURCE, weight: 100.0, survived })
    }

    #[test]
    fn a_leak_is_alive_and_temporary_objects_are_not() {
        let leak = &Fates::default().lives(living(20, 5))[0];
        assert_eq!((leak.alive.value, leak.followed, leak.cycles), (1.0, 20, None));
        assert!(leak.alive.error.unwrap() > 0.05, "20 objects do not prove it");
        assert_eq!(leak.survival, [1.0; 5]);
        let mut fates = Fates::default();
        (0..500).for_each(|i| fates.died(SOURCE, 100.0, u32::from(i % 10 == 0)));
        let short = &fates.lives([])[0];
        assert_eq!(short.alive.value, 0.0);
        let cycles = short.cycles.unwrap();
        assert!((cycles.value - 1.1).abs() < 1e-9 && cycles.error.unwrap() < 0.05, "{cycles:?}");
        assert!((short.survival[0] - 0.1).abs() < 1e-9 && short.survival[1].abs() < 1e-9, "{:?}", short.survival);
    }

    #[test]
    fn survival_takes_young_objects_for_what_they_are() {
        // Half of each 100 objects survive each cycle. They were allocated in six cycles, and the last are still young.
        let mut fates = Fates::default();
        let mut alive = Vec::new();
        for age in 1..=6u32 {
            let mut left = 1 << 7;
            for survived in 0..age {
                (0..left / 2).for_each(|_| fates.died(SOURCE, 100.0, survived));
                left /= 2;
            }
            alive.extend(living(left, age));
        }
        let life = &fates.lives(alive)[0];
        for (cycle, share) in life.survival.iter().enumerate() {
            assert!((share - 0.5f64.powi(cycle as i32 + 1)).abs() < 1e-9, "{:?}", life.survival);
        }
        assert!(life.survival.len() >= 4);
    }

    #[test]
    fn what_is_unknown_is_told() {
        let mut fates = Fates::default();
        fates.part(SOURCE, 300.0);
        fates.lost(SOURCE, 100.0);
        let life = &fates.lives([])[0];
        assert_eq!((life.followed, life.parts, life.lost), (0, 0.75, 1.0));
        assert_eq!(life.alive, Figure::estimated(0.0, 1.0));
        assert!(life.survival.is_empty());
    }

    #[test]
    fn error_bars_hold_the_truth() {
        let mut random = Random::new(7);
        let (mut held, mut checks) = (0.0, 0.0);
        for truth in [0.0, 0.02, 0.3, 0.9, 1.0] {
            for n in [10, 40, 200] {
                for _ in 0..60 {
                    let mut fates = Fates::default();
                    let mut alive = 0;
                    (0..n).for_each(|_| if random.unit() < truth { alive += 1 } else { fates.died(SOURCE, 100.0, 0) });
                    let figure = fates.lives(living(alive, 1))[0].alive;
                    held += f64::from(u8::from((figure.value - truth).abs() <= figure.error.unwrap()));
                    checks += 1.0;
                }
            }
        }
        assert!(held >= 0.95 * checks - 3.0 * f64::sqrt(checks * 0.95 * 0.05), "{held} of {checks}");
    }

    #[test]
    fn who_leaks_comes_first() {
        let line = |id, bytes| Line {
            source: SourceId(id),
            share: Figure::measured(0.0),
            bytes: Figure::estimated(bytes, bytes / 10.0),
            count: Figure::measured(0.0),
        };
        let lines = vec![line(0, 1e9), line(1, 1e6), line(2, 5e6), line(3, 2e6)];
        let mut fates = Fates::default();
        (0..1000).for_each(|_| fates.died(SourceId(0), 100.0, 0));
        // A cache: its objects all die sooner or later.
        (0..40).for_each(|i| fates.died(SourceId(2), 100.0, i % 4));
        let alive = |id, count: usize, survived| {
            (0..count).map(move |_| Living { source: SourceId(id), weight: 100.0, survived })
        };
        let ranked = rank(&fates.lives(alive(1, 10, 6).chain(alive(2, 10, 1))), &lines);
        assert_eq!(ranked.iter().map(|kept| kept.source.0).collect::<Vec<_>>(), [1, 2, 0]);
        assert!((ranked[0].stays - 1e6).abs() < 1.0 && ranked[0].alive.error.unwrap() > 1e5, "{:?}", ranked[0]);
        // An object that is alive because no cycle has come yet is not a leak.
        let ranked = rank(&fates.lives(alive(1, 10, 6).chain(alive(3, 1, 0))), &lines);
        assert_eq!(ranked[0].source, SourceId(1), "{ranked:?}");
    }
}
