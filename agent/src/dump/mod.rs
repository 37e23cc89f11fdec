//! What a process is executing right now, without eBPF: every coroutine of every VM with its Lua stack, and every
//! thread with its native stack and the Lua stacks on it.
//!
//! The process continues to run while lj-trace reads it. So everything is read twice, and what differed is read again,
//! a few times; what still differs is reported as in motion. Running threads are shown by a sample (`sampled.rs`) if
//! the kernel allows that; or the whole process is stopped while it is read.

mod inlined;
mod known_stacks;
mod names;
pub(crate) mod sampled;
mod stack;
mod take;
pub mod text;

use serde::Serialize;

pub use known_stacks::SharedFrames;
pub use lj_trace_engine::coroutines::Status;
pub use lj_trace_engine::coroutines::threads::{OsThread, ThreadPlace};
pub use take::{Precision, StoppedProcess, take};

use lj_trace_luajit::status::{VmSummary, hexadecimal};

/// Everything that a process is executing.
#[derive(Clone, Debug, Serialize)]
pub struct Dump {
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// Its threads.
    pub threads: Vec<ThreadDump>,
    /// Its VMs.
    pub vms: Vec<VmDump>,
    /// How long it took to read all of this, in milliseconds.
    pub milliseconds: f64,
    /// If the process was stopped: for how long, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<f64>,
    /// Whether the time limit for stopping it was reached before everything was read.
    pub went_on: bool,
}

/// A thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadDump {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// What the thread does: `sleeping`, `running`.
    pub state: &'static str,
    /// How its stack was seen.
    pub seen_by: SeenBy,
    /// Why its native stack is unknown or inexact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether it moved while it was read; then its frames may not belong together.
    pub in_motion: bool,
    /// Its frames, native and Lua, innermost first.
    pub frames: Vec<FrameDump>,
    /// The coroutines on its stack, innermost first: the addresses of their `lua_State`s.
    #[serde(serialize_with = "hexadecimals")]
    pub coroutines: Vec<u64>,
}

/// How a thread's stack was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeenBy {
    /// The thread waits, and the kernel says where.
    Wait,
    /// The thread runs, and a sample has hit it: exact for that moment.
    Sample,
    /// The thread was stopped.
    Stop,
    /// The thread runs, and its VM's own records give this stack: the innermost frames are not exact.
    Vm,
    /// The stack was not seen.
    Nothing,
}

/// A VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmDump {
    /// The VM's kind and contents.
    #[serde(flatten)]
    pub summary: VmSummary,
    /// Its state, as in sysprof's streams: `CFUNC`, `TRACE`.
    pub state: String,
    /// Its coroutines.
    pub coroutines: Vec<CoroutineDump>,
    /// Whether these are all coroutines: the heap may be too large to search.
    pub complete: bool,
    /// How many more coroutines there are. Showing them would have taken too long, or too much memory.
    pub left_out: usize,
}

/// A coroutine.
#[derive(Clone, Debug, Serialize)]
pub struct CoroutineDump {
    /// The address of its `lua_State`.
    #[serde(serialize_with = "hexadecimal")]
    pub address: u64,
    /// Whether it is its VM's main thread.
    pub main: bool,
    /// What it is doing.
    pub status: Status,
    /// The thread whose stack it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Whether it moved while it was read; then its frames may not belong together.
    pub in_motion: bool,
    /// Its frames, innermost first: its Lua frames, and the native frames of a fiber. For a coroutine that was not
    /// started, the function that it will run. Coroutines with the same frames share them.
    #[serde(serialize_with = "shared")]
    pub frames: SharedFrames,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FrameDump {
    /// The kind of frame.
    pub kind: DumpedKind,
    /// Its name, as profiles show it: `name@file.lua:12`, `string.gsub`, `epoll_wait`.
    pub function: String,
    /// For a Lua function: its chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// For a Lua function: its current line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// For a native function: its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The trace that it runs in, if it was compiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<u16>,
    /// For a Lua function: its local variables, if they were requested. Only variables that have names and are not in a
    /// trace's registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locals: Option<Vec<Local>>,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DumpedKind {
    /// A Lua function.
    Lua,
    /// A function of LuaJIT's own library.
    Builtin,
    /// Native code.
    Native,
    /// A trace, with whatever functions it has inlined.
    Trace,
    /// The VM works for itself: its garbage collector, its compiler.
    Vm,
    /// Frames are missing here.
    Unresolved,
}

/// A local variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Local {
    /// Its name.
    pub name: String,
    /// The type of its value.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its value, as Lua would print it.
    pub value: String,
}

/// What to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpOptions {
    /// Read the local variables of Lua functions.
    pub locals: bool,
}

fn hexadecimals<S: serde::Serializer>(addresses: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(|address| format!("{address:#x}")))
}

fn shared<S: serde::Serializer>(frames: &SharedFrames, serializer: S) -> Result<S::Ok, S::Error> {
    frames.as_ref().serialize(serializer)
}
