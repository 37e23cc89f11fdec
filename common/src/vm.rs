//! One VM as the probes know it, and the parts of its state that a sample needs.
//!
//! LuaJIT's sources: [`cont_dispatch`], [`LJ_VMST_*`].
//!
//! [`cont_dispatch`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L690-L719
//! [`LJ_VMST_*`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_obj.h#L520-L540

use crate::frame::CFRAME_FLAGS;
use crate::layout::{ABSENT, VmLayout, VmStates, gct};
use crate::memory::{ReadMemory, Unreadable};

/// A VM of the target: given to the BPF programs, one entry a VM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VmConfig {
    /// Address of its `global_State`.
    pub global: u64,
    /// First address of the interpreter's machine code.
    pub text_start: u64,
    /// First address after it.
    pub text_end: u64,
    /// How far behind the beginning of its first block, which is its main thread, it lies.
    pub global_offset: u64,
    /// Which word of the `global_State`, counted from that of `vmstate`, has the coroutine that allocates: `mem_L`
    /// (Tarantool) or `cur_L`. [`NO_WORD`] if the build (LuaJIT 2.0) has neither, or too far away: then whoever
    /// looks must find it out ([`crate::allocation::AttributionRoom::note_thread`]).
    pub thread_word: u32,
    /// By how many bits that word must be shifted.
    pub thread_shift: u32,
    /// Where in the interpreter's machine code a C frame has no Lua frame.
    pub edges: VmEdges,
    /// Where its fields are.
    pub layout: VmLayout,
    /// Keeps the size a multiple of 8.
    pub padding: [u8; padding()],
}

/// A range of the interpreter's machine code, counted from its beginning; empty for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeRange {
    /// The first instruction.
    pub start: u32,
    /// Where the last one ends.
    pub end: u32,
}

/// Where a C frame is linked that has no Lua frame yet, or none any more: the innermost Lua frame belongs to the C frame
/// around it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmEdges {
    /// It is entered: `L->base` is that of the C code that called.
    pub entering: [CodeRange; 4],
    /// It is returned from, and `L->base` not set yet.
    pub returning: [CodeRange; 2],
    /// It is about to be unlinked: `L->base` is that of the C code.
    pub leaving: [CodeRange; 4],
    /// An FFI callback has returned, and its C frame is not dropped yet: BASE is that of the Lua code that has called C.
    pub callback_left: [CodeRange; 1],
    /// A metamethod or an FFI callback has returned, and BASE is that of the Lua code around it already. Its own frame is at
    /// [`reg::CONTINUED`](crate::arch::reg::CONTINUED), below which stands how that code goes on (`cont_dispatch`).
    pub continuing: [CodeRange; 1],
    /// Where the two calls return to that enter and leave an FFI callback, or [`NOWHERE`].
    pub callback_calls: [u32; 2],
    /// The instructions that store a new frame's link, whose BASE is in place already, or [`NOWHERE`].
    pub links: [u32; 8],
    /// Around calls of C functions: BASE's register holds an argument or a result, and `L->base` is BASE.
    pub base_in_state: [CodeRange; 64],
    /// The same, where [`reg::KEPT_BASE`](crate::arch::reg::KEPT_BASE) is BASE.
    pub base_kept: [CodeRange; 40],
}

impl VmEdges {
    /// None are known.
    pub const NONE: Self = {
        let none = CodeRange { start: 0, end: 0 };
        Self {
            entering: [none; 4],
            returning: [none; 2],
            leaving: [none; 4],
            callback_left: [none; 1],
            continuing: [none; 1],
            callback_calls: [NOWHERE; 2],
            links: [NOWHERE; 8],
            base_in_state: [none; 64],
            base_kept: [none; 40],
        }
    };
}

impl Default for VmEdges {
    fn default() -> Self {
        Self::NONE
    }
}

/// No place in the interpreter's code.
pub const NOWHERE: u32 = u32::MAX;

/// Whether the instruction at `offset` of the interpreter's code is in one of these ranges.
#[inline(always)]
pub fn is_in(ranges: &[CodeRange], offset: u32) -> bool {
    ranges.iter().any(|range| range.start <= offset && offset < range.end)
}

/// How much of the `global_State` an allocation looks at, in words, from that of `vmstate` on: what it needs is in
/// there in all builds.
pub const WINDOW: usize = 29;

/// No word of the window.
pub const NO_WORD: u32 = u32::MAX;

impl VmConfig {
    /// The VM at `global`, whose main thread is at `main_thread` and whose interpreter's code is in
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

/// What a VM is doing, in the numbering of Tarantool's streams (`LJ_VMST_*` of the fork's `lj_obj.h`),
/// which is the finer one.
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

    /// The state behind the raw value of `g->vmstate`: `~state`, or a trace number.
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

    /// Whether the JIT compiler is at work: recording, optimizing or assembling a trace.
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

/// The innermost C frame of the coroutine that `cur_L` names, if that is running at all.
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

/// Whether `thread` is a coroutine of this VM whose innermost C frame is at `cframe`: both point at each other.
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
