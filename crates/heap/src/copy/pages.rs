//! The mappings of a process that may contain a Lua heap.
//!
//! LuaJIT's sources: [`GCRef`].
//!
//! [`GCRef`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L53-L60

use std::ops::Range;

use lj_trace_process::{Mapping, Maps};

use super::ranges::union;

/// The longest mapping to search. Longer ones are reserved addresses and not a Lua heap (AddressSanitizer's shadow has
/// terabytes): it would take longer to ask for their pages than to read a heap.
const MAX_MAPPING: u64 = 256 << 30;

/// The mappings that may contain a Lua heap: private and writable ones. Without GC64, references have 32 bits (`GCRef`,
/// `lj_obj.h`), so that the whole heap is below 4 GB. Small mappings above that are included all the same: they hold the C
/// stacks, which show where in their code coroutines are.
pub fn mappings(maps: &Maps, gc64: bool) -> Vec<Range<u64>> {
    const LOW: u64 = 1 << 32;
    let is_wanted = |mapping: &&Mapping| is_memory(mapping) && (gc64 || mapping.start < LOW || is_small(mapping));
    union(maps.iter().filter(is_wanted).map(|mapping| mapping.start..mapping.end).collect())
}

/// The small ones of these mappings.
pub fn small(maps: &Maps) -> impl Iterator<Item = Range<u64>> {
    let is_wanted = |mapping: &&Mapping| is_memory(mapping) && is_small(mapping);
    maps.iter().filter(is_wanted).map(|mapping| mapping.start..mapping.end)
}

fn is_memory(mapping: &Mapping) -> bool {
    mapping.read && mapping.write && !mapping.shared && mapping.len() <= MAX_MAPPING
}

fn is_small(mapping: &Mapping) -> bool {
    const SMALL: u64 = 16 << 20;
    mapping.len() <= SMALL || mapping.path == "[stack]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_without_gc64_are_low() {
        let maps = Maps::parse(
            "40000000-50000000 rw-p 00000000 00:00 0 \n\
             50000000-50001000 r--p 00000000 00:00 0 \n\
             7f0000000000-7f4000000000 rw-p 00000000 00:00 0 \n\
             7f5000000000-7f5000001000 rw-p 00000000 00:00 0 \n\
             7f6000000000-7f6000001000 rw-s 00000000 00:01 7 /dev/zero (deleted)\n\
             7ffd00000000-7fff00000000 rw-p 00000000 00:00 0 [stack]\n",
        );
        let starts = |gc64| mappings(&maps, gc64).into_iter().map(|range| range.start).collect::<Vec<_>>();
        assert_eq!(starts(false), [0x4000_0000, 0x7f50_0000_0000, 0x7ffd_0000_0000]);
        assert_eq!(starts(true), [0x4000_0000, 0x7f00_0000_0000, 0x7f50_0000_0000, 0x7ffd_0000_0000]);
    }
}
