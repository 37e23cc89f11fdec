//! A C stack of the target with the coroutines on it: of a thread, or of a fiber that is switched out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lj_trace_common::event::{FrameRecord, NO_REGISTERS, RecordKind, SampleHeader, SampledRegisters, reg};
use lj_trace_common::frame::{CFRAME_FLAGS, WalkEnd};
use lj_trace_common::layout::ABSENT;
use lj_trace_common::memory::ReadMemory;
use lj_trace_common::vm::{VmConfig, runs_at};
use lj_trace_luajit::object::field;
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_luajit::trace::Traces;
use lj_trace_luajit::{Vm, VmStatus};
use lj_trace_probes::sample::Sample;
use lj_trace_process::{Maps, ProcessMemory};
use lj_trace_unwind::{CFrame, NativeStack, Registers, UnwindEnd, Unwinder, VmCode};

use super::inlined::Inlined;
use lj_trace_engine::coroutines::view::{CopiedRange, View};
use lj_trace_engine::coroutines::{CoroutineSnapshot, LuaStack};
use lj_trace_engine::stack::{Innermost, JoinedFrame, SettledTop, Unresolved, fix_innermost_frame, merge};

/// How many bytes of a thread's stack to copy at most.
const MAX_THREAD_COPY: u64 = 256 << 10;

/// How many bytes of a fiber's stack to copy at most: there may be thousands of fibers, and their stacks are small.
const MAX_FIBER_COPY: u64 = 64 << 10;

/// Where to enter a C stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// At the registers of the thread that waits there.
    Registers {
        /// Its program counter.
        pc: u64,
        /// Its stack pointer.
        sp: u64,
    },
    /// At the full registers of a thread that was stopped there.
    Stopped(SampledRegisters),
    /// At a coroutine's innermost C frame: what is below that frame is unknown.
    CFrame(u64),
}

/// A C stack, copied, with the coroutines on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSnapshot {
    entry: Entry,
    native: CopiedRange,
    /// The coroutines, innermost first: the index of the VM, and the coroutine's state.
    pub coroutines: Vec<(usize, CoroutineSnapshot)>,
    /// The state of their VMs, by index.
    statuses: BTreeMap<usize, VmStatus>,
}

/// What is needed of the process to read its stacks.
pub struct DumpTarget<'a> {
    pub memory: &'a ProcessMemory,
    pub maps: &'a Maps,
    pub vms: &'a [Vm],
    pub configs: Vec<VmConfig>,
    pub codes: Vec<VmCode>,
    /// Where the main thread's stack began when the program was started; 0 if unknown.
    pub stack_start: u64,
}

/// Readers of code and unwind tables, which cache what they have read.
pub struct Readers {
    /// For native code.
    pub unwinder: Unwinder,
    /// For traces, one for each VM.
    pub traces: Vec<Traces>,
}

impl StackSnapshot {
    /// Copies the stack, starting at `entry`.
    pub fn read(target: &DumpTarget<'_>, entry: Entry) -> Self {
        let (start, most) = match entry {
            Entry::Registers { sp, .. } => (sp, MAX_THREAD_COPY),
            Entry::Stopped(registers) => (registers[reg::SP], MAX_THREAD_COPY),
            Entry::CFrame(address) => (address, MAX_FIBER_COPY),
        };
        let end = target.maps.find(start).map_or(start, |mapping| mapping.end).min(start.saturating_add(most));
        // Above the main thread's first frame are only the arguments and the environment.
        let end = if (start..end).contains(&target.stack_start) { (target.stack_start + 8).min(end) } else { end };
        let native = CopiedRange::read(target.memory, start, (end - start) as usize);
        let coroutines = coroutines_on(target, &native);
        let here: BTreeSet<usize> = coroutines.iter().map(|(index, _)| *index).collect();
        let status = |index: usize| Some((index, VmStatus::read(target.memory, target.vms.get(index)?).ok()?));
        let statuses = here.into_iter().filter_map(status).collect();
        Self { entry, native, coroutines, statuses }
    }

    /// The state of a VM at that moment.
    pub fn status(&self, vm: usize) -> Option<&VmStatus> {
        self.statuses.get(&vm)
    }

    /// Walks and unwinds the stack.
    pub fn resolve(mut self, target: &DumpTarget<'_>, readers: &mut Readers) -> ResolvedStack {
        let Readers { unwinder, traces } = readers;
        let mut walks = self.walk(target);
        let mut native = self.unwind(target, unwinder, &walks);
        if matches!(self.entry, Entry::CFrame(_)) {
            // If fibers' stacks come from one allocator, other fibers' stacks follow this one. They do not belong to
            // it.
            let reached = native.frames.last().map_or(0, |frame| frame.sp);
            let own = |(index, snapshot): &(usize, &CoroutineSnapshot)| {
                if native.end == UnwindEnd::Entry { snapshot.cframe <= reached } else { *index == 0 }
            };
            let known = self.coroutines.iter().map(|(_, snapshot)| snapshot).enumerate().filter(own).count();
            if known < self.coroutines.len() {
                self.coroutines.truncate(known);
                walks.truncate(known);
                native = self.unwind(target, unwinder, &walks);
            }
        }
        let mut top = SettledTop::Certain;
        if let (Entry::Stopped(registers), Some(first)) = (self.entry, walks.first_mut()) {
            top = self.settle(target, unwinder, first, &native, registers);
            if top == SettledTop::Rewalked {
                native = self.unwind(target, unwinder, &walks);
            }
        }
        let mut trace = None;
        if let (Some(first), Some((vm, snapshot))) = (walks.first_mut(), self.coroutines.first()) {
            // The thread's position is unknown, and so is its position in a trace.
            if !matches!(self.entry, Entry::CFrame(_))
                && let Some(traces) = traces.get_mut(*vm)
            {
                let stack = self.native.as_stack();
                let is_stopped = matches!(self.entry, Entry::Stopped(_));
                let registers = (self.registers(), is_stopped);
                let inlined = Inlined { target, vm: *vm, snapshot, native: &native, stack, registers };
                trace = inlined.enter(first, traces).map(|number| (*vm, Some(number)));
            }
            if top == SettledTop::Uncertain && first.innermost == Innermost::Known {
                first.innermost = Innermost::Interpreter;
            }
            if first.innermost != Innermost::Known {
                trace = trace.or_else(|| Some((*vm, self.status(*vm).and_then(|status| status.trace))));
            }
        }
        let end = walks.iter().map(|walk| walk.end).find(|end| *end != WalkEnd::Complete);
        let end = end.unwrap_or(if walks.is_empty() { WalkEnd::NoLua } else { WalkEnd::Complete });
        let records: Vec<FrameRecord> = walks.iter().flat_map(|walk| walk.frames.iter().copied()).collect();
        let innermost = walks.first().map_or(Innermost::Known, |walk| walk.innermost);
        let merged = merge(&native, &records, end, innermost);
        let mut frames = merged.frames;
        if matches!(self.entry, Entry::CFrame(_)) {
            // Drops what was tried below the C frame.
            let is_start = |frame: &JoinedFrame| match frame {
                JoinedFrame::Native { pc, .. } => *pc == 0,
                JoinedFrame::Unresolved(Unresolved::Native(UnwindEnd::UnknownMapping { pc })) => *pc == 0,
                _ => false,
            };
            let start = frames.iter().position(|frame| !is_start(frame)).unwrap_or(frames.len());
            frames.drain(..start);
        }
        ResolvedStack { coroutines: self.coroutines, walks, frames, trace }
    }

    /// The known registers; the others are zero.
    fn registers(&self) -> SampledRegisters {
        let mut registers = NO_REGISTERS;
        match self.entry {
            Entry::Registers { pc, sp } => (registers[reg::PC], registers[reg::SP]) = (pc, sp),
            Entry::Stopped(all) => registers = all,
            Entry::CFrame(_) => {}
        }
        registers
    }

    /// Corrects the innermost Lua frames of a stopped thread, as for a sample.
    fn settle(
        &self,
        target: &DumpTarget<'_>,
        unwinder: &mut Unwinder,
        lua: &mut LuaStack,
        native: &NativeStack,
        registers: SampledRegisters,
    ) -> SettledTop {
        let (Some((index, snapshot)), Some(top)) = (self.coroutines.first(), lua.top) else {
            return SettledTop::Certain;
        };
        let ((lua_stack, lua_copy_start), coroutine) = (snapshot.lua_stack(), snapshot.coroutine);
        let header = SampleHeader {
            registers,
            thread: coroutine.thread,
            thread_base: snapshot.base,
            lua_stack: coroutine.stack,
            lua_stack_end: coroutine.stack_end,
            cframe: snapshot.cframe,
            jit_base: top.jit_base,
            lua_copy_start,
            flags: top.flags,
            vm: *index as u32,
            vmstate: top.vmstate,
            inner_frames: u32::try_from(lua.frames.len()).unwrap_or(u32::MAX),
            walk_end: lua.end as u32,
            trace_exit: top.trace_exit,
            ..SampleHeader::default()
        };
        let frames = std::mem::take(&mut lua.frames);
        let mut sample = Sample { header, stack: &self.native.bytes, frames, lua_stack, kernel: Vec::new() };
        let (layout, code) = (&target.vms[*index].layout, &target.codes[*index]);
        let settled = fix_innermost_frame(&mut sample, native, layout, code, unwinder, target.memory);
        lua.end = WalkEnd::from_u32(sample.header.walk_end).unwrap_or(lua.end);
        lua.frames = sample.frames;
        settled
    }

    /// The Lua stacks of its coroutines.
    fn walk(&self, target: &DumpTarget<'_>) -> Vec<LuaStack> {
        let live = PageCache::new(target.memory);
        let mut seen = vec![false; target.vms.len()];
        let walk = |(index, snapshot): &(usize, CoroutineSnapshot)| {
            let vm = &target.vms[*index];
            let mut view = View { live: &live, copies: snapshot.copies().to_vec() };
            view.copies.push(&self.native);
            let innermost = !std::mem::replace(&mut seen[*index], true);
            let current = self.status(*index).and_then(|status| status.current);
            let is_current = current == Some(snapshot.coroutine.thread) || vm.layout.g_cur_l == ABSENT;
            if innermost && is_current {
                LuaStack::of_running(&view, vm, *index, snapshot, &self.registers())
            } else {
                LuaStack::of_waiting(&view, vm, *index, snapshot)
            }
        };
        self.coroutines.iter().map(walk).collect()
    }

    fn unwind(&self, target: &DumpTarget<'_>, unwinder: &mut Unwinder, walks: &[LuaStack]) -> NativeStack {
        let registers = match self.entry {
            Entry::Registers { pc, sp } => Registers::only(pc, sp),
            Entry::Stopped(registers) => Registers::all(registers),
            Entry::CFrame(address) => Registers::only(0, address),
        };
        let mut cframes: Vec<CFrame> = Vec::new();
        for ((index, snapshot), walk) in self.coroutines.iter().zip(walks) {
            let crossed = walk.frames.iter().filter(|record| record.kind == RecordKind::CFrame as u8);
            let addresses = crossed.map(|record| record.code).chain([snapshot.cframe]);
            cframes.extend(addresses.map(|address| CFrame::new(address, *index)));
        }
        cframes.sort_by_key(|cframe| cframe.address);
        cframes.dedup_by_key(|cframe| cframe.address);
        unwinder.unwind(&registers, &self.native.as_stack(), &target.codes, &cframes)
    }
}

/// A C stack with its frames.
pub struct ResolvedStack {
    /// The coroutines on it, innermost first, with the index of their VM.
    pub coroutines: Vec<(usize, CoroutineSnapshot)>,
    /// Their Lua stacks.
    pub walks: Vec<LuaStack>,
    /// Native and Lua frames together.
    pub frames: Vec<JoinedFrame>,
    /// The VM whose trace runs, with the trace's number.
    pub trace: Option<(usize, Option<u16>)>,
}

/// Nothing is mapped below this address (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: u64 = 4096;

/// Finds the coroutines that run on a C stack by the C frames that their VMs have left there: frame and coroutine point
/// at each other.
fn coroutines_on(target: &DumpTarget<'_>, native: &CopiedRange) -> Vec<(usize, CoroutineSnapshot)> {
    let live = PageCache::new(target.memory);
    let view = View { live: &live, copies: vec![native] };
    // A process may have a thousand VMs, but only of a few kinds.
    let by_global: HashMap<u64, usize> = target.vms.iter().map(|vm| vm.global).zip(0..).collect();
    let mut kinds: Vec<(bool, u16, u16)> = target.vms.iter().map(kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut found: Vec<(usize, CoroutineSnapshot)> = Vec::new();
    // The ABI aligns C frames to 16 bytes.
    let first = native.start.next_multiple_of(16);
    let end = native.start + native.bytes.len() as u64;
    for cframe in (first..end).step_by(16) {
        for &(gc64, cframe_l, l_glref) in &kinds {
            let Ok(thread) = view.read_ref(gc64, cframe.wrapping_add(u64::from(cframe_l))) else { continue };
            // Cheap tests first: hardly any word on a stack is the address of a coroutine. The address may be above the
            // frame, because the VM's own memory can directly follow a thread's stack.
            let own = thread >= native.start && thread < cframe;
            if thread < LOWEST_ADDRESS || thread & 7 != 0 || thread >> 47 != 0 || own {
                continue;
            }
            if let Ok(global) = view.read_ref(gc64, field(thread, l_glref))
                && let Some(&index) = by_global.get(&global)
                && let (vm, config) = (&target.vms[index], &target.configs[index])
                && kind(vm) == (gc64, cframe_l, l_glref)
                && runs_at(&view, config, thread, cframe)
                && let Some(snapshot) = CoroutineSnapshot::read(target.memory, vm, thread)
                && snapshot.cframe & !CFRAME_FLAGS == cframe
            {
                found.push((index, snapshot));
                break;
            }
        }
    }
    found
}

/// What distinguishes a VM's C frames: the width of its references, where a C frame has its coroutine, and where a
/// coroutine has its VM.
fn kind(vm: &Vm) -> (bool, u16, u16) {
    (vm.layout.is_gc64(), vm.layout.cframe_l, vm.layout.l_glref)
}
