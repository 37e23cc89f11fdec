//! Whether stacks are complete: a profile has a mark wherever frames are missing, and the mark says which and why.

use lj_trace_common::frame::WalkEnd;
use lj_trace_engine::stack::Unresolved;
use lj_trace_luajit::trace::NoTrace;
use lj_trace_unwind::UnwindEnd;

use super::profile::Sampled;

/// Why a native stack may end too early. `every_reason_is_known` fails if one is missing here.
const NATIVE: [UnwindEnd; 11] = [
    UnwindEnd::NoUnwindInfo { pc: 0 },
    UnwindEnd::BadUnwindInfo { pc: 0 },
    UnwindEnd::StackNotCaptured { address: 0 },
    UnwindEnd::UnknownMapping { pc: 0 },
    UnwindEnd::UprobeTrampoline { pc: 0 },
    UnwindEnd::NotIncreasing { pc: 0 },
    UnwindEnd::RegisterLost { pc: 0 },
    UnwindEnd::NoCFrame { pc: 0 },
    UnwindEnd::Thrown { pc: 0 },
    UnwindEnd::Limit,
    UnwindEnd::LeftOut,
];

/// Why the frames in a trace may not be known.
const TRACE: [NoTrace; 6] =
    [NoTrace::Gone, NoTrace::Mismatch, NoTrace::Unreadable, NoTrace::Undecided, NoTrace::Leaving, NoTrace::NotReached];

/// The number of samples by what is missing. A sample may count in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incomplete {
    /// Native frames.
    pub native: u64,
    /// Lua frames.
    pub lua: u64,
}

/// The marks of what is missing, as profiles show them.
#[derive(Debug)]
pub struct Marks {
    native: Vec<String>,
    lua: Vec<String>,
}

impl Default for Marks {
    fn default() -> Self {
        let mark = |reason: Unresolved| format!("[unknown: {reason}]");
        let walks = WalkEnd::ALL.into_iter().filter(|end| !matches!(end, WalkEnd::Complete | WalkEnd::NoLua));
        let lua = walks.map(Unresolved::Lua).chain(TRACE.map(Unresolved::Trace)).chain([Unresolved::Interpreter]);
        Self { native: NATIVE.map(Unresolved::Native).map(mark).to_vec(), lua: lua.map(mark).collect() }
    }
}

impl Marks {
    /// Counts the samples of a stack.
    pub fn count(&self, sampled: &Sampled) -> Incomplete {
        let has_one = |marks: &[String]| sampled.frames.iter().any(|frame| marks.contains(&frame.name));
        let samples = |marks| if has_one(marks) { sampled.samples } else { 0 };
        Incomplete { native: samples(&self.native), lua: samples(&self.lua) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile::Frame;
    use super::*;

    fn sampled(names: &[&str], samples: u64) -> Sampled {
        let frame = |name: &&str| Frame { name: (*name).to_owned(), file: String::new(), first: 0, line: 0 };
        Sampled { frames: names.iter().map(frame).collect(), samples }
    }

    #[test]
    fn marks_tell_what_is_missing() {
        let profile = [
            sampled(&["main", "lua_call", "f@oracle.lua:1"], 100),
            sampled(&["[unknown: no unwind information]", "f@oracle.lua:1", "[unknown: no unwind information]"], 1),
            sampled(&["main", "[unknown: interpreter between two frames]", "f@oracle.lua:1"], 2),
            sampled(&["main", "[unknown: Lua stack torn: bad frame link]", "[unknown: too many frames]"], 4),
            sampled(&["main", "[unknown: between a trace and the interpreter]"], 8),
            // The function is one of several, or has no name: nothing is missing.
            sampled(&["main", "[unknown: inlined function not certain]", "[unknown: no symbol]"], 16),
        ];
        let missing = profile.map(|sampled| Marks::default().count(&sampled));
        assert_eq!(missing.map(|missing| missing.native), [0, 1, 0, 4, 0, 0]);
        assert_eq!(missing.map(|missing| missing.lua), [0, 0, 2, 4, 8, 0]);
    }

    /// The compiler fails to build this if a reason is added; `NATIVE` and `TRACE` must then have it, too.
    #[test]
    fn every_reason_is_known() {
        let number = |end: UnwindEnd| match end {
            UnwindEnd::NoUnwindInfo { .. } => 0,
            UnwindEnd::BadUnwindInfo { .. } => 1,
            UnwindEnd::StackNotCaptured { .. } => 2,
            UnwindEnd::UnknownMapping { .. } => 3,
            UnwindEnd::UprobeTrampoline { .. } => 4,
            UnwindEnd::NotIncreasing { .. } => 5,
            UnwindEnd::RegisterLost { .. } => 6,
            UnwindEnd::NoCFrame { .. } => 7,
            UnwindEnd::Thrown { .. } => 8,
            UnwindEnd::Limit => 9,
            UnwindEnd::LeftOut => 10,
            // It is no reason.
            UnwindEnd::Entry => usize::MAX,
        };
        assert!(NATIVE.into_iter().map(number).eq(0..NATIVE.len()));
        let number = |reason: NoTrace| match reason {
            NoTrace::Gone => 0,
            NoTrace::Mismatch => 1,
            NoTrace::Unreadable => 2,
            NoTrace::Undecided => 3,
            NoTrace::Leaving => 4,
            NoTrace::NotReached => 5,
        };
        assert!(TRACE.into_iter().map(number).eq(0..TRACE.len()));
    }
}
