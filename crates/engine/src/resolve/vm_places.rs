//! The slots of VMs in the tables of a recording. When a VM is closed, a later one takes its slot.

/// The places, by the indices that the probes know them by.
#[derive(Clone, Debug, Default)]
pub struct VmPlaces {
    places: Vec<VmPlace>,
    /// How many VMs there have been.
    numbers: usize,
}

#[derive(Clone, Copy, Debug)]
struct VmPlace {
    /// Which VM it is of all that there have been, from 0 on: no two have the same.
    number: usize,
    /// When a sample was in it last, in nanoseconds of `CLOCK_MONOTONIC`.
    seen: u64,
    /// How often in a row it was not there.
    missed: u32,
    state: PlaceState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceState {
    /// The probes know the VM.
    Known,
    /// They do not any more, but samples of it may still come.
    Leaving,
    /// Nothing comes of it any more.
    Free,
}

/// How often in a row a VM must be found gone: once may be a bad moment.
const MISSES: u32 = 2;

impl VmPlaces {
    /// One more VM, in a place of its own.
    pub fn add(&mut self) {
        let place = self.new_place();
        self.places.push(place);
    }

    /// One more VM, in a place that is free.
    pub fn take(&mut self, index: usize) {
        let place = self.new_place();
        if let Some(free) = self.places.get_mut(index) {
            *free = place;
        }
    }

    fn new_place(&mut self) -> VmPlace {
        let number = self.numbers;
        self.numbers += 1;
        VmPlace { number, seen: 0, missed: 0, state: PlaceState::Known }
    }

    /// Which VM has a place.
    pub fn number(&self, index: usize) -> Option<usize> {
        self.places.get(index).map(|place| place.number)
    }

    /// How many VMs there have been.
    pub fn count(&self) -> usize {
        self.numbers
    }

    /// Whether the VM of a place is still recorded.
    pub fn is_known(&self, index: usize) -> bool {
        self.places.get(index).is_some_and(|place| place.state == PlaceState::Known)
    }

    /// A sample was in a VM.
    pub fn see(&mut self, index: usize, time: u64) {
        if let Some(place) = self.places.get_mut(index) {
            place.seen = time;
        }
    }

    /// Somebody has looked whether a VM is there. True if it is to leave.
    pub fn look(&mut self, index: usize, is_there: bool) -> bool {
        let Some(place) = self.places.get_mut(index).filter(|place| place.state == PlaceState::Known) else {
            return false;
        };
        place.missed = if is_there { 0 } else { place.missed + 1 };
        place.missed >= MISSES
    }

    /// The VM of a place is not recorded any more.
    pub fn leave(&mut self, index: usize) {
        if let Some(place) = self.places.get_mut(index) {
            place.state = PlaceState::Leaving;
        }
    }

    /// Everything that was recorded so far was worked off: gives the places that have become free.
    pub fn free(&mut self) -> Vec<usize> {
        let leaving = (0..).zip(&mut self.places).filter(|(_, place)| place.state == PlaceState::Leaving);
        leaving
            .map(|(index, place)| {
                place.state = PlaceState::Free;
                index
            })
            .collect()
    }

    /// Whether a place is free.
    pub fn is_free(&self, index: usize) -> bool {
        self.places.get(index).is_some_and(|place| place.state == PlaceState::Free)
    }

    /// A place that is free.
    pub fn a_free_one(&self) -> Option<usize> {
        self.places.iter().position(|place| place.state == PlaceState::Free)
    }

    /// The place whose VM was not seen for the longest time, of those that `may` be given away.
    pub fn the_quietest(&self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let known = (0..).zip(&self.places).filter(|(index, place)| place.state == PlaceState::Known && may(*index));
        known.min_by_key(|(_, place)| place.seen).map(|(index, _)| index)
    }

    /// Whether some VM is about to leave.
    pub fn is_one_leaving(&self) -> bool {
        self.places.iter().any(|place| place.state == PlaceState::Leaving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_away_once_all_of_its_vm_was_worked_off() {
        let mut places = VmPlaces::default();
        (0..3).for_each(|_| places.add());
        assert!(!places.look(1, false), "once may be a bad moment");
        assert!(!places.look(1, true));
        assert!(!places.look(1, false));
        assert!(places.look(1, false));
        places.leave(1);
        assert!(!places.is_known(1) && places.is_one_leaving());
        assert_eq!((places.a_free_one(), places.number(1)), (None, Some(1)), "samples may still come");
        assert_eq!(places.free(), [1]);
        assert_eq!((places.free(), places.a_free_one()), (vec![], Some(1)));
        places.take(1);
        assert_eq!((places.number(1), places.count(), places.a_free_one()), (Some(3), 4, None));
        assert!(places.is_known(1));
    }

    #[test]
    fn the_quietest_goes_first() {
        let mut places = VmPlaces::default();
        (0..4).for_each(|_| places.add());
        [(0, 5), (1, 30), (2, 20), (3, 10)].into_iter().for_each(|(index, time)| places.see(index, time));
        assert_eq!(places.the_quietest(|index| index != 0), Some(3));
        places.leave(3);
        assert_eq!(places.the_quietest(|index| index != 0), Some(2));
        assert_eq!(places.the_quietest(|_| false), None);
    }
}
