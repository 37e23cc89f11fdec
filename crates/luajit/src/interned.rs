//! Finds strings by their text: a VM has one object for each text, and a table of all of them.
//!
//! LuaJIT's sources: [`lj_str_new`], [`lj_str_resize`].
//!
//! [`lj_str_new`]: https://github.com/openresty/luajit2/blob/15f58c9648ee40a3fb6617e22e2f3fdff80d66b8/src/lj_str.c#L350-L392
//! [`lj_str_resize`]: https://github.com/openresty/luajit2/blob/15f58c9648ee40a3fb6617e22e2f3fdff80d66b8/src/lj_str.c#L153-L239

use lj_trace_common::frame::gct_offset;
use lj_trace_common::layout::gct;
use lj_trace_common::memory::{ReadMemory, Unreadable};

use super::machine::Vm;
use super::object::{field, read_bytes, read_string};
use super::page_cache::PageCache;

/// The most chains of the table, and the most strings in it.
const MOST_CHAINS: u32 = 1 << 22;

/// The longest chain.
const LONGEST_CHAIN: usize = 1 << 12;

/// A reference in the table may have a flag in its lowest bit.
const FLAG: u64 = 1;

/// The addresses of the strings with these texts, in their order; [`None`] for those that the VM does not have.
///
/// The target keeps running, so a string may be missed. One that is found is in the table afterwards.
pub fn find_strings<M: ReadMemory>(memory: &M, vm: &Vm, texts: &[&str]) -> Vec<Option<u64>> {
    let mut found = vec![None; texts.len()];
    let (gc64, layout) = (vm.layout.is_gc64(), &vm.layout);
    let Some(chains) = Chains::read(memory, vm) else { return found };
    let cache = PageCache::reading_ahead(memory);
    let mut left = MOST_CHAINS;
    for index in 0..=chains.mask {
        // Of a process that has exited, nothing can be read any more.
        let Ok(mut string) = chains.first(&cache, index) else { break };
        for _ in 0..LONGEST_CHAIN {
            if string == 0 || left == 0 {
                break;
            }
            left -= 1;
            let Ok(length) = cache.read::<u32>(field(string, layout.str_len)) else { break };
            for (text, place) in texts.iter().zip(&mut found) {
                if text.len() == length as usize
                    && read_bytes(&cache, field(string, layout.sizeof_str), text.len()).as_deref()
                        == Ok(text.as_bytes())
                {
                    *place = Some(string);
                }
            }
            string = cache.read_ref(gc64, string).map_or(0, |next| next & !FLAG);
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    let is_there = |(place, text): (Option<u64>, &&str)| place.filter(|string| is_interned(memory, vm, *string, text));
    found.into_iter().zip(texts).map(is_there).collect()
}

/// Whether the string at `address` has this text, and the VM's table has this string for it.
pub fn is_interned<M: ReadMemory>(memory: &M, vm: &Vm, address: u64, text: &str) -> bool {
    let layout = &vm.layout;
    if !read_string(memory, layout, address, text.len() + 1).is_ok_and(|own| own == text.as_bytes()) {
        return false;
    }
    has_string(memory, vm, address) == Ok(true)
}

/// Whether the VM's table of all strings has the string at this address.
///
/// Of a string that was freed, all is often still in memory but its last bytes: there LuaJIT's allocator keeps the size of what
/// is free ([`set_foot`]). So neither its number nor its length tells that it is gone; that it is not in the table does.
///
/// [`set_foot`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L469
///
/// # Errors
/// The table cannot be read as far as it takes.
pub fn has_string<M: ReadMemory>(memory: &M, vm: &Vm, address: u64) -> Result<bool, Unreadable> {
    // A number and the hash, or the hash alone, come before the length.
    let hash: u32 = memory.read(field(address, vm.layout.str_len).wrapping_sub(4))?;
    let chains = Chains::read(memory, vm).ok_or(Unreadable)?;
    let mut string = chains.first(memory, hash & chains.mask)?;
    for _ in 0..LONGEST_CHAIN {
        if string == 0 || string == address {
            return Ok(string == address);
        }
        string = memory.read_ref(chains.gc64, string)? & !FLAG;
    }
    Err(Unreadable)
}

/// The number of a string that chooses its place in the hash part of tables: its own number, or in older builds its hash.
pub fn string_number<M: ReadMemory>(memory: &M, vm: &Vm, address: u64) -> Option<u32> {
    let is_string = memory.read::<u8>(address.wrapping_add(gct_offset(vm.layout.is_gc64()))) == Ok(gct::STR);
    let number = address.wrapping_add(gct_offset(vm.layout.is_gc64()) + 3);
    is_string.then(|| memory.read(number).ok()).flatten()
}

/// The table of all strings.
struct Chains {
    table: u64,
    mask: u32,
    gc64: bool,
}

impl Chains {
    fn read<M: ReadMemory>(memory: &M, vm: &Vm) -> Option<Self> {
        let gc64 = vm.layout.is_gc64();
        let table = memory.read_ref(gc64, field(vm.global, vm.layout.g_str_tab)).ok()?;
        let mask: u32 = memory.read(field(vm.global, vm.layout.g_str_mask)).ok()?;
        (mask < MOST_CHAINS).then_some(Self { table, mask, gc64 })
    }

    fn first<M: ReadMemory>(&self, memory: &M, index: u32) -> Result<u64, Unreadable> {
        let size = if self.gc64 { 8 } else { 4 };
        let place = self.table.wrapping_add(u64::from(index) * size);
        Ok(memory.read_ref(self.gc64, place)? & !FLAG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::InterpreterText;
    use crate::object::marked_offset;
    use crate::testing::hostile::Hostile;
    use crate::testing::{Saved, x64_layout};

    const GLOBAL: u64 = 0x4000;
    const TABLE: u64 = 0x5000;
    const STRINGS: u64 = 0x6000;
    const TEXTS: [&str; 4] = ["route", "name", "id", "api_ctx"];

    /// A VM whose table has these chains: each string links to the given one.
    fn vm_with(mask: u32, next: impl Fn(usize) -> Option<usize>) -> (Saved, Vm) {
        let layout = x64_layout("2.1b3", "x64gc64");
        let mut bytes = vec![0_u8; 0x3000];
        let mut put = |at: u64, word: &[u8]| bytes[(at - GLOBAL) as usize..][..word.len()].copy_from_slice(word);
        put(field(GLOBAL, layout.g_str_tab), &TABLE.to_le_bytes());
        put(field(GLOBAL, layout.g_str_mask), &mask.to_le_bytes());
        for (index, text) in TEXTS.iter().enumerate() {
            let string = place(index);
            put(string, &next(index).map_or(0, place).to_le_bytes());
            put(string + marked_offset(true) + 1, &[gct::STR]);
            put(field(string, layout.str_len), &(text.len() as u32).to_le_bytes());
            put(field(string, layout.sizeof_str), text.as_bytes());
        }
        // All are in the first chain, whatever their hash is.
        put(TABLE, &place(0).to_le_bytes());
        let text = InterpreterText { range: 0..0, exact: true, edges: lj_trace_unwind::vm_edges::Edges::default() };
        let vm = Vm { global: GLOBAL, main_thread: 0, layout, builds: Vec::new(), undecided: Vec::new(), text };
        (Saved::new(GLOBAL, bytes), vm)
    }

    fn place(index: usize) -> u64 {
        STRINGS + 0x40 * index as u64
    }

    #[test]
    fn strings_are_found_in_their_chains() {
        let (memory, vm) = vm_with(0, |index| (index < 3).then_some(index + 1));
        let places: Vec<_> = (0..4).map(|index| Some(place(index))).collect();
        assert_eq!(find_strings(&memory, &vm, &TEXTS), places);
        assert_eq!(find_strings(&memory, &vm, &["rout", "routes"]), [None, None]);
    }

    #[test]
    fn a_string_that_is_in_no_chain_is_gone() {
        let (memory, vm) = vm_with(0, |index| [Some(1), Some(3), None, None][index]);
        let there = (0..4).map(|index| has_string(&memory, &vm, place(index))).collect::<Vec<_>>();
        assert_eq!(there, [Ok(true), Ok(true), Ok(false), Ok(true)]);
        // Where the chain cannot be read to its end, nothing is known.
        for reads in 0..8 {
            let exiting = Hostile::exiting(&memory, reads);
            let outcome = has_string(&exiting, &vm, place(2));
            assert!(
                outcome == Err(Unreadable) || exiting.refused() == 0 && outcome == Ok(false),
                "{reads}: {outcome:?}"
            );
        }
    }

    #[test]
    fn a_chain_that_is_a_ring_is_left() {
        for entry in 0..4 {
            let (memory, vm) = vm_with(3, |index| Some(if index < 3 { index + 1 } else { entry }));
            let memory = Hostile::exiting(&memory, u64::MAX);
            assert_eq!(find_strings(&memory, &vm, &["none"]), [None]);
            assert!(!is_interned(&memory, &vm, STRINGS + 0x1000, "none"));
        }
    }

    #[test]
    fn a_search_for_strings_ends_when_the_process_does() {
        let (memory, vm) = vm_with(MOST_CHAINS - 1, |_| None);
        for reads in 0..40 {
            let exiting = Hostile::exiting(&memory, reads);
            find_strings(&exiting, &vm, &TEXTS);
            assert!(exiting.refused() < 100, "{reads}: {} reads", exiting.refused());
        }
    }
}
