//! Sysprof samples (`ljp`): version 1 (2021-09) and 2 (2022-05: symbols come as events too).
//!
//! A sample is a VM state and what the state has: a Lua stack and a host stack (`LFUNC`, `FFUNC`, `CFUNC`), a host
//! stack alone, or a trace (`TRACE`). Stacks are leaf first. What the reference parser makes of them, and how to
//! write samples that it shows whole, is told in [`splice`].

mod fast_functions;
pub mod merge;
mod reader;
pub mod splice;
mod writer;

pub use fast_functions::{fast_function_id, fast_function_name};
pub use reader::SysprofReader;
pub use writer::SysprofWriter;

use super::{Symbol, VmState};

/// The newest version: the one today's reference parser accepts.
pub const VERSION: u8 = 2;

const MAGIC: [u8; 3] = *b"ljp";

const FRAME_LFUNC: u8 = 1;
const FRAME_CFUNC: u8 = 2;
const FRAME_FFUNC: u8 = 3;
const FRAME_LUA_LAST: u8 = 0x80;
const FRAME_HOST_LAST: u64 = 0;

const EVENT_LUA: u8 = 10;
const EVENT_C: u8 = 11;
const EVENT_TRACE: u8 = 12;
const EPILOGUE: u8 = 0x80;

/// A frame of a sample's Lua stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LuaFrame {
    /// A Lua function.
    Lfunc {
        /// Address of its prototype.
        proto: u64,
        /// Line where the function is defined.
        line: u64,
    },
    /// A C function.
    Cfunc {
        /// Its address.
        addr: u64,
    },
    /// A fast function.
    Ffunc {
        /// Its number in the build that wrote the stream; see [`fast_function_name`].
        ffid: u64,
    },
}

/// A sample with its stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSample<'a> {
    /// The state of the VM; not [`VmState::Trace`], which is a [`TraceSample`] in the stream.
    pub vmstate: VmState,
    /// The Lua stack, leaf first; empty in states that have none in the stream ([`VmState::has_lua_stack`]).
    pub lua: &'a [LuaFrame],
    /// Code addresses of the host stack, leaf first, none of them 0.
    pub host: &'a [u64],
}

/// A sample in JIT-compiled code, as the in-process profiler writes it: without stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSample {
    /// The number of the trace.
    pub number: u64,
    /// Address of the prototype it starts in.
    pub proto: u64,
    /// Line where that function is defined.
    pub line: u64,
}

/// What follows the prologue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysprofEvent<'a> {
    /// A sample with stacks.
    Sample(StreamSample<'a>),
    /// A sample in JIT-compiled code.
    Trace(TraceSample),
    /// A symbol that has appeared, or an address that has changed its meaning.
    Symbol(Symbol),
}
