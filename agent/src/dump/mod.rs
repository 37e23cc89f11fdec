//! What a process is executing right now: every coroutine of every VM with its Lua stack, every thread with its native
//! stack and the Lua stacks on it, without eBPF.
//!
//! The process runs on while it is read. So everything is read twice, and what differed is read again, a few times;
//! what still differs is said to have been in motion. Threads that run are shown by a sample (`sampled.rs`) where the kernel
//! lets lj-trace take some, or the whole process is stopped for as long as it is read.

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

/// What a process executes.
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
    /// How long it took to look at all of this, in milliseconds.
    pub milliseconds: f64,
    /// If it was stopped meanwhile: for how long, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<f64>,
    /// Whether the time for which it may be stopped was over before all of it was read.
    pub went_on: bool,
}

/// A thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadDump {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// What it does: `sleeping`, `running`.
    pub state: &'static str,
    /// How its stack was seen.
    pub seen_by: SeenBy,
    /// Why its native stack is not known, or not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether it moved while it was read: then its frames may not belong together.
    pub in_motion: bool,
    /// Its frames, native and Lua, innermost first.
    pub frames: Vec<FrameDump>,
    /// The coroutines that are on its stack, innermost first: addresses of their `lua_State`s.
    #[serde(serialize_with = "hexadecimals")]
    pub coroutines: Vec<u64>,
}

/// How a thread's stack was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeenBy {
    /// It waits, and the kernel tells where.
    Wait,
    /// It runs, and a sample has hit it: exactly as it was at that moment.
    Sample,
    /// It was stopped.
    Stop,
    /// It runs, and this is what its VM has noted down: the innermost frames are not exact.
    Vm,
    /// It was not.
    Nothing,
}

/// A VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmDump {
    /// What it is and has.
    #[serde(flatten)]
    pub summary: VmSummary,
    /// Its state, as in sysprof's streams: `CFUNC`, `TRACE`.
    pub state: String,
    /// Its coroutines.
    pub coroutines: Vec<CoroutineDump>,
    /// Whether these are all coroutines: its heap may be too large to look through.
    pub complete: bool,
    /// How many others there are that are not shown: it would have taken too long, or too much memory.
    pub left_out: usize,
}

/// A coroutine.
#[derive(Clone, Debug, Serialize)]
pub struct CoroutineDump {
    /// Address of its `lua_State`.
    #[serde(serialize_with = "hexadecimal")]
    pub address: u64,
    /// Whether it is its VM's main thread.
    pub main: bool,
    /// What it is doing.
    pub status: Status,
    /// The thread whose stack it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Whether it moved while it was read: then its frames may not belong together.
    pub in_motion: bool,
    /// Its frames, innermost first: its Lua frames, and the native frames of a fiber. Of a coroutine that was not
    /// started, the function that it will run. Coroutines with the same frames share them.
    #[serde(serialize_with = "shared")]
    pub frames: SharedFrames,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FrameDump {
    /// What it is.
    pub kind: DumpedKind,
    /// Its name, as profiles show it: `name@file.lua:12`, `string.gsub`, `epoll_wait`.
    pub function: String,
    /// Of a Lua function: its chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of a Lua function: the line that it executes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Of a native function: its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The trace that it was compiled into, if it runs there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<u16>,
    /// Of a Lua function: its local variables, if they were asked for, have names and are not in a trace's registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locals: Option<Vec<Local>>,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DumpedKind {
    /// A Lua function.
    Lua,
    /// A function of LuaJIT's own library.
    Builtin,
    /// Native code.
    Native,
    /// A trace, and whatever functions it has inlined.
    Trace,
    /// The VM at work for itself: its garbage collector, its compiler.
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

/// What to look at.
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
