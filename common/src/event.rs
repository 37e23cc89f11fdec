//! The records that the BPF programs send to user space: fixed width, `repr(C)`, no padding.
//!
//! A CPU sample is one ring-buffer record: a [`SampleHeader`], then `stack_size` bytes of the C stack from the stack
//! pointer upward, then `frame_count` [`FrameRecord`]s, then `lua_copy_size` bytes of the Lua stack, then `kernel_size`
//! bytes of the kernel's stack: addresses of its frames, innermost first. Pieces of traces
//! ([`crate::trace::TraceCopy`]) are records between the samples. The pieces of a trace come before the first sample
//! that hits this trace.
//!
//! LuaJIT's sources: [`FF_*`].
//!
//! [`FF_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/host/buildvm_lib.c#L135-L136

use crate::arch::REGISTERS;
pub use crate::arch::reg;
use crate::fiber::FiberMarks;
use crate::memory::Pod;
use crate::request::RequestMarks;
use crate::route::RouteMarks;
use crate::trace::RunningTrace;
use crate::trace_id::TraceIdMarks;

/// The sample hit the kernel, on behalf of the thread: registers and stacks are those at the entry into the kernel.
pub const SAMPLE_IN_KERNEL: u32 = 1 << 0;
/// The innermost VM was running a trace (or was called from one): the frames start at `jit_base`.
pub const SAMPLE_ON_TRACE: u32 = 1 << 1;
/// BASE and PC of the innermost Lua frame were taken from the registers.
pub const SAMPLE_BASE_IN_REGISTERS: u32 = 1 << 2;
/// The interpreter was running, but the sampled instruction was in a C function that it called. Only native unwinding
/// tells whether `L->base` is current, so the sample includes a copy of the Lua stack.
pub const SAMPLE_BASE_UNCERTAIN: u32 = 1 << 3;
/// Together with [`SAMPLE_BASE_UNCERTAIN`]: there was no frame at `L->base`, but there was a caller below it. The
/// frames start with this caller, which is right only if `L->base` is current.
pub const SAMPLE_BASE_OF_CALLER: u32 = 1 << 7;
/// The C stack goes on above what was copied.
pub const SAMPLE_STACK_TRUNCATED: u32 = 1 << 4;

/// The C stack was copied only up to the end that an earlier sample had found ([`crate::stack_end::StackEnd`]).
pub const SAMPLE_STACK_END_KNOWN: u32 = 1 << 6;

/// The sample is no clock tick, but an allocation of `allocation_size` bytes.
pub const SAMPLE_ALLOCATION: u32 = 1 << 5;

/// The sample is no clock tick, but a thread's time off the CPU: `allocation_size` nanoseconds. The kernel's stack is
/// that of the wait; the registers and the other stacks are those at the entry into the kernel.
pub const SAMPLE_WAIT: u32 = 1 << 8;

/// No VM was found on the sampled stack.
pub const NO_VM: u32 = u32::MAX;

/// The general registers of a thread, numbered as in DWARF, and its program counter. [`reg`] names them by role.
pub type SampledRegisters = [u64; REGISTERS];

/// No register is known.
pub const NO_REGISTERS: SampledRegisters = [0; REGISTERS];

/// The fixed part of a CPU sample.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SampleHeader {
    /// Time of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// User registers of the thread.
    pub registers: SampledRegisters,
    /// `lua_State` of the innermost coroutine, 0 if there is none on this stack.
    pub thread: u64,
    /// `L->base` of that coroutine, as it was in memory.
    pub thread_base: u64,
    /// Its `L->stack`.
    pub lua_stack: u64,
    /// First address after its Lua stack.
    pub lua_stack_end: u64,
    /// Its innermost C frame.
    pub cframe: u64,
    /// `jit_base` of the innermost VM.
    pub jit_base: u64,
    /// Address of the first byte of the copied part of the Lua stack.
    pub lua_copy_start: u64,
    /// The stack pointer at the beginning of the last allocator call on this thread; 0 if there was none. If the place of
    /// the call's return address holds the address of the kernel's uretprobe trampoline, or the thread is in the
    /// trampoline, that call has not returned yet.
    pub call_stack: u64,
    /// The original return address of that call.
    pub return_address: u64,
    /// For an allocation, its size in bytes. For a wait, the nanoseconds that it stands for.
    pub allocation_size: u64,
    /// Number of the event loop's turn that the thread is in; 0 if turns are not tracked ([`crate::turn`]).
    pub turn: u64,
    /// Process id, in the kernel's own namespace.
    pub pid: u32,
    /// Thread id, in the kernel's own namespace.
    pub tid: u32,
    /// `SAMPLE_*` bits.
    pub flags: u32,
    /// Index of the innermost VM on the sampled stack, or [`NO_VM`].
    pub vm: u32,
    /// Raw `vmstate` of the innermost VM.
    pub vmstate: i32,
    /// Bytes of the C stack that follow.
    pub stack_size: u32,
    /// [`FrameRecord`]s that follow.
    pub frame_count: u32,
    /// Bytes of the Lua stack that follow.
    pub lua_copy_size: u32,
    /// Bytes of the kernel's stack that follow.
    pub kernel_size: u32,
    /// How many records of the walk were left out of the sample ([`crate::ends`]).
    pub left_out: u32,
    /// How many of the walk's records, with those left out, are [`RecordKind::CFrame`]s.
    pub crossings: u32,
    /// How many clock ticks the sample stands for; 0 counts as 1.
    pub weight: u32,
    /// How many of the walk's records, with those left out, belong to the innermost coroutine. The rest belong to the
    /// coroutines that resumed it.
    pub inner_frames: u32,
    /// How the walk of the innermost coroutine ended: a [`crate::frame::WalkEnd`].
    pub walk_end: u32,
    /// How the walk of the enclosing coroutines ended; [`crate::frame::WalkEnd::NoLua`] if there are none.
    pub outer_end: u32,
    /// If the innermost VM is in state EXIT: the number of the trace that it is leaving, and in the upper half the
    /// number of the exit. Else 0.
    pub trace_exit: u32,
    /// Number of the process among the recorded ones.
    pub process: u32,
    /// For a wait, the thread's state when it left the CPU ([`crate::off_cpu::OffCpuThread::state`]).
    pub wait_state: u32,
    /// The trace that the innermost VM was running or leaving.
    pub trace: RunningTrace,
    /// Marks of the request that the thread was working on.
    pub request: RequestMarks,
    /// Marks of the fiber that the thread was running.
    pub fiber: FiberMarks,
    /// Marks of the route that the request takes.
    pub route: RouteMarks,
    /// The trace ID of the request.
    pub trace_id: TraceIdMarks,
}

// The standard library has no `Default` for arrays as long as the register array of some processors.
impl Default for SampleHeader {
    fn default() -> Self {
        // SAFETY: it is plain data, for which zeros are as good as any other bytes.
        unsafe { core::mem::zeroed() }
    }
}

/// What a [`FrameRecord`] stands for.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A Lua function: `code` is its prototype.
    Lua = 0,
    /// A C function registered with the VM: `code` is its address.
    C = 1,
    /// A built-in library function, named by `ffid`; `code` is its C part, if it has one.
    Fast = 2,
    /// Not a frame: the frames before it were called through the C frame at `code`, in the coroutine `function`.
    CFrame = 3,
    /// A function that was not, or could not be, looked at: `code` is the PC in it, and `position` the
    /// [`crate::frame::WalkEnd`] that tells why.
    Passed = 4,
    /// Not a frame: it stands for frames that were left out, and `function` is their number. The agent inserts it.
    LeftOut = 5,
}

impl RecordKind {
    /// The kind with this number, if there is one.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Lua,
            1 => Self::C,
            2 => Self::Fast,
            3 => Self::CFrame,
            4 => Self::Passed,
            5 => Self::LeftOut,
            _ => return None,
        })
    }
}

/// `position` of a frame whose current instruction is not known.
pub const NO_POSITION: u32 = u32::MAX;

/// One frame of a Lua stack, innermost first, as the walker saw it at the sample.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameRecord {
    /// Address of the frame's first slot (BASE).
    pub base: u64,
    /// Address of the `GCfunc`; for a [`RecordKind::CFrame`], address of the `lua_State`.
    pub function: u64,
    /// Address of the `GCproto`, of the C function, or of the C frame.
    pub code: u64,
    /// The [identity](crate::string::identity) of the prototype's chunkname; with `first_line` and `size_bc` it
    /// tells whether a prototype found at the same address later is still the same.
    pub chunkname: u64,
    /// Line where the prototype is defined.
    pub first_line: u32,
    /// Number of its bytecodes.
    pub size_bc: u32,
    /// Index of the bytecode that is being executed, or [`NO_POSITION`].
    pub position: u32,
    /// A [`RecordKind`].
    pub kind: u8,
    /// Fast-function id: 0 Lua, 1 C, else a built-in (`FF_*`: `buildvm_lib.c` numbers them, in each build anew).
    pub ffid: u8,
    /// Index of the VM in the agent's list.
    pub vm: u16,
}

impl FrameRecord {
    /// A record with all fields empty.
    pub const EMPTY: Self = Self {
        base: 0,
        function: 0,
        code: 0,
        chunkname: 0,
        first_line: 0,
        size_bc: 0,
        position: 0,
        kind: 0,
        ffid: 0,
        vm: 0,
    };

    /// A record that stands for `frames` frames that were left out.
    pub const fn left_out(frames: u64) -> Self {
        Self { function: frames, kind: RecordKind::LeftOut as u8, ..Self::EMPTY }
    }

    /// Records that the frame belongs to `function` and that its PC is `pc`. The function is not looked at yet.
    #[inline(always)]
    pub const fn pass_by(&mut self, function: u64, pc: u64) {
        self.function = function;
        self.code = pc;
        self.kind = RecordKind::Passed as u8;
    }

    /// Clears the prototype's fields, word by word as [`clear`](crate::memory::clear) does.
    #[inline(always)]
    pub fn forget_prototype(&mut self) {
        // SAFETY: a field.
        unsafe { (&raw mut self.chunkname).write_volatile(0) };
        (self.first_line, self.size_bc) = (0, 0);
    }
}

// SAFETY: the fields are integers laid out without padding, as the assertions below prove.
unsafe impl Pod for FrameRecord {}
// SAFETY: as above.
unsafe impl Pod for SampleHeader {}

const _: () = {
    assert!(size_of::<FrameRecord>() == 4 * 8 + 3 * 4 + 4);
    assert!(
        size_of::<SampleHeader>()
            == (1 + REGISTERS + 11) * 8
                + 18 * 4
                + size_of::<RunningTrace>()
                + size_of::<RequestMarks>()
                + size_of::<FiberMarks>()
                + size_of::<RouteMarks>()
                + size_of::<TraceIdMarks>()
    );
    assert!(align_of::<SampleHeader>() == 8 && size_of::<SampleHeader>().is_multiple_of(8));
};
