//! Names the Lua stacks of waiting coroutines.

use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_common::event::{FrameRecord, RecordKind};
use lj_trace_common::frame::WalkEnd;
use lj_trace_luajit::Vm;
use lj_trace_process::Process;
use lj_trace_profile::Frame as Named;
use lj_trace_profile::WaitProfile;
use lj_trace_profile::model::StackId;

use crate::coroutines::{LuaStack, WalkedStack};
use crate::resolve::Namer;
use crate::stack::Unresolved;

/// The most walks whose stacks are remembered.
const MAX_WALKS: usize = 1 << 14;

/// Names frames, and remembers the profile's stack of each walk.
pub struct WaitNames {
    namer: Namer,
    /// The frame at the root of all stacks, if the profile is of several processes.
    root: Option<Named>,
    known: HashMap<(usize, WalkedStack, Option<Named>), StackId>,
    /// The joined stacks, by outer and inner stack.
    joined: HashMap<[StackId; 2], StackId>,
}

/// The most frames of a joined stack.
const MAX_FRAMES: usize = 512;

/// C functions that wait for the coroutines in their arguments (`ngx_http_lua_coroutine.c`, `ngx_http_lua_uthread.c`).
const WAITING_FOR_OTHERS: [&str; 2] = ["ngx.thread.wait", "coroutine.resume"];

/// C functions that resume another coroutine, and continue when it yields.
const RESUMING: [&str; 2] = ["coroutine.resume", "coroutine.wrap_aux"];

impl WaitNames {
    /// The names of a process. `root` is the root frame of its stacks, if the profile is of several processes.
    pub fn new(process: &Process, vms: &[Vm], root: Option<Named>) -> Self {
        Self { namer: Namer::new(process, vms), root, known: HashMap::new(), joined: HashMap::new() }
    }

    /// The namer of frames.
    pub fn namer(&mut self) -> &mut Namer {
        &mut self.namer
    }

    /// Adds a VM. It gets the next index.
    pub fn add_vm(&mut self, vm: &Vm) {
        self.namer.add_vm(vm);
    }

    /// Forgets a VM that is gone.
    pub fn forget_vm(&mut self, index: usize) {
        self.namer.forget_vm(index);
        self.known.retain(|(vm, ..), _| *vm != index);
    }

    /// Updates the numbers of stacks after they have changed.
    pub fn renumber(&mut self, moved: &[StackId]) {
        self.joined.clear();
        self.known.values_mut().for_each(|stack| {
            if let Some(to) = moved.get(stack.index()) {
                *stack = *to;
            }
        });
    }

    /// Begins a look: time has passed, so the namer may search for more functions.
    pub fn begin_look(&mut self) {
        self.namer.begin_batch();
    }

    /// How many functions may have a name that it would take too much work to find.
    pub fn unsearched(&self) -> u64 {
        self.namer.unsearched()
    }

    /// The profile's stack for a walked stack of a VM, under the frame of its `group`, if it has one.
    pub fn stack(
        &mut self,
        profile: &mut WaitProfile,
        (vm, vms): (usize, usize),
        walk: &LuaStack,
        group: Option<Named>,
    ) -> StackId {
        let key = WalkedStack::of(walk).map(|walked| (vm, walked, group.clone()));
        if let Some(known) = key.as_ref().and_then(|key| self.known.get(key)) {
            return *known;
        }
        let mut frames: Vec<Named> = self.root.clone().into_iter().collect();
        match group {
            // The group replaces the VM.
            Some(group) => {
                profile.show_roots();
                frames.push(group);
            }
            None if vms > 1 => frames.push(Named::vm(vm)),
            None => {}
        }
        frames.extend(self.frames(walk).into_iter().rev());
        let stack = profile.stack(frames);
        if let Some(key) = key {
            if self.known.len() >= MAX_WALKS {
                self.known.clear();
            }
            self.known.insert(key, stack);
        }
        stack
    }

    /// The frames of a stack, from the innermost outward; the last one is a mark where the stack goes on.
    pub fn frames(&mut self, walk: &LuaStack) -> Vec<Named> {
        self.namer.see(&walk.frames);
        let records = walk.frames.iter().filter(|record| record.kind != RecordKind::CFrame as u8);
        let mut frames: Vec<Named> = records.map(|record| self.frame(record)).collect();
        if !matches!(walk.end, WalkEnd::Complete | WalkEnd::NoLua) {
            frames.push(Named::Unresolved { reason: Unresolved::Lua(walk.end).to_string().into() });
        }
        frames
    }

    /// Whether the innermost frame of a stack resumes another coroutine, and waits only for that one.
    pub fn is_resuming(&mut self, walk: &LuaStack) -> bool {
        let first = walk.frames.iter().find(|record| record.kind != RecordKind::CFrame as u8);
        let fast = first.filter(|record| record.kind == RecordKind::Fast as u8);
        fast.is_some_and(|record| self.namer.library(record).is_some_and(|name| RESUMING.contains(&name)))
    }

    /// Whether a frame is a C function that waits for the coroutines in its arguments.
    pub fn is_waiting_for_others(&mut self, record: &FrameRecord) -> bool {
        record.kind == RecordKind::C as u8
            && self.namer.library(record).is_some_and(|name| WAITING_FOR_OTHERS.contains(&name))
    }

    /// Appends the stack of a coroutine to the stack of the coroutine that waits for it.
    pub fn join(&mut self, profile: &mut WaitProfile, outer: StackId, inner: StackId) -> StackId {
        if let Some(known) = self.joined.get(&[outer, inner]) {
            return *known;
        }
        let joined = profile.join(outer, inner, MAX_FRAMES);
        if self.joined.len() >= MAX_WALKS {
            self.joined.clear();
        }
        self.joined.insert([outer, inner], joined);
        joined
    }

    fn frame(&mut self, record: &FrameRecord) -> Named {
        if record.kind == RecordKind::Lua as u8 {
            return (*self.namer.lua(record, false)).clone();
        }
        let library: Option<Arc<str>> = self.namer.library(record).map(Into::into);
        if record.kind == RecordKind::Fast as u8 {
            let name = library.unwrap_or_else(|| format!("builtin#{}", record.ffid).into());
            return Named::FastFunction { name };
        }
        let symbol = self.namer.native(record.code, false);
        // Lua programmers know the function by its registered name.
        let name = library.unwrap_or_else(|| symbol.to_string().into());
        Named::C { symbol: name, module: Some(symbol.module.clone()) }
    }
}
