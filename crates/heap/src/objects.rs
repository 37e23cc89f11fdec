//! Keeps each object of a heap in a few bytes, so that a later snapshot can tell which objects are the same.
//!
//! An object is the same if it has the same address, type and size, and the same contents in those parts that never change.
//! The address alone is not enough, since addresses are reused. Tables, coroutines and userdata may have grown meanwhile.

use lj_trace_common::layout::gct;
use lj_trace_luajit::Vm;
use lj_trace_luajit::shape::Shape;

use super::blocks::{Blocks, ReadSome};
use super::edges::ObjectEdges;
use super::index::{GARBAGE, NO_PATH};
use super::object::{Header, Kind, Scales};
use super::walk::Walked;

/// The most bytes for all objects of a heap. That is enough for about eight million objects.
pub const MAX_BYTES: usize = 32 << 20;

/// An object of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// The address of the object.
    pub address: u64,
    /// The type of the object.
    pub kind: Kind,
    /// The bytes that it accounts for in `gc.total`.
    pub bytes: u64,
    /// The number in the snapshot of the path that keeps it alive; [`None`] if it is garbage.
    pub path: Option<u32>,
    /// A hash of the contents that do not change during the object's life.
    pub mark: u16,
}

impl Object {
    /// Whether `later`, an object of a later snapshot, is the same object.
    pub fn is(&self, later: &Self) -> bool {
        let grows = matches!(self.kind, Kind::Table | Kind::Thread | Kind::Userdata);
        let same = self.address == later.address && self.kind == later.kind && self.mark == later.mark;
        same && (grows || self.bytes == later.bytes)
    }
}

/// All objects of a heap, in the order of their addresses.
///
/// Each object is stored as the distance from the previous one, in steps of 8 bytes, its properties, and its mark, if its
/// type has one. The properties (type, size and path) take one byte if a recent object had the same ones.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    bytes: Vec<u8>,
    /// The address of the last object.
    last: u64,
    known: Known,
}

/// The properties of an object: its size and type, and its path.
type Like = (u64, u64);

/// The properties of recent objects.
#[derive(Clone, Debug)]
struct Known([Like; Self::COUNT]);

impl Known {
    /// The number of slots. As a code, it stands for properties that are not in a slot.
    const COUNT: usize = 127;

    fn slot(like: Like) -> usize {
        (mixed(like.0, like.1) % Self::COUNT as u64) as usize
    }
}

impl Default for Known {
    fn default() -> Self {
        Self([(u64::MAX, u64::MAX); Self::COUNT])
    }
}

impl PartialEq for Objects {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

/// The number of bits of the type. The other bits are the size.
const KIND_BITS: u32 = 4;

impl Objects {
    /// The objects of a walked heap; [`None`] if there are too many.
    pub fn of<M: ReadSome>(blocks: &Blocks<M>, vm: &Vm, walked: &Walked<'_>) -> Option<Self> {
        let shape = Shape::new(vm.layout);
        let scales = Scales::new(blocks, shape, vm.global);
        let edges = ObjectEdges::new(blocks, shape, vm.global);
        let mut objects = Self::default();
        let mut fits = true;
        walked.index.each_met(&mut |address, path| {
            if path == NO_PATH || !fits {
                return;
            }
            blocks.expect_many(address);
            let Some(header) = Header::read(blocks, &shape, address) else { return };
            let Some(measured) = scales.measure(&header) else { return };
            let path = (path != GARBAGE).then_some(path);
            let mark = mark(blocks, &shape, &edges, &header);
            fits = objects.add(Object { address, kind: measured.kind, bytes: measured.bytes, path, mark });
        });
        fits.then_some(objects)
    }

    /// Adds an object after all others; returns whether there was room for it.
    pub fn add(&mut self, object: Object) -> bool {
        number(&mut self.bytes, object.address.wrapping_sub(self.last) / 8);
        let like = (object.bytes << KIND_BITS | object.kind as u64, object.path.map_or(0, |path| u64::from(path) + 1));
        let slot = Known::slot(like);
        if self.known.0[slot] == like {
            self.bytes.push(slot as u8);
        } else {
            self.known.0[slot] = like;
            self.bytes.push(Known::COUNT as u8);
            number(&mut self.bytes, like.0);
            number(&mut self.bytes, like.1);
        }
        if has_mark(object.kind) {
            self.bytes.extend_from_slice(&object.mark.to_le_bytes());
        }
        self.last = object.address;
        self.bytes.len() <= MAX_BYTES
    }

    /// The objects as bytes, for a file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds objects from the bytes of a file; returns whether there was room for them.
    pub fn extend(&mut self, bytes: &[u8]) -> bool {
        self.bytes.extend_from_slice(bytes);
        self.bytes.len() <= MAX_BYTES
    }

    /// All objects. The bytes of a file may be invalid: the iteration ends where they make no sense.
    pub fn iter(&self) -> impl Iterator<Item = Object> {
        let (mut rest, mut address, mut known) = (self.bytes.as_slice(), 0_u64, Known::default());
        std::iter::from_fn(move || {
            let step = read_number(&mut rest)?;
            let (&slot, behind) = rest.split_first()?;
            rest = behind;
            let like = match known.0.get(usize::from(slot)) {
                Some(&like) => like,
                None => {
                    let like = (read_number(&mut rest)?, read_number(&mut rest)?);
                    known.0[Known::slot(like)] = like;
                    like
                }
            };
            let (size, path) = like;
            address = address.checked_add(step.checked_mul(8)?)?;
            let kind = *Kind::ALL.get((size & ((1 << KIND_BITS) - 1)) as usize)?;
            let path = path.checked_sub(1).map(u32::try_from).transpose().ok()?;
            let mut mark = 0;
            if has_mark(kind) {
                let (bytes, behind) = rest.split_first_chunk::<2>()?;
                (mark, rest) = (u16::from_le_bytes(*bytes), behind);
            }
            Some(Object { address, kind, bytes: size >> KIND_BITS, path, mark })
        })
    }
}

/// Adds a number, seven bits in each byte (LEB128).
fn number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Whether objects of this type have a mark.
const fn has_mark(kind: Kind) -> bool {
    matches!(kind, Kind::Table | Kind::String | Kind::LuaFunction | Kind::CFunction | Kind::Prototype)
}

/// A hash of the contents that do not change during an object's life: a string's text, the prototype of a closure, the
/// fields of a small table.
fn mark<M: ReadSome>(blocks: &Blocks<M>, shape: &Shape, edges: &ObjectEdges<'_, M>, object: &Header) -> u16 {
    /// The number of bytes at each end of a long string that the hash covers.
    const END: u64 = 1 << 10;
    let l = &shape.layout;
    let word = |at: u16| u64::from(object.u32(at.into()).unwrap_or(0));
    match object.gct(shape) {
        Some(gct::STR) => {
            let (length, text) = (word(l.str_len), object.address.wrapping_add(l.sizeof_str.into()));
            let mut bytes = vec![0; length.min(2 * END) as usize];
            let (first, last) = bytes.split_at_mut(length.min(END) as usize);
            blocks.copy(text, first);
            blocks.copy(text.wrapping_add(length - last.len() as u64), last);
            folded(bytes.chunks(8).fold(length, |sum, bytes| mixed(sum, little(bytes))))
        }
        Some(gct::PROTO) => folded([l.pt_firstline, l.pt_numline, l.pt_sizebc].into_iter().fold(0, |sum, at| {
            let known = if at == lj_trace_common::layout::ABSENT { 0 } else { word(at) };
            mixed(sum, known)
        })),
        Some(gct::FUNC) => folded(mixed(0, object.reference(shape, l.fn_pc.into()).unwrap_or(0))),
        Some(gct::TAB) => folded(edges.fields(object)),
        _ => 0,
    }
}

/// A number of up to eight bytes, little-endian.
fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Mixes both numbers into one that hardly any other pair gives (the finalizer of `MurmurHash3`).
pub const fn mixed(sum: u64, number: u64) -> u64 {
    let mut mixed = (sum.rotate_left(5) ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^= mixed >> 33;
    mixed = mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

const fn folded(number: u64) -> u16 {
    (number ^ number >> 16 ^ number >> 32 ^ number >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(address: u64, kind: Kind, bytes: u64, path: Option<u32>, mark: u16) -> Object {
        Object { address, kind, bytes, path, mark }
    }

    #[test]
    fn what_is_added_is_there() {
        let all = [
            object(0x7f00_0000_1000, Kind::Table, 64, Some(0), 0xffff),
            object(0x7f00_0000_1040, Kind::String, 1 << 40, None, 7),
            object(0x7f00_0000_2000, Kind::Table, 64, Some(0), 1),
            object(0x7f00_0000_2040, Kind::Table, 64, Some(0), 2),
            object(0x7fff_0000_0000, Kind::Trace, 300, Some(70_000), 0),
        ];
        let mut objects = Objects::default();
        assert!(all.iter().all(|&object| objects.add(object)));
        assert_eq!(objects.iter().collect::<Vec<_>>(), all);
        let mut read = Objects::default();
        assert!(read.extend(objects.bytes()));
        assert!(read.iter().eq(all));
        for length in 0..objects.bytes.len() {
            let cut = Objects { bytes: objects.bytes[..length].to_vec(), ..Objects::default() };
            assert!(cut.iter().count() < all.len());
        }
        let nonsense = Objects { bytes: vec![0xff; 100], ..Objects::default() };
        assert_eq!(nonsense.iter().count(), 0);
    }

    #[test]
    fn a_table_may_grow_but_a_string_is_another_one() {
        let (table, text) = (object(8, Kind::Table, 64, None, 1), object(16, Kind::String, 30, None, 1));
        assert!(table.is(&Object { bytes: 4096, path: Some(3), ..table }));
        assert!(!text.is(&Object { bytes: 31, ..text }) && !text.is(&Object { mark: 2, ..text }));
        assert!(text.is(&Object { path: Some(1), ..text }));
        assert!(!table.is(&Object { address: 16, ..table }) && !table.is(&Object { kind: Kind::String, ..table }));
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let mut objects = Objects::default();
        assert!(objects.extend(&vec![0; MAX_BYTES]) && !objects.extend(&[0]));
    }
}
