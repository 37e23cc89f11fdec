//! A made-up VM in made-up memory: only the objects that a walk reads, laid out as in a real build.

use std::cell::RefCell;
use std::collections::BTreeMap;

use lj_trace_common::config::MAX_FRAMES;
use lj_trace_common::ends::{self, INNERMOST};
use lj_trace_common::event::{FrameRecord, RecordKind};
use lj_trace_common::frame::{self, Coroutine, ReadFrames, Walk, WalkEnd, WalkStep};
use lj_trace_common::layout::{ABSENT, VmLayout, gct};
use lj_trace_common::memo::Memo;
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};

/// Sparse memory, byte by byte.
#[derive(Default)]
pub struct Memory(RefCell<BTreeMap<u64, u8>>);

impl Memory {
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.0.borrow_mut().extend((address..).zip(bytes.iter().copied()));
    }

    pub fn write_u32(&self, address: u64, value: u32) {
        self.write(address, &value.to_le_bytes());
    }

    pub fn write_u64(&self, address: u64, value: u64) {
        self.write(address, &value.to_le_bytes());
    }
}

impl ReadFrames for Memory {}

impl ReadMemory for Memory {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let memory = self.0.borrow();
        let bytes: Option<Vec<u8>> =
            (0..size_of::<T>() as u64).map(|offset| memory.get(&address.wrapping_add(offset)).copied()).collect();
        let bytes = bytes.ok_or(Unreadable)?;
        // SAFETY: there are as many bytes as the value has, and plain data takes any of them.
        Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}

/// A VM with one coroutine whose Lua stack grows by the methods below.
pub struct Lab {
    pub memory: Memory,
    pub layout: VmLayout,
    pub coroutine: Coroutine,
    /// BASE of the innermost frame.
    pub base: u64,
    /// The innermost C frame.
    pub cframe: u64,
    next_object: u64,
}

pub const THREAD: u64 = 0x20_0000;
const STACK: u64 = 0x30_0000;
const STACK_SIZE: u64 = 0x8000;

/// The fields that a walk reads, of the Debian build of 2022-03 (GC64) and of 2.1 without GC64.
pub fn layout(gc64: bool) -> VmLayout {
    let mut layout = VmLayout::from_values(&[ABSENT; VmLayout::FIELDS.len()]);
    layout.gc64 = gc64.into();
    layout.vm_states = 0;
    let wide = |yes: u16, no: u16| if gc64 { yes } else { no };
    layout.l_glref = wide(16, 8);
    layout.l_base = wide(32, 16);
    layout.l_stack = wide(56, 36);
    layout.l_stacksize = wide(88, 56);
    layout.l_cframe = wide(80, 48);
    layout.fn_ffid = wide(10, 6);
    layout.fn_pc = wide(32, 16);
    layout.fn_c = wide(40, 24);
    layout.sizeof_pt = wide(104, 64);
    layout.pt_sizebc = wide(12, 8);
    layout.pt_chunkname = wide(64, 40);
    layout.pt_firstline = wide(72, 44);
    layout.pt_numline = wide(76, 48);
    layout.pt_lineinfo = wide(80, 52);
    layout.str_len = wide(16, 12);
    layout.sizeof_str = wide(24, 16);
    layout.g_to_j = 800;
    layout.tr_startpc = wide(72, 52);
    layout.tr_startins = wide(80, 56);
    layout.cframe_l = wide(16, 24);
    layout.cframe_pc = wide(24, 28);
    layout.cframe_prev = 32;
    layout.cframe_nres = wide(8, 16);
    layout.g_vmstate = 16;
    layout.g_jit_base = 24;
    layout
}

impl Lab {
    pub fn new(gc64: bool) -> Self {
        Self::with_stack(gc64, STACK_SIZE)
    }

    /// A lab whose Lua stack has `size` bytes.
    pub fn with_stack(gc64: bool, size: u64) -> Self {
        let layout = layout(gc64);
        let memory = Memory::default();
        memory.write(STACK, &vec![0; size as usize]);
        let slot = if gc64 { 16 } else { 8 };
        let coroutine = Coroutine { thread: THREAD, stack: STACK, stack_end: STACK + size };
        let lab = Self { memory, layout, coroutine, base: STACK + slot, cframe: 0, next_object: 0x10_0000 };
        // The dummy frame at the bottom holds the coroutine itself.
        lab.write_frame(STACK + slot, THREAD, 0);
        lab
    }

    pub fn gc64(&self) -> bool {
        self.layout.is_gc64()
    }

    /// Slots of a frame's header.
    fn header(&self) -> u64 {
        if self.gc64() { 2 } else { 1 }
    }

    pub fn write_ref(&self, address: u64, value: u64) {
        if self.gc64() {
            self.memory.write_u64(address, value);
        } else {
            self.memory.write_u32(address, value as u32);
        }
    }

    fn write_frame(&self, base: u64, function: u64, link: u64) {
        if self.gc64() {
            // Tagged as a function (LJ_TFUNC << 47), as the VM does.
            let tag = if link == 0 { 0 } else { 0xfffb_8000_0000_0000 };
            self.memory.write_u64(base - 16, function | tag);
            self.memory.write_u64(base - 8, link);
        } else {
            self.memory.write_u32(base - 8, function as u32);
            self.memory.write_u32(base - 4, link as u32);
        }
    }

    fn allocate(&mut self, size: u64) -> u64 {
        let address = self.next_object;
        self.memory.write(address, &vec![0; size as usize]);
        self.next_object += size.next_multiple_of(16);
        address
    }

    /// A string as builds before 2020 store it: with a hash, which is the same for all strings here, and without a number.
    pub fn string(&mut self, text: &[u8]) -> u64 {
        let string = self.allocate(u64::from(self.layout.sizeof_str) + text.len() as u64 + 1);
        self.memory.write_u32(string + u64::from(self.layout.str_len), text.len() as u32);
        self.memory.write(string + u64::from(self.layout.sizeof_str), text);
        string
    }

    /// A Lua function with `size_bc` bytecodes, all of them calls with A = 3, ten lines from one to the next.
    /// Returns the function.
    pub fn lua_function(&mut self, first_line: u32, size_bc: u32) -> u64 {
        let layout = self.layout;
        let prototype = self.allocate(u64::from(layout.sizeof_pt) + u64::from(size_bc) * 4);
        let gct_at = if self.gc64() { 9 } else { 5 };
        self.memory.write(prototype + gct_at, &[gct::PROTO]);
        self.memory.write_u32(prototype + u64::from(layout.pt_sizebc), size_bc);
        self.memory.write_u32(prototype + u64::from(layout.pt_firstline), first_line);
        let chunkname = self.string(b"@lab.lua");
        self.write_ref(prototype + u64::from(layout.pt_chunkname), chunkname);
        let lines: Vec<u8> = (1..size_bc).map(|index| (index * 10) as u8).collect();
        let table = self.allocate(lines.len() as u64);
        self.memory.write(table, &lines);
        self.memory.write_u32(prototype + u64::from(layout.pt_numline), size_bc * 10);
        self.write_ref(prototype + u64::from(layout.pt_lineinfo), table);
        let bytecode = prototype + u64::from(layout.sizeof_pt);
        for index in 0..u64::from(size_bc) {
            self.memory.write_u32(bytecode + index * 4, 0x42 | 3 << 8);
        }
        let function = self.allocate(64);
        self.memory.write(function + u64::from(layout.fn_ffid) - 1, &[gct::FUNC, 0]);
        self.write_ref(function + u64::from(layout.fn_pc), bytecode);
        function
    }

    /// A C function (`ffid` 1) or fast function (above).
    pub fn c_function(&mut self, ffid: u8, code: u64) -> u64 {
        let function = self.allocate(64);
        self.memory.write(function + u64::from(self.layout.fn_ffid) - 1, &[gct::FUNC, ffid]);
        self.memory.write_u64(function + u64::from(self.layout.fn_c), code);
        function
    }

    /// The address after bytecode `position` of a Lua function.
    pub fn pc(&self, function: u64, position: u64) -> u64 {
        let bytecode = self.memory.read_ref(self.gc64(), function + u64::from(self.layout.fn_pc)).unwrap();
        bytecode + (position + 1) * 4
    }

    /// Called by the Lua function below from its bytecode `position` (a call with A = 3).
    pub fn call_from_lua(&mut self, caller: u64, position: u64, function: u64) {
        self.call_into(3, caller, position, function);
    }

    /// Like `call_from_lua`, but the call has A = `slot`.
    pub fn call_into(&mut self, slot: u64, caller: u64, position: u64, function: u64) {
        let link = self.pc(caller, position);
        self.memory.write_u32(link - 4, 0x42 | (slot as u32) << 8);
        self.base += (slot + self.header()) * 8;
        self.write_frame(self.base, function, link);
    }

    /// Pushes a frame with a delta link of the given type, `slots` above the frame below.
    pub fn push_delta(&mut self, kind: u64, slots: u64, function: u64) {
        self.base += slots * 8;
        self.write_frame(self.base, function, (slots * 8) | kind);
    }

    /// Pushes a continuation frame: the metamethod `function` was called, and its caller continues at `pc`.
    pub fn push_continuation(&mut self, pc: u64, continuation: u64, function: u64) {
        self.push_delta(2, 2 * self.header() + 4, function);
        if self.gc64() {
            self.memory.write_u64(self.base - 24, pc);
            self.memory.write_u64(self.base - 32, continuation);
        } else {
            self.memory.write_u32(self.base - 12, pc as u32);
            self.memory.write_u32(self.base - 16, continuation as u32);
        }
    }

    /// Pushes a C frame on top of everything so far. Call it for the innermost C frame last, with falling addresses.
    pub fn push_cframe(&mut self, address: u64, save_pc: u64, results: i32) {
        self.memory.write(address, &[0; 64]);
        self.write_ref(address + u64::from(self.layout.cframe_l), THREAD);
        self.write_ref(address + u64::from(self.layout.cframe_pc), save_pc);
        self.memory.write_u64(address + u64::from(self.layout.cframe_prev), self.cframe);
        self.memory.write_u32(address + u64::from(self.layout.cframe_nres), results as u32);
        self.cframe = address;
    }

    /// Walks from the innermost frame.
    pub fn walk(&self, pc: u64) -> (Vec<FrameRecord>, WalkEnd) {
        self.walk_from(self.base, pc)
    }

    /// Walks from `base`.
    pub fn walk_from(&self, base: u64, pc: u64) -> (Vec<FrameRecord>, WalkEnd) {
        let (mut walk, mut memo) = (Walk::default(), Memo::default());
        let mut frames = Vec::new();
        if let Err(end) = walk.start(&self.memory, &self.layout, &self.coroutine, self.cframe, (base, pc), &mut memo) {
            return (frames, end);
        }
        loop {
            let mut record = FrameRecord::default();
            match walk.step(&self.memory, &self.layout, (&mut record, &mut memo)) {
                Ok(WalkStep::Emitted) => frames.push(record),
                Ok(WalkStep::Skipped) => {}
                Err(end) => return (frames, end),
            }
            assert!(frames.len() < 10_000, "the walk does not end");
        }
    }
}

impl Lab {
    /// Walks from the innermost frame as the sampler does: keeps both ends, and counts the frames between.
    pub fn walk_both_ends(&self, pc: u64) -> (Vec<FrameRecord>, u32, WalkEnd) {
        let (mut walk, mut memo) = (Walk::default(), Memo::default());
        let started = walk.start(&self.memory, &self.layout, &self.coroutine, self.cframe, (self.base, pc), &mut memo);
        started.unwrap();
        let mut records = vec![FrameRecord::EMPTY; MAX_FRAMES as usize];
        let (mut kept, mut left_out) = (0, 0);
        let end = loop {
            let mut record = FrameRecord::EMPTY;
            let look = kept < INNERMOST;
            let passed = kept == MAX_FRAMES && walk.pass(&self.layout, (&mut record, &memo));
            if !passed {
                match walk.advance(&self.memory, &self.layout, (&mut record, &mut memo), look) {
                    Ok(WalkStep::Emitted) => {}
                    Ok(WalkStep::Skipped) => continue,
                    Err(end) => break end,
                }
            }
            records[ends::place(kept, left_out) as usize] = record;
            if kept < MAX_FRAMES {
                kept += 1;
            } else {
                left_out += 1;
            }
        };
        records.truncate(kept as usize);
        for record in &mut records {
            frame::look_at(&self.memory, &self.layout, (record, &mut memo));
        }
        assert!(ends::put_in_order(&mut records, left_out));
        (records, left_out, end)
    }
}

/// Frames in short form: a Lua function `first_line:position`, a C function `c`, a fast function `f`, a crossing `|`.
pub fn summary(frames: &[FrameRecord]) -> String {
    let short = |record: &FrameRecord| match RecordKind::from_u8(record.kind) {
        Some(RecordKind::Lua) => match record.position {
            u32::MAX => format!("{}:?", record.first_line),
            position => format!("{}:{position}", record.first_line),
        },
        Some(RecordKind::C) => "c".to_owned(),
        Some(RecordKind::Fast) => "f".to_owned(),
        Some(RecordKind::CFrame) => "|".to_owned(),
        Some(RecordKind::Passed) => "passed".to_owned(),
        Some(RecordKind::LeftOut) | None => "?".to_owned(),
    };
    frames.iter().map(short).collect::<Vec<_>>().join(" ")
}
