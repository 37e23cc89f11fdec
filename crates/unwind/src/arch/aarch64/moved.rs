//! Recognizes where BASE or PC is not in its register: while the interpreter makes a frame, or drops one.
//!
//! On this processor a call moves BASE in two steps ([`BC_CALL`]), and a return moves it along while it copies the results
//! ([`BC_RET`]); meanwhile another register still has BASE. Before `xpcall` makes a frame, PC's register has that frame's
//! link already ([`xpcall`]); and [`coroutine.resume`] moves BASE past the coroutine, its argument. Which instructions these
//! are follows from the code: a range begins and ends where registers are written, and nothing jumps into it.
//!
//! [`BC_CALL`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L3517-L3526
//! [`BC_RET`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L3764-L3804
//! [`xpcall`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L1278-L1297
//! [`coroutine.resume`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L1301-L1346

use std::collections::BTreeSet;

use super::vm_edges::{BASE, STORE_LINK, Text};
use crate::arch::a64::{is_branch, is_call, jump, leaves, writes};

pub(super) const PC: u32 = 21;
/// RB, which keeps BASE while that moves.
const RB: u32 = 17;
/// CARG3, in which `BC_RET` keeps BASE.
const CARG3: u32 = 2;

/// `mov x17, x19` and `mov x19, x17`.
const KEEP_BASE: u32 = 0xaa13_03f1;
const BACK_TO_KEPT: u32 = 0xaa11_03f3;
/// `ldur x21, [x17, #-8]`: PC of the frame around the one at BASE.
pub(super) const LOAD_OUTER_PC: u32 = 0xf85f_8235;
/// `sub x2, x19, #16`, `sub x3, x2, x27, lsl #3`, `mov x19, x3`: from BASE to that of the caller.
const BEFORE_FRAME: u32 = 0xd100_4262;
const CALLER_BASE: u32 = 0xcb1b_0c43;
const TO_CALLER: u32 = 0xaa03_03f3;
/// `add x19, x19, #8`: past the first argument.
const PAST_ARGUMENT: u32 = 0x9100_2273;
/// `eor x21, x21, #3`: a tail call tests the kind of its frame (`BC_CALLT`).
const FLIP_KIND: u32 = 0xd240_06b5;
/// `ldp x2, x21, [x19, #-16]`: the function at BASE, and PC.
const LOAD_FUNCTION_AND_PC: u32 = 0xa97f_5662;
/// `add x21, x8, #n` and `add x19, x19, #n`, without the bits of n.
const MAKE_LINK: u32 = 0x9100_0115;
const MOVE_BASE: u32 = 0x9100_0273;

/// The most instructions of a range: some 25 in fact.
const MOST: usize = 32;

fn is_add(word: u32, of: u32) -> bool {
    word & 0xffc0_03ff == of
}

impl Text {
    /// Where BASE has moved on, or is about to move back, and RB has the value that counts.
    pub(super) fn base_kept(&self) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        for start in self.all(KEEP_BASE) {
            let mut moved = false;
            for at in start + 1..start + MOST {
                let word = self.word(at);
                if !self.follows(at) || word == STORE_LINK {
                    break;
                }
                if moved {
                    found.insert(at);
                }
                if writes(word, RB) || writes(word, PC) || jump(word).is_some() || leaves(word) {
                    break;
                }
                moved |= writes(word, BASE);
            }
        }
        for start in self.all(LOAD_OUTER_PC) {
            let way = self.way(start, |word| word == BACK_TO_KEPT, &[RB, PC, BASE]);
            found.extend(way.into_iter().flatten());
        }
        found
    }

    /// Where BASE has moved past an argument before a call, and `L->base` has the value that counts.
    pub(super) fn base_in_state(&self) -> BTreeSet<usize> {
        let stores = |at: usize| self.stores_base(at);
        let is_stored = |start: usize| {
            let back = (start.saturating_sub(MOST)..start).rev();
            back.take_while(|&at| self.follows(at + 1) && !writes(self.word(at), BASE)).any(stores)
        };
        let starts = self.all(PAST_ARGUMENT).filter(|&start| is_stored(start));
        starts.filter_map(|start| self.way(start, is_call, &[BASE])).flatten().collect()
    }

    /// Where a frame is dropped: BASE moves to the caller, and CARG3 has the frame's, less 16 bytes.
    pub(super) fn frame_left(&self) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        for start in self.all(BEFORE_FRAME) {
            let Some(way) = self.way(start, |word| word == TO_CALLER, &[CARG3]) else { continue };
            if !way.iter().any(|&at| self.word(at) == CALLER_BASE) {
                continue;
            }
            // More results are wanted than there are: a loop beside the way.
            let branches = way.iter().filter_map(|&at| self.next(at)[1].filter(|target| !way.contains(target)));
            let beside = branches.filter_map(|target| self.way_back(target, &way));
            let beside: BTreeSet<usize> = beside.flatten().collect();
            found.extend(way.union(&beside));
        }
        found
    }

    /// Where the frame at BASE is whole, but PC's register holds something else.
    pub(super) fn pc_elsewhere(&self) -> BTreeSet<usize> {
        let mut found: BTreeSet<usize> = self.all(LOAD_FUNCTION_AND_PC).collect();
        found.extend(self.all(FLIP_KIND).flat_map(|at| self.until_pc(at)));
        for start in (0..self.len()).filter(|&at| is_add(self.word(at), MAKE_LINK)) {
            let way = self.way(start, |word| is_add(word, MOVE_BASE), &[BASE, PC]);
            found.extend(way.into_iter().flatten());
        }
        found
    }

    /// All instructions after `start`, on every way, through those that write PC's register; none if that is not seen.
    fn until_pc(&self, start: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open = vec![start + 1];
        while let Some(at) = open.pop() {
            if found.len() > MOST || leaves(self.word(at)) {
                return BTreeSet::new();
            }
            if found.insert(at) && !writes(self.word(at), PC) {
                open.extend(self.next(at).into_iter().flatten());
            }
        }
        found
    }

    /// The indices of an instruction.
    fn all(&self, word: u32) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(move |&at| self.word(at) == word)
    }

    /// Whether an instruction is reached only from the one before it.
    pub(super) fn follows(&self, at: usize) -> bool {
        self.comes_from(at).all(|from| from + 1 == at)
    }

    /// The instructions after `start`, past conditional branches, through one that `is_end`. [`None`] unless they are
    /// reached only from `start` and from each other, and none before the end writes the registers in `kept`.
    fn way(&self, start: usize, is_end: impl Fn(u32) -> bool, kept: &[u32]) -> Option<BTreeSet<usize>> {
        let mut way = BTreeSet::new();
        for at in start + 1..start + MOST {
            let word = self.word(at);
            way.insert(at);
            if is_end(word) {
                let is_own = |from: usize| from == start || way.contains(&from) || self.way_back(from, &way).is_some();
                return way.iter().all(|&at| self.comes_from(at).all(is_own)).then_some(way);
            }
            if jump(word).is_some() || leaves(word) || kept.iter().any(|&register| writes(word, register)) {
                return None;
            }
        }
        None
    }

    /// The instructions around `at` that lead back into `way`, if they are reached only from there, and do not write CARG3.
    fn way_back(&self, at: usize, way: &BTreeSet<usize>) -> Option<BTreeSet<usize>> {
        const LONGEST: usize = 8;
        let from_way = |&first: &usize| self.comes_from(first).next().is_some_and(|from| way.contains(&from));
        let first = (at.saturating_sub(LONGEST)..=at).rev().find(from_way)?;
        let mut block = BTreeSet::new();
        for at in first..first + LONGEST {
            let word = self.word(at);
            let is_first = at == first && self.comes_from(at).all(|from| way.contains(&from));
            if !(is_first || self.follows(at) && at != first) || writes(word, CARG3) || is_branch(word) {
                return None;
            }
            block.insert(at);
            if jump(word).is_some() {
                return self.next(at)[0].filter(|target| way.contains(target)).map(|_| block);
            }
            if leaves(word) {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_common::layout::VmLayout;

    use super::super::vm_edges::edges;

    const START: u64 = 0xaaaa_0000_1000;
    const NOP: u32 = 0xd503_201f;
    const RET: u32 = 0xd65f_03c0;

    /// The ranges that are found in this code, as indices of instructions: `base_in_state`, `base_kept`, `frame_left`,
    /// `pc_elsewhere`.
    fn found(words: &[u32]) -> [Vec<(u64, u64)>; 4] {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let layout = VmLayout { l_base: 32, l_cframe: 80, cframe_prev: 0, ..VmLayout::default() };
        let edges = edges(&code, START, &layout);
        [edges.base_in_state, edges.base_kept, edges.frame_left, edges.pc_elsewhere]
            .map(|ranges| ranges.iter().map(|range| ((range.start - START) / 4, (range.end - START) / 4)).collect())
    }

    #[test]
    fn a_call_keeps_base_until_the_link_is_stored() {
        // mov x17, x19; add x19, x19, x27, lsl #3; ldr x2, [x19]; sub x28, x28, #8; add x19, x19, #16; stur x21, [x19, #-8]
        let call = [0xaa13_03f1, 0x8b1b_0e73, 0xf940_0262, 0xd100_239c, 0x9100_4273, 0xf81f_8275, RET];
        assert_eq!(found(&call)[1], [(2, 5)]);
        // add x21, x8, #22 after BASE has moved: from there on PC has the link.
        let pcall = [0xaa13_03f1, 0x9100_4273, 0x5304_1108, 0x9100_5915, RET];
        assert_eq!(found(&pcall)[1], [(2, 4)]);
        // RB is written; something jumps into the range.
        assert_eq!(found(&[call[0], call[1], 0xaa13_03f1 ^ 1 << 16, NOP, RET])[1], [(2, 3)]);
        assert_eq!(found(&[call[0], call[1], NOP, NOP, 0x17ff_ffff])[1], [(2, 3)]);
    }

    #[test]
    fn a_return_keeps_base_until_it_is_the_callers() {
        // sub x2, x19, #16; b.eq 7; ldr x8, [x27], #8; add x19, x19, #8; sub x9, x9, #8; stur x8, [x19, #-24]; cbnz x9, 2;
        // sub x3, x2, x27, lsl #3; cmp; b.lo 13; mov x19, x3; ret; ret; add x19, x19, #8; b 8
        let words = [
            0xd100_4262,
            0x5400_00c0,
            0xf840_8768,
            0x9100_2273,
            0xd100_2129,
            0xf81e_8268,
            0xb5ff_ff89,
            0xcb1b_0c43,
            0xeb11_0f9f,
            0x5400_0083,
            0xaa03_03f3,
            RET,
            RET,
            0x9100_2273,
            0x17ff_fffa,
        ];
        assert_eq!(found(&words)[2], [(1, 11), (13, 15)]);
        for (at, other) in [(7, NOP), (4, 0xd100_2122), (10, NOP), (6, 0x17ff_fffb)] {
            let mut changed = words;
            changed[at] = other;
            assert_eq!(found(&changed)[2], [], "instruction {at}");
        }
    }

    #[test]
    fn pc_may_have_a_link_and_l_base_base() {
        // add x21, x8, #30; b.ne 5; mov x28, x9; add x19, x19, #24
        let xpcall = [0x9100_7915, 0x5400_0081, 0xaa09_03fc, 0x9100_6273, NOP, RET];
        assert_eq!(found(&xpcall)[3], [(1, 4)]);
        // eor x21, x21, #3; b.ne 4; sub x19, x19, x21; ldur x21, [x19, #-8]; nop; ldr x21, [x2, #32]
        let tail_call = [0xd240_06b5, 0x5400_0061, 0xcb15_0273, 0xf85f_8275, NOP, 0xf940_1055, RET];
        assert_eq!(found(&tail_call)[3], [(1, 6)]);
        assert_eq!(found(&[0xd240_06b5, NOP, RET])[3], [], "it is not seen where PC is loaded");
        // ldp x2, x21, [x19, #-16]
        assert_eq!(found(&[NOP, 0xa97f_5662, RET])[3], [(1, 2)]);
        // str x19, [x23, #32]; add x19, x19, #8; nop; bl
        let resume = [0xf900_12f3, 0x9100_2273, NOP, 0x9400_0100, RET];
        assert_eq!(found(&resume)[0], [(2, 4)]);
        assert_eq!(found(&resume[1..])[0], [], "L->base has not been set");
    }
}
