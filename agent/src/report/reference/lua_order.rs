//! The orders that Lua leaves open and that the reference parsers' output depends on.
//!
//! Lines with equal counts come in the order in which `pairs` visits a table with string keys, stirred by
//! `table.sort`, which is not stable. Both are determined by LuaJIT: by its string hash, by its hash table, and by
//! its quicksort. This is what tarantool/luajit b52fe979 (2024) does; its string hash has no seed.

/// The order in which `pairs` visits a table that got these distinct keys one after the other.
pub(super) fn pairs_order<K: AsRef<[u8]>>(keys: &[K]) -> Vec<usize> {
    let hashes: Vec<u32> = keys.iter().map(|key| string_hash(key.as_ref())).collect();
    let mut table = HashPart::default();
    for key in 0..keys.len() {
        table.insert(key, &hashes);
    }
    table.nodes.iter().filter_map(|node| node.key).collect()
}

/// The hash of an interned string: `lua_hash` of `lj_api.c`. The second hash that strings get when more than 40
/// others share their chain (`LUAJIT_SMART_STRINGS`) is left out.
fn string_hash(string: &[u8]) -> u32 {
    let length = string.len();
    // Where it is in range it is followed by at least three bytes.
    let word = |at: usize| (0..4).map(|i| u32::from(string[at + i]) << (8 * i)).sum::<u32>();
    // The shorter strings are read as C's char, which is signed on x86.
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

/// The hash part of a table that keys are only added to: `lj_tab.c`.
#[derive(Default)]
struct HashPart {
    /// Empty, or a power of two of them.
    nodes: Vec<Node>,
    /// Nodes from here on are in use.
    free_top: usize,
}

impl HashPart {
    fn main_node(&self, hash: u32) -> usize {
        hash as usize & (self.nodes.len() - 1)
    }

    /// `lj_tab_newkey`, with Brent's variation: a key that is not in its main node makes room for one that would be.
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

    /// Moves the occupant of `node`, whose main node is `home`, to `free`, and chains what belongs to `node` there.
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
                // Once one node has gone to another chain, others may belong to that one.
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

    #[test]
    fn hashes_are_those_of_luajit() {
        // From `lua_hash` of a build of tarantool/luajit b52fe979.
        for (string, hash) in HASHES {
            assert_eq!(string_hash(string.as_bytes()), hash, "{string:?}");
        }
    }

    #[test]
    fn pairs_visits_keys_as_luajit_does() {
        // From `pairs` in a build of tarantool/luajit b52fe979, over the first so many of these keys.
        let order: Vec<String> = pairs_order(&keys(20)).iter().map(usize::to_string).collect();
        assert_eq!(order.join(" "), ORDER_OF_20);
        let mut all = pairs_order(&keys(5000));
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
