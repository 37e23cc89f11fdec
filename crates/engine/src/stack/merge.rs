//! Interleaves native and Lua frames.
//!
//! Wherever C code calls into Lua (`lua_call`, `lua_pcall`, `lua_resume`), the VM's native frame is a *C frame* with an
//! address. The native unwinder meets it on its way up. The walk of the Lua stack yields its address after the frames that
//! were called through it. So the Lua frames up to that mark replace the VM's native frame.
//!
//! LuaJIT's sources: [`trace_exit_cp`].
//!
//! [`trace_exit_cp`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L835-L844

use lj_trace_common::event::{FrameRecord, RecordKind};
use lj_trace_common::frame::WalkEnd;

use lj_trace_luajit::trace::NoTrace;
use lj_trace_unwind::{NativeKind, NativeStack, UnwindEnd};

/// One frame of the merged stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JoinedFrame {
    /// Native code.
    Native {
        /// The interrupted instruction, or the return address.
        pc: u64,
        /// Whether `pc` is a return address: the call is right before it.
        is_return: bool,
    },
    /// A frame of a Lua stack, never a [`RecordKind::CFrame`].
    Lua(FrameRecord),
    /// A frame of a Lua stack that runs in a trace.
    Compiled(FrameRecord),
    /// A trace whose frames are not known. The frame in which it runs follows.
    Trace,
    /// It is not certain what is inlined into the compiled frame that follows.
    Inlined,
    /// This many Lua frames are left out here, with the native frames between them: the stack is deeper than the limit.
    LeftOut(u64),
    /// Frames are missing here.
    Unresolved(Unresolved),
}

/// The meaning of [`JoinedFrame::Inlined`], in a few words.
pub const INLINED: &str = "inlined function not certain";

/// Why frames are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unresolved {
    /// The native stack could not be unwound further.
    Native(UnwindEnd),
    /// The Lua stack could not be walked further.
    Lua(WalkEnd),
    /// The interpreter was between two frames.
    Interpreter,
    /// The frames inside a trace are not known.
    Trace(NoTrace),
}

impl std::fmt::Display for Unresolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Native(end) => f.write_str(end.reason()),
            Self::Lua(end) => f.write_str(end.describe()),
            Self::Interpreter => f.write_str("interpreter between two frames"),
            Self::Trace(reason) => f.write_str(reason.describe()),
        }
    }
}

/// A stack with its Lua and native frames merged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergedStack {
    /// All frames, innermost first.
    pub frames: Vec<JoinedFrame>,
    /// Whether the native stack was unwound to the program's entry or the thread's start.
    pub native_complete: bool,
    /// Whether there are Lua frames, and all of them are known, down to the bottom of every coroutine.
    pub lua_complete: bool,
    /// The same, except for left-out frames between the innermost and the outermost ones.
    pub both_ends: bool,
}

/// Merges a native stack with the Lua frames found on it.
///
/// `walk_end` says how the walk of the innermost coroutine ended. If that walk is complete, it says how the walks of the
/// coroutines around it ended. Uncertain innermost frames get a mark.
pub fn merge(native: &NativeStack, lua: &[FrameRecord], walk_end: WalkEnd, innermost: Innermost) -> MergedStack {
    let (mark, compiled, known) = match innermost {
        Innermost::Known => (None, 0, true),
        Innermost::Interpreter => (Some(JoinedFrame::Unresolved(Unresolved::Interpreter)), 0, false),
        Innermost::Compiled { frames, certain } => ((!certain).then_some(JoinedFrame::Inlined), frames, true),
        Innermost::Trace(reason) => (Some(JoinedFrame::Trace), 0, reason.is_none()),
    };
    let reason = match innermost {
        Innermost::Trace(Some(reason)) => Some(JoinedFrame::Unresolved(Unresolved::Trace(reason))),
        _ => None,
    };
    // If BASE is not known, the walk began at a frame that may be gone. Nothing up to its C frame is certain.
    let begun =
        if innermost == Innermost::Interpreter { lua.iter().take_while(|frame| !is_cframe(frame)).count() } else { 0 };
    let mut segments = Segments { rest: &lua[begun..], walk_end, compiled };
    let mut frames = Vec::with_capacity(native.frames.len() + lua.len());
    let mut first_vm_frame = true;
    let mut native_complete = native.end == UnwindEnd::Entry;
    for frame in &native.frames {
        match frame.kind {
            // These native frames are between left-out Lua frames, so they are left out, too, up to the next known C frame.
            NativeKind::Missing(UnwindEnd::LeftOut) => segments.take_left_out(&mut frames),
            NativeKind::Native => frames.push(JoinedFrame::Native { pc: frame.pc, is_return: frame.is_return }),
            NativeKind::Missing(end) => {
                native_complete = false;
                frames.push(JoinedFrame::Unresolved(Unresolved::Native(end)));
            }
            // The VM is being entered or left: no Lua frame belongs to this native frame.
            NativeKind::Vm { cframe: None, .. } => {}
            NativeKind::Vm { cframe: Some(cframe), .. } => {
                // The mark of the innermost Lua frame comes right before it.
                let is_empty = innermost != Innermost::Interpreter && segments.begins_with(cframe);
                if !is_empty && std::mem::take(&mut first_vm_frame) {
                    frames.extend(reason.iter().chain(&mark));
                }
                segments.take_through(cframe, &mut frames);
            }
        }
    }
    if native.end != UnwindEnd::Entry {
        frames.push(JoinedFrame::Unresolved(Unresolved::Native(native.end)));
        if first_vm_frame && !segments.rest.is_empty() {
            frames.extend(reason.iter().chain(&mark));
        }
    }
    // The part of the Lua stack that unwinding has not reached is valid all the same.
    segments.take_rest(&mut frames);
    let is = |record: &FrameRecord, kind: RecordKind| record.kind == kind as u8;
    let all_known = lua.iter().all(|record| !is(record, RecordKind::Passed));
    let both_ends = walk_end == WalkEnd::Complete && !lua.is_empty() && known && all_known;
    let is_whole = lua.iter().all(|record| !is(record, RecordKind::LeftOut));
    MergedStack { frames, native_complete, lua_complete: both_ends && is_whole, both_ends: both_ends && !is_whole }
}

/// How certain the innermost Lua frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Innermost {
    /// The innermost Lua frames are certain.
    Known,
    /// The interpreter was between two frames.
    Interpreter,
    /// Some of them run in a trace.
    Compiled {
        /// The number of frames that run in the trace.
        frames: usize,
        /// Whether it is certain that no other function is inlined into the innermost frame.
        certain: bool,
    },
    /// A trace runs in the innermost frame, and it is not known what it executes: for this reason, or because no caller
    /// asked.
    Trace(Option<NoTrace>),
}

/// The Lua frames that are not placed yet, in segments that each end with a C frame.
struct Segments<'a> {
    rest: &'a [FrameRecord],
    walk_end: WalkEnd,
    /// The number of next frames that are compiled.
    compiled: usize,
}

impl Segments<'_> {
    /// Whether the C frame at `cframe` is next, without any Lua frame before it.
    fn begins_with(&self, cframe: u64) -> bool {
        self.rest.first().is_some_and(|record| is_cframe(record) && record.code == cframe)
    }

    /// Places the frames up to the C frame at `cframe`. If the walk did not pass this C frame, because it ended earlier or
    /// began above, places none.
    fn take_through(&mut self, cframe: u64, frames: &mut Vec<JoinedFrame>) {
        let mark = |record: &FrameRecord| is_cframe(record) && record.code == cframe;
        match self.rest.iter().position(mark) {
            Some(index) => {
                let (segment, rest) = self.rest.split_at(index + 1);
                self.rest = rest;
                self.place(segment, frames);
            }
            // The walk ended inside this segment.
            None if !self.rest.iter().any(is_cframe) => self.take_rest(frames),
            None => {}
        }
    }

    /// Places the frames up to the left-out ones, and the mark of these.
    fn take_left_out(&mut self, frames: &mut Vec<JoinedFrame>) {
        let mark = |record: &FrameRecord| record.kind == RecordKind::LeftOut as u8;
        if let Some(index) = self.rest.iter().position(mark) {
            let (segment, rest) = self.rest.split_at(index + 1);
            self.rest = rest;
            self.place(segment, frames);
        }
    }

    /// Places all remaining frames, and a mark if the walk was cut off there.
    fn take_rest(&mut self, frames: &mut Vec<JoinedFrame>) {
        let rest = std::mem::take(&mut self.rest);
        self.place(rest, frames);
        if !matches!(self.walk_end, WalkEnd::Complete | WalkEnd::NoLua) {
            frames.push(JoinedFrame::Unresolved(Unresolved::Lua(self.walk_end)));
            self.walk_end = WalkEnd::NoLua;
        }
    }
}

impl Segments<'_> {
    fn place(&mut self, segment: &[FrameRecord], frames: &mut Vec<JoinedFrame>) {
        for record in segment {
            frames.push(match RecordKind::from_u8(record.kind) {
                Some(RecordKind::CFrame) => continue,
                Some(RecordKind::LeftOut) => JoinedFrame::LeftOut(record.function),
                Some(RecordKind::Passed) => {
                    let end = WalkEnd::from_u32(record.position).unwrap_or(WalkEnd::NotAFunction);
                    JoinedFrame::Unresolved(Unresolved::Lua(end))
                }
                _ if self.compiled > 0 => JoinedFrame::Compiled(*record),
                _ => JoinedFrame::Lua(*record),
            });
            self.compiled = self.compiled.saturating_sub(1);
        }
    }
}

fn is_cframe(record: &FrameRecord) -> bool {
    record.kind == RecordKind::CFrame as u8
}

#[cfg(test)]
mod tests {
    use lj_trace_unwind::{NativeFrame, Region, Registers};

    use super::*;

    fn lua(function: u64) -> FrameRecord {
        FrameRecord { function, ..FrameRecord::default() }
    }

    fn mark(cframe: u64) -> FrameRecord {
        FrameRecord { code: cframe, kind: RecordKind::CFrame as u8, ..FrameRecord::default() }
    }

    fn code(pc: u64) -> NativeFrame {
        NativeFrame { pc, is_return: true, sp: 0, kind: NativeKind::Native }
    }

    fn vm(cframe: Option<u64>) -> NativeFrame {
        let registers = Registers::only(0, 0);
        NativeFrame {
            pc: 0,
            is_return: true,
            sp: 0,
            kind: NativeKind::Vm { cframe, vm: 0, registers, region: Region::Interpreter },
        }
    }

    fn names(stack: &MergedStack) -> Vec<String> {
        let name = |frame: &JoinedFrame| match frame {
            JoinedFrame::Native { pc, .. } => format!("n{pc}"),
            JoinedFrame::Lua(record) => format!("l{}", record.function),
            JoinedFrame::Compiled(record) => format!("j{}", record.function),
            JoinedFrame::Trace => "trace".to_owned(),
            JoinedFrame::Inlined => "inlined".to_owned(),
            JoinedFrame::LeftOut(count) => format!("[{count} left out]"),
            JoinedFrame::Unresolved(reason) => format!("[{reason}]"),
        };
        stack.frames.iter().map(name).collect()
    }

    #[test]
    fn lua_frames_take_the_place_of_the_vm_frames_they_were_called_through() {
        // main -> lua_pcall -> chunk -> table.sort -> lua_call -> comparator
        let native = NativeStack {
            frames: vec![vm(Some(100)), code(1), code(2), vm(Some(200)), code(3)],
            end: UnwindEnd::Entry,
            reach: 0,
        };
        let frames = [lua(10), mark(100), lua(11), lua(12), mark(200)];
        let stack = merge(&native, &frames, WalkEnd::Complete, Innermost::Known);
        assert_eq!(names(&stack), ["l10", "n1", "n2", "l11", "l12", "n3"]);
        assert!(stack.native_complete && stack.lua_complete);
    }

    #[test]
    fn what_the_interpreter_may_have_left_is_not_shown() {
        let frames = vec![vm(Some(100)), code(1), vm(Some(200)), code(2)];
        let native = NativeStack { frames, end: UnwindEnd::Entry, reach: 0 };
        let frames = [lua(10), lua(11), mark(100), lua(12), mark(200)];
        let stack = merge(&native, &frames, WalkEnd::Complete, Innermost::Interpreter);
        assert_eq!(names(&stack), ["[interpreter between two frames]", "n1", "l12", "n2"]);
        assert!(!stack.lua_complete);
    }

    #[test]
    fn a_c_frame_without_lua_frames_places_none() {
        let native = NativeStack {
            frames: vec![vm(Some(100)), vm(None), code(1), vm(Some(200))],
            end: UnwindEnd::Entry,
            reach: 0,
        };
        let frames = [mark(100), lua(1), mark(200)];
        assert_eq!(names(&merge(&native, &frames, WalkEnd::Complete, Innermost::Known)), ["n1", "l1"]);
    }

    #[test]
    fn marks_stand_before_the_innermost_lua_frame() {
        // A trace exit: `trace_exit_cp` runs in a C frame without a Lua frame.
        let native = NativeStack {
            frames: vec![code(1), vm(Some(100)), code(2), vm(Some(200)), code(3)],
            end: UnwindEnd::Entry,
            reach: 0,
        };
        let frames = [mark(100), lua(11), lua(12), mark(200)];
        let stack = merge(&native, &frames, WalkEnd::Complete, Innermost::Trace(None));
        assert_eq!(names(&stack), ["n1", "n2", "trace", "l11", "l12", "n3"]);
        let compiled = Innermost::Compiled { frames: 1, certain: false };
        let stack = merge(&native, &frames, WalkEnd::Complete, compiled);
        assert_eq!(names(&stack), ["n1", "n2", "inlined", "j11", "l12", "n3"]);
    }

    #[test]
    fn lua_frames_survive_a_native_stack_that_ends_early() {
        let native = NativeStack { frames: vec![code(1)], end: UnwindEnd::Limit, reach: 0 };
        let frames = [lua(1), mark(100), lua(2), mark(200)];
        let stack = merge(&native, &frames, WalkEnd::Complete, Innermost::Known);
        assert_eq!(
            names(&stack),
            ["n1".to_owned(), format!("[{}]", UnwindEnd::Limit.reason()), "l1".into(), "l2".into()]
        );
        assert!(!stack.native_complete && stack.lua_complete);
    }

    #[test]
    fn a_torn_walk_is_marked_where_it_was_torn() {
        let native = NativeStack {
            frames: vec![vm(Some(100)), code(1), vm(Some(200)), code(2)],
            end: UnwindEnd::Entry,
            reach: 0,
        };
        let frames = [lua(1), mark(100), lua(2)];
        let stack = merge(&native, &frames, WalkEnd::BadLink, Innermost::Known);
        let reason = format!("[{}]", WalkEnd::BadLink.describe());
        assert_eq!(names(&stack), ["l1".into(), "n1".into(), "l2".into(), reason, "n2".to_owned()]);
        assert!(!stack.lua_complete);
    }

    #[test]
    fn what_is_left_out_has_a_mark_in_its_place() {
        let native = NativeStack {
            frames: vec![vm(Some(100)), code(1), vm(Some(200)), code(2)],
            end: UnwindEnd::Entry,
            reach: 0,
        };
        let left_out = FrameRecord::left_out(7);
        let frames = [lua(1), mark(100), lua(2), left_out, lua(3), mark(200)];
        let stack = merge(&native, &frames, WalkEnd::Complete, Innermost::Known);
        assert_eq!(names(&stack), ["l1", "n1", "l2", "[7 left out]", "l3", "n2"]);
        assert!(stack.native_complete && !stack.lua_complete && stack.both_ends);
        // C frames are left out, too. Unwinding continues at the first C frame after them.
        let missing = NativeFrame { pc: 0, is_return: true, sp: 0, kind: NativeKind::Missing(UnwindEnd::LeftOut) };
        let native = NativeStack {
            frames: vec![vm(Some(100)), code(1), vm(None), missing, vm(Some(200)), code(2)],
            end: UnwindEnd::Entry,
            reach: 0,
        };
        let stack = merge(&native, &frames, WalkEnd::Complete, Innermost::Known);
        assert_eq!(names(&stack), ["l1", "n1", "l2", "[7 left out]", "l3", "n2"]);
        assert!(stack.native_complete);
    }

    #[test]
    fn a_function_that_could_not_be_looked_at_has_a_mark() {
        let native = NativeStack { frames: vec![vm(Some(100)), code(1)], end: UnwindEnd::Entry, reach: 0 };
        let end = WalkEnd::Unreadable;
        let passed = FrameRecord { kind: RecordKind::Passed as u8, position: end as u32, ..FrameRecord::EMPTY };
        let stack = merge(&native, &[lua(1), passed, lua(2), mark(100)], WalkEnd::Complete, Innermost::Known);
        assert_eq!(names(&stack), ["l1".to_owned(), format!("[{}]", end.describe()), "l2".into(), "n1".into()]);
        assert!(!stack.lua_complete && !stack.both_ends);
    }

    #[test]
    fn a_trace_stands_above_the_frame_that_runs_it() {
        let native = NativeStack { frames: vec![code(1), vm(Some(100)), code(2)], end: UnwindEnd::Entry, reach: 0 };
        let frames = [lua(1), mark(100)];
        let stack = merge(&native, &frames, WalkEnd::Complete, Innermost::Trace(Some(NoTrace::Gone)));
        let reason = format!("[{}]", NoTrace::Gone.describe());
        assert_eq!(names(&stack), ["n1", &reason, "trace", "l1", "n2"]);
        assert!(!stack.lua_complete);
    }

    #[test]
    fn frames_in_a_trace_are_marked() {
        let native = NativeStack { frames: vec![code(1), vm(Some(100)), code(2)], end: UnwindEnd::Entry, reach: 0 };
        let frames = [lua(1), lua(2), lua(3), mark(100)];
        let compiled = |certain| Innermost::Compiled { frames: 2, certain };
        let stack = merge(&native, &frames, WalkEnd::Complete, compiled(true));
        assert_eq!(names(&stack), ["n1", "j1", "j2", "l3", "n2"]);
        let stack = merge(&native, &frames, WalkEnd::Complete, compiled(false));
        assert_eq!(names(&stack), ["n1", "inlined", "j1", "j2", "l3", "n2"]);
        assert!(stack.lua_complete, "down from the frame that is certain");
    }
}
