//! Where the C code of FFI callbacks runs with a C frame that has no Lua frame.
//!
//! [`lj_ccallback_enter`] links the C frame that the interpreter has made, and then makes the Lua frame: until then,
//! `L->base` belongs to the Lua code around it. [`lj_ccallback_leave`] is called when `L->base` belongs to that code again.
//! It puts `L->base` at the dropped frame while it converts the result, and resets it before it unlinks the C frame.
//! Their own code shows which instructions these are: those between the stores to `L->cframe` and to `L->base`.
//!
//! [`lj_ccallback_enter`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ccallback.c#L720-L741
//! [`lj_ccallback_leave`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ccallback.c#L744-L764

use std::collections::BTreeSet;
use std::ops::Range;

use lj_trace_common::layout::VmLayout;

use crate::arch::a64::{RET, branch, call, is_branch, jump, load_of, stores_field, word};

/// The most instructions of such a function that are looked at: some 190 in fact.
const MOST: usize = 512;

/// The number of BASE's register.
const BASE: u32 = 19;
/// The number of the register with a function's first result.
const RESULT: u32 = 0;

/// The instructions with such a C frame, as ranges of addresses; none where the code is not as expected.
///
/// `code` is the interpreter's code, and begins at `start`; `drops` is the address of its call of `lj_ccallback_leave`.
/// `read` reads code at an address, as much as there is, up to a length.
pub fn callback_code(
    code: &[u8],
    start: u64,
    drops: Option<u64>,
    layout: &VmLayout,
    read: impl Fn(u64, usize) -> Vec<u8>,
) -> Vec<Range<u64>> {
    let called = |at: u64| {
        let word = word(code, usize::try_from(at.checked_sub(start)?).ok()?)?;
        Some(at.wrapping_add_signed(call(word)?))
    };
    let function = |address: u64| Function { start: address, code: read(address, 4 * MOST), layout };
    // It returns the coroutine, whose BASE is loaded next.
    let loads_base =
        |offset| word(code, offset).and_then(|word| load_of(word, BASE)) == Some((RESULT, layout.l_base.into()));
    let calls = (0..code.len()).step_by(4).filter(|&at| loads_base(at + 4)).map(|at| start.wrapping_add(at as u64));
    let enter = calls.filter_map(called).next().map(function);
    let leave = drops.and_then(called).map(function);
    let found = enter.and_then(|enter| enter.linked()).into_iter().chain(leave.and_then(|leave| leave.dropped()));
    found.flatten().collect()
}

/// The code of a function, and what follows it.
struct Function<'a> {
    start: u64,
    code: Vec<u8>,
    layout: &'a VmLayout,
}

impl Function<'_> {
    fn word(&self, at: usize) -> Option<u32> {
        word(&self.code, 4 * at)
    }

    /// The first instruction that stores to `L->cframe`.
    fn sets_cframe(&self) -> Option<usize> {
        (0..MOST).map_while(|at| self.word(at)).position(|word| stores_field(word, self.layout.l_cframe.into()))
    }

    fn sets_base(&self, at: usize) -> bool {
        self.word(at).is_some_and(|word| stores_field(word, self.layout.l_base.into()))
    }

    /// From linking the C frame to making the Lua frame.
    fn linked(&self) -> Option<Vec<Range<u64>>> {
        self.until_base_is_set(self.sets_cframe()? + 1)
    }

    /// From the beginning to where `L->base` is put at the dropped frame, and from where it is reset to unlinking the C frame.
    fn dropped(&self) -> Option<Vec<Range<u64>>> {
        let unlinks = self.sets_cframe()?;
        let resets = (0..unlinks).rev().find(|&at| self.sets_base(at))?;
        let mut found = self.until_base_is_set(0)?;
        // With one store alone, the frame is not put back in between.
        let is_reset = found.iter().all(|range| range.end <= self.address(resets));
        found.extend(is_reset.then(|| self.address(resets + 1)..self.address(unlinks + 1)));
        is_reset.then_some(found)
    }

    /// All instructions on the ways from `from` to those that store to `L->base`, with these; [`None`] if a way returns
    /// before, or leads out of the code that is known.
    fn until_base_is_set(&self, from: usize) -> Option<Vec<Range<u64>>> {
        let (mut found, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            let word = self.word(at)?;
            if !found.insert(at) || self.sets_base(at) {
                continue;
            }
            let target = |distance: i64| usize::try_from(at as i64 + distance / 4).ok();
            match (jump(word), branch(word)) {
                (Some(distance), _) => open.push(target(distance)?),
                (None, Some(distance)) => open.extend([at + 1, target(distance)?]),
                // A `ret`, or another jump that shows not where it leads.
                (None, None) if word == RET || is_branch(word) || word & 0xffff_fc1f == 0xd61f_0000 => return None,
                (None, None) => open.push(at + 1),
            }
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for address in found.into_iter().map(|at| self.address(at)) {
            match ranges.last_mut() {
                Some(last) if last.end == address => last.end += 4,
                _ => ranges.push(address..address + 4),
            }
        }
        Some(ranges)
    }

    fn address(&self, at: usize) -> u64 {
        self.start.wrapping_add(4 * at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the interpreter is.
    const TEXT: u64 = 0xaaaa_0001_0000;
    /// `lj_ccallback_enter` and `lj_ccallback_leave` of Debian 12's `luajit`, as far as it matters here.
    const ENTER: u64 = TEXT - 0x1000;
    const LEAVE: u64 = TEXT - 0x800;

    const ENTERS: [u32; 11] = [
        0xa9b9_53f3, // stp x19, x20, [sp, #-112]!
        0xf940_2b01, // ldr x1, [x24, #80]
        0xf900_2b06, // str x6, [x24, #80]
        0xb400_00c1, // 3: cbz x1, 9
        0xf940_1300, // ldr x0, [x24, #32]
        0xa902_0f03, // 5: stp x3, x3, [x24, #32]
        0x9400_1000, // bl
        0xa8c7_53f3, // ldp x19, x20, [sp], #112
        0xd65f_03c0, // ret
        0x9400_1000, // 9: bl
        0x17ff_fffa, // b 4
    ];
    const LEAVES: [u32; 9] = [
        0xa9bc_53f3, // 0: stp x19, x20, [sp, #-64]!
        0xf940_0814, // ldr x20, [x0, #16]
        0xf900_1287, // 2: str x7, [x20, #32]
        0x9400_1000, // bl
        0xa902_1e97, // stp x23, x7, [x20, #32]
        0xf940_0000, // 5: ldr x0, [x0]
        0xf900_2a80, // 6: str x0, [x20, #80]
        0xa8c4_53f3, // ldp x19, x20, [sp], #64
        0xd65f_03c0, // ret
    ];

    fn layout() -> VmLayout {
        VmLayout { l_base: 32, l_cframe: 80, ..VmLayout::default() }
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `bl` from one address to another.
    fn calls(from: u64, to: u64) -> u32 {
        0x9400_0000 | (to.wrapping_sub(from) as u32 >> 2) & 0x03ff_ffff
    }

    fn found(enters: &[u32], leaves: &[u32]) -> Vec<Range<u64>> {
        let text = bytes(&[
            calls(TEXT, TEXT + 0x100),
            0xf940_1f03, // ldr x3, [x24, #56]
            calls(TEXT + 8, ENTER),
            0xa942_7013, // ldp x19, x28, [x0, #32]
            calls(TEXT + 16, LEAVE),
        ]);
        let read = |address, _| if address == ENTER { bytes(enters) } else { bytes(leaves) };
        callback_code(&text, TEXT, Some(TEXT + 16), &layout(), read)
    }

    #[test]
    fn stores_show_where_there_is_no_lua_frame() {
        let at = |function: u64, range: Range<u64>| function + 4 * range.start..function + 4 * range.end;
        let expected = [at(ENTER, 3..6), at(ENTER, 9..11), at(LEAVE, 0..3), at(LEAVE, 5..7)];
        assert_eq!(found(&ENTERS, &LEAVES), expected);
    }

    #[test]
    fn other_code_shows_nothing() {
        // It returns before it makes a frame; nothing is known of the other function.
        let mut enters = ENTERS;
        enters[4] = RET;
        let mut leaves = LEAVES;
        leaves[4] = 0xd503_201f;
        assert_eq!(found(&enters, &leaves), []);
        assert_eq!(found(&ENTERS[..8], &[]), []);
        assert_eq!(callback_code(&[], TEXT, None, &layout(), |_, _| Vec::new()), []);
    }
}
