//! The activity of a VM, from numbers in its `global_State`.
//!
//! LuaJIT's sources: [`DISPMODE_JIT`], [`DISPMODE_JIT` of 2.0].
//!
//! [`DISPMODE_JIT`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_dispatch.c#L101-L114
//! [`DISPMODE_JIT` of 2.0]: https://github.com/LuaJIT/LuaJIT/blob/71797fa75ffa1ddbd9b41bbd55d6c2d4236164b0/src/lj_dispatch.c#L84-L97

use lj_trace_common::frame::CFRAME_FLAGS;
use lj_trace_common::layout::{ABSENT, BytecodeSet, gct};
use lj_trace_common::memory::{ReadMemory, Unreadable};
use lj_trace_common::vm::VmState;
use lj_trace_process::Maps;

use super::machine::Vm;
use super::object::{field, read_string, type_of};
use super::table::entry;
use super::traces::read_traces;
use super::value::{self, Value};

/// Whether a VM compiles Lua code to machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Jit {
    /// The JIT compiler is on.
    On,
    /// It was turned off: `jit.off()`, or `-joff`.
    Off,
    /// The build has no JIT compiler (`LUAJIT_DISABLE_JIT`).
    Absent,
}

impl Jit {
    /// The state as one word.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Absent => "none",
        }
    }
}

/// A VM's state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmStatus {
    /// The activity. If no coroutine is running, it is the last activity.
    pub state: VmState,
    /// The number of the trace that the VM runs.
    pub trace: Option<u16>,
    /// BASE of the running trace's Lua frame; 0 off trace.
    pub jit_base: u64,
    /// Size of all its objects, in bytes (`gc.total`, what `collectgarbage("count")` shows in KB).
    pub heap: u64,
    /// The coroutine that ran last (`cur_L`), if it still exists; [`None`] for LuaJIT 2.0, which does not say.
    pub current: Option<u64>,
    /// Whether its JIT compiler is on.
    pub jit: Jit,
}

impl VmStatus {
    /// Reads the state of `vm`.
    ///
    /// # Errors
    /// [`Unreadable`] if the VM does not exist any more.
    pub fn read<M: ReadMemory>(memory: &M, vm: &Vm) -> Result<Self, Unreadable> {
        let layout = &vm.layout;
        let at = |offset| field(vm.global, offset);
        let raw: i32 = memory.read(at(layout.g_vmstate))?;
        let state = VmState::from_raw(layout.states(), raw);
        let reference = |offset| match offset {
            ABSENT => Ok(0),
            offset => memory.read_ref(layout.is_gc64(), at(offset)),
        };
        let current = reference(layout.g_cur_l)?;
        Ok(Self {
            state,
            trace: u16::try_from(raw).ok().filter(|&number| number != 0),
            jit_base: reference(layout.g_jit_base)?,
            heap: memory.read_ref(layout.is_gc64(), at(layout.g_gc_total))?,
            current: (current != 0).then_some(current),
            jit: jit(vm, memory.read(at(layout.g_dispatchmode))?),
        })
    }
}

impl Vm {
    /// Whether no coroutine of the VM is running: its host is not calling it at the moment.
    pub fn is_idle<M: ReadMemory>(&self, memory: &M) -> bool {
        let layout = &self.layout;
        let current = VmStatus::read(memory, self).ok().and_then(|status| status.current);
        let runs = |thread: u64| {
            type_of(memory, layout, thread) == Ok(gct::THREAD)
                && memory.read_ref(layout.is_gc64(), field(thread, layout.l_glref)) == Ok(self.global)
                && memory.read::<u64>(field(thread, layout.l_cframe)).is_ok_and(|cframe| cframe & !CFRAME_FLAGS != 0)
        };
        !current.into_iter().chain([self.main_thread]).any(runs)
    }
}

/// Properties of a VM, as `list` and `dump` show them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct VmSummary {
    /// Address of its `global_State`.
    #[serde(serialize_with = "hexadecimal")]
    pub address: u64,
    /// `LuaJIT`, `OpenResty's LuaJIT`, `Tarantool's LuaJIT`.
    pub fork: String,
    /// Its own version text (`jit.version`).
    pub version: Option<String>,
    /// The builds for whose layout it was proven.
    pub builds: Vec<String>,
    /// Whether its GC references have 64 bits.
    pub gc64: bool,
    /// The state of its JIT compiler.
    pub jit: Jit,
    /// Number of traces.
    pub traces: usize,
    /// Size of its heap in bytes, what `collectgarbage("count")` shows in KB.
    pub heap: u64,
}

impl VmSummary {
    /// Reads the summary of `vm`. `status` was just read; [`None`] if that failed. `maps` must be recent.
    pub fn read<M: ReadMemory>(memory: &M, maps: &Maps, vm: &Vm, status: Option<&VmStatus>) -> Self {
        Self {
            address: vm.global,
            fork: vm.fork(),
            version: version(memory, vm),
            builds: vm.builds.clone(),
            gc64: vm.layout.is_gc64(),
            jit: status.map_or(Jit::Absent, |status| status.jit),
            traces: trace_count(memory, maps, vm),
            heap: status.map_or(0, |status| status.heap),
        }
    }
}

/// Serializes an address as `"0x7f30c8a193f0"`.
///
/// # Errors
/// The errors of the serializer.
pub fn hexadecimal<S: serde::Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{address:#x}"))
}

fn jit(vm: &Vm, dispatchmode: u8) -> Jit {
    // `DISPMODE_JIT` (`lj_dispatch.c`): every build sets it from `JIT_F_ON`, but 2.0 has another bit for it.
    let on = if vm.bytecode_set() == BytecodeSet::V20 { 0x01 } else { 0x10 };
    if dispatchmode & on != 0 {
        Jit::On
    } else if vm.jit_state().is_none() && !vm.undecided.contains(&"g_to_j") {
        Jit::Absent
    } else {
        Jit::Off
    }
}

/// The number of traces of `vm`. `maps` must be recent.
pub fn trace_count<M: ReadMemory>(memory: &M, maps: &Maps, vm: &Vm) -> usize {
    // A VM that has compiled nothing yet may not show where it keeps its traces.
    if vm.layout.j_trace == ABSENT { 0 } else { read_traces(memory, maps, vm).len() }
}

/// The version text of `vm` in `jit.version`: `LuaJIT 2.1.0-beta3`, `LuaJIT 2.1.1700008891`. [`None`] if the host has
/// not opened the library `jit`, or a program has replaced the value.
pub fn version<M: ReadMemory>(memory: &M, vm: &Vm) -> Option<String> {
    let registry = value::read(memory, &vm.layout, field(vm.global, vm.layout.g_registrytv)).ok()?;
    let loaded = entry(memory, &vm.layout, registry, "_LOADED")?;
    let library = entry(memory, &vm.layout, loaded, "jit")?;
    match entry(memory, &vm.layout, library, "version")? {
        Value::Object { gct: gct::STR, address } => {
            let text = read_string(memory, &vm.layout, address, 64).ok()?;
            String::from_utf8(text).ok().filter(|text| !text.chars().any(char::is_control))
        }
        _ => None,
    }
}
