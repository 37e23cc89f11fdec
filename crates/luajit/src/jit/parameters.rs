//! The parameters that limit the JIT compiler (`J->param`, [`JIT_PARAMDEF`] of `lj_jit.h`); `-Omaxside=200` and
//! `jit.opt.start()` set them.
//!
//! In every compiled build, they lie right before the groups of exit stubs, which lie right before the penalties
//! ([`jit_State`]). Since pointers are aligned, there may be a gap of four bytes between the groups and the parameters.
//! The word that would be `maxmcode` shows whether there is a gap, because `maxmcode` is never 0. Words that do not
//! look like parameters are not shown.
//!
//! [`JIT_PARAMDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L108-L129
//! [`jit_State`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L481-L486

use lj_trace_common::layout::{ABSENT, BytecodeSet};
use lj_trace_common::memory::ReadMemory;
use serde::Serialize;

use crate::Vm;
use crate::object::{field, read_bytes};

/// `sizeof(J->exitstubgroup)` on 64-bit processors.
const EXIT_STUBS: u64 = 128;

/// The parameters of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "LuaJIT's own names; its documentation describes them")]
pub struct JitParameters {
    pub maxtrace: i32,
    pub maxrecord: i32,
    pub maxirconst: i32,
    pub maxside: i32,
    pub maxsnap: i32,
    /// Not in 2.0.
    pub minstitch: Option<i32>,
    pub hotloop: i32,
    pub hotexit: i32,
    pub tryside: i32,
    pub instunroll: i32,
    pub loopunroll: i32,
    pub callunroll: i32,
    pub recunroll: i32,
    pub sizemcode: i32,
    pub maxmcode: i32,
}

impl JitParameters {
    /// Reads the parameters of `vm`; [`None`] if they are not certain.
    pub fn read<M: ReadMemory>(memory: &M, vm: &Vm) -> Option<Self> {
        let jit_state = vm.jit_state().filter(|_| vm.layout.j_penalty != ABSENT)?;
        let end = field(jit_state, vm.layout.j_penalty).wrapping_sub(EXIT_STUBS);
        let bytes = read_bytes(memory, end.wrapping_sub(64), 64).ok()?;
        let words: Vec<i32> =
            bytes.chunks_exact(4).filter_map(|word| Some(i32::from_le_bytes(*word.first_chunk()?))).collect();
        Self::of(&words, vm.bytecode_set())
    }

    /// Takes the parameters from the last 16 words before the exit stubs.
    fn of(words: &[i32], set: BytecodeSet) -> Option<Self> {
        let words: &[i32; 16] = words.first_chunk()?;
        let found = match set {
            BytecodeSet::V20 => {
                let [_, _, maxtrace, maxrecord, maxirconst, maxside, maxsnap, rest @ ..] = *words;
                Self::from_words([maxtrace, maxrecord, maxirconst, maxside, maxsnap], None, rest)
            }
            _ => {
                let own: &[i32; 15] =
                    if words[15] == 0 { words.first_chunk::<15>()? } else { words.last_chunk::<15>()? };
                let [maxtrace, maxrecord, maxirconst, maxside, maxsnap, minstitch, rest @ ..] = *own;
                Self::from_words([maxtrace, maxrecord, maxirconst, maxside, maxsnap], Some(minstitch), rest)
            }
        };
        found.is_likely().then_some(found)
    }

    const fn from_words(first: [i32; 5], minstitch: Option<i32>, rest: [i32; 9]) -> Self {
        let [maxtrace, maxrecord, maxirconst, maxside, maxsnap] = first;
        let [hotloop, hotexit, tryside, instunroll, loopunroll, callunroll, recunroll, sizemcode, maxmcode] = rest;
        Self {
            maxtrace,
            maxrecord,
            maxirconst,
            maxside,
            maxsnap,
            minstitch,
            hotloop,
            hotexit,
            tryside,
            instunroll,
            loopunroll,
            callunroll,
            recunroll,
            sizemcode,
            maxmcode,
        }
    }

    /// Whether a working VM can have these parameters. `lj_jit.h` and `jit.opt` allow no negative ones. Without any
    /// trace, or any room for one, nothing would be compiled.
    fn is_likely(&self) -> bool {
        let Self { maxtrace, maxrecord, maxirconst, maxside, maxsnap, minstitch, .. } = *self;
        let Self { hotloop, hotexit, tryside, instunroll, loopunroll, callunroll, recunroll, .. } = *self;
        let small = [maxirconst, maxside, maxsnap, minstitch.unwrap_or(0), hotloop, hotexit, tryside];
        let unrolled = [instunroll, loopunroll, callunroll, recunroll];
        (1..=65_535).contains(&maxtrace)
            && (1..=1 << 24).contains(&maxrecord)
            && small.iter().all(|value| (0..=1 << 20).contains(value))
            && unrolled.iter().all(|value| (0..=1 << 16).contains(value))
            && (1..=1 << 21).contains(&self.sizemcode)
            && (1..=1 << 24).contains(&self.maxmcode)
    }

    /// The parameters behind an abort reason, with their values: `maxsnap=500`.
    pub fn about(&self, reason: &str) -> Option<String> {
        let Self { maxrecord, maxirconst, maxsnap, loopunroll, callunroll, recunroll, .. } = self;
        Some(match reason {
            "TRACEUV" => format!("minstitch={}", self.minstitch?),
            "TRACEOV" => format!("maxrecord={maxrecord}, maxirconst={maxirconst}"),
            "SNAPOV" => format!("maxsnap={maxsnap}"),
            "LUNROLL" => format!("loopunroll={loopunroll}"),
            "CUNROLL" => format!("callunroll={callunroll}, recunroll={recunroll}"),
            "MCODEAL" => format!("maxmcode={}", self.maxmcode),
            "MCODEOV" => format!("sizemcode={}", self.sizemcode),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: [i32; 15] = [1000, 4000, 500, 100, 500, 0, 56, 10, 4, 4, 15, 3, 2, 64, 512];

    #[test]
    fn both_places_are_told_apart() {
        let mut aligned = [0; 16];
        aligned[..15].copy_from_slice(&DEFAULTS);
        let mut last = [7; 16];
        last[1..].copy_from_slice(&DEFAULTS);
        for words in [aligned, last] {
            let found = JitParameters::of(&words, BytecodeSet::V21).unwrap();
            assert_eq!((found.maxtrace, found.minstitch, found.maxmcode), (1000, Some(0), 512));
            assert_eq!(found.about("SNAPOV").as_deref(), Some("maxsnap=500"));
        }
        let mut old = [9; 16];
        old[2..7].copy_from_slice(&DEFAULTS[..5]);
        old[7..].copy_from_slice(&DEFAULTS[6..]);
        let found = JitParameters::of(&old, BytecodeSet::V20).unwrap();
        assert_eq!((found.maxtrace, found.minstitch, found.hotloop), (1000, None, 56));
    }

    #[test]
    fn what_is_none_is_not_shown() {
        for words in [[0; 16], [-1; 16], [i32::MAX; 16]] {
            assert_eq!(JitParameters::of(&words, BytecodeSet::V21), None);
        }
        assert_eq!(JitParameters::of(&DEFAULTS, BytecodeSet::V21), None, "too few");
    }
}
