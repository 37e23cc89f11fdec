//! Frames in the form that people read, with their local variables.

use lj_trace_common::event::{FrameKind as RecordKind, FrameRecord, NO_POSITION};
use lj_trace_common::frame::WalkEnd;

use super::coroutine::Snapshot;
use super::{FrameDump, FrameKind, Local, Options};
use crate::record::Namer;
use crate::report::Frame as Named;
use crate::stack::{Frame, Unresolved};
use crate::target::{Process, ProcessMemory};
use crate::vm::object::{Function, read_function};
use crate::vm::{LuaValue, Prototype, PrototypeKey, Prototypes, Vm};

/// Names frames and reads their variables.
pub struct Names<'a> {
    memory: ProcessMemory,
    vms: &'a [Vm],
    namer: Namer,
    prototypes: Vec<Prototypes>,
    options: Options,
}

impl<'a> Names<'a> {
    pub fn new(process: &Process, vms: &'a [Vm], options: Options) -> Self {
        Self {
            memory: process.memory(),
            vms,
            namer: Namer::new(process, vms),
            prototypes: vms.iter().map(|_| Prototypes::default()).collect(),
            options,
        }
    }

    /// Names `frames`, innermost first. `snapshots` are those of the coroutines they belong to; `trace` is the VM and
    /// the number of the trace that runs, if one does.
    pub fn frames(
        &mut self,
        frames: &[Frame],
        snapshots: &[&Snapshot],
        trace: Option<(usize, Option<u16>)>,
    ) -> Vec<FrameDump> {
        let mut named: Vec<FrameDump> = Vec::with_capacity(frames.len());
        // Where the last frame's native function begins.
        let mut native_start = None;
        for (index, frame) in frames.iter().enumerate() {
            let start = native_start.take();
            match frame {
                Frame::Native { pc, is_return } => {
                    let symbol = self.namer.native(*pc, *is_return);
                    native_start = Some(symbol.address);
                    let module = Some(symbol.module.to_string());
                    named.push(FrameDump { module, ..frame_dump(FrameKind::Native, symbol.to_string()) });
                }
                Frame::Trace => named.push(self.trace(trace)),
                Frame::Unresolved(reason) => named.push(unresolved(*reason)),
                Frame::Lua(record) if record.kind == RecordKind::Lua as u8 => {
                    let caller = match frames.get(index + 1) {
                        Some(Frame::Lua(caller)) if caller.kind == RecordKind::Lua as u8 => Some(caller),
                        _ => None,
                    };
                    named.push(self.lua(record, caller, snapshots));
                }
                Frame::Lua(record) => {
                    // The native frame of the same function says no more.
                    if record.code != 0 && start == Some(record.code) {
                        named.pop();
                    }
                    named.push(self.c_function(record));
                }
            }
        }
        named
    }

    /// The frames of a Lua stack alone.
    pub fn lua_frames(&mut self, records: &[FrameRecord], end: WalkEnd, snapshot: &Snapshot) -> Vec<FrameDump> {
        let lua = records.iter().filter(|record| record.kind != RecordKind::CFrame as u8).copied().map(Frame::Lua);
        let mut frames: Vec<Frame> = lua.collect();
        if !matches!(end, WalkEnd::Complete | WalkEnd::NoLua) {
            frames.push(Frame::Unresolved(Unresolved::Lua(end)));
        }
        self.frames(&frames, &[snapshot], None)
    }

    /// The function at a slot of a coroutine that was not started.
    pub fn function_at(&mut self, vm: usize, bits: u64) -> Option<FrameDump> {
        let layout = &self.vms.get(vm)?.layout;
        let value = LuaValue::decode(&self.memory, layout, bits);
        let (LuaValue::LuaFunction { address, .. } | LuaValue::CFunction { address, .. }) = value else { return None };
        Some(match read_function(&self.memory, layout, address).ok()? {
            Function::Lua { prototype } => {
                let key = Prototype::key_at(&self.memory, layout, prototype).ok()?;
                let record = FrameRecord {
                    function: address,
                    code: prototype,
                    chunkname: key.chunkname,
                    first_line: key.firstline,
                    size_bc: key.sizebc,
                    position: NO_POSITION,
                    vm: vm as u16,
                    ..FrameRecord::EMPTY
                };
                self.lua(&record, None, &[])
            }
            Function::C { address: code } => {
                self.c_function(&FrameRecord { kind: RecordKind::C as u8, code, vm: vm as u16, ..FrameRecord::EMPTY })
            }
            Function::Builtin { ffid, address: code } => {
                let kind = RecordKind::Fast as u8;
                self.c_function(&FrameRecord { kind, ffid, code, vm: vm as u16, ..FrameRecord::EMPTY })
            }
        })
    }

    fn lua(&mut self, record: &FrameRecord, caller: Option<&FrameRecord>, snapshots: &[&Snapshot]) -> FrameDump {
        let function = self.namer.lua(record, caller);
        let (source, line) = match &*function.named {
            Named::Lua { chunk, line, .. } => (Some(chunk.to_string()), *line),
            _ => (None, None),
        };
        let kind = if source.is_some() { FrameKind::Lua } else { FrameKind::Unresolved };
        let locals = if self.options.locals { self.locals(record, snapshots) } else { None };
        FrameDump { source, line, locals, ..frame_dump(kind, function.named.to_string()) }
    }

    fn locals(&mut self, record: &FrameRecord, snapshots: &[&Snapshot]) -> Option<Vec<Local>> {
        let vm = self.vms.get(usize::from(record.vm))?;
        let snapshot = snapshots.iter().find(|snapshot| snapshot.coroutine.holds(record.base))?;
        if record.position == NO_POSITION {
            return None;
        }
        let prototypes = self.prototypes.get_mut(usize::from(record.vm))?;
        let prototype = prototypes.get(&self.memory, &vm.layout, PrototypeKey::of(record)).ok()?;
        let locals = prototype.locals_at(record.position).into_iter().map(|(slot, name)| {
            let bits = snapshot.slot(record.base + 8 * u64::from(slot));
            let value = bits.map_or(LuaValue::Invalid, |bits| LuaValue::decode(&self.memory, &vm.layout, bits));
            Local { name, kind: value.type_name(), value: value.to_string() }
        });
        Some(locals.collect())
    }

    fn c_function(&mut self, record: &FrameRecord) -> FrameDump {
        let library = self.namer.library(record).map(str::to_owned);
        if record.kind == RecordKind::Fast as u8 {
            let name = library.unwrap_or_else(|| format!("builtin#{}", record.ffid));
            return frame_dump(FrameKind::Builtin, name);
        }
        let symbol = self.namer.native(record.code, false);
        let name = match (&symbol.name, library) {
            (None, Some(library)) => library,
            _ => symbol.to_string(),
        };
        FrameDump { module: Some(symbol.module.to_string()), ..frame_dump(FrameKind::Native, name) }
    }

    fn trace(&mut self, trace: Option<(usize, Option<u16>)>) -> FrameDump {
        let number = trace.and_then(|(_, number)| number);
        let start = trace.zip(number).and_then(|((vm, _), number)| self.namer.trace_start(vm, number));
        let named = Named::Trace { number: number.map(u64::from), start };
        frame_dump(FrameKind::Trace, named.to_string())
    }
}

fn frame_dump(kind: FrameKind, function: String) -> FrameDump {
    FrameDump { kind, function, source: None, line: None, module: None, locals: None }
}

fn unresolved(reason: Unresolved) -> FrameDump {
    frame_dump(FrameKind::Unresolved, Named::Unresolved { reason: reason.to_string().into() }.to_string())
}
