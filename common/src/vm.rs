//! One VM from the probes' point of view, and the parts of its state that a sample needs.
//!
//! LuaJIT's sources: [`cont_dispatch`], [`LJ_VMST_*`].
//!
//! [`cont_dispatch`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L690-L719
//! [`LJ_VMST_*`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_obj.h#L520-L540

use crate::frame::CFRAME_FLAGS;
use crate::layout::{ABSENT, VmLayout, VmStates, gct};
use crate::memory::{ReadMemory, Unreadable};

/// A VM of the target, as an entry of the VM list that the BPF programs read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VmConfig {
    /// Address of its `global_State`.
    pub global: u64,
    /// First address of the interpreter's machine code.
    pub text_start: u64,
    /// First address after it.
    pub text_end: u64,
    /// Distance in bytes from the start of the VM's first block, which is its main thread, to its `global_State`.
    pub global_offset: u64,
    /// Index of the word with the coroutine that allocates, counted in words from `vmstate` in `global_State`: `mem_L`
    /// (Tarantool) or `cur_L`. [`NO_WORD`] if the build (LuaJIT 2.0) has neither field, or the field is too far away.
    /// Then the caller has to find the coroutine ([`crate::allocation::AttributionRoom::note_thread`]).
    pub thread_word: u32,
    /// How many bits to shift that word to the right.
    pub thread_shift: u32,
    /// Places in the interpreter's machine code where a C frame has no Lua frame.
    pub edges: VmEdges,
    /// The offsets of its fields.
    pub layout: VmLayout,
    /// Keeps the size a multiple of 8.
    pub padding: [u8; padding()],
}

/// A range of the interpreter's machine code, in bytes from its beginning; empty for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeRange {
    /// Offset of the first instruction.
    pub start: u32,
    /// Offset after the last instruction.
    pub end: u32,
}

/// Places where a linked C frame has no Lua frame yet, or no longer one: the innermost Lua frame belongs to the C frame
/// around it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmEdges {
    /// The C frame is being entered: `L->base` belongs to the C code that called.
    pub entering: [CodeRange; 4],
    /// The C frame is being returned from, but `L->base` is not set yet.
    pub returning: [CodeRange; 2],
    /// The C frame is about to be unlinked: `L->base` belongs to the C code.
    pub leaving: [CodeRange; 4],
    /// An FFI callback has returned, but its C frame is not dropped yet: BASE belongs to the Lua code that called C.
    pub callback_left: [CodeRange; 1],
    /// A metamethod or an FFI callback has returned, and BASE belongs to the Lua code around it already. The frame that
    /// has returned is at [`reg::CONTINUED`](crate::arch::reg::CONTINUED). Its continuation is stored below that
    /// (`cont_dispatch`).
    pub continuing: [CodeRange; 1],
    /// Return addresses of the two calls that enter and leave an FFI callback, as offsets; [`NOWHERE`] if unknown.
    pub callback_calls: [u32; 2],
    /// C functions that the interpreter calls for FFI callbacks, while the callback's C frame has no Lua frame; lower
    /// addresses than the interpreter's are offsets that wrap around.
    pub callback_code: [CodeRange; 8],
    /// Instructions that store the link of a new frame after BASE has moved there, as offsets; unused entries are
    /// [`NOWHERE`].
    pub links: [u32; 8],
    /// Around calls of C functions: BASE's register holds an argument or a result, and `L->base` has the value of BASE.
    pub base_in_state: [CodeRange; 64],
    /// The same, but [`reg::KEPT_BASE`](crate::arch::reg::KEPT_BASE) has the value of BASE.
    pub base_kept: [CodeRange; 40],
    /// A frame is left: its results may lie over its function and its link, which PC's register has.
    pub results_stored: [CodeRange; 28],
    /// The same, but BASE moves already. The frame's BASE is [`LEFT_BASE_OFFSET`](crate::arch::LEFT_BASE_OFFSET) above
    /// [`reg::LEFT_BASE`](crate::arch::reg::LEFT_BASE).
    pub frame_left: [CodeRange; 4],
    /// The frame at BASE is whole, but PC's register holds something else.
    pub pc_elsewhere: [CodeRange; 8],
    /// The state says that a trace runs, but the interpreter does, about to enter a trace or after its end: BASE and PC are in
    /// their registers.
    pub beside_traces: [CodeRange; 2],
    /// The same, but PC's register has the address of the next bytecode, which is not fetched yet.
    pub before_fetch: [CodeRange; 1],
}

impl VmEdges {
    /// No places are known.
    pub const NONE: Self = {
        let none = CodeRange { start: 0, end: 0 };
        Self {
            entering: [none; 4],
            returning: [none; 2],
            leaving: [none; 4],
            callback_left: [none; 1],
            continuing: [none; 1],
            callback_calls: [NOWHERE; 2],
            callback_code: [none; 8],
            links: [NOWHERE; 8],
            base_in_state: [none; 64],
            base_kept: [none; 40],
            results_stored: [none; 28],
            frame_left: [none; 4],
            pc_elsewhere: [none; 8],
            beside_traces: [none; 2],
            before_fetch: [none; 1],
        }
    };
}

impl Default for VmEdges {
    fn default() -> Self {
        Self::NONE
    }
}

/// Offset that stands for no place in the interpreter's code.
pub const NOWHERE: u32 = u32::MAX;

/// Whether the instruction at `offset` in the interpreter's code lies in one of these ranges.
#[inline(always)]
pub fn is_in(ranges: &[CodeRange], offset: u32) -> bool {
    ranges.iter().any(|range| range.start <= offset && offset < range.end)
}

/// How many words of the `global_State`, from `vmstate` on, an allocation reads: in all builds these contain what it
/// needs.
pub const WINDOW: usize = 29;

/// Index that stands for no word of the window.
pub const NO_WORD: u32 = u32::MAX;

impl VmConfig {
    /// The VM at `global`, whose main thread is at `main_thread` and whose interpreter code lies in
    /// `text_start..text_end`.
    pub fn new(global: u64, main_thread: u64, (text_start, text_end): (u64, u64), layout: VmLayout) -> Self {
        let field = if layout.g_mem_l == ABSENT { layout.g_cur_l } else { layout.g_mem_l };
        let offset = field.wrapping_sub(layout.g_vmstate & !7);
        let is_there = field != ABSENT && usize::from(offset / 8) < WINDOW;
        Self {
            global,
            text_start,
            text_end,
            global_offset: global.wrapping_sub(main_thread),
            thread_word: if is_there { u32::from(offset / 8) } else { NO_WORD },
            thread_shift: if is_there { u32::from(offset & 4) * 8 } else { 0 },
            edges: VmEdges::NONE,
            layout,
            padding: [0; padding()],
        }
    }
}

const fn padding() -> usize {
    (8 - size_of::<VmLayout>() % 8) % 8
}

const _: () = assert!(size_of::<VmConfig>() == 40 + size_of::<VmEdges>() + size_of::<VmLayout>() + padding());

/// The activity of a VM, in the numbering of Tarantool's streams (`LJ_VMST_*` of the fork's `lj_obj.h`), which is finer
/// than upstream's.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VmState {
    /// In the interpreter, between functions; in upstream builds: in any Lua code.
    Interp = 0,
    /// In a Lua function.
    Lfunc = 1,
    /// In a fast function.
    Ffunc = 2,
    /// In a C function.
    Cfunc = 3,
    /// In the garbage collector.
    Gc = 4,
    /// Leaving a trace.
    Exit = 5,
    /// Recording a trace.
    Record = 6,
    /// Optimizing a trace.
    Opt = 7,
    /// Assembling a trace.
    Asm = 8,
    /// Running a trace.
    Trace = 9,
}

impl VmState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Interp,
        Self::Lfunc,
        Self::Ffunc,
        Self::Cfunc,
        Self::Gc,
        Self::Exit,
        Self::Record,
        Self::Opt,
        Self::Asm,
        Self::Trace,
    ];

    /// The state for the raw value of `g->vmstate`, which is `~state` or a trace number.
    #[inline(always)]
    pub fn from_raw(states: VmStates, raw: i32) -> Self {
        if raw >= 0 {
            return Self::Trace;
        }
        match (states, !raw) {
            (_, 0) => Self::Interp,
            (VmStates::Upstream, 1) => Self::Cfunc,
            (VmStates::Upstream, 2) => Self::Gc,
            (VmStates::Upstream, 3) => Self::Exit,
            (VmStates::Upstream, 4) => Self::Record,
            (VmStates::Upstream, 5) => Self::Opt,
            (VmStates::Upstream, _) => Self::Asm,
            (VmStates::Tarantool, 1) => Self::Lfunc,
            (VmStates::Tarantool, 2) => Self::Ffunc,
            (VmStates::Tarantool, 3) => Self::Cfunc,
            (VmStates::Tarantool, 4) => Self::Gc,
            (VmStates::Tarantool, 5) => Self::Exit,
            (VmStates::Tarantool, 6) => Self::Record,
            (VmStates::Tarantool, 7) => Self::Opt,
            (VmStates::Tarantool, _) => Self::Asm,
        }
    }

    /// The state with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether a sample in this state carries a Lua stack in the stream (`sample-guest`).
    pub fn has_lua_stack(self) -> bool {
        matches!(self, Self::Lfunc | Self::Ffunc | Self::Cfunc)
    }

    /// Whether the JIT compiler is running: recording, optimizing or assembling a trace.
    pub fn is_jit_compiler(self) -> bool {
        matches!(self, Self::Record | Self::Opt | Self::Asm)
    }

    /// Whether the interpreter is running Lua code or a fast function, so that BASE and PC are in registers.
    #[inline(always)]
    pub const fn is_interpreting(self) -> bool {
        matches!(self, Self::Interp | Self::Lfunc | Self::Ffunc)
    }
}

impl core::fmt::Display for VmState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Interp => "INTERP",
            Self::Lfunc => "LFUNC",
            Self::Ffunc => "FFUNC",
            Self::Cfunc => "CFUNC",
            Self::Gc => "GC",
            Self::Exit => "EXIT",
            Self::Record => "RECORD",
            Self::Opt => "OPT",
            Self::Asm => "ASM",
            Self::Trace => "TRACE",
        })
    }
}

/// Reads `global_State.jit_base`: 0 where no trace runs.
#[inline(always)]
pub fn jit_base(memory: &impl ReadMemory, vm: &VmConfig) -> Result<u64, Unreadable> {
    if vm.layout.g_jit_base == ABSENT {
        return Ok(0);
    }
    memory.read_ref(vm.layout.is_gc64(), vm.global.wrapping_add(u64::from(vm.layout.g_jit_base)))
}

/// The innermost C frame of the coroutine in `cur_L`, if that coroutine is running at all.
#[inline(always)]
pub fn current_cframe(memory: &impl ReadMemory, vm: &VmConfig) -> Option<u64> {
    if vm.layout.g_cur_l == ABSENT {
        return None;
    }
    let gc64 = vm.layout.is_gc64();
    let thread = memory.read_ref(gc64, vm.global.wrapping_add(u64::from(vm.layout.g_cur_l))).ok()?;
    if thread == 0 {
        return None;
    }
    let cframe = memory.read::<u64>(thread.wrapping_add(u64::from(vm.layout.l_cframe))).ok()? & !CFRAME_FLAGS;
    (cframe != 0).then_some(cframe)
}

/// Whether `thread` is a coroutine of this VM whose innermost C frame is at `cframe`: each must point at the other.
#[inline(always)]
pub fn runs_at(memory: &impl ReadMemory, vm: &VmConfig, thread: u64, cframe: u64) -> bool {
    let layout = &vm.layout;
    let gc64 = layout.is_gc64();
    memory.read_ref(gc64, thread.wrapping_add(u64::from(layout.l_glref))) == Ok(vm.global)
        && memory.read::<u64>(thread.wrapping_add(u64::from(layout.l_cframe))).map(|raw| raw & !CFRAME_FLAGS)
            == Ok(cframe)
        && memory.read::<u8>(thread.wrapping_add(crate::frame::gct_offset(gc64))) == Ok(gct::THREAD)
        && memory.read_ref(gc64, cframe.wrapping_add(u64::from(layout.cframe_l))) == Ok(thread)
}
