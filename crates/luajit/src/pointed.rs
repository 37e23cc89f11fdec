//! The quick search for VMs: it looks at the targets of pointers in thread stacks and global variables, and at the
//! places where LuaJIT's allocator puts VMs.
//!
//! A program keeps its [`lua_State`] in a variable, and C functions that run Lua have it on their stack. So most VMs
//! are found without reading the whole memory, as [`scan`](super::scan) does, which takes some 0.2 s for each GiB.
//!
//! [`lua_State`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L692-L706

use std::collections::HashSet;
use std::ops::Range;

use lj_trace_common::layout::gct;
use lj_trace_process::{Mapping, Maps, PageKind, PageMap, ProcessMemory};

use super::edges;
use super::object::marked_offset;
use super::scan::{self, Candidate, scan_bytes};

/// The most bytes of a stack that are searched, from its bottom, where the outermost functions are. The main thread's
/// stack is searched as a whole.
const STACK: u64 = 256 << 10;
/// The most bytes of memory that are searched in all.
const LIMIT: u64 = 32 << 20;
/// The most pointers whose targets are examined.
const MAX_POINTERS: usize = 1 << 18;
/// How many places one system call reads (`IOV_MAX`).
const AT_ONCE: usize = 1024;
/// How many bytes of each target are read: up to `glref` (`lua_State`, `lj_obj.h`).
const HEAD: usize = 24;
/// The most bytes of the main thread, which lies right before its `global_State`.
const THREAD: u64 = 128;

/// The candidates to which variables and stacks point, directly or through one of their coroutines, and those at places
/// where LuaJIT's allocator puts VMs; at most `limit`.
pub fn candidates(pid: u32, memory: &ProcessMemory, maps: &Maps, limit: usize) -> Vec<Candidate> {
    let pages = PageMap::open(pid);
    let mut pointers = HashSet::new();
    let mut left = LIMIT;
    for root in roots(maps) {
        for run in pages.runs(PageKind::Present, &root) {
            let length = (run.end - run.start).min(left);
            left -= length;
            // Memory that is no longer mapped has no pointers.
            let Ok(bytes) = memory.read_bytes(run.start, length as usize) else { continue };
            let room = MAX_POINTERS - pointers.len();
            pointers.extend(words(&bytes).filter(|word| may_be_pointer(maps, *word)).take(room));
        }
    }
    let pointers: Vec<u64> = pointers.into_iter().collect();
    let mut found: Vec<Candidate> = Vec::new();
    for global in globals(memory, &pointers) {
        let Ok(bytes) = memory.read_bytes(global.wrapping_sub(THREAD) & !7, THREAD as usize) else { continue };
        scan_bytes(global.wrapping_sub(THREAD) & !7, &bytes, &mut found);
    }
    found.retain(|candidate| scan::is_plausible(memory, maps, *candidate));
    let edges = pages.runs_in(PageKind::Present, &edges::of_mappings(maps));
    found.extend(scan::in_runs(memory, maps, &edges, limit).candidates);
    found.sort_unstable_by_key(|candidate| candidate.thread);
    found.dedup();
    found.truncate(limit);
    found
}

/// Where to look for pointers, the most likely memory first: the main thread's stack, variables, and other stacks.
fn roots(maps: &Maps) -> Vec<Range<u64>> {
    let (mut main, mut variables, mut stacks) = (Vec::new(), Vec::new(), Vec::new());
    let mut before: Option<&Mapping> = None;
    for mapping in maps.iter() {
        let adjacent = before.filter(|before| before.end == mapping.start);
        if !scan::may_hold_objects(mapping) {
        } else if mapping.path == "[stack]" {
            main.push(mapping.start..mapping.end);
        } else if mapping.is_file() || mapping.path.is_empty() && adjacent.is_some_and(Mapping::is_file) {
            // `.data`, and `.bss` after it.
            variables.push(mapping.start..mapping.end);
        } else if adjacent.is_some_and(|guard| !guard.read && !guard.write && !guard.exec) {
            stacks.push(mapping.end.saturating_sub(STACK).max(mapping.start)..mapping.end);
        }
        before = Some(mapping);
    }
    [main, variables, stacks].concat()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Whether a word may be the address of an object.
fn may_be_pointer(maps: &Maps, word: u64) -> bool {
    word.is_multiple_of(8) && word > 0xffff && maps.find(word).is_some_and(scan::may_hold_objects)
}

/// The `global_State`s of the Lua threads among the targets of `pointers`.
fn globals(memory: &ProcessMemory, pointers: &[u64]) -> HashSet<u64> {
    let mut globals = HashSet::new();
    for batch in pointers.chunks(AT_ONCE) {
        let mut left = batch;
        while !left.is_empty() {
            let places: Vec<_> = left.iter().map(|&address| (address, HEAD)).collect();
            let bytes = memory.read_scattered(&places);
            let heads = bytes.as_chunks::<HEAD>().0;
            globals.extend(heads.iter().flat_map(global_of));
            // The target after these cannot be read.
            left = left.get(heads.len() + 1..).unwrap_or_default();
        }
    }
    globals
}

/// The `global_State` of a thread that begins with these bytes: once for 64-bit and once for 32-bit references, if both
/// are possible.
fn global_of(head: &[u8; HEAD]) -> impl Iterator<Item = u64> {
    let is_thread = |gc64| head[marked_offset(gc64) as usize + 1] == gct::THREAD;
    let wide = is_thread(true).then(|| u64::from_le_bytes(std::array::from_fn(|at| head[16 + at])));
    let narrow = is_thread(false).then(|| u32::from_le_bytes(std::array::from_fn(|at| head[8 + at])).into());
    wide.into_iter().chain(narrow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_stacks_point_to_vms() {
        let maps = Maps::parse(
            "1000-2000 r-xp 00000000 08:01 12 /bin/host\n\
             2000-3000 rw-p 00001000 08:01 12 /bin/host\n\
             3000-4000 rw-p 00000000 00:00 0 \n\
             5000000-6000000 rw-p 00000000 00:00 0 [heap]\n\
             7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n\
             7f0000001000-7f0000801000 rw-p 00000000 00:00 0 \n\
             7f0001000000-7f0002000000 rw-p 00000000 00:00 0 \n\
             7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]\n",
        );
        let stack = 0x7f00_0080_1000 - STACK..0x7f00_0080_1000;
        assert_eq!(roots(&maps), [0x7ffd_0000_0000..0x7ffd_0002_1000, 0x2000..0x3000, 0x3000..0x4000, stack]);
        assert!(may_be_pointer(&maps, 0x500_0008) && may_be_pointer(&maps, 0x7f00_0100_0000));
        assert!(!may_be_pointer(&maps, 0x500_0004), "no object begins there");
        assert!(!may_be_pointer(&maps, 0x1000) && !may_be_pointer(&maps, 0x600_0000));
    }

    #[test]
    fn threads_name_their_global_state() {
        let mut head = [0; HEAD];
        assert_eq!(global_of(&head).count(), 0);
        head[9] = gct::THREAD;
        head[16..].copy_from_slice(&0x7f00_1234_5678_u64.to_le_bytes());
        assert_eq!(global_of(&head).collect::<Vec<_>>(), [0x7f00_1234_5678]);
        let mut head = [0; HEAD];
        head[5] = gct::THREAD;
        head[8..12].copy_from_slice(&0x4000_1000_u32.to_le_bytes());
        assert_eq!(global_of(&head).collect::<Vec<_>>(), [0x4000_1000]);
    }
}
