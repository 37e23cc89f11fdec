//! A quick look at what a VM is executing.

use serde::Serialize;

use lj_trace_common::event::{FrameRecord, NO_POSITION, NO_REGISTERS, RecordKind};
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_luajit::{FunctionNamer, Prototype, PrototypeKey, Vm, VmStatus};
use lj_trace_process::ProcessMemory;
use lj_trace_profile::Frame;

use lj_trace_engine::coroutines::view::View;
use lj_trace_engine::coroutines::{CoroutineSnapshot, LuaStack};

/// What a VM is executing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Activity {
    /// Its state, as in sysprof's streams: `CFUNC`, `TRACE`.
    pub state: String,
    /// Its innermost Lua function, as profiles show it: `name@file.lua:12`.
    pub function: Option<String>,
    /// The function's chunk.
    pub source: Option<String>,
    /// The current line, if known.
    pub line: Option<u32>,
}

/// How many objects of a heap to search for the creator of a function. There is a limit because there may be many
/// processes.
const OBJECTS: u64 = 1 << 18;

/// What `vm` is executing; [`None`] if the host is not calling into it at the moment.
pub fn activity(memory: &ProcessMemory, vm: &Vm, status: &VmStatus) -> Option<Activity> {
    // LuaJIT 2.0 does not say which coroutine runs, but its main thread shows whether any coroutine runs.
    let thread = status.current.unwrap_or(vm.main_thread);
    let snapshot = CoroutineSnapshot::read(memory, vm, thread).filter(|snapshot| snapshot.cframe != 0)?;
    let live = PageCache::new(memory);
    let view = View { live: &live, copies: snapshot.copies().to_vec() };
    let stack = LuaStack::of_running(&view, vm, 0, &snapshot, &NO_REGISTERS);
    let mut activity = Activity { state: status.state.to_string(), function: None, source: None, line: None };
    let is_lua = |record: &FrameRecord| record.kind == RecordKind::Lua as u8;
    if let Some(index) = stack.frames.iter().position(is_lua)
        && let Ok(prototype) = Prototype::read(&live, &vm.layout, PrototypeKey::of(&stack.frames[index]))
    {
        let record = &stack.frames[index];
        // The function's creator is often on the stack as well.
        let mut namer = FunctionNamer::within(OBJECTS);
        for record in stack.frames[index..].iter().filter(|record| is_lua(record)) {
            if let Ok(caller) = Prototype::read(&live, &vm.layout, PrototypeKey::of(record)) {
                namer.add_children(&caller);
            }
        }
        let name = namer.name(&live, vm, &prototype.key);
        activity.line = Some(record.position).filter(|&at| at != NO_POSITION).and_then(|at| prototype.line_at(at));
        let frame = Frame::lua(name, prototype.chunkname.as_bytes(), record.first_line, activity.line);
        activity.function = Some(frame.to_string());
        if let Frame::Lua { chunk, .. } = &frame {
            activity.source = Some(chunk.to_string());
        }
    }
    Some(activity)
}
