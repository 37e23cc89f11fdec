//! Memory of a process that exits, unmaps or changes something while it is read.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

use crate::overlay::{bytes_of, plain_at};

/// What a [`Hostile`] memory does. The default does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tampering {
    /// From this read on, nothing can be read any more: the process has exited.
    pub exits_after: Option<u64>,
    /// One read in so many fails.
    pub fails: Option<u64>,
    /// One word in so many has another value: a null, the largest or smallest of a width, an address at the end of the
    /// address space, or the address of something that was read before, so that lists become rings.
    pub changes: Option<u64>,
    /// What can be read where nothing is mapped.
    pub fill: Option<Fill>,
}

/// The contents of memory that is not in the image. Then every pointer leads somewhere, and no count is too large.
#[derive(Clone, Copy, Debug)]
pub enum Fill {
    /// Each word has this value.
    Word(u64),
    /// Each word holds its own address: a ring of one.
    Itself,
    /// Each word holds the address of another word some bytes further: a list without an end. The upper half of
    /// the second word is the given one, so that the type of an object can be in it.
    Next(u64, u64),
    /// Each word is one that was read before, or a changed one.
    Before,
}

impl Tampering {
    /// Some harm; the same for the same seed. `reads` is how often the reader reads if nothing happens.
    pub fn some(random: &mut Dice, reads: u64) -> Self {
        let mut harm = Self::default();
        let kind = random.below(8);
        if matches!(kind, 0 | 1 | 7) {
            harm.exits_after = Some(random.below(reads + 1));
        }
        if matches!(kind, 2 | 3) {
            harm.fails = Some(1 << random.below(9));
        }
        if matches!(kind, 3..) {
            harm.changes = Some(4 << random.below(9));
        }
        if matches!(kind, 5..) {
            let type_of_object = random.below(16) << 8;
            harm.fill = Some(match random.below(6) {
                0 => Fill::Word(0),
                1 => Fill::Word(u64::MAX),
                2 => Fill::Itself,
                3 => Fill::Next(16 << random.below(6), type_of_object | type_of_object << 32),
                _ => Fill::Before,
            });
        }
        harm
    }

    /// Whether everything that can still be read is true.
    pub fn only_hides(&self) -> bool {
        self.changes.is_none() && self.fill.is_none()
    }
}

/// A xorshift generator: tests that fail must fail again.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A generator with a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }
}

/// Memory that does [`Tampering`] to its readers, and counts what they do. A reader that reads on and on panics.
#[derive(Debug)]
pub struct Hostile<'m, M> {
    memory: &'m M,
    harm: Tampering,
    random: RefCell<Dice>,
    /// The words that have another value, and those of memory that is not in the image, by their address.
    words: RefCell<HashMap<u64, Option<u64>>>,
    /// Addresses that were read, in a ring.
    seen: RefCell<Vec<u64>>,
    reads: Cell<u64>,
    bytes: Cell<u64>,
    /// How many reads failed because the process had exited.
    refused: Cell<u64>,
    most: u64,
}

/// Whoever reads so often after the process has exited does not notice that.
const MOST_REFUSED: u64 = 300_000;

/// How many addresses are remembered.
const SEEN: usize = 64;

impl<'m, M: ReadMemory> Hostile<'m, M> {
    /// Memory that does this harm. No reader may read it more often than `most`.
    pub fn new(memory: &'m M, harm: Tampering, seed: u64, most: u64) -> Self {
        Self {
            memory,
            harm,
            random: RefCell::new(Dice::new(seed)),
            words: RefCell::default(),
            seen: RefCell::default(),
            reads: Cell::default(),
            bytes: Cell::default(),
            refused: Cell::default(),
            most,
        }
    }

    /// The memory of a process that exits after so many reads.
    pub fn exiting(memory: &'m M, after: u64) -> Self {
        Self::new(memory, Tampering { exits_after: Some(after), ..Tampering::default() }, 1, u64::MAX)
    }

    /// How often it was read.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// How many bytes were read.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// How many reads failed because the process had exited.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    fn note(&self, address: u64) {
        let mut seen = self.seen.borrow_mut();
        if seen.len() < SEEN {
            seen.push(address);
        } else {
            let at = self.random.borrow_mut().below(SEEN as u64) as usize;
            seen[at] = address;
        }
    }

    fn seen(&self) -> u64 {
        let seen = self.seen.borrow();
        seen.get(self.random.borrow_mut().below(seen.len() as u64) as usize).copied().unwrap_or(0)
    }

    /// What a changed word holds.
    fn changed(&self, at: u64, before: u64) -> u64 {
        let kind = self.random.borrow_mut().below(16);
        let word = match kind {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - self.random.borrow_mut().below(64),
            3 => i64::MAX as u64,
            4 => (1 << 47) - 1 - self.random.borrow_mut().below(64),
            5 => at,
            6 => before.wrapping_add(8),
            7 => before ^ 1 << self.random.borrow_mut().below(64),
            8 => self.random.borrow_mut().next(),
            9 => self.random.borrow_mut().below(300),
            _ => self.seen(),
        };
        // Many fields have half a word.
        let (low, high) = (0xffff_ffff_u64, 0xffff_ffff_u64 << 32);
        match self.random.borrow_mut().below(4) {
            0 => before & high | word & low,
            1 => before & low | word << 32,
            _ => word,
        }
    }

    fn filling(&self, at: u64) -> Option<u64> {
        // No process has memory elsewhere.
        if !(0x1000..1 << 47).contains(&at) {
            return None;
        }
        Some(match self.harm.fill? {
            Fill::Word(word) => word,
            Fill::Itself => at,
            Fill::Next(distance, kind) => {
                if at.is_multiple_of(16) {
                    at.wrapping_add(distance)
                } else {
                    kind
                }
            }
            Fill::Before => {
                let known = *self.words.borrow_mut().entry(at).or_insert_with(|| Some(self.changed(at, self.seen())));
                known.unwrap_or(0)
            }
        })
    }

    /// The word at an address that is a multiple of 8, if it is another than in the image.
    fn other(&self, at: u64, before: u64) -> Option<u64> {
        let one_in = self.harm.changes?;
        let known = self.words.borrow().get(&at).copied();
        known.unwrap_or_else(|| {
            let is_changed = self.random.borrow_mut().below(one_in) == 0;
            let other = is_changed.then(|| self.changed(at, before));
            self.words.borrow_mut().insert(at, other);
            other
        })
    }

    /// The bytes of the memory, with what is filled in; [`None`] if some of them do not exist.
    fn image<T: Pod>(&self, address: u64) -> Option<Vec<u8>> {
        if let Ok(value) = self.memory.read::<T>(address) {
            return Some(bytes_of(&value).to_vec());
        }
        self.harm.fill?;
        let end = address.checked_add(size_of::<T>() as u64)?;
        let mut bytes = Vec::with_capacity(size_of::<T>() + 16);
        for at in (address & !7..end).step_by(8) {
            let word = self.memory.read::<u64>(at).ok().or_else(|| self.filling(at))?;
            bytes.extend(word.to_le_bytes());
        }
        bytes.drain(..(address % 8) as usize);
        bytes.truncate(size_of::<T>());
        Some(bytes)
    }
}

impl<M: ReadMemory> ReadMemory for Hostile<'_, M> {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        self.reads.set(self.reads.get() + 1);
        if self.harm.exits_after.is_some_and(|after| self.reads.get() > after) {
            self.refused.set(self.refused.get() + 1);
            assert!(self.refused.get() < MOST_REFUSED, "it reads on and on after the process has exited");
            return Err(Unreadable);
        }
        assert!(self.reads.get() <= self.most, "it reads on and on");
        if self.harm.fails.is_some_and(|one_in| self.random.borrow_mut().below(one_in) == 0) {
            return Err(Unreadable);
        }
        let mut bytes = self.image::<T>(address).ok_or(Unreadable)?;
        self.bytes.set(self.bytes.get() + bytes.len() as u64);
        self.note(address);
        if self.harm.changes.is_some() {
            let end = address.wrapping_add(bytes.len() as u64);
            for at in (address.next_multiple_of(8)..end).step_by(8) {
                let Some(place) = bytes.get_mut((at - address) as usize..) else { break };
                // A word of which only a part is read is as it was.
                let Some(place) = place.first_chunk_mut::<8>() else { break };
                if let Some(other) = self.other(at, u64::from_le_bytes(*place)) {
                    *place = other.to_le_bytes();
                }
            }
            if bytes.len() < 8 {
                let (word, shift) = (address & !7, (address % 8) as usize);
                if let Some(other) = self.memory.read::<u64>(word).ok().and_then(|before| self.other(word, before)) {
                    for (byte, new) in bytes.iter_mut().zip(&other.to_le_bytes()[shift..]) {
                        *byte = *new;
                    }
                }
            }
        }
        plain_at(&bytes, 0).ok_or(Unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Saved;

    fn image() -> Saved {
        Saved::new(0x4000, (0..4096_u32).map(|at| (at / 8) as u8).collect())
    }

    #[test]
    fn it_does_what_it_says() {
        let image = image();
        let exiting = Hostile::exiting(&image, 2);
        let read: Vec<_> = (0..4).map(|_| exiting.read::<u8>(0x4008)).collect();
        assert_eq!(read, [Ok(1), Ok(1), Err(Unreadable), Err(Unreadable)]);
        assert_eq!((exiting.reads(), exiting.refused(), exiting.bytes()), (4, 2, 2));
        let harm = Tampering { fails: Some(4), ..Tampering::default() };
        let failing = Hostile::new(&image, harm, 1, u64::MAX);
        let failed = (0..1000).filter(|_| failing.read::<u8>(0x4008).is_err()).count();
        assert!((150..350).contains(&failed), "{failed}");
    }

    #[test]
    fn a_changed_word_stays_as_it_is() {
        let image = image();
        let harm = Tampering { changes: Some(4), ..Tampering::default() };
        let changed = Hostile::new(&image, harm, 3, u64::MAX);
        let whole: [u8; 4096] = changed.read(0x4000).unwrap();
        let mut others = 0;
        for (at, word) in (0x4000..).step_by(8).zip(whole.as_chunks::<8>().0) {
            assert_eq!(changed.read::<[u8; 8]>(at), Ok(*word));
            assert_eq!(changed.read::<u8>(at + 5), Ok(word[5]));
            others += usize::from(image.read::<[u8; 8]>(at) != Ok(*word));
        }
        assert!((64..192).contains(&others), "{others}");
    }

    #[test]
    fn memory_is_filled_around_the_image() {
        let image = image();
        let fill = |fill| Hostile::new(&image, Tampering { fill: Some(fill), ..Tampering::default() }, 1, u64::MAX);
        assert_eq!(fill(Fill::Itself).read::<[u64; 2]>(0x4ff8), Ok([0x0101_0101_0101_0101 * 0xff, 0x5000]));
        assert_eq!(fill(Fill::Word(7)).read::<u16>(0x9000), Ok(7));
        assert_eq!(fill(Fill::Next(16, 5)).read::<[u64; 3]>(0x9000), Ok([0x9010, 5, 0x9020]));
        assert_eq!(fill(Fill::Word(7)).read::<u8>(u64::MAX), Err(Unreadable));
        let before = fill(Fill::Before);
        assert_eq!(before.read::<u64>(0x9000), before.read::<u64>(0x9000));
    }
}
