//! Recognizes where the interpreter enters a trace or takes over from one, with all Lua frames on the stack: BASE and PC are
//! in their registers, but the state and `jit_base` say that a trace runs.
//!
//! [`BC_JLOOP`] sets the state before it jumps to the trace. A trace that ends jumps to [`vm_exit_interp`] with BASE and PC
//! set. There PC is the address of the next bytecode until that is fetched, which moves PC past it.
//!
//! [`BC_JLOOP`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L3996-L4020
//! [`vm_exit_interp`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L2086-L2118

use std::collections::BTreeSet;

use super::moved::PC;
use super::vm_edges::{BASE, Text};
use crate::arch::a64::{is_call, jump, leaves, load, writes};

/// `sub sp, sp, #16` makes the part of the native stack that all traces need.
const MAKE_ROOM: u32 = 0xd100_43ff;
/// `br xN`, without the bits of N.
const JUMP_TO: u32 = 0xd61f_0000;
/// `ldr w16, [x21], #4` fetches the next bytecode.
const FETCH: u32 = 0xb840_46b0;
/// The registers of the `global_State` and of the coroutine.
const GLOBAL: u32 = 22;
const COROUTINE: u32 = 23;
const SP: u32 = 31;
const ZERO: u32 = 31;

/// The most instructions from the store of the state to the jump to a trace: seven in fact.
const MOST_ENTERING: usize = 12;
/// The most instructions on either side of the store that clears `jit_base`: some 15 in fact.
const MOST_LEAVING: usize = 24;

/// Where a trace is entered or has ended.
#[derive(Default)]
pub(super) struct BesideTraces {
    /// PC is past the bytecode that is executed.
    pub fetched: BTreeSet<usize>,
    /// PC is at the bytecode that comes next.
    pub before_fetch: BTreeSet<usize>,
}

impl Text {
    /// The instructions beside traces. Elsewhere than in these, BASE may be in no register.
    pub(super) fn beside_traces(&self, fields: &Fields) -> BesideTraces {
        let mut found = BesideTraces::default();
        for end in (1..self.len()).filter(|&at| self.word(at) & 0xffff_fc1f == JUMP_TO) {
            if self.word(end - 1) == MAKE_ROOM {
                found.fetched.extend(self.entered(end, fields).into_iter().flatten());
            }
        }
        for clear in (0..self.len()).filter(|&at| self.word(at) == fields.jit_base(ZERO)) {
            if let Some((start, fetch, end)) = self.left(clear, fields) {
                found.before_fetch.extend(start..=fetch);
                found.fetched.extend(fetch + 1..=end);
            }
        }
        found
    }

    /// The instructions of `BC_JLOOP` after the one that sets the state, through the jump at `end`.
    fn entered(&self, end: usize, fields: &Fields) -> Option<BTreeSet<usize>> {
        let mut sets_base = false;
        for at in (end.saturating_sub(MOST_ENTERING)..end).rev() {
            let word = self.word(at);
            if fields.sets_state(word) {
                return sets_base.then(|| (at + 1..=end).collect());
            }
            if !self.follows(at) || writes(word, BASE) || writes(word, PC) || jump(word).is_some() || leaves(word) {
                return None;
            }
            sets_base |= word == fields.jit_base(BASE);
        }
        None
    }

    /// The first instruction of `vm_exit_interp`, which loads the coroutine; the one that fetches the next bytecode; and the
    /// one that sets the state. `clear` is the one that clears `jit_base`.
    fn left(&self, clear: usize, fields: &Fields) -> Option<(usize, usize, usize)> {
        let goes_on = |word: u32| {
            let stays = !writes(word, BASE) && (!writes(word, PC) || word == FETCH);
            stays && jump(word).is_none() && !leaves(word) && !is_call(word)
        };
        let is_start = |at: &usize| load(self.word(*at)) == Some((COROUTINE, SP, fields.cframe_l));
        let mut before = (clear.saturating_sub(MOST_LEAVING)..clear).rev().take_while(|&at| goes_on(self.word(at)));
        let start = before.find(is_start)?;
        let mut after = (clear + 1..clear + MOST_LEAVING).take_while(|&at| goes_on(self.word(at)) && self.follows(at));
        let end = after.find(|&at| fields.sets_state(self.word(at)))?;
        let mut fetches = (start..=end).filter(|&at| self.word(at) == FETCH);
        let fetch = fetches.next().filter(|_| fetches.next().is_none())?;
        Some((start, fetch, end))
    }
}

/// The fields that this code stores and loads, by their offsets.
pub(super) struct Fields {
    pub vmstate: u32,
    pub jit_base: u32,
    pub cframe_l: u64,
}

impl Fields {
    /// `str xN, [x22, #jit_base]`
    fn jit_base(&self, register: u32) -> u32 {
        0xf900_0000 | (self.jit_base / 8) << 10 | GLOBAL << 5 | register
    }

    /// `str wN, [x22, #vmstate]`
    fn sets_state(&self, word: u32) -> bool {
        word & !31 == 0xb900_0000 | (self.vmstate / 4) << 10 | GLOBAL << 5
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_common::layout::VmLayout;

    use super::super::vm_edges::edges;

    const START: u64 = 0xaaaa_0000_1000;

    /// `BC_JLOOP` as Debian's builds have it: the state is set by the fourth instruction.
    const JLOOP: [u32; 9] = [
        0xf942_26c0, // ldr x0, [x22, #1096]
        0x5280_0001, // mov w1, #0
        0xf87c_781c, // ldr x28, [x0, x28, lsl #3]
        0xb900_bac1, // str w1, [x22, #184]
        0xf940_2f9b, // 4: ldr x27, [x28, #88]
        0xf900_bed3, // str x19, [x22, #376]
        0xf900_72d7, // str x23, [x22, #224]
        0xd100_43ff, // sub sp, sp, #16
        0xd61f_0360, // 8: br x27
    ];

    /// The end of the exit handler, and `vm_exit_interp`.
    const EXIT: [u32; 21] = [
        0xf900_0bf7, // str x23, [sp, #16]
        0x1400_0002, // b 3
        0xf940_0bf7, // 2: ldr x23, [sp, #16]
        0x7100_001f, // cmp w0, #0
        0x5400_054b, // b.lt
        0xd37d_f01c, // lsl x28, x0, #3
        0xf85f_0261, // ldur x1, [x19, #-16]
        0xd2ff_ff38, // mov x24, #0xfff9000000000000
        0x9240_b821, // and x1, x1, #0x7fffffffffff
        0xb900_23fc, // str w28, [sp, #32]
        0xf900_12f3, // str x19, [x23, #32]
        0xf940_1021, // ldr x1, [x1, #32]
        0xf900_bedf, // str xzr, [x22, #376]
        0x1280_0003, // mov w3, #-1
        0xf85b_8034, // ldur x20, [x1, #-72]
        0x3940_02b1, // ldrb w17, [x21]
        0xb840_46b0, // 16: ldr w16, [x21], #4
        0xb900_bac3, // 17: str w3, [x22, #184]
        0x7101_863f, // cmp w17, #0x61
        0x5400_01a2, // b.cs
        0xd61f_0220, // br x17
    ];

    /// `beside_traces` and `before_fetch`, as indices of instructions.
    fn found(words: &[u32]) -> [Vec<(u64, u64)>; 2] {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let layout = VmLayout {
            l_base: 32,
            l_cframe: 80,
            cframe_prev: 0,
            cframe_l: 16,
            g_vmstate: 184,
            g_jit_base: 376,
            ..VmLayout::default()
        };
        let edges = edges(&code, START, &layout);
        let index = |address: u64| (address - START) / 4;
        [edges.beside_traces, edges.before_fetch]
            .map(|ranges| ranges.iter().map(|range| (index(range.start), index(range.end))).collect())
    }

    #[test]
    fn a_trace_is_entered_after_the_state_is_set() {
        assert_eq!(found(&JLOOP), [vec![(4, 9)], vec![]]);
        // Another jump, and a store of another register as `jit_base`; code that writes BASE, or is jumped to.
        for (index, word) in [(7, 0xd503_201f), (5, 0xf900_bed4), (6, 0xaa11_03f3), (0, 0x5400_00c0)] {
            let mut code = JLOOP;
            code[index] = word;
            assert_eq!(found(&code), [vec![], vec![]], "{index}");
        }
    }

    #[test]
    fn the_interpreter_takes_over_until_the_state_is_set() {
        assert_eq!(found(&EXIT), [vec![(17, 18)], vec![(2, 17)]]);
        // Code that does not load the coroutine, calls something, fetches nothing, or writes BASE.
        for (index, word) in [(2, 0xd503_201f), (14, 0x9400_0100), (16, 0xd503_201f), (8, 0xaa11_03f3)] {
            let mut code = EXIT;
            code[index] = word;
            assert_eq!(found(&code), [vec![], vec![]], "{index}");
        }
    }
}
