//! Threads that were off the CPU when recording ended. The kernel half samples a thread when it comes back; here, lj-trace
//! does the same from outside.

use std::collections::HashMap;

use lj_trace_common::arch::{ADDRESS_END, CFRAME_L};
use lj_trace_common::config::{MAX_FRAMES, MAX_STACK};
use lj_trace_common::event::{FrameRecord, NO_VM, RecordKind, SAMPLE_STACK_TRUNCATED, SAMPLE_WAIT, SampleHeader, reg};
use lj_trace_common::frame::{ReadFrames, Walk, WalkEnd, WalkStep};
use lj_trace_common::memo::Memo;
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};
use lj_trace_common::off_cpu::WaitingTask;
use lj_trace_common::thread::LuaThread;
use lj_trace_common::top;
use lj_trace_luajit::Vm;
use lj_trace_probes::sample::Sample;
use lj_trace_process::{Process, ProcessMemory};

/// A wait under way, with the data for its sample.
pub struct WaitUnderWay {
    header: SampleHeader,
    stack: Vec<u8>,
    frames: Vec<FrameRecord>,
    kernel: Vec<u64>,
}

/// The target's memory.
struct Live(ProcessMemory);

impl ReadFrames for Live {}

impl ReadMemory for Live {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        self.0.read(address)
    }
}

/// The recorded VMs, to be found from pointers on stacks.
pub struct KnownVms<'v> {
    /// The VMs with their indices, by the address of their `global_State`.
    by_global: HashMap<u64, (usize, &'v Vm)>,
    /// One VM of each layout.
    kinds: Vec<&'v Vm>,
}

impl<'v> KnownVms<'v> {
    /// The VMs, with their indices.
    pub fn new(vms: impl Iterator<Item = (usize, &'v Vm)>) -> Self {
        let by_global: HashMap<_, _> = vms.map(|(index, vm)| (vm.global, (index, vm))).collect();
        let mut kinds: Vec<&Vm> = Vec::new();
        for (_, vm) in by_global.values() {
            if kinds.iter().all(|known| known.layout != vm.layout) {
                kinds.push(*vm);
            }
        }
        Self { by_global, kinds }
    }
}

impl WaitUnderWay {
    /// Looks at a thread that is off the CPU. The wait counts for that many nanoseconds, and ends now, at `time`. Its
    /// native stack takes at most `room` bytes.
    pub fn look(
        process: &Process,
        vms: &KnownVms<'_>,
        task: &WaitingTask,
        (nanoseconds, time): (u64, u64),
        room: usize,
    ) -> Self {
        let memory = Live(process.memory());
        let stack = stack(process, task.registers[reg::SP], room.min(MAX_STACK as usize));
        let is_cut = stack.len() >= room.min(MAX_STACK as usize) & !7;
        let header = SampleHeader {
            time,
            registers: task.registers,
            pid: process.pid(),
            tid: task.tid,
            flags: SAMPLE_WAIT | if is_cut { SAMPLE_STACK_TRUNCATED } else { 0 },
            allocation_size: nanoseconds,
            wait_state: task.state,
            stack_size: stack.len() as u32,
            vm: NO_VM,
            walk_end: WalkEnd::NoLua as u32,
            outer_end: WalkEnd::NoLua as u32,
            ..SampleHeader::default()
        };
        let kernel = task.kernel.iter().take(task.kernel_size as usize / 8).copied().collect();
        let mut own = Self { header, stack, frames: Vec::new(), kernel };
        own.walk(&memory, vms);
        own.header.frame_count = own.frames.len() as u32;
        own
    }

    /// Adds the turn of the thread's event loop to the wait.
    pub fn in_turn(mut self, turn: u64) -> Self {
        self.header.turn = turn;
        self
    }

    /// The size of its native stack in bytes.
    pub fn size(&self) -> usize {
        self.stack.len()
    }

    /// The index of the innermost VM.
    pub fn vm(&self) -> Option<usize> {
        (self.header.vm != NO_VM).then_some(self.header.vm as usize)
    }

    /// The wait as a sample.
    pub fn sample(&self) -> Sample<'_> {
        Sample {
            header: self.header,
            stack: &self.stack,
            frames: self.frames.clone(),
            lua_stack: &[],
            kernel: self.kernel.clone(),
        }
    }

    /// Looks for C frames on the stack, from its top upward, and walks the Lua stack of each.
    fn walk(&mut self, memory: &Live, vms: &KnownVms<'_>) {
        let start = self.header.registers[reg::SP];
        let mut scan = start.wrapping_add(15) & !15;
        while let Some(offset) = scan.checked_sub(start).filter(|offset| *offset < self.stack.len() as u64) {
            let cframe = scan;
            scan += 16;
            let Some((index, vm, thread)) = self.thread_at(memory, vms, offset as usize, cframe) else { continue };
            scan = self.walk_coroutine(memory, (index, vm), &thread, cframe).max(scan);
            if self.frames.len() >= MAX_FRAMES as usize {
                return;
            }
        }
    }

    /// The coroutine that runs in the C frame at this place of the stack, if there is one: the coroutine and the C frame
    /// point at each other.
    fn thread_at<'v>(
        &self,
        memory: &Live,
        vms: &KnownVms<'v>,
        offset: usize,
        cframe: u64,
    ) -> Option<(usize, &'v Vm, LuaThread)> {
        let bytes = |at: usize| self.stack.get(offset + at..);
        let narrow = u64::from(u32::from_le_bytes(*bytes(CFRAME_L[0])?.first_chunk()?));
        let wide = u64::from_le_bytes(*bytes(CFRAME_L[1])?.first_chunk()?);
        vms.kinds.iter().find_map(|kind| {
            let word = if kind.layout.is_gc64() { wide } else { narrow };
            // A `lua_State` is aligned to 8 bytes, at an address that user space can have.
            if word & 7 != 0 || !(0x1_0000..ADDRESS_END).contains(&word) {
                return None;
            }
            let mut memo = Memo::default();
            let thread = LuaThread::read(memory, &kind.layout, word, &mut memo.head).ok()?;
            let (index, vm) = vms.by_global.get(&thread.global).copied()?;
            let is_it = thread.is_thread && thread.cframe == cframe && vm.layout == kind.layout;
            is_it.then_some((index, vm, thread))
        })
    }

    /// Walks the coroutine that runs in the C frame at `cframe`. Returns the stack address from which the code that runs
    /// the coroutine lies.
    fn walk_coroutine(&mut self, memory: &Live, (index, vm): (usize, &Vm), thread: &LuaThread, cframe: u64) -> u64 {
        let Self { header, frames, .. } = self;
        let layout = &vm.layout;
        let (mut record, mut memo, mut walk) = (FrameRecord::EMPTY, Memo::default(), Walk::default());
        let is_inner = header.vm == NO_VM;
        let mut above = 0;
        let mut crosses = false;
        let mut begin = (
            thread.base,
            memory.read_ref(layout.is_gc64(), cframe.wrapping_add(u64::from(layout.cframe_pc))).unwrap_or(0),
        );
        let mut end = None;
        if is_inner {
            header.vm = index as u32;
            (header.thread, header.cframe) = (thread.coroutine.thread, cframe);
            (header.lua_stack, header.lua_stack_end) = (thread.coroutine.stack, thread.coroutine.stack_end);
            header.thread_base = thread.base;
            memo.look_at(&thread.coroutine);
            let config = vm.config();
            let of = (&thread.coroutine, thread.base);
            match top::find(memory, &config, &header.registers, of, cframe, (&mut record, &mut memo)) {
                Ok(top) => {
                    (header.vmstate, header.jit_base) = (top.vmstate, top.jit_base);
                    header.flags |= top.flags;
                    header.trace_exit = top.trace_exit;
                    crosses = top.crosses != 0;
                    begin = (top.base, top.pc);
                }
                Err(_) => end = Some(WalkEnd::Unreadable),
            }
        }
        if end.is_none() {
            end = walk.start(memory, layout, &thread.coroutine, cframe, begin, &mut memo).err();
            if crosses {
                walk.cross_first();
            }
        }
        // Every step moves down by a slot at least, or up the C stack; but a stack may have billions of slots, and not every
        // step finds a frame.
        let mut steps = 0..4 * MAX_FRAMES;
        let end = loop {
            if let Some(end) = end {
                break end;
            }
            if steps.next().is_none() || frames.len() >= MAX_FRAMES as usize {
                break WalkEnd::TooDeep;
            }
            let mut record = FrameRecord { vm: index as u16, ..FrameRecord::EMPTY };
            match walk.step(memory, layout, (&mut record, &mut memo)) {
                Ok(WalkStep::Emitted) => {
                    record.vm = index as u16;
                    if record.kind == RecordKind::CFrame as u8 {
                        above = (record.code & !15).wrapping_add(16);
                        header.crossings += 1;
                    }
                    frames.push(record);
                }
                Ok(WalkStep::Skipped) => {}
                Err(end) => break end,
            }
        };
        if header.walk_end == WalkEnd::NoLua as u32 {
            header.walk_end = end as u32;
            header.inner_frames = frames.len() as u32;
        } else if header.outer_end == WalkEnd::NoLua as u32 || header.outer_end == WalkEnd::Complete as u32 {
            header.outer_end = end as u32;
        }
        above
    }
}

/// The native stack from its top upward, at most as many bytes as a sample has.
fn stack(process: &Process, start: u64, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most];
    let mut done = 0;
    let memory = process.memory();
    while let Some(left) = bytes.get_mut(done..).filter(|left| !left.is_empty()) {
        match memory.read_some(start.wrapping_add(done as u64), left) {
            Ok(count) if count > 0 => done += count,
            _ => break,
        }
    }
    bytes.truncate(done & !7);
    bytes
}
