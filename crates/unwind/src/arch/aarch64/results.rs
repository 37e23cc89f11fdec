//! Recognizes where a frame's result lies over its function already: a result may be a function as well, and would be taken
//! for the one that runs.
//!
//! A fast function stores its first result there ([`fff_res`]) before BASE moves to the caller's frame, whose link is in PC's
//! register. A tail call stores a function there as well, which runs in that frame from then on ([`BC_CALLT`]). `BC_RET`
//! moves BASE while it copies ([`moved`](super::moved)).
//!
//! [`fff_res`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L1432-L1463
//! [`BC_CALLT`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L3535-L3584

use std::collections::BTreeSet;

use super::moved::{LOAD_OUTER_PC, PC};
use super::vm_edges::{BASE, Text};
use crate::arch::a64::{is_call, leaves, writes};

/// `stur xN, [x19, #-16]`, `stur dN, [x19, #-16]`, and `stp xN, xM, [x19, #-16]`, without the bits of N and M.
const STORE: u32 = 0xf81f_0260;
const STORE_NUMBER: u32 = 0xfc1f_0260;
const STORE_PAIR: u32 = 0xa93f_0260;

/// The most instructions from a result to the caller's BASE: some 30 in fact.
const MOST: usize = 96;

impl Text {
    /// The instructions after a result is stored, until BASE is the caller's. At those in `returning`, the Lua frame is left
    /// already.
    pub(super) fn results_stored(&self, returning: &BTreeSet<usize>) -> BTreeSet<usize> {
        let stores = (0..self.len()).filter(|&at| stores_function(self.word(at)));
        stores.filter_map(|at| self.until_base_moves(at + 1, returning)).flatten().collect()
    }

    /// All instructions from `start` on, through those that write BASE or load the PC of the frame around. [`None`] if
    /// another function is run in the frame.
    fn until_base_moves(&self, start: usize, returning: &BTreeSet<usize>) -> Option<BTreeSet<usize>> {
        let (mut way, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(at) = open.pop() {
            if returning.contains(&at) || way.contains(&at) {
                continue;
            }
            let word = self.word(at);
            let is_end = writes(word, BASE) || word == LOAD_OUTER_PC;
            if way.len() >= MOST || is_call(word) || leaves(word) || !is_end && writes(word, PC) {
                return None;
            }
            way.insert(at);
            if !is_end {
                let next = self.next(at);
                next[0]?;
                open.extend(next.into_iter().flatten());
            }
        }
        Some(way)
    }
}

/// Whether the instruction stores over the function of the frame at BASE.
fn stores_function(word: u32) -> bool {
    matches!(word & !31, STORE | STORE_NUMBER) || word & !(31 | 31 << 10) == STORE_PAIR
}

#[cfg(test)]
mod tests {
    use lj_trace_common::layout::VmLayout;

    use super::super::vm_edges::edges;

    const START: u64 = 0xaaaa_0000_1000;
    const NOP: u32 = 0xd503_201f;
    /// `stur x0, [x19, #-16]`, `stur d0, [x19, #-16]`, `stp x3, x0, [x19, #-16]`
    const STORES: [u32; 3] = [0xf81f_0260, 0xfc1f_0260, 0xa93f_0263];
    /// `sub x19, x27, x8, lsl #3`
    const TO_CALLER: u32 = 0xcb08_0f73;
    /// `br x8`
    const NEXT_BYTECODE: u32 = 0xd61f_0100;

    fn results_stored(words: &[u32]) -> Vec<(u64, u64)> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let layout = VmLayout { l_base: 32, l_cframe: 80, cframe_prev: 0, ..VmLayout::default() };
        let found = edges(&code, START, &layout).results_stored;
        found.iter().map(|range| ((range.start - START) / 4, (range.end - START) / 4)).collect()
    }

    #[test]
    fn a_result_lies_there_until_base_is_the_callers() {
        for store in STORES {
            assert_eq!(results_stored(&[NOP, store, NOP, TO_CALLER, NOP, NEXT_BYTECODE]), [(2, 4)]);
        }
        // stur x0, [x19, #-8]; stur x0, [x17, #-16]; ldur x0, [x19, #-16]
        for other in [0xf81f_8260, 0xf81f_0220, 0xf85f_0260] {
            assert_eq!(results_stored(&[NOP, other, NOP, TO_CALLER, NEXT_BYTECODE]), []);
        }
        // b.ne 5; sub x19, ...; br x8; nop; tbz w21, #2, 2; ldur x21, [x17, #-8]; br x8: the way to a protected call.
        let words = [STORES[0], 0x5400_0081, TO_CALLER, NEXT_BYTECODE, NOP, 0x3617_ffb5, 0xf85f_8235, NEXT_BYTECODE];
        assert_eq!(results_stored(&words), [(1, 3), (5, 7)]);
    }

    #[test]
    fn a_tail_call_runs_what_it_has_stored() {
        // ldr x21, [x2, #32]
        assert_eq!(results_stored(&[STORES[0], 0xf940_1055, TO_CALLER, NEXT_BYTECODE]), []);
        assert_eq!(results_stored(&[STORES[0], NOP, NEXT_BYTECODE]), []);
        // bl
        assert_eq!(results_stored(&[STORES[0], 0x9400_0100, TO_CALLER, NEXT_BYTECODE]), []);
    }
}
