//! The lifetimes of objects, from the objects that were followed.

use std::collections::BTreeMap;

use crate::observation::SourceId;
use crate::proportion::proportion;
use crate::random::Random;
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
    windows: Windows,
}

/// A followed object as one of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObjectWeight {
    /// The bytes that it represents.
    pub bytes: f64,
    /// Any number that tells the window in which it was allocated from the others.
    pub window: u64,
}

/// How many windows a number of objects comes from. Those of one window were allocated together, so that they tend to have
/// the same fate: where all of them are from the time since the last cycle, all of them are alive.
///
/// A bitmap of hashes counts them (linear counting: Whang, Vander-Zanden and Taylor, 1990).
#[derive(Clone, Copy, Debug, Default)]
struct Windows(u128);

/// A live object.
#[derive(Clone, Copy, Debug)]
pub struct Living {
    /// The source that has allocated it.
    pub source: SourceId,
    /// What it stands for.
    pub weight: ObjectWeight,
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
    pub survival: Vec<Figure>,
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
    /// cycles. After a single cycle it may still be none of them: what was allocated shortly before survives that.
    pub stays: Figure,
}

impl Windows {
    fn add(&mut self, window: u64) {
        self.0 |= 1 << Random::new(window).below(u128::BITS as usize);
    }

    /// How many they are. Beyond some hundreds it is not known, and infinite.
    fn count(self) -> f64 {
        let bits = f64::from(u128::BITS);
        -bits * (f64::from(self.0.count_zeros()) / bits).ln()
    }
}

impl Weights {
    fn add(&mut self, ObjectWeight { bytes, window }: ObjectWeight) {
        self.count += 1;
        self.bytes += bytes;
        self.squares += bytes * bytes;
        self.windows.add(window);
    }

    fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.squares += other.squares;
        self.windows.0 |= other.windows.0;
    }

    /// The number of objects of equal weight that would be as informative.
    fn equal(&self) -> f64 {
        if self.squares > 0.0 { self.bytes * self.bytes / self.squares } else { 0.0 }
    }

    /// The number of independent objects that would be as informative, if all that were allocated in a window have the same
    /// fate.
    fn independent(&self) -> f64 {
        self.equal().min(self.windows.count())
    }
}

impl Fates {
    /// Notes that an object has died after surviving this many cycles.
    pub fn died(&mut self, source: SourceId, weight: ObjectWeight, survived: u32) {
        let survived = usize::try_from(survived).unwrap_or(CYCLES).min(CYCLES);
        self.sources.entry(source).or_default().died[survived].add(weight);
    }

    /// Notes that an object was lost.
    pub fn lost(&mut self, source: SourceId, weight: ObjectWeight) {
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
        alive: proportion(share(alive.bytes, all.bytes), all.independent()),
        cycles: mean_cycle(&fate.died, &dead),
        survival: survival(&fate.died, living),
        parts: share(fate.parts, fate.parts + all.bytes + fate.lost.bytes),
        lost: share(fate.lost.bytes, all.bytes + fate.lost.bytes),
    }
}

fn mean_cycle(died: &[Weights; CYCLES + 1], dead: &Weights) -> Option<Figure> {
    let each = || died.iter().zip(1..).map(|(weights, cycle)| (weights.bytes, f64::from(cycle)));
    let mean = each().map(|(bytes, cycle)| bytes * cycle).sum::<f64>() / dead.bytes;
    let variance = each().map(|(bytes, cycle)| bytes * (cycle - mean).powi(2)).sum::<f64>() / dead.bytes;
    (dead.bytes > 0.0).then(|| Figure::estimated(mean, 2.0 * (variance / (dead.independent() - 1.0).max(1.0)).sqrt()))
}

/// The share that survives each number of cycles, from objects of all ages (Kaplan and Meier, 1958). At each cycle, it uses
/// the objects that existed then, so that the others may still be too young.
fn survival(died: &[Weights; CYCLES + 1], living: &[Weights; CYCLES + 1]) -> Vec<Figure> {
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
        survival.push(proportion(left, there.independent()));
    }
    survival
}

/// The sources that keep the most memory alive, from the lines of an estimate and from the fates of objects. Sorted by the
/// bytes that certainly stay, then by those that may. Sources without any followed object are left out.
pub fn rank<'a>(lives: impl IntoIterator<Item = &'a Life>, lines: &[Line]) -> Vec<Kept> {
    let kept = |life: &Life| {
        let bytes = lines.iter().find(|line| line.source == life.source)?.bytes;
        let part = |share: f64, off: f64| {
            let error = (bytes.value * off).hypot(bytes.error.unwrap_or(0.0) * share);
            Figure::estimated(bytes.value * share, error)
        };
        let (share, off) = (life.alive.value, life.alive.error.unwrap_or(0.0));
        let stays = match *life.survival.as_slice() {
            // Nothing is known about objects that have not seen a cycle yet, so use the lower bound.
            [] => part((share - off).max(0.0), off),
            [only] => part(only.value.min(share), only.value.min(share).max(off)),
            [.., last] => part(last.value.min(share), last.error.unwrap_or(0.0).max(off)),
        };
        (life.followed > 0).then(|| Kept { source: life.source, alive: part(share, off), stays })
    };
    let mut ranked: Vec<Kept> = lives.into_iter().filter_map(kept).collect();
    let certain = |kept: &Kept| (kept.stays.value - kept.stays.error.unwrap_or(0.0)).max(0.0);
    ranked.sort_by(|a, b| {
        let by = |figure: fn(&Kept) -> f64| figure(b).total_cmp(&figure(a));
        certain(b).total_cmp(&certain(a)).then(by(|kept| kept.stays.value)).then(by(|kept| kept.alive.value))
    });
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: SourceId = SourceId(0);

    /// Objects, each of which is from a window of its own.
    fn living(count: usize, survived: u32) -> impl Iterator<Item = Living> {
        (0..count).map(move |window| Living { source: SOURCE, weight: weight(window as u64), survived })
    }

    fn weight(window: u64) -> ObjectWeight {
        ObjectWeight { bytes: 100.0, window }
    }

    fn shares(life: &Life) -> Vec<f64> {
        life.survival.iter().map(|share| share.value).collect()
    }

    #[test]
    fn a_leak_is_alive_and_temporary_objects_are_not() {
        let leak = &Fates::default().lives(living(20, 5))[0];
        assert_eq!((leak.alive.value, leak.followed, leak.cycles), (1.0, 20, None));
        assert!(leak.alive.error.unwrap() > 0.05, "20 objects do not prove it");
        assert_eq!(shares(leak), [1.0; 5]);
        let mut fates = Fates::default();
        (0..500).for_each(|i| fates.died(SOURCE, weight(i), u32::from(i % 10 == 0)));
        let short = &fates.lives([])[0];
        assert_eq!(short.alive.value, 0.0);
        let cycles = short.cycles.unwrap();
        assert!((cycles.value - 1.1).abs() < 1e-9 && cycles.error.unwrap() < 0.05, "{cycles:?}");
        assert!((shares(short)[0] - 0.1).abs() < 1e-9 && shares(short)[1].abs() < 1e-9, "{:?}", short.survival);
    }

    #[test]
    fn survival_takes_young_objects_for_what_they_are() {
        // Half of each 100 objects survive each cycle. They were allocated in six cycles, and the last are still young.
        let mut fates = Fates::default();
        let mut alive = Vec::new();
        for age in 1..=6u32 {
            let mut left = 1 << 7;
            for survived in 0..age {
                (0..left / 2).for_each(|i| fates.died(SOURCE, weight(i as u64), survived));
                left /= 2;
            }
            alive.extend(living(left, age));
        }
        let life = &fates.lives(alive)[0];
        for (cycle, share) in shares(life).iter().enumerate() {
            assert!((share - 0.5f64.powi(cycle as i32 + 1)).abs() < 1e-9, "{:?}", life.survival);
        }
        assert!(life.survival.len() >= 4);
    }

    #[test]
    fn what_is_unknown_is_told() {
        let mut fates = Fates::default();
        fates.part(SOURCE, 300.0);
        fates.lost(SOURCE, weight(0));
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
                    (0..n).for_each(
                        |i| if random.unit() < truth { alive += 1 } else { fates.died(SOURCE, weight(i), 0) },
                    );
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
        (0..1000).for_each(|i| fates.died(SourceId(0), weight(i), 0));
        // A cache: its objects all die sooner or later.
        (0..40).for_each(|i| fates.died(SourceId(2), weight(i), (i % 4) as u32));
        let alive = |id, count: usize, survived| {
            living(count, survived).map(move |object| Living { source: SourceId(id), ..object })
        };
        let ranked = rank(&fates.lives(alive(1, 10, 6).chain(alive(2, 10, 1))), &lines);
        assert_eq!(ranked.iter().map(|kept| kept.source.0).collect::<Vec<_>>(), [1, 2, 0]);
        assert!((ranked[0].stays.value - 1e6).abs() < 1.0 && ranked[0].alive.error.unwrap() > 1e5, "{:?}", ranked[0]);
        // An object that is alive because no cycle has come yet is not a leak.
        let ranked = rank(&fates.lives(alive(1, 10, 6).chain(alive(3, 1, 0))), &lines);
        assert_eq!(ranked[0].source, SourceId(1), "{ranked:?}");
    }

    /// A line of a program that allocates evenly. Its objects live for a number of cycles, or for ever.
    struct Truth {
        cycles: f64,
        lives: f64,
        kept: f64,
    }

    impl Truth {
        /// The share of all objects that is alive at the end: those that are kept, and those that were needed at the last
        /// cycle or are newer.
        fn alive(&self) -> f64 {
            let young = (self.cycles.fract() + self.lives) / self.cycles;
            self.kept + (1.0 - self.kept) * young.min(1.0)
        }

        /// What is seen of it in `windows` at random times.
        fn seen(&self, windows: u64, random: &mut Random) -> (Fates, Vec<Living>) {
            let (mut fates, mut living) = (Fates::default(), Vec::new());
            for window in 0..windows {
                let at = random.unit() * self.cycles;
                for _ in 0..10 {
                    let dies = if random.unit() < self.kept { f64::INFINITY } else { (at + self.lives).floor() + 1.0 };
                    let survived = |end: f64| (end - at.floor()) as u32;
                    if dies <= self.cycles.floor() {
                        fates.died(SOURCE, weight(window), survived(dies - 1.0));
                    } else {
                        let survived = survived(self.cycles.floor());
                        living.push(Living { source: SOURCE, weight: weight(window), survived });
                    }
                }
            }
            (fates, living)
        }
    }

    #[test]
    fn errors_hold_the_truth_where_a_window_s_objects_share_their_fate() {
        let mut random = Random::new(11);
        let (mut alive, mut stays, mut checks) = (0.0, 0.0, 0.0);
        for _ in 0..2000 {
            let kept = [0.0, 0.0, 0.1, 0.5, 1.0][random.below(5)];
            let cycles = 1.0 + random.unit() * 30.0;
            let truth = Truth { cycles, lives: random.unit() * [0.5, 3.0][random.below(2)], kept };
            let most = [6, 60][random.below(2)];
            let windows = 3 + random.below(most) as u64;
            let (fates, living) = truth.seen(windows, &mut random);
            let life = &fates.lives(living)[0];
            let line = Line {
                source: SOURCE,
                share: Figure::measured(1.0),
                bytes: Figure::measured(1.0),
                count: Figure::measured(1.0),
            };
            let kept_bytes = rank([life], &[line])[0];
            let holds = |figure: Figure, truth: f64| {
                f64::from(u8::from((figure.value - truth).abs() <= figure.error.unwrap_or(0.0) + 1e-9))
            };
            alive += holds(kept_bytes.alive, truth.alive());
            stays += holds(kept_bytes.stays, truth.kept);
            checks += 1.0;
        }
        let least = 0.95 * checks - 3.0 * f64::sqrt(checks * 0.95 * 0.05);
        assert!(alive >= least, "alive: {alive} of {checks}");
        assert!(stays >= least, "stays: {stays} of {checks}");
    }
}
