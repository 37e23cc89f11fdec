//! Recognizes the interpreter in a C frame without a Lua frame: it has just entered, or is about to leave.
//!
//! As on x86-64, the code itself shows which instructions these are: those between the stores to `L->cframe` and to a
//! frame's link ([`vm_call`] to `vm_call_dispatch_f`, [`vm_return`] to `vm_leave_unw`). No register has to be guessed:
//! BASE is `x19` and PC `x21` in all builds.
//!
//! [`vm_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L557-L621
//! [`vm_return`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L385-L445

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use lj_trace_common::layout::VmLayout;

use super::trace_edges::Fields;
use crate::arch::a64::{branch, is_branch, is_call, jump, leaves, load, store, takes_stack_pointer};
use crate::vm_edges::Edges;

/// `stur x21, [x19, #-8]` stores a frame's link.
pub(super) const STORE_LINK: u32 = 0xf81f_8275;
/// `mov x3, x19` keeps the frame that has returned, before BASE becomes that of the frame around it (`cont_dispatch`).
const KEEP_FRAME: u32 = 0xaa13_03e3;
/// `mov x19, xN`, without the bits of N.
const SET_BASE: u32 = 0xaa00_03f3;
/// `br xN`, without the bits of N.
const JUMP_TO: u32 = 0xd61f_0000;

pub(super) const BASE: u32 = 19;
const SP: u32 = 31;

/// The most instructions between linking a C frame and making its first Lua frame: some 25 in fact.
const MAX_ENTERING: usize = 64;

/// The most instructions between restoring BASE and the jump to the continuation, and at the jump for FFI callbacks:
/// some 10 in fact.
const MAX_CONTINUING: usize = 16;

/// The most instructions between setting a register and storing it.
const MAX_BETWEEN: usize = 4;

/// The edges in an interpreter's machine code, which begins at `start`.
///
/// It does not find `callback_calls`: the return address of the C function that the interpreter has called has no fixed
/// place. [`callback_code`](super::callback_code) finds what takes their place.
pub fn edges(code: &[u8], start: u64, layout: &VmLayout) -> Edges {
    let text = Text::new(code, start, layout);
    let leaving = text.leads_to(|at| text.unlinks(at));
    let returning = text.leads_to(|at| text.sets_base(at));
    let returning: BTreeSet<usize> = returning.intersection(&leaving).copied().collect();
    let continuing = text.continuing();
    let callback_left = continuing.clone().and_then(|range| text.callback_left(range.end));
    let fields = Fields {
        vmstate: layout.g_vmstate.into(),
        jit_base: layout.g_jit_base.into(),
        cframe_l: layout.cframe_l.into(),
    };
    let beside = text.beside_traces(&fields);
    let links = (0..text.words.len()).filter(|&at| text.words[at] == STORE_LINK);
    Edges {
        entering: text.ranges(&text.entering()),
        leaving: text.ranges(&leaving.difference(&returning).copied().collect()),
        returning: text.ranges(&returning),
        callback_left: callback_left.into_iter().map(|range| text.addresses(range)).collect(),
        continuing: continuing.into_iter().map(|range| text.addresses(range)).collect(),
        links: links.map(|at| text.address(at)).collect(),
        base_in_state: text.ranges(&text.base_in_state()),
        base_kept: text.ranges(&text.base_kept()),
        results_stored: text.ranges(&text.results_stored(&returning)),
        frame_left: text.ranges(&text.frame_left()),
        pc_elsewhere: text.ranges(&text.pc_elsewhere()),
        beside_traces: text.ranges(&beside.fetched),
        before_fetch: text.ranges(&beside.before_fetch),
        ..Edges::default()
    }
}

/// The code, as instructions by index.
pub(super) struct Text {
    start: u64,
    words: Vec<u32>,
    /// The predecessors of each instruction in the control flow.
    before: HashMap<usize, Vec<usize>>,
    l_base: u64,
    l_cframe: u64,
    cframe_prev: u64,
}

impl Text {
    fn new(code: &[u8], start: u64, layout: &VmLayout) -> Self {
        let words: Vec<u32> = code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let [l_base, l_cframe, cframe_prev] = [layout.l_base, layout.l_cframe, layout.cframe_prev].map(u64::from);
        let mut text = Self { start, words, before: HashMap::new(), l_base, l_cframe, cframe_prev };
        for at in 0..text.words.len() {
            text.next(at).into_iter().flatten().for_each(|next| text.before.entry(next).or_default().push(at));
        }
        text
    }

    fn address(&self, at: usize) -> u64 {
        self.start + 4 * at as u64
    }

    fn addresses(&self, range: Range<usize>) -> Range<u64> {
        self.address(range.start)..self.address(range.end)
    }

    /// How many instructions there are.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// The instructions from which this one is reached.
    pub(super) fn comes_from(&self, at: usize) -> impl Iterator<Item = usize> {
        self.before.get(&at).into_iter().flatten().copied()
    }

    pub(super) fn word(&self, at: usize) -> u32 {
        self.words.get(at).copied().unwrap_or(0)
    }

    /// Index of the instruction at this distance in bytes.
    fn target(&self, at: usize, distance: i64) -> Option<usize> {
        usize::try_from(i64::try_from(at).ok()? + distance / 4).ok().filter(|target| *target < self.words.len())
    }

    /// Possible successors of an instruction; none if they are outside of the code or unknown.
    pub(super) fn next(&self, at: usize) -> [Option<usize>; 2] {
        let word = self.word(at);
        if let Some(distance) = jump(word) {
            return [self.target(at, distance), None];
        }
        if leaves(word) && !is_call(word) {
            return [None, None];
        }
        [Some(at + 1), branch(word).and_then(|distance| self.target(at, distance))]
    }

    /// The instructions from which every path leads to an instruction that `is_end`, with only C calls before it; the
    /// end is included.
    fn leads_to(&self, is_end: impl Fn(usize) -> bool) -> BTreeSet<usize> {
        let ends: BTreeSet<usize> = (0..self.words.len()).filter(|&at| is_end(at)).collect();
        let before = |at: &usize| self.before.get(at).into_iter().flatten().copied();
        // First all instructions that can get there; then remove those that can also get elsewhere.
        let mut reaching = BTreeSet::new();
        let mut open: Vec<usize> = ends.iter().copied().collect();
        while let Some(at) = open.pop() {
            if reaching.insert(at) {
                open.extend(before(&at));
            }
        }
        let mut open: Vec<usize> = reaching.iter().copied().collect();
        while let Some(at) = open.pop() {
            let next = self.next(at);
            let stays = ends.contains(&at)
                || next[0].is_some() && next.into_iter().flatten().all(|next| reaching.contains(&next));
            if !stays && reaching.remove(&at) {
                open.extend(before(&at));
            }
        }
        reaching
    }

    /// The register that the instruction stores into this field of `L`.
    fn stored(&self, at: usize, field: u64) -> Option<u32> {
        store(self.word(at)).filter(|&(_, base, offset)| base != SP && offset == field).map(|(value, ..)| value)
    }

    /// Whether one of the few instructions before is `wanted`.
    fn shortly_before(&self, at: usize, wanted: impl Fn(u32) -> bool) -> bool {
        (1..=MAX_BETWEEN).any(|back| at.checked_sub(back).is_some_and(|before| wanted(self.word(before))))
    }

    /// `mov xN, sp` (or `add xN, sp, #CFRAME_RESUME`), `str xN, [L, #cframe]`
    fn links(&self, at: usize) -> bool {
        let sets = |value: u32| self.shortly_before(at, |word| takes_stack_pointer(word) == Some(value));
        self.stored(at, self.l_cframe).is_some_and(sets)
    }

    /// `ldr xN, [sp, #CFRAME_PREV]`, `str xN, [L, #cframe]`
    fn unlinks(&self, at: usize) -> bool {
        let loads = |value: u32| self.shortly_before(at, |word| load(word) == Some((value, SP, self.cframe_prev)));
        self.stored(at, self.l_cframe).is_some_and(loads)
    }

    /// `str x19, [L, #base]`
    pub(super) fn stores_base(&self, at: usize) -> bool {
        self.stored(at, self.l_base) == Some(BASE)
    }

    /// `str xN, [L, #base]`, of another register than BASE.
    fn sets_base(&self, at: usize) -> bool {
        self.stored(at, self.l_base).is_some_and(|value| value != BASE)
    }

    /// The instructions from linking a C frame to storing the link of its first Lua frame, on the usual path.
    fn entering(&self) -> BTreeSet<usize> {
        let mut entering = BTreeSet::new();
        for link in (0..self.words.len()).filter(|&at| self.links(at)) {
            let mut way = Vec::new();
            let mut at = link + 1;
            while at < self.words.len() && way.len() < MAX_ENTERING {
                way.push(at);
                if self.word(at) == STORE_LINK {
                    entering.extend(&way);
                    break;
                }
                // A coroutine that starts skips the code to resume one; the other paths continue after the branch.
                let starts = way.len() == 1 && is_branch(self.word(at));
                let next = self.next(at);
                match next[usize::from(starts)] {
                    Some(next) => at = next,
                    None => break,
                }
            }
        }
        entering
    }

    /// The instructions in `cont_dispatch` after BASE is restored, up to its jump to the continuation and the branch
    /// for FFI callbacks after it.
    fn continuing(&self) -> Option<Range<usize>> {
        let keeps = |&at: &usize| self.word(at) == KEEP_FRAME && self.word(at + 1) & 0xffe0_ffff == SET_BASE;
        let start = (0..self.words.len()).find(keeps)? + 2;
        let end = (start..start + MAX_CONTINUING).find(|&at| self.word(at) & 0xffff_fc1f == JUMP_TO)? + 1;
        Some(start..if is_branch(self.word(end)) { end + 1 } else { end })
    }

    /// The instructions up to the call that drops an FFI callback's C frame, with that call: the branch that ends
    /// `cont_dispatch` leads to them.
    fn callback_left(&self, continued: usize) -> Option<Range<usize>> {
        let last = continued.checked_sub(1)?;
        let start = self.target(last, branch(self.word(last))?)?;
        let call = (start..start + MAX_CONTINUING).find(|&at| is_call(self.word(at)))?;
        Some(start..call + 1)
    }

    fn ranges(&self, places: &BTreeSet<usize>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for address in places.iter().map(|&at| self.address(at)) {
            match ranges.last_mut() {
                Some(last) if last.end == address => last.end += 4,
                _ => ranges.push(address..address + 4),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code between entering and leaving a C frame, as LuaJIT's build generates it.
    const CODE: [u32; 34] = [
        0x9100_03e8, // 0: mov x8, sp
        0xf900_03fc, // str x28, [sp]
        0xf900_2ae8, // str x8, [x23, #80]
        0xf900_baf7, // 3: str x23, [x22, #368]
        0xa942_02f1, // ldp x17, x0, [x23, #32]
        0x8b13_02b5, // add x21, x21, x19
        0x5400_0041, // b.ne .+8
        0xf81f_8275, // 7: stur x21, [x19, #-8]
        0xd61f_0100, // br x8
        0x9240_02b1, // 9: and x17, x21, #...
        0x5400_0061, // b.ne .+12
        0xf900_12f1, // 11: str x17, [x23, #32]
        0x1400_0003, // 12: b 15
        0xd61f_0100, // br x8
        0xd61f_0100, // br x8
        0xf940_03fc, // 15: ldr x28, [sp]
        0x5280_0000, // mov w0, #0
        0xf900_2afc, // 17: str x28, [x23, #80]
        0xd65f_03c0, // ret
        0xaa13_03e3, // 19: mov x3, x19
        0xaa11_03f3, // mov x19, x17
        0xf100_041f, // 21: cmp x0, #1
        0xd61f_0000, // br x0
        0x5400_0060, // 23: b.eq 26
        0xd61f_0100, // br x8
        0xd61f_0100, // br x8
        0xf940_c2d5, // 26: ldr x21, [x22, #384]
        0xa902_0ef3, // stp x19, x3, [x23, #32]
        0x9400_1000, // 28: bl
        0xd65f_03c0, // ret
        0xf900_12f3, // 30: str x19, [x23, #32]
        0x9400_1000, // bl
        0xf900_2aff, // 32: str xzr, [x23, #80]
        0xd65f_03c0, // ret
    ];
    const START: u64 = 0xaaaa_0000_1000;

    fn layout() -> VmLayout {
        VmLayout { l_base: 32, l_cframe: 80, cframe_prev: 0, ..VmLayout::default() }
    }

    fn at(range: Range<u64>) -> Range<u64> {
        START + 4 * range.start..START + 4 * range.end
    }

    #[test]
    fn entering_and_leaving_are_told_by_what_is_stored() {
        let code: Vec<u8> = CODE.iter().flat_map(|word| word.to_le_bytes()).collect();
        let found = edges(&code, START, &layout());
        assert_eq!(found.entering, [at(3..8)]);
        assert_eq!(found.returning, [at(11..12)]);
        assert_eq!(found.leaving, [at(12..13), at(15..18)]);
        assert_eq!(found.links, [START + 4 * 7]);
        assert_eq!(found.continuing, [at(21..24)]);
        assert_eq!(found.callback_left, [at(26..29)]);
        assert!(found.callback_calls.is_empty() && found.callback_code.is_empty());
        assert!(found.base_in_state.is_empty() && found.base_kept.is_empty());
    }

    #[test]
    fn a_coroutine_that_starts_enters_behind_the_branch() {
        // cbz w9, 3: skips the code to resume a coroutine.
        let mut code = CODE[..3].to_vec();
        code.extend([0x3400_0049, 0xd61f_0100]);
        code.extend(&CODE[3..9]);
        let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(edges(&code, START, &layout()).entering, [at(3..4), at(5..10)]);
    }

    #[test]
    fn any_code_has_an_end() {
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        for length in 0..200 {
            let code: Vec<u8> =
                (0..length).flat_map(|_| (random() ^ CODE[random() as usize >> 8 & 31]).to_le_bytes()).collect();
            let found = edges(&code, u64::MAX - 4000, &layout());
            let within = |range: &Range<u64>| range.end.wrapping_sub(u64::MAX - 4000) <= code.len() as u64;
            assert!(found.entering.iter().chain(&found.leaving).all(within));
        }
    }
}
