//! Sysprof samples (`ljp`): version 1 (2021-09) and 2 (2022-05: symbols also come as events).
//!
//! A sample is a VM state with its stacks: a Lua stack and a host stack (`LFUNC`, `FFUNC`, `CFUNC`), only a host stack, or
//! a trace (`TRACE`). Stacks are leaf first. [`splice`] explains how the reference parser reads samples, and how to write
//! samples that it shows completely.

mod fast_functions;
pub mod merge;
mod reader;
pub mod splice;
mod writer;

pub use fast_functions::{fast_function_id, fast_function_name};
pub use reader::SysprofReader;
pub use writer::SysprofWriter;

use super::{Symbol, VmState};

/// The newest version: the version that the current reference parser accepts.
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
    /// The state of the VM. It is never [`VmState::Trace`]: such samples are [`TraceSample`]s in the stream.
    pub vmstate: VmState,
    /// The Lua stack, leaf first. It is empty for states without a Lua stack in the stream ([`VmState::has_lua_stack`]).
    pub lua: &'a [LuaFrame],
    /// Code addresses of the host stack, leaf first, none of them 0.
    pub host: &'a [u64],
}

/// A sample in JIT-compiled code, as the in-process profiler writes it, without stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSample {
    /// The number of the trace.
    pub number: u64,
    /// The address of the prototype in which it starts.
    pub proto: u64,
    /// Line where that function is defined.
    pub line: u64,
}

/// A record after the prologue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysprofEvent<'a> {
    /// A sample with stacks.
    Sample(StreamSample<'a>),
    /// A sample in JIT-compiled code.
    Trace(TraceSample),
    /// A symbol that has appeared, or an address that has changed its meaning.
    Symbol(Symbol),
}
