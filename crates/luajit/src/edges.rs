//! Finds VMs that use LuaJIT's own allocator. It maps a segment of memory for each VM, and the first block in the
//! segment is the VM itself ([`lj_alloc_create`], [`lua_newstate`]). The kernel places segments side by side, and
//! merges them with each other and with other mappings; the first segment still lies at one end of the merged mapping.
//!
//! LuaJIT's sources: [`DEFAULT_GRANULARITY`].
//!
//! [`lj_alloc_create`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L1226-L1249
//! [`lua_newstate`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L262-L286
//! [`DEFAULT_GRANULARITY`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L41

use std::ops::Range;

use lj_trace_process::{Mapping, Maps};

use super::scan;

/// How far from the end of a mapping a VM may begin, in bytes. The first segment has 128 KiB (`DEFAULT_GRANULARITY`,
/// `lj_alloc.c`), and other memory may follow it.
const EDGE: u64 = 256 << 10;

/// The most bytes that are read in all: some 10 ms.
const LIMIT: u64 = 64 << 20;

/// The bytes that are read of each mapping in a process with very many mappings.
const LEAST: u64 = 8 << 10;

/// The ends of all mappings that an allocator may have made, in the order of their addresses.
pub fn of_mappings(maps: &Maps) -> Vec<Range<u64>> {
    let is_wanted = |mapping: &&Mapping| scan::may_hold_objects(mapping) && mapping.path.is_empty();
    let mappings: Vec<&Mapping> = maps.iter().filter(is_wanted).collect();
    let each = (LIMIT / 2 / (mappings.len() as u64).max(1)).clamp(LEAST, EDGE) & !0xfff;
    let mut left = LIMIT;
    let mut edges = Vec::new();
    for mapping in mappings {
        let length = mapping.len().min(2 * each);
        let Some(rest) = left.checked_sub(length) else { break };
        left = rest;
        if mapping.len() <= 2 * each {
            edges.push(mapping.start..mapping.end);
        } else {
            edges.extend([mapping.start..mapping.start + each, mapping.end - each..mapping.end]);
        }
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_mappings_have_two_ends_and_small_ones_are_whole() {
        let maps = Maps::parse(
            "1000-2000 rw-p 00001000 08:01 12 /bin/host\n\
             100000-121000 rw-p 00000000 00:00 0 \n\
             200000-221000 rw-s 00000000 00:00 0 \n\
             7f0000000000-7f0100000000 rw-p 00000000 00:00 0 \n",
        );
        let large = 0x7f00_0000_0000_u64..0x7f01_0000_0000;
        let expected = [0x10_0000..0x12_1000, large.start..large.start + EDGE, large.end - EDGE..large.end];
        assert_eq!(of_mappings(&maps), expected);
    }

    #[test]
    fn however_many_there_are_no_more_than_the_limit_is_read() {
        for (count, size) in [(10, 1 << 30), (300, 1 << 20), (60_000, 0x2000), (60_000, 0x10_0000)] {
            let line = |index: u64| {
                let start = 0x1000_0000 + index * 2 * size;
                format!("{start:x}-{:x} rw-p 00000000 00:00 0 \n", start + size)
            };
            let edges = of_mappings(&Maps::parse(&(0..count).map(line).collect::<String>()));
            let length = |range: &Range<u64>| range.end - range.start;
            let all: u64 = edges.iter().map(length).sum();
            assert!(all <= LIMIT && all >= (count * size.min(2 * EDGE)).min(LIMIT / 4), "{count} of {size}: {all}");
            assert!(edges.windows(2).all(|two| two[0].end <= two[1].start));
        }
    }
}
