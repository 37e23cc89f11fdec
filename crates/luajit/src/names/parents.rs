//! The parents of up to a million prototypes, in a few bytes each.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::prototype::PrototypeKey;

/// A few bits that distinguish prototypes at the same address.
pub type Print = u32;

/// What is known about a prototype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownParent {
    /// Address of its parent, whose code creates its functions.
    Parent(u64),
    /// The prototype with this print was seen on the list, but its parent was not.
    Alone(Print),
}

/// The two highest bits of an entry are its kind; the others are a print, or the distance to the parent.
const KIND: u32 = 0b11 << 30;
const NEAR: u32 = 0b00 << 30;
const ALONE: u32 = 0b01 << 30;
const FAR: u32 = 0b10 << 30;

/// The most regions of 32 GiB that a heap lies in. Addresses in other regions are ignored.
const MAX_REGIONS: usize = 64;

/// The most parents that may be more than 4 GiB away from a child.
const MAX_FAR: usize = 1 << 16;

/// The print of a prototype.
pub fn print(key: &PrototypeKey) -> Print {
    print_of(key.firstline, key.sizebc)
}

/// The print for a first line and a number of instructions.
pub fn print_of(firstline: u32, sizebc: u32) -> Print {
    (firstline.wrapping_mul(0x9e37_79b1) ^ sizebc) & !KIND
}

/// What is known about the prototypes of a VM: by regions of the address space, then by the address bits within the
/// region. An entry takes 9 bytes, and a table has up to twice as many entries as it needs.
#[derive(Debug, Default)]
pub struct Parents {
    regions: HashMap<u32, HashMap<u32, u32, RandomState>>,
    far: HashMap<u64, u64>,
    count: usize,
}

/// The region of an address, and the place in it. Objects are aligned to 8 bytes.
fn split(prototype: u64) -> Option<(u32, u32)> {
    let words = prototype.is_multiple_of(8).then_some(prototype / 8)?;
    Some(((words >> 32) as u32, words as u32))
}

/// The distance to a parent in words, if it fits into an entry.
fn distance(prototype: u64, parent: u64) -> Option<u32> {
    let bytes = (parent as i64).checked_sub(prototype as i64).filter(|bytes| bytes % 8 == 0)?;
    let words = i32::try_from(bytes / 8).ok().filter(|words| (-(1 << 29)..1 << 29).contains(words))?;
    Some(words as u32 & !KIND)
}

impl Parents {
    /// Number of prototypes about which something is known.
    pub fn len(&self) -> usize {
        self.count
    }

    /// What is known about a prototype.
    pub fn get(&self, prototype: u64) -> Option<KnownParent> {
        let (region, place) = split(prototype)?;
        let entry = *self.regions.get(&region)?.get(&place)?;
        match entry & KIND {
            ALONE => Some(KnownParent::Alone(entry & !KIND)),
            FAR => self.far.get(&prototype).copied().map(KnownParent::Parent),
            // The sign of the distance is its highest remaining bit.
            _ => Some(KnownParent::Parent(prototype.wrapping_add_signed(i64::from((entry << 2) as i32 >> 2) * 8))),
        }
    }

    /// Notes what is known about a prototype. It ignores addresses that cannot be prototypes.
    pub fn insert(&mut self, prototype: u64, known: KnownParent) {
        let Some((region, place)) = split(prototype) else { return };
        if self.regions.len() >= MAX_REGIONS && !self.regions.contains_key(&region) {
            return;
        }
        self.remove(prototype);
        let entry = match known {
            KnownParent::Alone(print) => print & !KIND | ALONE,
            KnownParent::Parent(parent) => match distance(prototype, parent) {
                Some(distance) => distance | NEAR,
                None if self.far.len() >= MAX_FAR => return,
                None => {
                    self.far.insert(prototype, parent);
                    FAR
                }
            },
        };
        self.count += 1;
        self.regions.entry(region).or_default().insert(place, entry);
    }

    /// Forgets what is known about a prototype.
    pub fn remove(&mut self, prototype: u64) {
        let Some((region, place)) = split(prototype) else { return };
        let entry = self.regions.get_mut(&region).and_then(|region| region.remove(&place));
        self.count -= usize::from(entry.is_some());
        if entry.is_some_and(|entry| entry & KIND == FAR) {
            self.far.remove(&prototype);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *state >> 20
    }

    #[test]
    fn entries_are_what_a_plain_map_has() {
        let (mut state, mut parents, mut expected) = (1, Parents::default(), HashMap::new());
        // Two regions, and addresses near the limits of a distance.
        let bases = [0x4000_0000_u64, 0x7f00_1000_0000];
        for round in 0..20_000 {
            let prototype = bases[next(&mut state) as usize % 2] + next(&mut state) % 512 * 8;
            let away = [0, 8, 0x100, (1 << 32) - 16, (1 << 32) - 8, 1 << 32, 1 << 40][next(&mut state) as usize % 7];
            match next(&mut state) % 5 {
                0 => {
                    parents.remove(prototype);
                    expected.remove(&prototype);
                }
                1 => {
                    let print = print_of(round, 7);
                    parents.insert(prototype, KnownParent::Alone(print));
                    expected.insert(prototype, KnownParent::Alone(print));
                }
                sign => {
                    let parent = if sign == 2 { prototype.wrapping_add(away) } else { prototype.wrapping_sub(away) };
                    parents.insert(prototype, KnownParent::Parent(parent));
                    expected.insert(prototype, KnownParent::Parent(parent));
                }
            }
            assert_eq!(parents.get(prototype), expected.get(&prototype).copied());
            assert_eq!(parents.len(), expected.len());
        }
        for (prototype, known) in expected {
            assert_eq!(parents.get(prototype), Some(known), "{prototype:#x}");
        }
    }

    #[test]
    fn what_a_program_makes_up_is_bounded() {
        let mut parents = Parents::default();
        for region in 0..1000_u64 {
            parents.insert(region << 35 | 8, KnownParent::Alone(1));
        }
        assert_eq!((parents.regions.len(), parents.len()), (MAX_REGIONS, MAX_REGIONS));
        for prototype in 0..2 * MAX_FAR as u64 {
            parents.insert(8 * prototype, KnownParent::Parent(1 << 60));
        }
        assert_eq!(parents.far.len(), MAX_FAR);
        parents.insert(9, KnownParent::Alone(1));
        assert_eq!(parents.get(9), None, "no object has such an address");
    }
}
