//! Merges the two stacks of a sample into one.
//!
//! A sample has a Lua stack and a host stack. There are two ways to merge them: as the reference parser does
//! ([`as_shown`]), which is right for streams written for it; and in the order of calls ([`as_called`]), for streams of the
//! in-process profiler, in which the reference parser loses most Lua frames.

use super::{LuaFrame, StreamSample, fast_function_name};
use crate::SymbolTable;

/// The meaning of a host frame's name for the reference parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// An ordinary function.
    None,
    /// `lua_call` or `lua_pcall` (the parser's pattern is `^lua_p?call`): Lua frames follow.
    Call,
    /// `lua_cpcall`: the parser drops the leaf of the Lua stack.
    Cpcall,
}

impl Boundary {
    /// The meaning of this function name.
    pub fn of_name(name: &[u8]) -> Self {
        if name.starts_with(b"lua_call") || name.starts_with(b"lua_pcall") {
            Self::Call
        } else if name.starts_with(b"lua_cpcall") {
            Self::Cpcall
        } else {
            Self::None
        }
    }

    /// The meaning of the function at this address.
    pub fn of_addr(addr: u64, symbols: &SymbolTable) -> Self {
        symbols.c_name(addr).map_or(Self::None, Self::of_name)
    }
}

/// A frame of the merged stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MergedFrame {
    /// A code address of the host stack.
    Host(u64),
    /// A frame of the Lua stack.
    Lua(LuaFrame),
}

/// Writes the frames that the reference parser shows for a sample into `merged`, root first.
///
/// This is `merge` and `insert_lua_callchain` of `tools/sysprof/parse.lua` (tarantool/luajit, 2024). After each host frame
/// that is a [`Boundary::Call`] come the Lua frames from the root up to the first `CFUNC`. Only the frame at which that
/// stopped is removed from the Lua stack. So a second call shows the frames of the first call again.
pub fn as_shown(sample: &StreamSample<'_>, boundary: impl Fn(u64) -> Boundary, merged: &mut Vec<MergedFrame>) {
    merged.clear();
    let mut lua: Vec<LuaFrame> = sample.lua.iter().rev().copied().collect();
    for &addr in sample.host.iter().rev() {
        merged.push(MergedFrame::Host(addr));
        match boundary(addr) {
            Boundary::None => {}
            Boundary::Cpcall => {
                lua.pop();
            }
            Boundary::Call => {
                let stop = lua.iter().position(|frame| matches!(frame, LuaFrame::Cfunc { .. }));
                let shown = stop.unwrap_or(lua.len());
                merged.extend(lua[..shown].iter().copied().map(MergedFrame::Lua));
                if let Some(at) = stop.or(lua.len().checked_sub(1)) {
                    lua.remove(at);
                }
            }
        }
    }
}

/// Writes the frames of an in-process profiler's sample into `merged`, in the order of their calls, root first.
///
/// Each call from C into Lua (`lua_call`, `lua_pcall`, `lua_cpcall`, `lua_resume`) takes the Lua frames up to the function
/// whose C part is next on the host stack. No Lua frame is lost: frames without a place follow the last call. A C function
/// on both stacks is shown once.
pub fn as_called(sample: &StreamSample<'_>, symbols: &SymbolTable, merged: &mut Vec<MergedFrame>) {
    merged.clear();
    let mut lua = sample.lua.iter().rev().copied().peekable();
    let host: Vec<u64> = sample.host.iter().rev().copied().collect();
    let is_call = |addr: u64| {
        Boundary::of_addr(addr, symbols) != Boundary::None
            || symbols.c_name(addr).is_some_and(|name| name.starts_with(b"lua_resume"))
    };
    let calls_left = |from: usize| host[from..].iter().any(|&addr| is_call(addr));
    for (at, &addr) in host.iter().enumerate() {
        merged.push(MergedFrame::Host(addr));
        if !is_call(addr) {
            continue;
        }
        let until_next_call = host[at + 1..].iter().copied().take_while(|&addr| !is_call(addr));
        let c_part: Vec<&[u8]> = until_next_call.filter_map(|addr| symbols.c_name(addr)).collect();
        let last = !calls_left(at + 1);
        for frame in lua.by_ref() {
            let has_c_part = is_on_host(frame, &c_part, symbols);
            if !(has_c_part && matches!(frame, LuaFrame::Cfunc { .. })) {
                merged.push(MergedFrame::Lua(frame));
            }
            if !last && (has_c_part || matches!(frame, LuaFrame::Cfunc { .. })) {
                break;
            }
        }
    }
    merged.extend(lua.map(MergedFrame::Lua));
}

/// Whether the function of a Lua frame is one of these host functions.
fn is_on_host(frame: LuaFrame, host: &[&[u8]], symbols: &SymbolTable) -> bool {
    match frame {
        LuaFrame::Lfunc { .. } => false,
        LuaFrame::Cfunc { addr } => symbols.c_name(addr).is_some_and(|name| host.contains(&name)),
        LuaFrame::Ffunc { ffid } => fast_function_name(ffid).is_some_and(|name| {
            let symbol = format!("lj_cf_{}", name.replace('.', "_"));
            host.contains(&symbol.as_bytes())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Symbol, VmState};

    const MAIN: u64 = 0x1000;
    const CPCALL: u64 = 0x2000;
    const PMAIN: u64 = 0x3000;
    const PCALL: u64 = 0x4000;
    const SORT: u64 = 0x5000;
    const CALL: u64 = 0x6000;

    fn lfunc(proto: u64) -> LuaFrame {
        LuaFrame::Lfunc { proto, line: 1 }
    }

    fn symbols() -> SymbolTable {
        [
            (MAIN, "main"),
            (CPCALL, "lua_cpcall"),
            (PMAIN, "pmain"),
            (PCALL, "lua_pcall"),
            (SORT, "lj_cf_table_sort"),
            (CALL, "lua_call"),
        ]
        .into_iter()
        .map(|(addr, name)| Symbol::c(addr, name))
        .collect()
    }

    #[test]
    fn an_in_process_sample_is_put_in_the_order_of_its_calls() {
        let table_sort = super::super::fast_function_id("table.sort").unwrap();
        let lua = [lfunc(3), LuaFrame::Ffunc { ffid: table_sort }, lfunc(2), lfunc(1), LuaFrame::Cfunc { addr: PMAIN }];
        let host = [CALL, SORT, PCALL, PMAIN, CPCALL, MAIN];
        let mut merged = Vec::new();
        as_called(&StreamSample { vmstate: VmState::Lfunc, lua: &lua, host: &host }, &symbols(), &mut merged);
        use MergedFrame::{Host, Lua};
        let sort = Lua(LuaFrame::Ffunc { ffid: table_sort });
        assert_eq!(
            merged,
            [
                Host(MAIN),
                Host(CPCALL),
                Host(PMAIN),
                Host(PCALL),
                Lua(lfunc(1)),
                Lua(lfunc(2)),
                sort,
                Host(SORT),
                Host(CALL),
                Lua(lfunc(3))
            ]
        );
    }

    #[test]
    fn the_reference_parser_loses_the_leaf_and_repeats_segments() {
        let lua = [lfunc(3), LuaFrame::Cfunc { addr: SORT }, lfunc(1)];
        let mut merged = Vec::new();
        let sample = StreamSample { vmstate: VmState::Lfunc, lua: &lua, host: &[CALL, SORT, PCALL, CPCALL] };
        as_shown(&sample, |addr| Boundary::of_addr(addr, &symbols()), &mut merged);
        use MergedFrame::{Host, Lua};
        assert_eq!(merged, [Host(CPCALL), Host(PCALL), Lua(lfunc(1)), Host(SORT), Host(CALL), Lua(lfunc(1))]);
    }
}
