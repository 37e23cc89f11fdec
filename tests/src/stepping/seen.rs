//! What lj-trace sees of a program that is stopped: by the same code as for a sample.

use lj_trace_common::event::{FrameRecord, RecordKind, SAMPLE_ON_TRACE, SampleHeader, SampledRegisters, reg};
use lj_trace_common::frame::{CFRAME_FLAGS, Coroutine, Walk, WalkEnd};
use lj_trace_common::layout::ABSENT;
use lj_trace_common::memo::Memo;
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_common::top::Top;
use lj_trace_common::vm::{VmConfig, runs_at};
use lj_trace_engine::coroutines::view::{CopiedRange, View};
use lj_trace_engine::coroutines::{CoroutineSnapshot, LuaStack};
use lj_trace_engine::resolve::machine_code;
use lj_trace_engine::stack::{Innermost, JoinedFrame, SettledTop, fix_innermost_frame, merge};
use lj_trace_luajit::Vm;
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_probes::sample::Sample;
use lj_trace_process::{Maps, Process, ProcessMemory};
use lj_trace_unwind::{CFrame, NativeKind, NativeStack, Registers, Unwinder, VmCode};

use super::{Answer, Place};

/// Reads the stacks of a stopped program with one VM.
pub struct Reader<'a> {
    vm: &'a Vm,
    config: VmConfig,
    code: VmCode,
    memory: ProcessMemory,
    unwinder: Unwinder,
    maps: Maps,
    stack_end: u64,
}

impl<'a> Reader<'a> {
    pub fn new(process: &Process, maps: &Maps, vm: &'a Vm) -> Self {
        let memory = process.memory();
        let code = machine_code(&memory, vm);
        let start = process.stack_start();
        let mapped = maps.find(start).map_or(start, |mapping| mapping.end);
        let unwinder = Unwinder::new(process.clone());
        Self { vm, config: vm.config(), code, memory, unwinder, maps: maps.clone(), stack_end: (start + 8).min(mapped) }
    }

    /// The VM's state in a few words.
    pub fn state(&self) -> String {
        let layout = &self.vm.layout;
        let word = |at: u64| self.memory.read_ref(layout.is_gc64(), at).unwrap_or(0);
        let state = self.memory.read::<i32>(self.vm.global + u64::from(layout.g_vmstate)).unwrap_or(0);
        let base = self.current().map_or(0, |thread| word(thread + u64::from(layout.l_base)));
        format!("vmstate {state}, L->base {base:#x}")
    }

    /// The Lua stack where a bytecode or a fast function begins, which is in the registers.
    pub fn certain(&self, registers: &SampledRegisters) -> Option<Vec<Place>> {
        let native = self.native(registers[reg::SP]);
        let coroutines = self.coroutines(&native);
        let mut places = Vec::new();
        for (index, snapshot) in coroutines.iter().enumerate() {
            let live = PageCache::new(&self.memory);
            let mut view = View { live: &live, copies: snapshot.copies().to_vec() };
            view.copies.push(&native);
            let layout = &self.vm.layout;
            if index > 0 {
                let stack = LuaStack::of_waiting(&view, self.vm, 0, snapshot);
                if stack.end != WalkEnd::Complete {
                    return None;
                }
                places.extend(places_of(&stack.frames));
                continue;
            }
            let narrow = |word: u64| if layout.is_gc64() { word } else { word & 0xffff_ffff };
            let start = (narrow(registers[reg::BASE]), narrow(registers[reg::BYTECODE_PC]));
            let (mut walk, mut memo) = (Walk::default(), Memo::default());
            walk.start(&view, layout, &snapshot.coroutine, snapshot.cframe, start, &mut memo).ok()?;
            loop {
                let mut record = FrameRecord::EMPTY;
                match walk.step(&view, layout, (&mut record, &mut memo)) {
                    Ok(lj_trace_common::frame::WalkStep::Emitted) => places.extend(places_of(&[record])),
                    Ok(lj_trace_common::frame::WalkStep::Skipped) => {}
                    Err(WalkEnd::Complete) => break,
                    Err(_) => return None,
                }
            }
        }
        Some(places)
    }

    /// What lj-trace says of this stop, and the address in the interpreter that a C function returns to. [`None`] while a trace
    /// runs or is left.
    pub fn look(&mut self, registers: &SampledRegisters) -> Option<(Answer, Option<u64>)> {
        let native_bytes = self.native(registers[reg::SP]);
        let coroutines = self.coroutines(&native_bytes);
        let live_memory = self.memory;
        let live = PageCache::new(&live_memory);
        let mut walks: Vec<LuaStack> = Vec::new();
        for (index, snapshot) in coroutines.iter().enumerate() {
            let mut view = View { live: &live, copies: snapshot.copies().to_vec() };
            view.copies.push(&native_bytes);
            walks.push(if index == 0 && self.current().is_none_or(|current| current == snapshot.coroutine.thread) {
                LuaStack::of_running(&view, self.vm, 0, snapshot, registers)
            } else {
                LuaStack::of_waiting(&view, self.vm, 0, snapshot)
            });
        }
        let is_in_trace = |top: &Top| top.flags & SAMPLE_ON_TRACE != 0 || top.trace_exit != 0;
        if walks.first().and_then(|first| first.top.as_ref()).is_some_and(is_in_trace) {
            return None;
        }
        let mut native = self.unwind(registers, &native_bytes, &coroutines, &walks);
        let mut top = SettledTop::Certain;
        if let (Some(first), Some(snapshot)) = (walks.first_mut(), coroutines.first()) {
            top = self.settle(registers, &native_bytes, &native, snapshot, first);
            if top == SettledTop::Rewalked {
                native = self.unwind(registers, &native_bytes, &coroutines, &walks);
            }
        }
        let end = walks.iter().map(|walk| walk.end).find(|end| *end != WalkEnd::Complete);
        let end = end.unwrap_or(if walks.is_empty() { WalkEnd::NoLua } else { WalkEnd::Complete });
        let records: Vec<FrameRecord> = walks.iter().flat_map(|walk| walk.frames.iter().copied()).collect();
        let innermost = if top == SettledTop::Uncertain { Innermost::Interpreter } else { Innermost::Known };
        let merged = merge(&native, &records, end, innermost);
        let places = merged.frames.iter().filter_map(|frame| match frame {
            JoinedFrame::Lua(record) => Some((record.base, record.function)),
            _ => None,
        });
        let places: Vec<Place> = places.collect();
        let reason = merged.frames.iter().find_map(|frame| match frame {
            JoinedFrame::Unresolved(reason) => Some(reason.to_string()),
            _ => None,
        });
        let returns = native.frames.iter().find_map(|frame| match frame.kind {
            NativeKind::Vm { .. } if frame.is_return => Some(frame.pc),
            _ => None,
        });
        let answer = if merged.lua_complete {
            Answer::Known(places, merged.native_complete)
        } else {
            Answer::Marked(format!("{} ({end:?}, {top:?}, {places:x?})", reason.unwrap_or_default()))
        };
        Some((answer, returns))
    }

    fn native(&self, start: u64) -> CopiedRange {
        /// The most bytes of a fiber's stack.
        const MOST: u64 = 1 << 18;
        let own = self.maps.find(start).filter(|mapping| !(mapping.start..mapping.end).contains(&self.stack_end));
        let length = own.map_or(self.stack_end.saturating_sub(start), |fiber| (fiber.end - start).min(MOST));
        CopiedRange::read(&self.memory, start, length as usize)
    }

    /// The coroutine that runs, if the build keeps it (LuaJIT 2.0 does not).
    fn current(&self) -> Option<u64> {
        let layout = &self.vm.layout;
        let at = self.vm.global + u64::from(layout.g_cur_l);
        if layout.g_cur_l == ABSENT { None } else { self.memory.read_ref(layout.is_gc64(), at).ok() }
    }

    /// The coroutines that run on the C stack, innermost first.
    fn coroutines(&self, native: &CopiedRange) -> Vec<CoroutineSnapshot> {
        let layout = &self.vm.layout;
        let first = native.start.next_multiple_of(16);
        let end = native.start + native.bytes.len() as u64;
        let live = PageCache::new(&self.memory);
        let view = View { live: &live, copies: vec![native] };
        let mut found = Vec::new();
        for cframe in (first..end).step_by(16) {
            let Ok(thread) = view.read_ref(layout.is_gc64(), cframe + u64::from(layout.cframe_l)) else { continue };
            let is_own = thread >= native.start && thread < cframe;
            if thread < 4096 || thread & 7 != 0 || thread >> 47 != 0 || is_own {
                continue;
            }
            if runs_at(&view, &self.config, thread, cframe)
                && let Some(snapshot) = CoroutineSnapshot::read(&self.memory, self.vm, thread)
                && snapshot.cframe & !CFRAME_FLAGS == cframe
            {
                found.push(snapshot);
            }
        }
        found
    }

    fn unwind(
        &mut self,
        registers: &SampledRegisters,
        bytes: &CopiedRange,
        coroutines: &[CoroutineSnapshot],
        walks: &[LuaStack],
    ) -> NativeStack {
        let mut cframes: Vec<CFrame> = Vec::new();
        for (snapshot, walk) in coroutines.iter().zip(walks) {
            let crossed = walk.frames.iter().filter(|record| record.kind == RecordKind::CFrame as u8);
            let addresses = crossed.map(|record| record.code).chain([snapshot.cframe]);
            cframes.extend(addresses.map(|address| CFrame::new(address, 0)));
        }
        cframes.sort_by_key(|cframe| cframe.address);
        cframes.dedup_by_key(|cframe| cframe.address);
        let code = std::slice::from_ref(&self.code);
        self.unwinder.unwind(&Registers::all(*registers), &bytes.as_stack(), code, &cframes)
    }

    fn settle(
        &mut self,
        registers: &SampledRegisters,
        bytes: &CopiedRange,
        native: &NativeStack,
        snapshot: &CoroutineSnapshot,
        lua: &mut LuaStack,
    ) -> SettledTop {
        let Some(top) = lua.top else { return SettledTop::Certain };
        let (lua_stack, lua_copy_start) = snapshot.lua_stack();
        let Coroutine { thread, stack, stack_end } = snapshot.coroutine;
        let header = SampleHeader {
            registers: *registers,
            thread,
            thread_base: snapshot.base,
            lua_stack: stack,
            lua_stack_end: stack_end,
            cframe: snapshot.cframe,
            jit_base: top.jit_base,
            lua_copy_start,
            flags: top.flags,
            vmstate: top.vmstate,
            inner_frames: lua.frames.len() as u32,
            walk_end: lua.end as u32,
            trace_exit: top.trace_exit,
            ..SampleHeader::default()
        };
        let frames = std::mem::take(&mut lua.frames);
        let mut sample = Sample { header, stack: &bytes.bytes, frames, lua_stack, kernel: Vec::new() };
        let settled =
            fix_innermost_frame(&mut sample, native, &self.vm.layout, &self.code, &mut self.unwinder, &self.memory);
        lua.end = WalkEnd::from_u32(sample.header.walk_end).unwrap_or(lua.end);
        lua.frames = sample.frames;
        settled
    }
}

/// The Lua frames among records.
fn places_of(records: &[FrameRecord]) -> impl Iterator<Item = Place> {
    let is_lua = |record: &&FrameRecord| record.kind != RecordKind::CFrame as u8;
    records.iter().filter(is_lua).map(|record| (record.base, record.function))
}
