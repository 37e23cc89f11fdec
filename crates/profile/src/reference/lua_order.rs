//! The orders that Lua leaves open and that the reference parsers' output depends on.
//!
//! Lines with equal counts come in the order in which `pairs` visits a table with string keys, mixed up by
//! `table.sort`, which is not stable. LuaJIT's string hash, its hash table, and its quicksort determine both. This
//! module does what tarantool/luajit b52fe979 (2024) does; its string hash has no seed.
//!
//! LuaJIT's sources: [`lj_str_new`], [`lj_fullhash`], [`lua_hash`], [`lj_tab_newkey`], [`auxsort`].
//!
//! [`lj_str_new`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_str.c#L169-L300
//! [`lj_fullhash`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_str.c#L136-L165
//! [`lua_hash`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_api.c#L1349-L1370
//! [`lj_tab_newkey`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_tab.c#L456-L555
//! [`auxsort`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lib_table.c#L196-L257

use std::collections::HashMap;

/// The order in which `pairs` visits a table after distinct string keys with these hashes were inserted one by one.
pub(super) fn pairs_order(hashes: &[u32]) -> Vec<usize> {
    let mut table = HashPart::default();
    for key in 0..hashes.len() {
        table.insert(key, hashes);
    }
    table.nodes.iter().filter_map(|node| node.key).collect()
}

/// The hashes that strings get when they are interned in this order (`lj_str_new` of `lj_str.c`).
///
/// A string of more than 12 bytes gets another hash, made from all its bytes, if its look-up has met too many other
/// strings (`LUAJIT_SMART_STRINGS`). This counts only strings with an equal first hash. The other strings in their
/// chain depend on everything that the interpreter has ever interned; they can make the other hash start a string
/// earlier or later.
#[derive(Debug, Default)]
pub(super) struct Interner {
    /// What a look-up counts for the strings with this hash and length.
    collisions: HashMap<(u32, usize), usize>,
}

const MAX_COLLISIONS: usize = 40;

impl Interner {
    /// The hash of a string that has not been interned before.
    pub(super) fn hash(&mut self, string: &[u8]) -> u32 {
        let hash = string_hash(string);
        let collisions = self.collisions.entry((hash, string.len())).or_insert(0);
        if string.len() > 12 && *collisions > MAX_COLLISIONS {
            return full_hash(string) >> 6 | hash & !0 << 26;
        }
        // One for the string, and more for its equal hash.
        *collisions += 2 + (string.len() >> 4);
        hash
    }
}

/// The hash over all bytes: `lj_fullhash` of `lj_str.c`, for strings of 12 bytes or more.
fn full_hash(string: &[u8]) -> u32 {
    let word = |at: usize| word_at(string, at);
    let length = string.len();
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0xcafe_dead_u32, 0xdead_beef_u32);
    let mut at = 0;
    while length - at > 8 {
        a ^= word(at);
        b ^= word(at + 4);
        c = c.wrapping_add(a);
        d = d.wrapping_add(b);
        a = a.rotate_left(5).wrapping_sub(d);
        b = b.rotate_left(7).wrapping_sub(c);
        c = c.rotate_left(24) ^ a;
        d = d.rotate_left(1) ^ b;
        at += 8;
    }
    a ^= word(length - 8);
    b ^= word(length - 4);
    c = c.wrapping_add(b).wrapping_sub(a.rotate_left(9));
    d = d.wrapping_add(a).wrapping_sub(b.rotate_left(18));
    let mut h = (length as u32).wrapping_sub((a ^ b).rotate_left(7));
    h = h.wrapping_add(c).wrapping_add(d.rotate_left(13));
    d = (d ^ c).wrapping_sub(c.rotate_left(25));
    h = (h ^ d).wrapping_sub(d.rotate_left(16));
    c = (c ^ h).wrapping_sub(h.rotate_left(4));
    d = (d ^ c).wrapping_sub(c.rotate_left(14));
    (h ^ d).wrapping_sub(d.rotate_left(24))
}

/// Four bytes, little-endian.
fn word_at(string: &[u8], at: usize) -> u32 {
    (0..4).map(|i| u32::from(string[at + i]) << (8 * i)).sum()
}

/// The hash of a string from a few of its bytes: `lua_hash` of `lj_api.c`.
fn string_hash(string: &[u8]) -> u32 {
    let length = string.len();
    let word = |at: usize| word_at(string, at);
    // Shorter strings are read as C's char, which is signed on x86.
    let char = |at: usize| string[at] as i8 as u32;
    let mut h = length as u32;
    let (mut a, mut b);
    if length >= 4 {
        a = word(0);
        h ^= word(length - 4);
        b = word((length >> 1) - 2);
        h ^= b;
        h = h.wrapping_sub(b.rotate_left(14));
        b = b.wrapping_add(word((length >> 2) - 1));
    } else if length > 0 {
        a = char(0);
        h ^= char(length - 1);
        b = char(length >> 1);
        h ^= b;
        h = h.wrapping_sub(b.rotate_left(14));
    } else {
        return 0;
    }
    a ^= h;
    a = a.wrapping_sub(h.rotate_left(11));
    b ^= a;
    b = b.wrapping_sub(a.rotate_left(25));
    h ^= b;
    h.wrapping_sub(b.rotate_left(16))
}

#[derive(Clone, Copy, Default)]
struct Node {
    key: Option<usize>,
    next: Option<usize>,
}

/// The hash part of a table whose keys are never removed: `lj_tab.c`.
#[derive(Default)]
struct HashPart {
    /// Empty, or a power of two of nodes.
    nodes: Vec<Node>,
    /// All nodes from here on are in use.
    free_top: usize,
}

impl HashPart {
    fn main_node(&self, hash: u32) -> usize {
        hash as usize & (self.nodes.len() - 1)
    }

    /// `lj_tab_newkey`, with Brent's variation: a key that is outside its main node makes room for a key that belongs
    /// there.
    fn insert(&mut self, key: usize, hashes: &[u32]) {
        if self.nodes.is_empty() {
            return self.grow_for(key, hashes);
        }
        let mut node = self.main_node(hashes[key]);
        if let Some(occupant) = self.nodes[node].key {
            let Some(free) = (0..self.free_top).rev().find(|&free| self.nodes[free].key.is_none()) else {
                self.free_top = 0;
                return self.grow_for(key, hashes);
            };
            self.free_top = free;
            let home = self.main_node(hashes[occupant]);
            if home == node {
                self.nodes[free].next = self.nodes[node].next;
                self.nodes[node].next = Some(free);
                node = free;
            } else {
                self.evict(node, free, home, hashes);
            }
        }
        self.nodes[node].key = Some(key);
    }

    /// Moves the occupant of `node`, whose main node is `home`, to `free`, and chains the keys that belong to `node`
    /// there.
    fn evict(&mut self, node: usize, free: usize, home: usize, hashes: &[u32]) {
        let mut before = home;
        while let Some(next) = self.nodes[before].next
            && next != node
        {
            before = next;
        }
        self.nodes[before].next = Some(free);
        self.nodes[free] = self.nodes[node];
        self.nodes[node] = Node::default();
        let mut last = free;
        let mut rechained = false;
        while let Some(next) = self.nodes[last].next {
            let main = self.nodes[next].key.map(|key| self.main_node(hashes[key]));
            let target = match main {
                Some(main) if !rechained && main == node => node,
                // Once one node has moved to another chain, further nodes may belong to that chain.
                Some(main) if rechained && main != last && main != next => main,
                _ => {
                    last = next;
                    continue;
                }
            };
            rechained = true;
            self.nodes[last].next = self.nodes[next].next;
            self.nodes[next].next = self.nodes[target].next;
            self.nodes[target].next = Some(next);
        }
    }

    /// `rehashtab`: room for one more key, in a power of two.
    fn grow_for(&mut self, key: usize, hashes: &[u32]) {
        let old = std::mem::take(&mut self.nodes);
        let total = old.iter().filter(|node| node.key.is_some()).count() + 1;
        // `hsize2hbits`: one key gets two nodes.
        let size = total.next_power_of_two().max(2);
        self.nodes = vec![Node::default(); size];
        self.free_top = size;
        for node in old {
            if let Some(key) = node.key {
                self.insert(key, hashes);
            }
        }
        self.insert(key, hashes);
    }
}

/// `table.sort`: `auxsort` of `lib_table.c`, with the swaps of equal elements that it makes.
pub(super) fn sort<T: Copy>(items: &mut [T], less: impl Fn(&T, &T) -> bool + Copy) {
    if items.is_empty() {
        return;
    }
    let mut low = 0;
    let mut high = items.len() - 1;
    while low < high {
        if less(&items[high], &items[low]) {
            items.swap(low, high);
        }
        if high - low == 1 {
            return;
        }
        let middle = (low + high) / 2;
        if less(&items[middle], &items[low]) {
            items.swap(middle, low);
        } else if less(&items[high], &items[middle]) {
            items.swap(middle, high);
        }
        if high - low == 2 {
            return;
        }
        let pivot = items[middle];
        items.swap(middle, high - 1);
        let (mut i, mut j) = (low, high - 1);
        loop {
            i += 1;
            while i < high && less(&items[i], &pivot) {
                i += 1;
            }
            j -= 1;
            while j > low && less(&pivot, &items[j]) {
                j -= 1;
            }
            if j < i {
                break;
            }
            items.swap(i, j);
        }
        items.swap(high - 1, i);
        // The smaller part recursively, the larger one in this loop.
        if i - low < high - i {
            sort(&mut items[low..i], less);
            low = i + 1;
        } else {
            sort(&mut items[i + 1..=high], less);
            high = i - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("f0x7f{:04x}c{:03x}l{}t0g", i * 7919 % 65536, i * 31 % 4096, i % 50)).collect()
    }

    fn hashes(n: usize) -> Vec<u32> {
        keys(n).iter().map(|key| string_hash(key.as_bytes())).collect()
    }

    #[test]
    fn hashes_are_those_of_luajit() {
        // From `lua_hash` of a build of tarantool/luajit b52fe979.
        for (string, hash) in HASHES {
            assert_eq!(string_hash(string.as_bytes()), hash, "{string:?}");
        }
    }

    #[test]
    fn pairs_visits_keys_as_luajit_does() {
        // From `pairs` in a build of tarantool/luajit b52fe979, over the first 20 of these keys.
        let order: Vec<String> = pairs_order(&hashes(20)).iter().map(usize::to_string).collect();
        assert_eq!(order.join(" "), ORDER_OF_20);
        let mut all = pairs_order(&hashes(5000));
        let mixed = all.iter().fold(0u64, |sum, &i| (sum * 31 + i as u64) % 1_000_003);
        assert_eq!(mixed, MIXED_ORDER_OF_5000);
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..5000));
    }

    #[test]
    fn sort_stirs_equal_elements_as_luajit_does() {
        let mut items: Vec<usize> = (0..200).collect();
        sort(&mut items, |a, b| a % 7 > b % 7);
        let mixed = items.iter().fold(0u64, |sum, &i| (sum * 31 + i as u64) % 1_000_003);
        assert_eq!(mixed, MIXED_SORT_OF_200);
        assert!(items.is_sorted_by_key(|i| 6 - i % 7));
    }

    const HASHES: [(&str, u32); 8] = [
        ("", 0),
        ("a", 551756350),
        ("ab", 1820401365),
        ("abc", 1820401365),
        ("abcd", 27099430),
        ("f0x7f82a7e4c280l12t0g", 1160191274),
        ("INTERNAL", 3662826765),
        ("TRACE [2] started at @alloc.lua:9", 275057568),
    ];
    const ORDER_OF_20: &str = "3 15 1 7 18 5 10 19 17 13 16 4 6 2 0 8 9 11 12 14";
    const MIXED_ORDER_OF_5000: u64 = 333133;
    const MIXED_SORT_OF_200: u64 = 525550;
}
