//! Formats frames for people, with their local variables.

use lj_trace_common::event::{FrameRecord, NO_POSITION, RecordKind};
use lj_trace_common::frame::WalkEnd;
use lj_trace_luajit::{LuaValue, PrototypeKey, Prototypes, Vm};
use lj_trace_process::{Process, ProcessMemory};
use lj_trace_profile::Frame as Named;

use super::{DumpOptions, DumpedKind, FrameDump, Local};
use lj_trace_engine::coroutines::{CoroutineSnapshot, LuaStack};
use lj_trace_engine::resolve::Namer;
use lj_trace_engine::stack::{INLINED, Innermost, JoinedFrame, Unresolved};

/// Names frames and reads their variables.
pub struct Names<'a> {
    memory: ProcessMemory,
    vms: &'a [Vm],
    namer: Namer,
    prototypes: Vec<Prototypes>,
    options: DumpOptions,
}

impl<'a> Names<'a> {
    pub fn new(process: &Process, vms: &'a [Vm], options: DumpOptions) -> Self {
        Self {
            memory: process.memory(),
            vms,
            namer: Namer::new(process, vms),
            prototypes: vms.iter().map(|_| Prototypes::default()).collect(),
            options,
        }
    }

    /// Names `frames`, innermost first. `snapshots` are the coroutines that the frames belong to; `trace` is the VM and
    /// the number of the running trace, if there is one.
    pub fn frames(
        &mut self,
        frames: &[JoinedFrame],
        snapshots: &[&CoroutineSnapshot],
        trace: Option<(usize, Option<u16>)>,
    ) -> Vec<FrameDump> {
        let mut named: Vec<FrameDump> = Vec::with_capacity(frames.len());
        // The start of the last frame's native function.
        let mut native_start = None;
        for frame in frames {
            let start = native_start.take();
            match frame {
                JoinedFrame::Native { pc, is_return } => {
                    let symbol = self.namer.native(*pc, *is_return);
                    native_start = Some(symbol.address);
                    let module = Some(symbol.module.to_string());
                    named.push(FrameDump { module, ..frame_dump(DumpedKind::Native, symbol.to_string()) });
                }
                JoinedFrame::Trace => named.push(self.trace(trace)),
                JoinedFrame::Unresolved(reason) => named.push(unresolved(&reason.to_string())),
                JoinedFrame::Inlined => named.push(unresolved(INLINED)),
                // Dumps leave out no frames.
                JoinedFrame::LeftOut(count) => named.push(unresolved(&format!("{count} Lua frames left out"))),
                JoinedFrame::Lua(record) | JoinedFrame::Compiled(record) if record.kind == RecordKind::Lua as u8 => {
                    // Functions inlined into a trace keep their variables in registers.
                    let in_memory = if matches!(frame, JoinedFrame::Compiled(_)) { &[] } else { snapshots };
                    let function = self.lua(record, in_memory);
                    named.push(FrameDump { trace: number_of(frame, trace), ..function });
                }
                JoinedFrame::Lua(record) | JoinedFrame::Compiled(record) => {
                    // The native frame of the same function adds nothing.
                    if record.code != 0 && start == Some(record.code) {
                        named.pop();
                    }
                    let function = self.c_function(record);
                    named.push(FrameDump { trace: number_of(frame, trace), ..function });
                }
            }
        }
        named
    }

    /// Names the frames of a Lua stack alone. `trace` is the VM and the number of the trace that runs in it.
    pub fn lua_frames(
        &mut self,
        stack: &LuaStack,
        snapshot: &CoroutineSnapshot,
        trace: Option<(usize, Option<u16>)>,
    ) -> Vec<FrameDump> {
        self.frames(&lua_frames(stack), &[snapshot], trace)
    }

    /// The function in a slot of a coroutine that was not started.
    pub fn function_at(&mut self, vm: usize, bits: u64) -> Option<FrameDump> {
        let layout = &self.vms.get(vm)?.layout;
        let record = FrameRecord { vm: vm as u16, ..FrameRecord::EMPTY };
        match LuaValue::decode(&self.memory, layout, bits) {
            LuaValue::LuaFunction { prototype, .. } => {
                let record = FrameRecord {
                    code: prototype.address,
                    chunkname: prototype.chunkname,
                    first_line: prototype.firstline,
                    size_bc: prototype.sizebc,
                    position: NO_POSITION,
                    ..record
                };
                Some(self.lua(&record, &[]))
            }
            LuaValue::CFunction { ffid, code } => Some(self.c_function(&c_record(record.vm, ffid, code))),
            _ => None,
        }
    }

    fn lua(&mut self, record: &FrameRecord, snapshots: &[&CoroutineSnapshot]) -> FrameDump {
        let function = self.namer.lua(record, false);
        let (source, line) = match &*function {
            Named::Lua { chunk, line, .. } => (Some(chunk.to_string()), *line),
            _ => (None, None),
        };
        let kind = if source.is_some() { DumpedKind::Lua } else { DumpedKind::Unresolved };
        let locals = if self.options.locals { self.locals(record, snapshots) } else { None };
        FrameDump { source, line, locals, ..frame_dump(kind, function.to_string()) }
    }

    fn locals(&mut self, record: &FrameRecord, snapshots: &[&CoroutineSnapshot]) -> Option<Vec<Local>> {
        let vm = self.vms.get(usize::from(record.vm))?;
        let snapshot = snapshots.iter().find(|snapshot| snapshot.coroutine.holds(record.base))?;
        if record.position == NO_POSITION {
            return None;
        }
        let prototypes = self.prototypes.get_mut(usize::from(record.vm))?;
        let prototype = prototypes.get(&self.memory, vm, PrototypeKey::of(record)).ok()?;
        let locals = prototype.locals_at(record.position).into_iter().map(|(slot, name)| {
            let bits = snapshot.slot(record.base + 8 * u64::from(slot));
            let value = bits.map_or(LuaValue::Invalid, |bits| LuaValue::decode(&self.memory, &vm.layout, bits));
            Local { name, kind: value.type_name(), value: self.value(record.vm, &value) }
        });
        Some(locals.collect())
    }

    /// A value in readable form: C functions by their names.
    fn value(&mut self, vm: u16, value: &LuaValue) -> String {
        match *value {
            LuaValue::CFunction { ffid, code } => {
                format!("function {}", self.c_function(&c_record(vm, ffid, code)).function)
            }
            _ => value.to_string(),
        }
    }

    fn c_function(&mut self, record: &FrameRecord) -> FrameDump {
        let library = self.namer.library(record).map(str::to_owned);
        if record.kind == RecordKind::Fast as u8 {
            let name = library.unwrap_or_else(|| format!("builtin#{}", record.ffid));
            return frame_dump(DumpedKind::Builtin, name);
        }
        let symbol = self.namer.native(record.code, false);
        let name = match (&symbol.name, library) {
            (None, Some(library)) => library,
            _ => symbol.to_string(),
        };
        FrameDump { module: Some(symbol.module.to_string()), ..frame_dump(DumpedKind::Native, name) }
    }

    fn trace(&mut self, trace: Option<(usize, Option<u16>)>) -> FrameDump {
        let number = trace.and_then(|(_, number)| number);
        let start = trace.zip(number).and_then(|((vm, _), number)| self.namer.trace_start(vm, number, None));
        let named = Named::Trace { number: number.map(u64::from), start };
        frame_dump(DumpedKind::Trace, named.to_string())
    }
}

/// The frames of a Lua stack, with marks where frames are missing or uncertain.
fn lua_frames(stack: &LuaStack) -> Vec<JoinedFrame> {
    let lua = stack.frames.iter().filter(|record| record.kind != RecordKind::CFrame as u8).copied();
    let (mut frames, compiled) = match stack.innermost {
        Innermost::Known | Innermost::Interpreter => (Vec::new(), 0),
        Innermost::Compiled { frames, certain: true } => (Vec::new(), frames),
        Innermost::Compiled { frames, certain: false } => (vec![JoinedFrame::Inlined], frames),
        Innermost::Trace(None) => (vec![JoinedFrame::Trace], 0),
        Innermost::Trace(Some(reason)) => {
            (vec![JoinedFrame::Unresolved(Unresolved::Trace(reason)), JoinedFrame::Trace], 0)
        }
    };
    frames.extend(lua.enumerate().map(|(index, record)| match index < compiled {
        true => JoinedFrame::Compiled(record),
        false => JoinedFrame::Lua(record),
    }));
    if !matches!(stack.end, WalkEnd::Complete | WalkEnd::NoLua) {
        frames.push(JoinedFrame::Unresolved(Unresolved::Lua(stack.end)));
    }
    frames
}

/// The trace that a frame was compiled into.
fn number_of(frame: &JoinedFrame, trace: Option<(usize, Option<u16>)>) -> Option<u16> {
    if matches!(frame, JoinedFrame::Compiled(_)) { trace?.1 } else { None }
}

/// The record of a C function or built-in function.
fn c_record(vm: u16, ffid: u8, code: u64) -> FrameRecord {
    let kind = if ffid == 1 { RecordKind::C } else { RecordKind::Fast };
    FrameRecord { kind: kind as u8, ffid, code, vm, ..FrameRecord::EMPTY }
}

fn frame_dump(kind: DumpedKind, function: String) -> FrameDump {
    FrameDump { kind, function, source: None, line: None, module: None, trace: None, locals: None }
}

fn unresolved(reason: &str) -> FrameDump {
    frame_dump(DumpedKind::Unresolved, Named::Unresolved { reason: reason.into() }.to_string())
}
