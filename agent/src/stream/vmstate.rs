//! What a VM is doing.

use std::fmt;

/// The state of a VM, in the numbering of Tarantool's streams (`LJ_VMST_*` of tarantool/luajit `src/lj_obj.h`).
///
/// Vanilla LuaJIT has no `LFUNC`, `FFUNC` and `CFUNC`: there `INTERP` is the state of ordinary Lua code too, and
/// whoever records a sample derives these three from its top frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum VmState {
    /// In the interpreter, outside any function.
    Interp = 0,
    /// In a Lua function.
    Lfunc = 1,
    /// In a fast function (a library function with an assembler part).
    Ffunc = 2,
    /// In a C function.
    Cfunc = 3,
    /// In the garbage collector.
    Gc = 4,
    /// In the handler of a trace exit.
    Exit = 5,
    /// In the trace recorder.
    Record = 6,
    /// In the trace optimizer.
    Opt = 7,
    /// In the trace assembler.
    Asm = 8,
    /// In JIT-compiled code.
    Trace = 9,
}

impl VmState {
    /// Every state, in the order of the numbering.
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
}

impl fmt::Display for VmState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
