//! The slots of VMs in the tables of a recording. When a VM is closed, a later one takes its slot.

/// The slots of VMs, by the indices that the probes use.
#[derive(Clone, Debug, Default)]
pub struct VmPlaces {
    places: Vec<VmPlace>,
    /// How many VMs there have been.
    numbers: usize,
}

#[derive(Clone, Copy, Debug)]
struct VmPlace {
    /// The number of the VM among all VMs so far, from 0 on. Each VM has a number of its own.
    number: usize,
    /// When the VM was last sampled, in nanoseconds of `CLOCK_MONOTONIC`.
    seen: u64,
    /// How many checks in a row have missed the VM.
    missed: u32,
    state: PlaceState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceState {
    /// The probes know the VM.
    Known,
    /// The probes do not know the VM any more, but samples of it may still come.
    Leaving,
    /// No sample of the VM can come any more.
    Free,
}

/// How many checks in a row must miss a VM: a single check may come at a bad moment.
const MISSES: u32 = 2;

impl VmPlaces {
    /// Adds a VM, in a new slot.
    pub fn add(&mut self) {
        let place = self.new_place();
        self.places.push(place);
    }

    /// Adds a VM, in a free slot.
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

    /// The number of the VM in a slot.
    pub fn number(&self, index: usize) -> Option<usize> {
        self.places.get(index).map(|place| place.number)
    }

    /// How many VMs there have been.
    pub fn count(&self) -> usize {
        self.numbers
    }

    /// Whether the VM in a slot is still recorded.
    pub fn is_known(&self, index: usize) -> bool {
        self.places.get(index).is_some_and(|place| place.state == PlaceState::Known)
    }

    /// Notes a sample of a VM.
    pub fn see(&mut self, index: usize, time: u64) {
        if let Some(place) = self.places.get_mut(index) {
            place.seen = time;
        }
    }

    /// Notes whether a check has found the VM. Returns true if the VM has to leave.
    pub fn look(&mut self, index: usize, is_there: bool) -> bool {
        let Some(place) = self.places.get_mut(index).filter(|place| place.state == PlaceState::Known) else {
            return false;
        };
        place.missed = if is_there { 0 } else { place.missed + 1 };
        place.missed >= MISSES
    }

    /// Marks the VM in a slot as leaving: it is not recorded any more.
    pub fn leave(&mut self, index: usize) {
        if let Some(place) = self.places.get_mut(index) {
            place.state = PlaceState::Leaving;
        }
    }

    /// Frees the slots of leaving VMs, once everything that was recorded so far is processed. Returns these slots.
    pub fn free(&mut self) -> Vec<usize> {
        let leaving = (0..).zip(&mut self.places).filter(|(_, place)| place.state == PlaceState::Leaving);
        leaving
            .map(|(index, place)| {
                place.state = PlaceState::Free;
                index
            })
            .collect()
    }

    /// Whether a slot is free.
    pub fn is_free(&self, index: usize) -> bool {
        self.places.get(index).is_some_and(|place| place.state == PlaceState::Free)
    }

    /// The first free slot.
    pub fn a_free_one(&self) -> Option<usize> {
        self.places.iter().position(|place| place.state == PlaceState::Free)
    }

    /// Of the slots that `may` be given away, the one whose VM was not sampled for the longest time.
    pub fn the_quietest(&self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let known = (0..).zip(&self.places).filter(|(index, place)| place.state == PlaceState::Known && may(*index));
        known.min_by_key(|(_, place)| place.seen).map(|(index, _)| index)
    }

    /// Whether a VM is leaving.
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
