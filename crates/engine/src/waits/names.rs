//! Names the Lua stacks of coroutines that wait.

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

/// Walks of which it is kept what stack they lead to.
const MAX_WALKS: usize = 1 << 14;

/// Names frames, and keeps what stacks of a profile they are.
pub struct WaitNames {
    namer: Namer,
    /// What all stacks begin with, if the profile is of several processes.
    root: Option<Named>,
    known: HashMap<(usize, WalkedStack, Option<Named>), StackId>,
    /// Stacks that were joined.
    joined: HashMap<[StackId; 2], StackId>,
}

/// Stacks that are joined have no more frames.
const MAX_FRAMES: usize = 512;

/// C functions that wait for the coroutines that they are given (`ngx_http_lua_coroutine.c`, `ngx_http_lua_uthread.c`).
const WAITING_FOR_OTHERS: [&str; 2] = ["ngx.thread.wait", "coroutine.resume"];

/// Resumes another coroutine, and goes on when that yields.
const RESUMING: [&str; 2] = ["coroutine.resume", "coroutine.wrap_aux"];

impl WaitNames {
    /// Those of a process. `root` is what its stacks begin with, if they are among those of others.
    pub fn new(process: &Process, vms: &[Vm], root: Option<Named>) -> Self {
        Self { namer: Namer::new(process, vms), root, known: HashMap::new(), joined: HashMap::new() }
    }

    /// What names frames.
    pub fn namer(&mut self) -> &mut Namer {
        &mut self.namer
    }

    /// One more VM, which gets the next index.
    pub fn add_vm(&mut self, vm: &Vm) {
        self.namer.add_vm(vm);
    }

    /// A VM is not there any more.
    pub fn forget_vm(&mut self, index: usize) {
        self.namer.forget_vm(index);
        self.known.retain(|(vm, ..), _| *vm != index);
    }

    /// The numbers of stacks have changed.
    pub fn renumber(&mut self, moved: &[StackId]) {
        self.joined.clear();
        self.known.values_mut().for_each(|stack| {
            if let Some(to) = moved.get(stack.index()) {
                *stack = *to;
            }
        });
    }

    /// Time has passed: more functions may be looked for.
    pub fn begin_look(&mut self) {
        self.namer.begin_batch();
    }

    /// How many functions may have a name that would have taken too much work to find.
    pub fn unsearched(&self) -> u64 {
        self.namer.unsearched()
    }

    /// The stack of the profile that a walked stack of a VM is, under the frame of its `group`, if it is in one.
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
        self.namer.see(&walk.frames);
        let inwards = walk.frames.iter().rev().filter(|record| record.kind != RecordKind::CFrame as u8);
        let mut frames: Vec<Named> = self.root.clone().into_iter().collect();
        match group {
            // It takes the place of the VM.
            Some(group) => frames.push(group),
            None if vms > 1 => frames.push(Named::vm(vm)),
            None => {}
        }
        if !matches!(walk.end, WalkEnd::Complete | WalkEnd::NoLua) {
            frames.push(Named::Unresolved { reason: Unresolved::Lua(walk.end).to_string().into() });
        }
        for record in inwards {
            frames.push(self.frame(record));
        }
        let stack = profile.stack(frames);
        if let Some(key) = key {
            if self.known.len() >= MAX_WALKS {
                self.known.clear();
            }
            self.known.insert(key, stack);
        }
        stack
    }

    /// Whether the innermost frame of a stack resumes another coroutine, and waits for that one alone.
    pub fn is_resuming(&mut self, walk: &LuaStack) -> bool {
        let first = walk.frames.iter().find(|record| record.kind != RecordKind::CFrame as u8);
        let fast = first.filter(|record| record.kind == RecordKind::Fast as u8);
        fast.is_some_and(|record| self.namer.library(record).is_some_and(|name| RESUMING.contains(&name)))
    }

    /// Whether a frame is that of a C function that waits for the coroutines that it is given.
    pub fn is_waiting_for_others(&mut self, record: &FrameRecord) -> bool {
        record.kind == RecordKind::C as u8
            && self.namer.library(record).is_some_and(|name| WAITING_FOR_OTHERS.contains(&name))
    }

    /// The stack of a coroutine behind that of one that waits for it.
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
        // Lua programmers know it by the name that it is registered by.
        let name = library.unwrap_or_else(|| symbol.to_string().into());
        Named::C { symbol: name, module: Some(symbol.module.clone()) }
    }
}
