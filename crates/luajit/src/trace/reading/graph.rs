//! The states of a search, each kept once.

use std::collections::BTreeMap;
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};

use super::place::{Phase, ReadingPlace, RecorderFrame};

/// One state of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SearchState {
    /// Number of the place.
    pub place: u32,
    /// Reference of the next IR instruction.
    pub at: u16,
    /// Reference of the first IR instruction that the bytecode has emitted.
    pub begin: u16,
    /// Index of the next snapshot.
    pub snapshot: u16,
}

/// How a state was reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Number of the state before.
    pub from: u32,
    /// Reference of the IR instruction that was emitted on the way.
    pub made: Option<u16>,
}

/// All states of a search.
pub(super) struct Graph {
    /// The places, by number.
    pub places: Vec<ReadingPlace>,
    numbers: HashMap<Key, u32>,
    frames: Frames,
    /// The states, by number.
    pub states: Vec<SearchState>,
    /// The numbers of the states.
    pub known: HashMap<SearchState, u32>,
    /// For each state, how it was reached.
    pub arrivals: Vec<Vec<Arrival>>,
    /// States that were not examined yet, by the next snapshot.
    open: BTreeMap<u16, Vec<u32>>,
}

/// A place, with the numbers of its frames.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    frames: Box<[u32]>,
    position: u32,
    phase: Phase,
    returns: usize,
}

/// The frames of all places, each kept once.
struct Frames {
    numbers: HashMap<Rc<RecorderFrame>, u32>,
    /// Numbers by address: a frame that has not changed since it was numbered needs no comparison.
    addresses: HashMap<*const RecorderFrame, u32>,
}

impl Frames {
    /// The number of a frame. The kept copy of the frame replaces it.
    fn number(&mut self, frame: &mut Rc<RecorderFrame>) -> u32 {
        if let Some(&number) = self.addresses.get(&Rc::as_ptr(frame)) {
            return number;
        }
        if let Some((kept, &number)) = self.numbers.get_key_value(frame) {
            *frame = kept.clone();
            return number;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(frame.clone(), number);
        self.addresses.insert(Rc::as_ptr(frame), number);
        number
    }
}

impl Graph {
    /// A graph without states.
    pub fn new() -> Self {
        Self {
            places: Vec::new(),
            numbers: HashMap::new(),
            frames: Frames { numbers: HashMap::new(), addresses: HashMap::new() },
            states: Vec::new(),
            known: HashMap::new(),
            arrivals: Vec::new(),
            open: BTreeMap::new(),
        }
    }

    /// The number of a place.
    pub fn place(&mut self, mut place: ReadingPlace) -> u32 {
        let frames = place.frames.iter_mut().map(|frame| self.frames.number(frame)).collect();
        let key = Key { frames, position: place.position, phase: place.phase, returns: place.returns };
        let next = self.places.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.places.push(place);
        }
        number
    }

    /// Notes that a state can be reached.
    pub fn reach(&mut self, state: SearchState, arrival: Option<Arrival>) {
        let next = self.states.len() as u32;
        let number = *self.known.entry(state).or_insert(next);
        if number == next {
            self.states.push(state);
            self.arrivals.push(Vec::new());
            self.open.entry(state.snapshot).or_default().push(number);
        }
        self.arrivals[number as usize].extend(arrival);
    }

    /// A state to examine: all states before a snapshot come before the states after it.
    pub fn take(&mut self) -> Option<u32> {
        loop {
            let mut first = self.open.first_entry()?;
            if let Some(number) = first.get_mut().pop() {
                return Some(number);
            }
            first.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::reading::SlotValue;

    fn place(slots: &[(usize, SlotValue)]) -> ReadingPlace {
        let mut place = ReadingPlace { frames: Vec::new(), position: 7, phase: Phase::Start, returns: 0 };
        [1, 2].into_iter().for_each(|stack| place.push(stack));
        slots.iter().for_each(|&(slot, value)| place.set_slot(slot, value));
        place
    }

    #[test]
    fn places_that_are_equal_are_one() {
        let mut graph = Graph::new();
        let first = graph.place(place(&[(3, SlotValue::Ref(9))]));
        assert_eq!(graph.place(place(&[(3, SlotValue::Ref(9))])), first, "made again");
        let mut changed = graph.places[first as usize].clone();
        changed.set_slot(3, SlotValue::Constant);
        let other = graph.place(changed.clone());
        assert_ne!(other, first);
        assert!(Rc::ptr_eq(&graph.places[0].frames[0], &graph.places[1].frames[0]), "what did not change is shared");
        changed.set_slot(3, SlotValue::Ref(9));
        assert_eq!(graph.place(changed), first, "changed back");
        assert_ne!(graph.place(place(&[]).go(8)), graph.place(place(&[])));
    }
}
