//! Finds the object that a block is part of. Table slots and coroutine stacks are blocks of their own, and live as long as
//! the object that refers to them.
//!
//! LuaJIT's sources: [`GCtab`], [`lua_State`], [`LJ_MAX_COLOSIZE`].
//!
//! [`GCtab`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L499-L512
//! [`lua_State`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L692-L706
//! [`LJ_MAX_COLOSIZE`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_def.h#L62

use std::collections::{HashMap, HashSet};

use lj_trace_common::layout::gct;
use lj_trace_luajit::object::marked_offset;
use lj_trace_luajit::shape::{NODE, Shape, VALUE};
use lj_trace_process::ProcessMemory;

use super::choice::ChosenBlock;
use super::object::FollowedObject;
use lj_trace_heap::object::Header;

/// A block as part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePart {
    /// The object that the block is part of.
    pub owner: FollowedObject,
    /// The address of the owner's reference to the block.
    pub link: u64,
    /// The address of the block.
    pub address: u64,
}

/// How an object of type `gct` may refer to a part: the offsets of the reference and of the number of entries, the size of
/// an entry, and the number of entries beyond that number.
struct Link {
    gct: u8,
    at: u16,
    number: u16,
    entry: u64,
    more: u64,
}

/// `GCtab.array` and `asize`, `GCtab.node` and `hmask`, `lua_State.stack` and `stacksize` (`lj_obj.h`).
const fn links(shape: &Shape) -> [Link; 3] {
    let l = &shape.layout;
    [
        Link { gct: gct::TAB, at: l.tab_array, number: l.tab_asize, entry: VALUE, more: 0 },
        Link { gct: gct::TAB, at: l.tab_node, number: l.tab_hmask, entry: NODE, more: 1 },
        Link { gct: gct::THREAD, at: l.l_stack, number: l.l_stacksize, entry: VALUE, more: 0 },
    ]
}

/// Whether a block of this size may be a part: its size has to be that of some number of slots.
pub fn may_be_part(size: u64) -> bool {
    size.is_multiple_of(VALUE) || (size.is_multiple_of(NODE) && (size / NODE).is_power_of_two())
}

/// The parts of the object at `address` that are among the blocks that `size_of` knows.
fn parts_of<'a>(
    header: &'a Header,
    shape: &'a Shape,
    size_of: impl Fn(u64) -> Option<u64> + 'a,
) -> impl Iterator<Item = TablePart> + 'a {
    let kind = header.gct(shape);
    links(shape).into_iter().filter(move |link| kind == Some(link.gct)).filter_map(move |link| {
        let address = header.reference(shape, link.at.into())?;
        let entries = u64::from(header.u32(link.number.into())?) + link.more;
        let place = header.address.wrapping_add(marked_offset(shape.gc64()));
        let part = TablePart {
            owner: FollowedObject { place, gct: link.gct },
            link: header.address + u64::from(link.at),
            address,
        };
        (size_of(address)? == entries * link.entry).then_some(part)
    })
}

/// The object that refers from `link` to a block of this size.
pub fn owner_with(memory: &ProcessMemory, shape: &Shape, link: u64, size: u64) -> Option<TablePart> {
    links(shape).into_iter().find_map(|kind| {
        let header = Header::read_directly(memory, link.checked_sub(kind.at.into())?);
        parts_of(&header, shape, |_| Some(size)).find(|part| part.link == link)
    })
}

/// Recent objects of a VM that may be tables or coroutines. Code that makes an object mostly fills it at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentObjects {
    /// The addresses of the objects.
    blocks: [u64; RECENT_OBJECTS],
    /// The index for the next address.
    next: usize,
}

/// The number of objects to remember.
const RECENT_OBJECTS: usize = 16;

/// Small tables have their array part in the same block (`LJ_MAX_COLOSIZE`, `lj_def.h`).
const MOST_SLOTS: u64 = 16;

impl RecentObjects {
    /// Adds a new block, if it may be a table or a coroutine.
    #[inline]
    pub fn add(&mut self, shape: &Shape, address: u64, size: u64) {
        let is_table = (shape.table..=shape.table + MOST_SLOTS * VALUE).contains(&size);
        if is_table || size == u64::from(shape.layout.sizeof_l) {
            self.blocks[self.next] = address;
            self.next = (self.next + 1) % RECENT_OBJECTS;
        }
    }

    /// The addresses, in no particular order.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.blocks.into_iter().filter(|&address| address != 0)
    }
}

/// Finds the owners of blocks among the objects at `owners`. Removes the blocks whose owners were found from `blocks`, a
/// map by address.
pub fn find_owners(
    memory: &ProcessMemory,
    shape: &Shape,
    owners: impl Iterator<Item = u64>,
    blocks: &mut HashMap<u64, ChosenBlock>,
) -> Vec<(ChosenBlock, TablePart)> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for owner in owners.filter(|&owner| seen.insert(owner)) {
        if blocks.is_empty() {
            break;
        }
        let header = Header::read_directly(memory, owner);
        let parts: Vec<TablePart> =
            parts_of(&header, shape, |address| blocks.get(&address).map(|block| block.size)).collect();
        found.extend(parts.into_iter().filter_map(|part| Some((blocks.remove(&part.address)?, part))));
    }
    found
}

#[cfg(test)]
mod tests {
    use lj_trace_luajit::testing::x64_layout;

    use super::*;

    /// A table of Debian's build, with 9 slots of the array at `array`, and 4 of the hash at `node`.
    fn table(array: u64, node: u64) -> Vec<u64> {
        let mut words = vec![0; 16];
        words[1] = u64::from(gct::TAB) << 8;
        let shape = shape();
        words[usize::from(shape.layout.tab_array) / 8] = array;
        words[usize::from(shape.layout.tab_node) / 8] = node;
        words[6] = 9 | 3 << 32;
        words
    }

    fn shape() -> Shape {
        Shape::new(x64_layout("2022-03(Debian)", "x64gc64"))
    }

    #[test]
    fn parts_are_found_from_their_table_and_from_what_refers_to_them() {
        let memory = ProcessMemory::new(std::process::id());
        let table = table(0x5000, 0x6000);
        let address = table.as_ptr() as u64;
        // The last block is too large for the table: the memory has another use by now.
        let all = [ChosenBlock::at(0x5000, 72), ChosenBlock::at(0x6000, 96), ChosenBlock::at(0x7000, 8)];
        let mut blocks: HashMap<u64, ChosenBlock> = all.into_iter().map(|block| (block.address, block)).collect();
        let found = find_owners(&memory, &shape(), [8, address].into_iter(), &mut blocks);
        assert_eq!((found.len(), blocks.len()), (2, 1));
        let owner = FollowedObject { place: address + 8, gct: gct::TAB };
        let link = address + u64::from(shape().layout.tab_node);
        let node = TablePart { owner, link, address: 0x6000 };
        assert!(found.contains(&(all[1], node)), "{found:?}");
        assert_eq!(owner_with(&memory, &shape(), link, 96), Some(node));
        assert_eq!(owner_with(&memory, &shape(), link, 192), None, "another size");
        assert_eq!(owner_with(&memory, &shape(), link + 8, 96), None);
        assert_eq!(owner_with(&memory, &shape(), 4, 96), None);
    }

    #[test]
    fn tables_are_known_by_their_size() {
        let mut recent = RecentObjects::default();
        for (address, size) in [(1, 64), (2, 64 + 128), (3, 40), (4, 96)] {
            recent.add(&shape(), address, size);
        }
        assert_eq!(recent.addresses().collect::<Vec<_>>(), [1, 2, 4]);
        (0..2000).for_each(|address| recent.add(&shape(), address, 64));
        assert_eq!(recent.addresses().collect::<HashSet<_>>(), (1984..2000).collect());
        assert!(may_be_part(72) && may_be_part(24) && may_be_part(96) && !may_be_part(36));
    }
}
