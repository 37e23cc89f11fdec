//! The identity of a walked stack: many coroutines have equal stacks.

use lj_trace_common::event::FrameRecord;
use lj_trace_common::frame::WalkEnd;

use super::LuaStack;
use crate::stack::Innermost;

/// A Lua stack without the addresses that differ between coroutines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WalkedStack(Vec<FrameIdentity>);

/// The fields from which a frame gets its name.
type FrameIdentity = (u64, u64, [u32; 3], u8, u8, u16);

impl WalkedStack {
    /// The identity of `stack`; [`None`] if more than its frames matters.
    pub fn of(stack: &LuaStack) -> Option<Self> {
        let function = |record: &FrameRecord| {
            let &FrameRecord { code, chunkname, first_line, size_bc, position, kind, ffid, vm, .. } = record;
            (code, chunkname, [first_line, size_bc, position], kind, ffid, vm)
        };
        let is_plain = stack.innermost == Innermost::Known && stack.end == WalkEnd::Complete;
        is_plain.then(|| Self(stack.frames.iter().map(function).collect()))
    }
}
