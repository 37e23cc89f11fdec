//! The traces of a VM's JIT compiler (`J->trace[]`): the places of their machine code and of their starts.
//!
//! LuaJIT's sources: [`GCtrace`].
//!
//! [`GCtrace`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L250-L286

use std::ops::Range;

use lj_trace_common::layout::{ABSENT, gct};
use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};
use lj_trace_process::Maps;

use super::machine::Vm;
use super::object::{field, type_of};
use super::overlay::Overlay;

/// A trace (`GCtrace`, `lj_jit.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its number.
    pub number: u16,
    /// Address of its `GCtrace`.
    pub address: u64,
    /// Addresses of its machine code.
    pub mcode: Range<u64>,
    /// Offset of the loop in its machine code, 0 if it has none.
    pub mcloop: u32,
    /// Number of its root trace, 0 if it is a root trace itself.
    pub root: u16,
    /// Number of the trace that follows at its end (its own for a loop), 0 if it returns to the interpreter.
    pub link: u16,
    /// Number of the next side trace of the same root, 0 at the end of the list.
    pub nextside: u16,
    /// How it ends (`TraceLink`); [`None`] if the field is undecided in the layout.
    pub linktype: Option<u8>,
    /// How many bytes it moves the stack pointer.
    pub spadjust: u16,
    /// Address of the prototype in which it starts.
    pub startpt: u64,
    /// Address of the bytecode instruction at which it starts.
    pub startpc: u64,
    /// The bytecode instruction that it replaced.
    pub startins: u32,
    /// Address of its intermediate code: instruction `n` is at `ir + 8 * n`. Constants start at `nk`, instructions end
    /// at `nins`.
    pub ir: u64,
    /// The first constant: see [`Trace::ir`].
    pub nk: u32,
    /// The end of the instructions: see [`Trace::ir`].
    pub nins: u32,
    /// Address of its array of snapshots.
    pub snap: u64,
    /// Address of the snapshot map: the entries of all its snapshots.
    pub snapmap: u64,
    /// Number of snapshots; [`None`] if the field is undecided in the layout.
    pub nsnap: Option<u16>,
}

/// Reads all traces of `vm` that have machine code now, in the order of their numbers.
///
/// Each trace is checked: its number is its index in the array, and its code is mapped as code in `maps`, which must be
/// recent. Traces that change while they are read are left out. A VM without JIT compiler has no traces.
pub fn read_traces<M: ReadMemory>(memory: &M, maps: &Maps, vm: &Vm) -> Vec<Trace> {
    let Some(jit_state) = vm.jit_state().filter(|_| vm.layout.j_trace != ABSENT) else { return Vec::new() };
    let array = memory.read::<u64>(field(jit_state, vm.layout.j_trace));
    let size = memory.read::<u32>(field(jit_state, vm.layout.j_sizetrace));
    let (Ok(array), Ok(size)) = (array, size) else { return Vec::new() };
    let width = if vm.layout.is_gc64() { 8 } else { 4 };
    let number_of_slots = u16::try_from(size).unwrap_or(u16::MAX);
    let list = Overlay::new(memory, array, width * usize::from(number_of_slots));
    let mut traces = Vec::new();
    for number in 1..number_of_slots {
        let slot = array.wrapping_add(width as u64 * u64::from(number));
        match list.read_ref(vm.layout.is_gc64(), slot) {
            // The trace that is being recorded is still a part of `jit_State`.
            Ok(address) if address != 0 && address != jit_state => match read_trace(memory, vm, address) {
                Ok(trace) => {
                    let mapping = maps.find(trace.mcode.start);
                    let is_code = mapping.is_some_and(|mapping| mapping.exec && trace.mcode.end <= mapping.end);
                    traces.extend((trace.number == number && is_code).then_some(trace));
                }
                // It was flushed, or the process has exited: then nothing can be read any more.
                Err(Unreadable) if memory.read::<u8>(slot).is_err() => break,
                Err(Unreadable) => {}
            },
            Ok(_) => {}
            Err(Unreadable) => break,
        }
    }
    traces
}

/// The trace with this number, if there is one now. It may be out of date at once, because a running VM flushes its
/// traces: check it against what else is known about the trace.
pub fn trace_by_number<M: ReadMemory>(memory: &M, vm: &Vm, number: u16) -> Option<Trace> {
    let jit_state = vm.jit_state().filter(|_| vm.layout.j_trace != ABSENT)?;
    let array: u64 = memory.read(field(jit_state, vm.layout.j_trace)).ok()?;
    let size: u32 = memory.read(field(jit_state, vm.layout.j_sizetrace)).ok()?;
    if u32::from(number) >= size {
        return None;
    }
    let gc64 = vm.layout.is_gc64();
    let address = memory.read_ref(gc64, array.wrapping_add(u64::from(number) * if gc64 { 8 } else { 4 })).ok()?;
    if address == 0 || address == jit_state {
        return None;
    }
    read_trace(memory, vm, address).ok().filter(|trace| trace.number == number)
}

/// The trace whose `GCtrace` lies at `address`, if there is one.
pub fn trace_at<M: ReadMemory>(memory: &M, vm: &Vm, address: u64) -> Option<Trace> {
    read_trace(memory, vm, address).ok().filter(|trace| trace.number != 0)
}

impl Trace {
    /// Whether `later` is a later reading of the same trace: it may have got side traces meanwhile.
    pub fn is_same(&self, later: &Self) -> bool {
        *self == Self { nextside: self.nextside, link: self.link, ..later.clone() }
    }
}

/// The most bytes of a `GCtrace` header.
const MAX_HEADER: usize = 160;

fn read_trace<M: ReadMemory>(memory: &M, vm: &Vm, address: u64) -> Result<Trace, Unreadable> {
    let l = &vm.layout;
    let trace = Overlay::new(memory, address, MAX_HEADER);
    if type_of(&trace, l, address)? != gct::TRACE {
        return Err(Unreadable);
    }
    let at = |offset: u16| field(address, offset);
    let mcode: u64 = trace.read(at(l.tr_mcode))?;
    let length: u32 = trace.read(at(l.tr_szmcode))?;
    Ok(Trace {
        number: trace.read(at(l.tr_traceno))?,
        address,
        mcode: mcode..mcode.checked_add(u64::from(length)).ok_or(Unreadable)?,
        mcloop: trace.read(at(l.tr_mcloop))?,
        root: trace.read(at(l.tr_root))?,
        link: trace.read(at(l.tr_link))?,
        nextside: trace.read(at(l.tr_nextside))?,
        linktype: decided(&trace, address, l.tr_linktype)?,
        spadjust: trace.read(at(l.tr_spadjust))?,
        startpt: trace.read_ref(l.is_gc64(), at(l.tr_startpt))?,
        startpc: trace.read_ref(l.is_gc64(), at(l.tr_startpc))?,
        startins: trace.read(at(l.tr_startins))?,
        ir: trace.read(at(l.tr_ir))?,
        nk: trace.read(at(l.tr_nk))?,
        nins: trace.read(at(l.tr_nins))?,
        snap: trace.read(at(l.tr_snap))?,
        snapmap: trace.read(at(l.tr_snapmap))?,
        nsnap: decided(&trace, address, l.tr_nsnap)?,
    })
}

/// Reads a field whose offset may be [`ABSENT`].
fn decided<M: ReadMemory, T: Pod>(memory: &M, object: u64, offset: u16) -> Result<Option<T>, Unreadable> {
    if offset == ABSENT { Ok(None) } else { memory.read(field(object, offset)).map(Some) }
}
