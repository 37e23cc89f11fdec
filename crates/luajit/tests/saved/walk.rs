//! Reads everything of a VM with the walkers and decoders that a recording uses.

use lj_trace_common::event::{FrameRecord, RecordKind};
use lj_trace_common::frame::{CFRAME_FLAGS, Coroutine, Walk, WalkEnd, WalkStep};
use lj_trace_common::memo::Memo;
use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::object::field;
use lj_trace_luajit::{
    FindError, FunctionNames, Prototype, PrototypeKey, Vm, VmStatus, heap, prove_still, read_traces,
};
use lj_trace_process::Maps;

use super::Saved;

/// Everything that is read from a VM.
pub struct Seen {
    pub vm: Vm,
    pub prototypes: Vec<Prototype>,
    /// Each coroutine's stack, innermost frame first, and how it ended.
    pub stacks: Vec<(Vec<String>, WalkEnd)>,
    pub complete: bool,
    pub traces: Vec<lj_trace_luajit::Trace>,
    pub names: FunctionNames,
}

/// Reads everything from saved memory.
pub fn see(saved: &Saved) -> Result<Seen, FindError> {
    let vm = prove_still(saved, &saved.maps, 1, saved.place, saved.cframe_size)?;
    Ok(see_with(saved, &saved.maps, vm))
}

pub fn see_with<M: ReadMemory + 'static>(memory: &M, maps: &Maps, vm: Vm) -> Seen {
    let layout = &vm.layout;
    let names = FunctionNames::read(memory, &vm);
    let keys = heap::prototypes(memory, &vm);
    let keys = keys.into_iter().filter_map(|address| Prototype::key_at(memory, layout, address).ok());
    let prototypes = keys.filter_map(|key| Prototype::read(memory, layout, key).ok()).collect();
    let coroutines = heap::coroutines(memory, &vm, std::time::Duration::from_secs(20));
    let stacks = coroutines.threads.iter().map(|thread| stack(memory, &vm, &names, *thread)).collect();
    let traces = read_traces(memory, maps, &vm);
    // Unreadable memory must give an error, never a panic.
    let _ = VmStatus::read(memory, &vm);
    Seen { prototypes, stacks, complete: coroutines.complete, traces, names, vm }
}

/// The stack of a waiting coroutine.
pub fn stack<M: ReadMemory>(memory: &M, vm: &Vm, names: &FunctionNames, thread: u64) -> (Vec<String>, WalkEnd) {
    let layout = &vm.layout;
    let mut frames = Vec::new();
    let (mut walk, mut memo) = (Walk::default(), Memo::default());
    let coroutine = Coroutine::read(memory, layout, thread);
    let base: Result<u64, _> = memory.read(field(thread, layout.l_base));
    let cframe: Result<u64, _> = memory.read(field(thread, layout.l_cframe));
    let (Ok(coroutine), Ok(base), Ok(cframe)) = (coroutine, base, cframe) else { return (frames, WalkEnd::NoLua) };
    let mut end = walk.start(memory, layout, &coroutine, cframe & !CFRAME_FLAGS, (base, 0), &mut memo).err();
    // As many steps as the stack has slots in the largest of builds.
    for _ in 0..1 << 20 {
        if let Some(end) = end {
            return (frames, end);
        }
        let mut record = FrameRecord::EMPTY;
        match walk.step(memory, layout, (&mut record, &mut memo)) {
            Ok(WalkStep::Emitted) if frames.len() < 1000 => frames.push(describe(memory, vm, names, &record)),
            Ok(_) => {}
            Err(reason) => end = Some(reason),
        }
    }
    (frames, WalkEnd::TooDeep)
}

fn describe<M: ReadMemory>(memory: &M, vm: &Vm, names: &FunctionNames, record: &FrameRecord) -> String {
    if record.kind == RecordKind::CFrame as u8 {
        return "|".to_owned();
    }
    if record.kind == RecordKind::Fast as u8 {
        return names.builtin(record.ffid).unwrap_or("?").to_owned();
    }
    if record.kind == RecordKind::C as u8 {
        return "C".to_owned();
    }
    match Prototype::read(memory, &vm.layout, PrototypeKey::of(record)) {
        Ok(prototype) => {
            let line = prototype.line_at(record.position).unwrap_or(0);
            format!("{}:{}:{line}", prototype.chunkname, prototype.key.firstline)
        }
        Err(error) => error.to_string(),
    }
}
