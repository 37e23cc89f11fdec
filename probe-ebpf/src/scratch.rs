//! Where samples are put together: a program's stack has no room for them.

use aya_ebpf::bindings::pt_regs;
use lj_trace_common::activity::ActivityRoom;
use lj_trace_common::config::{MAX_FRAMES, MAX_KERNEL_STACK, MAX_LUA_COPY, MAX_STACK};
use lj_trace_common::event::{FrameRecord, SampleHeader, SampledRegisters};
use lj_trace_common::frame::Walk;
use lj_trace_common::memo::Memo;
use lj_trace_common::off_cpu::WaitingTask;
use lj_trace_common::thread::LuaThread;
use lj_trace_common::top::Top;
use lj_trace_common::trace::{TraceKey, TracesPlace};

use crate::clock::Timer;

/// Bytes of a frame.
pub const FRAME_SIZE: usize = size_of::<FrameRecord>();
/// Bytes of what follows a sample's header.
pub const PAYLOAD: usize =
    MAX_STACK as usize + MAX_FRAMES as usize * FRAME_SIZE + MAX_LUA_COPY as usize + MAX_KERNEL_STACK as usize;

/// A sample while it is put together.
#[repr(C)]
pub struct Scratch {
    pub header: SampleHeader,
    pub payload: [u8; PAYLOAD],
    pub traces: TracesPlace,
    pub machine: MachineState,
}

/// What the machine that walks ([`crate::sample`]) is at.
#[repr(C)]
pub struct MachineState {
    pub walk: Walk,
    pub memo: Memo,
    /// The frame that the walk is at.
    pub record: FrameRecord,
    /// Where the walk begins.
    pub top: Top,
    /// Since when the sample is being put together.
    pub timer: Timer,
    /// The trace that is looked up.
    pub key: TraceKey,
    /// Address on the C stack where a C frame may begin.
    pub scan: u64,
    /// Where to look instead if none begins there; 0 to go on.
    pub guess: u64,
    /// First address after the copied C stack.
    pub stack_end: u64,
    pub mode: u32,
    /// The VM that is walked.
    pub vm: u32,
    /// Bytes of the C stack in the payload.
    pub stack_size: u32,
    /// How many bytes of the C stack are wanted.
    pub wanted: u32,
    /// See [`record`].
    pub offset: u32,
}

/// The same of a light sample ([`crate::activity`]).
#[repr(C)]
pub struct Scratchpad {
    pub kernel: pt_regs,
    pub registers: SampledRegisters,
    pub room: ActivityRoom,
    pub thread: LuaThread,
}

/// The same of what is told of a thread that is off the CPU ([`crate::off_cpu`]).
#[repr(C)]
pub struct WaitingRoom {
    pub told: WaitingTask,
    pub registers: pt_regs,
}
