//! Finds the functions inlined into a trace from which a waiting thread has called native code.

use lj_trace_common::event::{SampleHeader, SampledRegisters, reg};
use lj_trace_luajit::trace::{self, Hit, Traces, is_on_trace};
use lj_trace_unwind::{NativeStack, StackCopy};

use super::stack::DumpTarget;
use lj_trace_engine::coroutines::{CoroutineSnapshot, LuaStack};
use lj_trace_engine::stack::Innermost;

/// A waiting thread, and the coroutine that runs on it.
pub struct Inlined<'a> {
    pub target: &'a DumpTarget<'a>,
    /// The index of the coroutine's VM.
    pub vm: usize,
    pub snapshot: &'a CoroutineSnapshot,
    /// The thread's native stack after unwinding.
    pub native: &'a NativeStack,
    /// The raw copy of that stack.
    pub stack: StackCopy<'a>,
    /// Its registers, and whether all of them are known, not only the program counter and the stack pointer.
    pub registers: (SampledRegisters, bool),
}

impl Inlined<'_> {
    /// Puts the frames inside the trace on top of the coroutine's Lua stack, in place of the frame that the trace runs
    /// in. Returns the number of the trace; [`None`] if the thread is not in a trace, or its trace is unknown.
    pub fn enter(&self, lua: &mut LuaStack, traces: &mut Traces) -> Option<u16> {
        let Self { target, vm: index, snapshot, native, stack, registers: (registers, are_all_known) } = *self;
        let vm = target.vms.get(index)?;
        let top = lua.top?;
        let mut header = SampleHeader {
            thread: snapshot.coroutine.thread,
            thread_base: snapshot.base,
            cframe: snapshot.cframe,
            jit_base: top.jit_base,
            flags: top.flags,
            vmstate: top.vmstate,
            trace_exit: top.trace_exit,
            registers,
            ..SampleHeader::default()
        };
        if !are_all_known {
            // No exit has this number: only registers from a real sample can name an exit.
            header.registers[reg::EXIT_NUMBER] = u64::MAX;
        }
        if !is_on_trace(vm, &header, native) {
            lua.innermost = Innermost::Known;
            return None;
        }
        let hit = Hit { header: &header, native, frames: &lua.frames, lua_stack: snapshot.lua_stack(), stack };
        let bottom = hit.bottom();
        match trace::resolve(traces, target.memory, vm, hit, || Some(target.maps.clone())) {
            Ok(found) => {
                lua.innermost = Innermost::Compiled { frames: found.frames.len(), certain: found.certain };
                if let Some(bottom) = bottom {
                    lua.frames.splice(bottom..=bottom, found.frames);
                }
                Some(found.trace.body.trace.number)
            }
            Err(reason) => {
                lua.innermost = Innermost::Trace(Some(reason));
                None
            }
        }
    }
}
