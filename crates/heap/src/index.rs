//! Records which objects the walk has met, and through which object it reached each of them first. It takes about eight
//! bytes per object.

use lj_trace_process::Maps;
use lj_trace_streams::hash::AddrMap;

/// The step between addresses in bytes: every object has this alignment.
const STEP: u64 = 8;

/// The number of bits of a place within a range.
const PLACE_BITS: u32 = 15;

/// The size of a range of addresses that shares its tables, in bytes.
const RANGE: u64 = STEP << PLACE_BITS;

/// The most ranges: enough for 32 GB of heap.
const MAX_RANGES: usize = (1 << (u32::BITS - PLACE_BITS)) - 1;

/// The first number that is not a place.
pub const NO_PLACE: u32 = (MAX_RANGES as u32) << PLACE_BITS;

/// Stands for the parent of an object without references to it.
pub const UNREACHED: u32 = u32::MAX;

/// An address that an object may have, as a number: its range, and its place within the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceNumber(pub u32);

impl PlaceNumber {
    /// The number of the range. A range is as large as a block of memory.
    pub const fn range(self) -> u32 {
        self.0 >> PLACE_BITS
    }
}

const _: () = assert!(RANGE == super::blocks::BLOCK);

/// Stands for the path to an object without references to it.
pub const GARBAGE: u32 = u32::MAX;

/// Stands for the path to a part that is not an object of its own.
pub const NO_PATH: u32 = u32::MAX - 1;

/// The index over a set of addresses.
#[derive(Debug)]
pub struct Index<'a> {
    maps: &'a Maps,
    ranges: Vec<Range>,
    numbers: AddrMap<u64, usize>,
    last: (u64, usize),
    /// Whether addresses were left out because there are too many ranges.
    pub overflowed: bool,
    keeps_paths: bool,
}

#[derive(Debug)]
struct Range {
    start: u64,
    /// A bit for each object that was met.
    met: Box<[u64]>,
    /// A bit for each address that is on a list of objects.
    listed: Box<[u64]>,
    /// The places of the objects that were met, in the order of meeting them, and the parent of each.
    places: Vec<u16>,
    parents: Vec<u32>,
    /// The path to each object, if paths are kept.
    paths: Vec<u32>,
}

const WORDS: usize = 1 << (PLACE_BITS - u64::BITS.trailing_zeros());

impl<'a> Index<'a> {
    /// An empty index of addresses in `maps`. With `keeps_paths` it keeps the path to each object.
    pub fn new(maps: &'a Maps, keeps_paths: bool) -> Self {
        let (ranges, numbers) = (Vec::new(), AddrMap::default());
        Self { maps, ranges, numbers, last: (u64::MAX, 0), overflowed: false, keeps_paths }
    }

    /// The number of an address; [`None`] if no object can be there.
    pub fn place(&mut self, address: u64) -> Option<PlaceNumber> {
        let start = address & !(RANGE - 1);
        if self.last.0 != start {
            let known = self.numbers.get(&start).copied();
            self.last = (start, known.or_else(|| self.add(start, address))?);
        }
        if !address.is_multiple_of(STEP) {
            return None;
        }
        let place = ((address - start) / STEP) as u32;
        Some(PlaceNumber((self.last.1 as u32) << PLACE_BITS | place))
    }

    fn add(&mut self, start: u64, address: u64) -> Option<usize> {
        // A wrong read may give any address.
        if !self.maps.find(address).is_some_and(|mapping| mapping.read && mapping.write) {
            return None;
        }
        if self.ranges.len() >= MAX_RANGES {
            self.overflowed = true;
            return None;
        }
        let bits = || vec![0; WORDS].into_boxed_slice();
        let (met, listed) = (bits(), bits());
        self.ranges.push(Range { start, met, listed, places: Vec::new(), parents: Vec::new(), paths: Vec::new() });
        self.numbers.insert(start, self.ranges.len() - 1);
        Some(self.ranges.len() - 1)
    }

    /// The address of a place.
    pub fn address(&self, place: PlaceNumber) -> u64 {
        let (range, within) = split(place);
        self.ranges.get(range).map_or(0, |range| range.start + within as u64 * STEP)
    }

    /// Whether the object was met.
    pub fn is_met(&self, place: PlaceNumber) -> bool {
        let (range, within) = split(place);
        self.ranges.get(range).is_some_and(|range| range.met[within / 64] & 1 << (within % 64) != 0)
    }

    /// Notes that an object was met, with its parent and its path. Returns whether this is the first time.
    pub fn meet(&mut self, place: PlaceNumber, parent: u32, path: u32) -> bool {
        let (range, within) = split(place);
        let Some(range) = self.ranges.get_mut(range) else { return false };
        let (word, bit) = (within / 64, 1 << (within % 64));
        if range.met[word] & bit != 0 {
            return false;
        }
        range.met[word] |= bit;
        range.places.push(within as u16);
        range.parents.push(parent);
        if self.keeps_paths {
            range.paths.push(path);
        }
        true
    }

    /// Notes that the object is on a list.
    pub fn list(&mut self, place: PlaceNumber) {
        let (range, within) = split(place);
        if let Some(range) = self.ranges.get_mut(range) {
            range.listed[within / 64] |= 1 << (within % 64);
        }
    }

    /// The parent of an object: the object through which it was reached.
    pub fn parent(&self, place: PlaceNumber) -> Option<u32> {
        let (range, within) = split(place);
        let range = self.ranges.get(range)?;
        let at = range.places.iter().position(|&place| usize::from(place) == within)?;
        range.parents.get(at).copied()
    }

    /// Passes each object that was met and its path to `found`, in the order of addresses, if paths are kept.
    pub fn each_met(&self, found: &mut dyn FnMut(u64, u32)) {
        let mut order: Vec<&Range> = self.ranges.iter().collect();
        order.sort_unstable_by_key(|range| range.start);
        for range in order {
            let mut objects: Vec<(u16, u32)> = range.places.iter().copied().zip(range.paths.iter().copied()).collect();
            objects.sort_unstable();
            for (place, path) in objects {
                found(range.start + u64::from(place) * STEP, path);
            }
        }
    }

    /// Places that are on a list but were not met.
    pub fn listed_only(&self) -> Vec<PlaceNumber> {
        let mut found = Vec::new();
        for (number, range) in self.ranges.iter().enumerate() {
            for (word, (listed, met)) in range.listed.iter().zip(&range.met).enumerate() {
                let mut left = listed & !met;
                while left != 0 {
                    let place = word * 64 + left.trailing_zeros() as usize;
                    found.push(PlaceNumber((number << PLACE_BITS | place) as u32));
                    left &= left - 1;
                }
            }
        }
        found
    }

    /// The number of objects that were met but are on no list.
    pub fn met_only(&self) -> u64 {
        let words = |range: &Range| {
            range.met.iter().zip(&range.listed).map(|(met, listed)| (met & !listed).count_ones()).sum::<u32>()
        };
        self.ranges.iter().map(|range| u64::from(words(range))).sum()
    }
}

fn split(place: PlaceNumber) -> (usize, usize) {
    ((place.0 >> PLACE_BITS) as usize, (place.0 & ((1 << PLACE_BITS) - 1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_met_once_and_knows_what_led_to_it() {
        let maps = Maps::parse("100000-300000 rw-p 0 00:00 0\n400000-500000 r--p 0 00:00 0\n");
        let mut index = Index::new(&maps, true);
        let place = |index: &mut Index<'_>, address| index.place(address).unwrap();
        let (first, last) = (place(&mut index, 0x10_0000), place(&mut index, 0x2f_fff8));
        assert!(!index.is_met(last));
        assert!(index.meet(last, first.0, 2) && index.meet(first, 7, 1));
        assert!(!index.meet(first, 8, 3) && index.is_met(last));
        let mut met = Vec::new();
        index.each_met(&mut |address, path| met.push((address, path)));
        assert_eq!(met, [(0x10_0000, 1), (0x2f_fff8, 2)]);
        assert_eq!(index.parent(first), Some(7));
        assert_eq!(index.parent(last).map(|parent| index.address(PlaceNumber(parent))), Some(0x10_0000));
        assert_eq!(index.address(last), 0x2f_fff8);
        // Not aligned; not writable; not mapped.
        assert_eq!([0x10_0004, 0x40_0000, 0x90_0000].map(|address| index.place(address)), [None; 3]);
        let other = place(&mut index, 0x1f_0008);
        for listed in [first, other] {
            index.list(listed);
        }
        assert_eq!((index.listed_only(), index.met_only()), (vec![other], 1));
    }
}
