//! The slots for followed objects, and their limit.

use std::collections::BTreeMap;

use lj_trace_common::lifetime::MAX_FOLLOWED;
use lj_trace_estimate::life::ObjectWeight;
use lj_trace_estimate::observation::SourceId;
use lj_trace_estimate::random::Random;

use super::object::FollowedObject;

/// A followed object.
#[derive(Clone, Copy, Debug)]
pub struct FollowedPlace {
    /// The source that allocated it.
    pub source: SourceId,
    /// What the object stands for.
    pub weight: ObjectWeight,
    /// The number of its VM.
    pub vm: usize,
    /// The object, or the owner of the part.
    pub object: FollowedObject,
}

/// All slots, by index.
pub struct FollowedPlaces {
    places: Vec<Option<FollowedPlace>>,
    /// How many slots may be taken.
    limit: usize,
    random: Random,
}

impl FollowedPlaces {
    /// All slots, free and without a limit.
    pub fn new() -> Self {
        let places = vec![None; MAX_FOLLOWED as usize];
        Self { limit: places.len(), places, random: Random::new(3) }
    }

    /// The number of slots, taken or free.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// How many slots may be taken.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Sets the limit. Slots that are taken stay taken.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(self.places.len());
    }

    /// The number of taken slots.
    pub fn taken(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// The object in a slot.
    pub fn get(&self, index: usize) -> Option<FollowedPlace> {
        self.places.get(index).copied().flatten()
    }

    /// Puts an object into a slot.
    pub fn set(&mut self, index: usize, place: FollowedPlace) {
        self.places[index] = Some(place);
    }

    /// Frees a slot; returns what was in it.
    pub fn free(&mut self, index: usize) -> Option<FollowedPlace> {
        self.places.get_mut(index)?.take()
    }

    /// The first free slot.
    pub fn first_free(&self) -> Option<usize> {
        self.places.iter().position(Option::is_none)
    }

    /// The index after the last taken slot.
    pub fn end(&self) -> usize {
        self.places.iter().rposition(Option::is_some).map_or(0, |last| last + 1)
    }

    /// The taken slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &FollowedPlace)> {
        self.places.iter().enumerate().filter_map(|(index, place)| Some((index, place.as_ref()?)))
    }

    /// Chooses about half of the objects at random, to be freed. Each of the others represents twice as many bytes from now
    /// on, so that sums stay the same on average. Sources with few objects keep them all.
    pub fn thin_out(&mut self) -> Vec<usize> {
        let mut counts: BTreeMap<SourceId, usize> = BTreeMap::new();
        self.places.iter().flatten().for_each(|place| *counts.entry(place.source).or_default() += 1);
        let fair = self.limit / 2 / counts.len().max(1);
        let mut chosen = Vec::new();
        for (index, place) in self.places.iter_mut().enumerate() {
            let Some(place) = place.as_mut().filter(|place| counts[&place.source] > fair) else { continue };
            if self.random.below(2) == 0 {
                chosen.push(index);
            } else {
                place.weight.bytes *= 2.0;
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON: SourceId = SourceId(1);
    const RARE: SourceId = SourceId(2);

    /// Adds `count` objects of a source, each of which represents one byte.
    fn add(places: &mut FollowedPlaces, source: SourceId, count: usize) {
        for _ in 0..count {
            let index = places.first_free().unwrap();
            places.set(
                index,
                FollowedPlace {
                    source,
                    weight: ObjectWeight { bytes: 1.0, window: 0 },
                    vm: 0,
                    object: FollowedObject { place: 0, gct: 0 },
                },
            );
        }
    }

    fn sum(places: &FollowedPlaces, of: SourceId) -> f64 {
        places.iter().filter(|(_, place)| place.source == of).map(|(_, place)| place.weight.bytes).sum()
    }

    #[test]
    fn half_of_what_is_common_goes_and_the_rest_stands_for_it() {
        let mut places = FollowedPlaces::new();
        add(&mut places, COMMON, 1000);
        add(&mut places, RARE, 20);
        places.set_limit(1000);
        for index in places.thin_out() {
            assert_eq!(places.free(index).map(|place| place.source), Some(COMMON));
        }
        assert_eq!((sum(&places, RARE), places.end() > 900), (20.0, true));
        // 1000 coin tosses, 4 sigma.
        assert!((sum(&places, COMMON) - 1000.0).abs() < 4.0 * 1000_f64.sqrt(), "{}", sum(&places, COMMON));
        assert!(places.taken() > 400 && places.first_free().is_some_and(|first| first < 100));
    }

    #[test]
    fn all_have_to_make_room_where_there_is_less_than_one_for_each() {
        let mut places = FollowedPlaces::new();
        (0..100).for_each(|source| add(&mut places, SourceId(source), 1));
        places.set_limit(32);
        let chosen = places.thin_out().len();
        assert!((25..75).contains(&chosen), "{chosen}");
    }
}
