//! Working memory for samples: a program's stack has no room for them.

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

/// The size of a frame's record, in bytes.
pub const FRAME_SIZE: usize = size_of::<FrameRecord>();
/// The size of what follows a sample's header, in bytes.
pub const PAYLOAD: usize =
    MAX_STACK as usize + MAX_FRAMES as usize * FRAME_SIZE + MAX_LUA_COPY as usize + MAX_KERNEL_STACK as usize;

/// A sample that is being built.
#[repr(C)]
pub struct Scratch {
    pub header: SampleHeader,
    pub payload: [u8; PAYLOAD],
    pub traces: TracesPlace,
    pub machine: MachineState,
}

/// The state of the walker ([`crate::sample`]).
#[repr(C)]
pub struct MachineState {
    pub walk: Walk,
    pub memo: Memo,
    /// The current frame of the walk.
    pub record: FrameRecord,
    /// The coroutine that is being walked.
    pub thread: LuaThread,
    /// Where the walk begins.
    pub top: Top,
    /// When building the sample began.
    pub timer: Timer,
    /// The trace that is being looked up.
    pub key: TraceKey,
    /// The address on the C stack where a C frame may begin.
    pub scan: u64,
    /// The address to try next if no frame begins at `scan`; 0 to continue the scan.
    pub guess: u64,
    /// The first address after the copied C stack.
    pub stack_end: u64,
    pub mode: u32,
    /// The VM that is being walked.
    pub vm: u32,
    /// How many bytes of the C stack are in the payload.
    pub stack_size: u32,
    /// How many bytes of the C stack to copy.
    pub wanted: u32,
    /// See [`record`].
    pub offset: u32,
}

/// The same for a light sample ([`crate::activity`]).
#[repr(C)]
pub struct Scratchpad {
    pub kernel: pt_regs,
    pub registers: SampledRegisters,
    pub room: ActivityRoom,
    pub thread: LuaThread,
}

/// The same for the report of a thread that is off the CPU ([`crate::off_cpu`]).
#[repr(C)]
pub struct WaitingRoom {
    pub told: WaitingTask,
    pub registers: pt_regs,
}
