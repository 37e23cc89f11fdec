//! Marks the VM's own work by a frame, in the stacks of both streams and reports.
//!
//! LuaJIT's sources: [`lj_gc_step`].
//!
//! [`lj_gc_step`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L728-L757

use std::ops::Range;

use lj_trace_profile::Frame as Named;
use lj_trace_profile::frame::FrameKind;
use lj_trace_streams::VmState;

use super::pipeline::{Code, ResolvedFrame};

/// Adds a frame for the VM's state to `frames`, which are innermost first: `[GC]` below the frames of the garbage collector
/// itself, `[JIT compiler]` above the Lua code that is compiled, or `TRACE` innermost in compiled code whose trace is not
/// known. `text` is the VM's own machine code.
pub fn mark(state: VmState, text: &Range<u64>, frames: &mut Vec<ResolvedFrame>) {
    match state {
        VmState::Trace if !frames.iter().any(|frame| frame.named.kind() == FrameKind::Jit) => {
            frames.insert(0, named(Named::Trace { number: None, start: None }));
        }
        VmState::Gc => frames.insert(collector(text, frames), named(Named::Vm(VmState::Gc))),
        // All three states of the JIT compiler share one name, so they become one frame.
        state if state.is_jit_compiler() => frames.insert(above_lua(frames), named(Named::Vm(VmState::Record))),
        _ => {}
    }
}

fn named(named: Named) -> ResolvedFrame {
    ResolvedFrame { named: named.into(), code: Code::Name }
}

/// The number of frames above the innermost Lua function; all frames but the outermost one if there is no Lua function.
fn above_lua(frames: &[ResolvedFrame]) -> usize {
    let is_lua = |frame: &ResolvedFrame| matches!(*frame.named, Named::Lua { .. } | Named::FastFunction { .. });
    frames.iter().position(is_lua).unwrap_or(frames.len().saturating_sub(1))
}

/// How many of the innermost frames belong to the garbage collector.
///
/// If functions have names, the outermost frame with a collector function's name decides. In a stripped VM only exported
/// functions have names, and none of these belong to the collector; a frame without a name may belong to it.
fn collector(text: &Range<u64>, frames: &[ResolvedFrame]) -> usize {
    let above_lua = above_lua(frames);
    let candidates = &frames[..above_lua];
    let has_name = |frame: &ResolvedFrame, test: fn(&str) -> bool| match &*frame.named {
        Named::C { symbol, .. } => test(symbol),
        _ => false,
    };
    if let Some(outermost) = candidates.iter().rposition(|frame| has_name(frame, is_of_collector)) {
        return outermost + 1;
    }
    let is_in_vm = |frame: &&ResolvedFrame| matches!(frame.code, Code::Native { pc, .. } if text.contains(&pc));
    // Functions that the collector calls (`free`, `munmap`) lie elsewhere.
    let outside = candidates.iter().take_while(|frame| !is_in_vm(frame)).count();
    let nameless = candidates[outside..]
        .iter()
        .take_while(|frame| is_in_vm(frame) && has_name(frame, |symbol| symbol.contains("+0x")))
        .count();
    if nameless > 0 { outside + nameless } else { above_lua }
}

/// Whether only the collector uses a function of this name (`lj_gc.c`).
fn is_of_collector(symbol: &str) -> bool {
    ["lj_gc_", "gc_", "lua_gc"].iter().any(|prefix| symbol.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Range<u64> = 0x1000..0x9000;

    fn c(symbol: &str, pc: u64) -> ResolvedFrame {
        let code = Code::Native { pc, start: pc, end: pc + 1 };
        ResolvedFrame { code, ..named(Named::C { symbol: symbol.into(), module: None }) }
    }

    fn lua(line: u32) -> ResolvedFrame {
        named(Named::lua(None, b"@a.lua", line, None))
    }

    /// The frames with the mark, outermost first.
    fn marked(state: VmState, frames: &[ResolvedFrame]) -> Vec<String> {
        let mut frames: Vec<_> = frames.iter().rev().cloned().collect();
        mark(state, &TEXT, &mut frames);
        frames.iter().rev().map(|frame| frame.named.to_string()).collect()
    }

    #[test]
    fn the_collector_stands_above_whoever_triggered_it() {
        let [main, concat] = [c("main", 0x100), c("lua_concat", 0x2000)];
        let named = [c("lj_gc_step", 0x3000), c("lj_tab_free", 0x4000), c("free", 0x10_0000)];
        let stack = [&[main.clone(), lua(1), concat.clone()], &named[..]].concat();
        assert_eq!(
            marked(VmState::Gc, &stack),
            ["main", "@a.lua:1", "lua_concat", "[GC]", "lj_gc_step", "lj_tab_free", "free"]
        );
        let nameless = [c("luajit+0x3000", 0x3000), c("luajit+0x4000", 0x4000), c("free", 0x10_0000)];
        let stack = [&[main.clone(), lua(1), concat.clone()], &nameless[..]].concat();
        let shown = marked(VmState::Gc, &stack);
        assert_eq!(shown[2..5], ["lua_concat", "[GC]", "luajit+0x3000"]);
        // The frames do not show whether this is the collector.
        assert_eq!(marked(VmState::Gc, &[main.clone(), lua(1), concat.clone()])[1..3], ["@a.lua:1", "[GC]"]);
        assert_eq!(marked(VmState::Gc, &[main.clone(), lua(1)]), ["main", "@a.lua:1", "[GC]"]);
        assert_eq!(marked(VmState::Gc, &[main, c("lua_gc", 0x2000)]), ["main", "[GC]", "lua_gc"]);
        assert_eq!(marked(VmState::Gc, &[]), ["[GC]"]);
    }

    #[test]
    fn the_compiler_stands_above_what_it_compiles() {
        let stack = [c("main", 0x100), lua(1), c("lj_trace_ins", 0x2000)];
        for state in [VmState::Record, VmState::Opt, VmState::Asm] {
            assert_eq!(marked(state, &stack), ["main", "@a.lua:1", "[JIT compiler]", "lj_trace_ins"]);
        }
        assert_eq!(marked(VmState::Lfunc, &stack), ["main", "@a.lua:1", "lj_trace_ins"]);
    }

    #[test]
    fn compiled_code_says_so() {
        assert_eq!(marked(VmState::Trace, &[lua(1)]), ["@a.lua:1", "TRACE"]);
        let compiled = named(Named::lua(None, b"@a.lua", 1, None).compiled());
        assert_eq!(marked(VmState::Trace, &[compiled]), ["@a.lua:1_[j]"]);
    }
}
