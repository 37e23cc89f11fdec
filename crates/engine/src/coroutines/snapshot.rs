//! A copy of one coroutine: its status and its Lua stack.
//!
//! LuaJIT's sources: [`LUA_YIELD`], [`coroutine.status`].
//!
//! [`LUA_YIELD`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lua.h#L44
//! [`coroutine.status`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lib_base.c#L567-L582

use lj_trace_common::event::{FrameRecord, SAMPLE_ON_TRACE, SampledRegisters};
use lj_trace_common::frame::{CFRAME_FLAGS, Coroutine, Walk, WalkEnd, WalkStep};
use lj_trace_common::layout::gct;
use lj_trace_common::memo::Memo;
use lj_trace_common::memory::ReadMemory;
use lj_trace_common::top::{self, Top};
use lj_trace_luajit::Vm;
use lj_trace_luajit::object::{field, type_of};
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_process::ProcessMemory;

use super::view::{CopiedRange, View};
use crate::stack::Innermost;

/// `LUAI_MAXSTACK` (`luaconf.h`) is 65500 slots; some builds raise it.
const MAX_SLOTS: u64 = 1 << 20;

/// A coroutine's `lua_State` and Lua stack, copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoroutineSnapshot {
    /// The addresses of the coroutine and of its stack.
    pub coroutine: Coroutine,
    /// `L->base`.
    pub base: u64,
    /// `L->top`.
    pub top: u64,
    /// `L->status`: 0, `LUA_YIELD`, or the error that ended it.
    pub status: u8,
    /// The address of its innermost C frame; 0 if it does not run.
    pub cframe: u64,
    /// The `lua_State`.
    head: CopiedRange,
    /// The Lua stack.
    stack: CopiedRange,
}

/// `LUA_YIELD` (`lua.h`).
const YIELD: u8 = 1;

impl CoroutineSnapshot {
    /// Copies the coroutine `thread` of `vm`; [`None`] if it is gone, or its stack is just being moved.
    pub fn read(memory: &ProcessMemory, vm: &Vm, thread: u64) -> Option<Self> {
        let head = CopiedRange::read(memory, thread, usize::from(vm.layout.sizeof_l));
        let mut snapshot = Self::of_head(memory, vm, thread, head)?;
        let (start, size) = snapshot.stack_place();
        snapshot.set_stack(CopiedRange::read(memory, start, size));
        Some(snapshot)
    }

    /// The coroutine from a copy of its `lua_State`, without its stack.
    pub fn of_head(memory: &ProcessMemory, vm: &Vm, thread: u64, head: CopiedRange) -> Option<Self> {
        let layout = &vm.layout;
        let gc64 = layout.is_gc64();
        let nothing = PageCache::new(memory);
        let view = View { live: &nothing, copies: vec![&head] };
        let is_it = type_of(&view, layout, thread) == Ok(gct::THREAD)
            && view.read_ref(gc64, field(thread, layout.l_glref)) == Ok(vm.global);
        if !is_it {
            return None;
        }
        let coroutine = Coroutine::read(&view, layout, thread).ok()?;
        coroutine.stack_end.checked_sub(coroutine.stack).filter(|size| *size <= MAX_SLOTS * 8)?;
        let base: u64 = view.read(field(thread, layout.l_base)).ok()?;
        let top: u64 = view.read(field(thread, layout.l_top)).ok()?;
        let status = view.read(field(thread, layout.l_status)).ok()?;
        let cframe = view.read::<u64>(field(thread, layout.l_cframe)).ok()? & !CFRAME_FLAGS;
        Some(Self { coroutine, base, top, status, cframe, head, stack: CopiedRange::default() })
    }

    /// The address of its Lua stack, and its size in bytes.
    pub fn stack_place(&self) -> (u64, usize) {
        let Coroutine { stack, stack_end, .. } = self.coroutine;
        (stack, stack_end.saturating_sub(stack).min(MAX_SLOTS * 8) as usize)
    }

    /// Sets the copy of its Lua stack.
    pub fn set_stack(&mut self, stack: CopiedRange) {
        self.stack = stack;
    }

    /// The copies, for a [`View`].
    pub fn copies(&self) -> [&CopiedRange; 2] {
        [&self.head, &self.stack]
    }

    /// The copied Lua stack, and its address.
    pub fn lua_stack(&self) -> (&[u8], u64) {
        (&self.stack.bytes, self.stack.start)
    }

    /// The value in a slot of its stack.
    pub fn slot(&self, address: u64) -> Option<u64> {
        lj_trace_luajit::overlay::plain_at(&self.stack.bytes, address.checked_sub(self.stack.start)?)
    }

    /// The status, as in `coroutine.status` (`lib_base.c`). [`Status::Running`] means `running` or `normal`; the caller
    /// distinguishes these.
    pub fn status(&self, gc64: bool) -> Status {
        let first = self.coroutine.stack.wrapping_add(if gc64 { 16 } else { 8 });
        match self.status {
            YIELD => Status::Suspended,
            0 if self.cframe != 0 => Status::Running,
            0 if self.base > first => Status::Suspended,
            0 if self.top <= self.base => Status::Finished,
            0 => Status::NotStarted,
            _ => Status::Dead,
        }
    }
}

/// The status of a coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It runs on a thread, or has called the C code that runs there.
    Running,
    /// It has resumed another coroutine, which runs.
    Normal,
    /// It runs on a C stack that no thread uses at the moment: the stack of a fiber of the host program.
    Switched,
    /// It has yielded.
    Suspended,
    /// It was created, but not resumed yet.
    NotStarted,
    /// It has nothing left to do. A VM's main thread has this status while the host program does not call Lua.
    Finished,
    /// It has ended with an error.
    Dead,
}

impl Status {
    /// The status in a few words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Normal => "has resumed another coroutine",
            Self::Switched => "on a C stack that no thread runs (a fiber)",
            Self::Suspended => "suspended",
            Self::NotStarted => "not started",
            Self::Finished => "finished",
            Self::Dead => "dead: ended with an error",
        }
    }
}

/// A Lua stack, innermost frame first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuaStack {
    /// The Lua frames with the C frames between them.
    pub frames: Vec<FrameRecord>,
    /// How the walk ended.
    pub end: WalkEnd,
    /// What is known about the innermost frames: functions that are inlined into a trace are not on the stack.
    pub innermost: Innermost,
    /// Where the walk began, if this is the coroutine that runs in its VM.
    pub top: Option<Top>,
}

impl LuaStack {
    /// A stack about which nothing is known yet.
    fn unknown() -> Self {
        Self { frames: Vec::new(), end: WalkEnd::NoLua, innermost: Innermost::Known, top: None }
    }

    /// The stack of a coroutine other than the one that runs in its VM.
    pub fn of_waiting(view: &View<'_>, vm: &Vm, index: usize, snapshot: &CoroutineSnapshot) -> Self {
        let layout = &vm.layout;
        // The PC that a C frame has saved is valid only if the innermost frame is a Lua function that has called the VM. It
        // is accepted only if it points into that function.
        let saved_pc = || view.read_ref(layout.is_gc64(), field(snapshot.cframe, layout.cframe_pc)).unwrap_or(0);
        let pc = if snapshot.cframe == 0 { 0 } else { saved_pc() };
        let mut stack = Self::unknown();
        stack.walk(view, vm, index, snapshot, (snapshot.base, pc, false));
        stack
    }

    /// The stack of the coroutine that runs in its VM, on a thread with these registers. They are zeros if they are not
    /// known.
    pub fn of_running(
        view: &View<'_>,
        vm: &Vm,
        index: usize,
        snapshot: &CoroutineSnapshot,
        registers: &SampledRegisters,
    ) -> Self {
        let (mut record, mut memo) = (FrameRecord::EMPTY, Memo::default());
        let mut stack = Self::unknown();
        match top::find(
            view,
            &vm.config(),
            registers,
            (&snapshot.coroutine, snapshot.base),
            snapshot.cframe,
            (&mut record, &mut memo),
        ) {
            Ok(top) => {
                if top.flags & SAMPLE_ON_TRACE != 0 {
                    stack.innermost = Innermost::Trace(None);
                }
                stack.top = Some(top);
                stack.walk(view, vm, index, snapshot, (top.base, top.pc, top.crosses != 0));
            }
            Err(unreadable) => stack.end = unreadable.into(),
        }
        stack
    }

    fn walk(
        &mut self,
        view: &View<'_>,
        vm: &Vm,
        index: usize,
        snapshot: &CoroutineSnapshot,
        (base, pc, crosses): (u64, u64, bool),
    ) {
        let layout = &vm.layout;
        let (mut walk, mut memo) = (Walk::default(), Memo::default());
        if let Err(end) = walk.start(view, layout, &snapshot.coroutine, snapshot.cframe, (base, pc), &mut memo) {
            self.end = end;
            return;
        }
        if crosses {
            walk.cross_first();
        }
        let bottom = snapshot.coroutine.stack.wrapping_add(if layout.is_gc64() { 16 } else { 8 });
        // Every step moves down by a slot at least, or up the C stack. The bound is only a safety net.
        for _ in 0..2 * MAX_SLOTS {
            let mut record = FrameRecord { vm: index as u16, ..FrameRecord::EMPTY };
            match walk.step(view, layout, (&mut record, &mut memo)) {
                Ok(WalkStep::Emitted) => self.frames.push(record),
                Ok(WalkStep::Skipped) => {}
                // A suspended coroutine has left the C frame in which it was resumed.
                Err(WalkEnd::CFrameMissing) if snapshot.cframe == 0 && walk.base <= bottom => {
                    self.end = WalkEnd::Complete;
                    return;
                }
                Err(end) => {
                    self.end = end;
                    return;
                }
            }
        }
        self.end = WalkEnd::TooDeep;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_what_lua_calls_it() {
        // A stack at 0x1000: with GC64 the first frame begins two slots above.
        let coroutine = Coroutine { thread: 0x100, stack: 0x1000, stack_end: 0x2000 };
        let nothing = CopiedRange::default();
        let fresh = CoroutineSnapshot {
            coroutine,
            base: 0x1010,
            top: 0x1018,
            status: 0,
            cframe: 0,
            head: nothing.clone(),
            stack: nothing,
        };
        let status = |change: fn(&mut CoroutineSnapshot)| {
            let mut snapshot = fresh.clone();
            change(&mut snapshot);
            snapshot.status(true)
        };
        assert_eq!(status(|_| {}), Status::NotStarted);
        assert_eq!(status(|s| s.top = s.base), Status::Finished);
        assert_eq!(status(|s| s.status = YIELD), Status::Suspended);
        assert_eq!(status(|s| s.cframe = 0x7ffe_0000), Status::Running);
        assert_eq!(status(|s| s.status = 2), Status::Dead, "LUA_ERRRUN");
        // Frames without a C frame: the coroutine is not resumed, as after a yield across the host program.
        assert_eq!(status(|s| s.base = 0x1040), Status::Suspended);
        assert_eq!(fresh.status(false), Status::Suspended, "without GC64 this BASE is that of a second frame");
    }

    #[test]
    fn slots_are_read_from_the_copy_alone() {
        let coroutine = Coroutine { thread: 0x100, stack: 0x1000, stack_end: 0x1010 };
        let stack = CopiedRange { start: 0x1000, bytes: (0..16).collect() };
        let head = CopiedRange::default();
        let snapshot = CoroutineSnapshot { coroutine, base: 0, top: 0, status: 0, cframe: 0, head, stack };
        assert_eq!(snapshot.slot(0x1008), Some(0x0f0e_0d0c_0b0a_0908));
        assert_eq!(snapshot.slot(0x100c), None);
        assert_eq!(snapshot.slot(0xff8), None);
    }
}
