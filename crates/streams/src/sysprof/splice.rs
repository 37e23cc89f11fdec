//! Writes samples so that the reference parser shows them completely.
//!
//! A recorder has one merged stack: host and Lua frames in the order of their calls. The format has two stacks.
//! `parse-sysprof` merges them by rules ([`super::merge::as_shown`]) that lose or repeat frames of most real stacks. These
//! are the traps, and how the written samples avoid them:
//!
//! 1. Lua frames appear only after a host frame named `lua_call` or `lua_pcall`. A host stack that starts in `lua_resume`
//!    loses all of them. So the Lua stack is attached to the last such frame below the first Lua frame. If there is none,
//!    it is attached to a mark whose name begins like these names and says that it is no frame ([`reserved::SPLICE`]).
//! 2. Every `lua_cpcall` drops the leaf of the Lua stack, and every earlier `lua_call` shows it. So the writer puts dummy
//!    `CFUNC` frames, which are never shown, at the places from which these calls take frames.
//! 3. A second call back into Lua (a `table.sort` comparison) shows the Lua frames of the first call again, whatever the
//!    stream says. So there is only one splice: from the first Lua frame on, host frames also go into the Lua stack, as
//!    `LFUNC` frames with a code address. The parser finds no prototype at that address and shows the C function, exactly
//!    as it would in the host stack. Only the last host frames, after all Lua frames and calls, stay in the host stack.
//! 4. In the format, the states `GC`, `EXIT`, `RECORD`, `OPT`, `ASM`, `INTERP` have no Lua stack and `TRACE` has no stack at
//!    all, so the parser shows all JIT samples as one `;`. The writer writes such a sample as `LFUNC`, and keeps the state
//!    in an [`Annotation::State`](crate::Annotation::State).
//! 5. A sample without any frame would also be a bare `;`. So it gets [`reserved::NO_STACK`].
//! 6. Host symbols have no size, so an address takes the name of the nearest symbol below. So the writer adds boundary
//!    symbols ([`super::SysprofWriter::define_c`]).
//! 7. The parser names fast functions by the numbers of its own build. So the writer translates the numbers
//!    ([`super::fast_function_id`]). Fast functions that Tarantool does not have become C functions with their names.
//! 8. The parser shows raw chunknames, and replaces those with several lines by an alias. So a recorder writes chunknames
//!    as they are shown everywhere else, after an `@`.

use super::merge::Boundary;
use super::{LuaFrame, StreamSample};
use crate::{SymbolTable, VmState, reserved};

/// A frame of a recorder's merged stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackFrame<'a> {
    /// A code address of the host stack, or of a C function that only the Lua stack shows.
    Host {
        /// The address.
        addr: u64,
    },
    /// A Lua function.
    Lua {
        /// Address of its prototype.
        proto: u64,
        /// Line where the function is defined.
        line: u64,
    },
    /// A fast function.
    Fast {
        /// Its name, such as `string.gsub`.
        name: &'a str,
    },
}

/// Splits merged stacks. It reuses its memory for the next sample.
#[derive(Debug, Default)]
pub(super) struct Splicer {
    /// The merged stack, root first. A host frame is a `Cfunc` here.
    pub(super) frames: Vec<LuaFrame>,
    lua: Vec<LuaFrame>,
    host: Vec<u64>,
}

/// A frame that the reference parser never shows.
const DUMMY: LuaFrame = LuaFrame::Cfunc { addr: reserved::NO_STACK };

impl Splicer {
    /// The sample for `self.frames`.
    pub(super) fn splice(&mut self, vmstate: VmState, symbols: &SymbolTable) -> StreamSample<'_> {
        self.lua.clear();
        self.host.clear();
        let is_lua = |frame: &LuaFrame| !matches!(frame, LuaFrame::Cfunc { .. });
        let Some((first, last)) = self.frames.iter().position(is_lua).zip(self.frames.iter().rposition(is_lua)) else {
            return self.without_lua(vmstate);
        };
        let boundary = |frame: &LuaFrame| match *frame {
            LuaFrame::Cfunc { addr } => Boundary::of_addr(addr, symbols),
            LuaFrame::Lfunc { .. } | LuaFrame::Ffunc { .. } => Boundary::None,
        };

        // The host frames up to the splice, and the host frames of the leaf.
        let splice = self.frames[..first].iter().rposition(|frame| boundary(frame) == Boundary::Call);
        let root = &self.frames[..splice.map_or(first, |at| at + 1)];
        let leaf_calls = self.frames[last + 1..].iter().rposition(|frame| boundary(frame) != Boundary::None);
        let leaf_start = last + 1 + leaf_calls.map_or(0, |at| at + 1);

        // The Lua stack. From here on it is root first.
        let earlier_calls = root.iter().filter(|frame| boundary(frame) == Boundary::Call).count();
        let cpcalls = root.iter().filter(|frame| boundary(frame) == Boundary::Cpcall).count();
        self.lua.extend(std::iter::repeat_n(DUMMY, earlier_calls - usize::from(splice.is_some())));
        self.lua.extend(self.frames[root.len()..leaf_start].iter().map(|frame| match *frame {
            LuaFrame::Cfunc { addr } => LuaFrame::Lfunc { proto: addr, line: 0 },
            lua => lua,
        }));
        self.lua.extend(std::iter::repeat_n(DUMMY, cpcalls));
        self.lua.reverse();

        let addr = |frame: &LuaFrame| match *frame {
            LuaFrame::Cfunc { addr } => Some(addr),
            LuaFrame::Lfunc { .. } | LuaFrame::Ffunc { .. } => None,
        };
        self.host.extend(root.iter().filter_map(addr));
        if splice.is_none() {
            self.host.push(reserved::SPLICE);
        }
        self.host.extend(self.frames[leaf_start..].iter().filter_map(addr));
        self.host.reverse();

        let vmstate = if vmstate.has_lua_stack() { vmstate } else { VmState::Lfunc };
        StreamSample { vmstate, lua: &self.lua, host: &self.host }
    }

    fn without_lua(&mut self, vmstate: VmState) -> StreamSample<'_> {
        self.host.extend(self.frames.iter().rev().filter_map(|frame| match *frame {
            LuaFrame::Cfunc { addr } => Some(addr),
            LuaFrame::Lfunc { .. } | LuaFrame::Ffunc { .. } => None,
        }));
        if self.host.is_empty() {
            self.host.push(reserved::NO_STACK);
        }
        let vmstate = if vmstate == VmState::Trace { VmState::Lfunc } else { vmstate };
        StreamSample { vmstate, lua: &self.lua, host: &self.host }
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge::{MergedFrame, as_shown};
    use super::*;
    use crate::Symbol;

    const MAIN: u64 = 0x10_1000;
    const CPCALL: u64 = 0x10_2000;
    const PCALL: u64 = 0x10_3000;
    const CALL: u64 = 0x10_4000;
    const RESUME: u64 = 0x10_5000;
    const SORT: u64 = 0x10_6000;

    fn symbols() -> SymbolTable {
        let names = [
            (reserved::SPLICE, reserved::SPLICE_NAME),
            (MAIN, "main"),
            (CPCALL, "lua_cpcall"),
            (PCALL, "lua_pcall"),
            (CALL, "lua_call"),
            (RESUME, "lua_resume"),
            (SORT, "lj_cf_table_sort"),
        ];
        names.into_iter().map(|(addr, name)| Symbol::c(addr, name)).collect()
    }

    /// What the reference parser shows for a merged stack: addresses and prototypes.
    fn shown(frames: &[LuaFrame]) -> Vec<u64> {
        let mut splicer = Splicer { frames: frames.to_vec(), ..Splicer::default() };
        let table = symbols();
        let sample = splicer.splice(VmState::Lfunc, &table);
        let mut merged = Vec::new();
        as_shown(&sample, |addr| Boundary::of_addr(addr, &table), &mut merged);
        merged
            .into_iter()
            .map(|frame| match frame {
                MergedFrame::Host(addr) | MergedFrame::Lua(LuaFrame::Lfunc { proto: addr, .. }) => addr,
                MergedFrame::Lua(LuaFrame::Ffunc { ffid }) => ffid,
                MergedFrame::Lua(LuaFrame::Cfunc { .. }) => panic!("a C function of the Lua stack is never shown"),
            })
            .collect()
    }

    fn addrs(frames: &[LuaFrame]) -> Vec<u64> {
        let addr = |frame: &LuaFrame| match *frame {
            LuaFrame::Cfunc { addr: id } | LuaFrame::Lfunc { proto: id, .. } | LuaFrame::Ffunc { ffid: id } => id,
        };
        frames.iter().map(addr).collect()
    }

    fn h(addr: u64) -> LuaFrame {
        LuaFrame::Cfunc { addr }
    }

    fn l(proto: u64) -> LuaFrame {
        LuaFrame::Lfunc { proto, line: 1 }
    }

    #[test]
    fn nested_segments_are_shown_whole_and_in_order() {
        let fast = LuaFrame::Ffunc { ffid: 70 };
        for frames in [
            vec![h(MAIN), h(PCALL), l(1), l(2)],
            vec![
                h(MAIN),
                h(CPCALL),
                h(MAIN),
                h(PCALL),
                h(MAIN),
                l(1),
                l(2),
                h(SORT),
                h(CALL),
                l(3),
                h(SORT),
                h(CALL),
                l(4),
            ],
            vec![h(CPCALL), h(CPCALL), h(PCALL), h(PCALL), h(CALL), l(1), fast, h(SORT)],
            vec![h(PCALL), l(1), h(SORT), h(CALL), h(SORT)],
            vec![h(PCALL), l(1), h(SORT), h(CPCALL), h(SORT), h(PCALL), fast],
            vec![h(CALL), l(1), h(RESUME), l(2), h(MAIN), h(PCALL), l(3), h(MAIN)],
        ] {
            assert_eq!(shown(&frames), addrs(&frames), "{frames:?}");
        }
    }

    #[test]
    fn a_segment_without_a_call_gets_one() {
        let frames = [h(MAIN), h(RESUME), l(1), h(SORT)];
        assert_eq!(shown(&frames), [MAIN, RESUME, reserved::SPLICE, 1, SORT]);
        assert_eq!(shown(&[l(1), l(2)]), [reserved::SPLICE, 1, 2]);
    }

    /// Tries every stack of up to seven frames of six kinds: no frame is lost, repeated or out of order.
    #[test]
    fn every_small_stack_is_shown_whole() {
        let kinds = [h(MAIN), h(CPCALL), h(PCALL), h(RESUME), l(7), LuaFrame::Ffunc { ffid: 9 }];
        for length in 1..=7 {
            for mut code in 0..6usize.pow(length) {
                let mut frames = Vec::new();
                for _ in 0..length {
                    frames.push(kinds[code % 6]);
                    code /= 6;
                }
                let mut shown = shown(&frames);
                shown.retain(|&addr| addr != reserved::SPLICE);
                assert_eq!(shown, addrs(&frames), "{frames:?}");
            }
        }
    }

    #[test]
    fn an_empty_stack_is_not_a_bare_semicolon() {
        assert_eq!(shown(&[]), [reserved::NO_STACK]);
    }

    #[test]
    fn states_without_a_lua_stack_are_kept_where_there_is_none() {
        let table = symbols();
        let mut splicer = Splicer { frames: vec![h(MAIN)], ..Splicer::default() };
        assert_eq!(splicer.splice(VmState::Gc, &table).vmstate, VmState::Gc);
        splicer.frames.push(l(1));
        assert_eq!(splicer.splice(VmState::Gc, &table).vmstate, VmState::Lfunc);
        assert_eq!(splicer.splice(VmState::Ffunc, &table).vmstate, VmState::Ffunc);
    }
}
