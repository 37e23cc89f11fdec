//! Frames as columns of a row: the text to show, and the fields that restore the frame.

use std::sync::Arc;

use lj_trace_profile::Frame;
use lj_trace_streams::VmState;

/// The columns of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameFields<'a> {
    /// The kind of code.
    pub kind: &'a str,
    /// The plain name, not the shown text: a function, a symbol, a reason, or a number.
    pub name: Option<String>,
    /// The name of the file.
    pub file: Option<&'a str>,
    /// The line of the function's definition.
    pub first_line: Option<u32>,
    /// The line that was executed.
    pub line: Option<u32>,
}

/// The values of the column for the kind of frame.
mod kind {
    pub const ROOT: &str = "root";
    pub const LUA: &str = "lua";
    pub const COMPILED: &str = "jit";
    pub const CHUNK: &str = "chunk";
    pub const LINE: &str = "line";
    pub const FAST: &str = "builtin";
    pub const NATIVE: &str = "native";
    pub const KERNEL: &str = "kernel";
    pub const TRACE: &str = "trace";
    pub const VM: &str = "vm";
    pub const INTERNAL: &str = "internal";
    pub const LEFT_OUT: &str = "left_out";
    pub const RARE: &str = "rare";
    pub const UNKNOWN: &str = "unknown";
}

impl<'a> FrameFields<'a> {
    /// The columns to write for a frame.
    pub fn of(frame: &'a Frame) -> Self {
        let named = |kind, name: &str| Self { kind, name: Some(name.to_owned()), ..Self::default() };
        match frame {
            Frame::Root { name } => named(kind::ROOT, name),
            Frame::Lua { name, chunk, first_line, line, compiled } => Self {
                kind: if *compiled { kind::COMPILED } else { kind::LUA },
                name: name.as_deref().map(str::to_owned),
                file: Some(chunk),
                first_line: Some(*first_line),
                line: *line,
            },
            Frame::Chunk { chunk } => Self { kind: kind::CHUNK, file: Some(chunk), ..Self::default() },
            Frame::Line { chunk, line } => {
                Self { kind: kind::LINE, file: Some(chunk), line: Some(*line), ..Self::default() }
            }
            Frame::FastFunction { name } => named(kind::FAST, name),
            Frame::C { symbol, module } => Self { file: module.as_deref(), ..named(kind::NATIVE, symbol) },
            Frame::Kernel { symbol } => named(kind::KERNEL, symbol),
            Frame::Trace { number, start } => Self {
                kind: kind::TRACE,
                name: number.map(|number| number.to_string()),
                file: start.as_deref(),
                ..Self::default()
            },
            Frame::Vm(state) => named(kind::VM, &state.to_string()),
            Frame::Internal => Self { kind: kind::INTERNAL, ..Self::default() },
            Frame::LeftOut { least } => named(kind::LEFT_OUT, &least.to_string()),
            Frame::Rare => Self { kind: kind::RARE, ..Self::default() },
            Frame::Unresolved { reason } => named(kind::UNKNOWN, reason),
        }
    }
}

/// The columns of a frame, as they were read.
#[derive(Clone, Copy, Debug)]
pub struct ReadFrame<'a> {
    /// The shown text.
    pub shown: &'a str,
    /// See [`FrameFields`].
    pub kind: &'a str,
    /// See [`FrameFields`].
    pub name: Option<&'a str>,
    /// See [`FrameFields`].
    pub file: Option<&'a str>,
    /// See [`FrameFields`].
    pub first_line: Option<u32>,
    /// See [`FrameFields`].
    pub line: Option<u32>,
}

impl ReadFrame<'_> {
    /// The frame that was written. A later version may have written an unknown kind: such a frame becomes a native function
    /// with the shown text as its name.
    pub fn frame(self) -> Frame {
        let Self { shown, kind, name, file, first_line, line } = self;
        let text = |text: &str| -> Arc<str> { text.into() };
        let named = || text(name.unwrap_or_default());
        let in_file = || text(file.unwrap_or_default());
        match kind {
            kind::ROOT => Frame::Root { name: named() },
            kind::LUA | kind::COMPILED => Frame::Lua {
                name: name.map(text),
                chunk: in_file(),
                first_line: first_line.unwrap_or(0),
                line,
                compiled: kind == kind::COMPILED,
            },
            kind::CHUNK => Frame::Chunk { chunk: in_file() },
            kind::LINE => Frame::Line { chunk: in_file(), line: line.unwrap_or(0) },
            kind::FAST => Frame::FastFunction { name: named() },
            kind::NATIVE => Frame::C { symbol: named(), module: file.map(text) },
            kind::KERNEL => Frame::Kernel { symbol: named() },
            kind::TRACE => Frame::Trace { number: name.and_then(|number| number.parse().ok()), start: file.map(text) },
            kind::VM => Frame::Vm(name.and_then(state).unwrap_or(VmState::Interp)),
            kind::INTERNAL => Frame::Internal,
            kind::LEFT_OUT => Frame::LeftOut { least: name.and_then(|least| least.parse().ok()).unwrap_or(1) },
            kind::RARE => Frame::Rare,
            kind::UNKNOWN => Frame::Unresolved { reason: named() },
            _ => Frame::C { symbol: text(shown), module: None },
        }
    }
}

/// The state with this name.
pub fn state(name: &str) -> Option<VmState> {
    VmState::ALL.into_iter().find(|state| state.to_string() == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_state_has_a_name_of_its_own() {
        let names: BTreeSet<String> = VmState::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), VmState::ALL.len());
        assert!(VmState::ALL.iter().all(|one| state(&one.to_string()) == Some(*one)));
    }
}
