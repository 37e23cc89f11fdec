//! Takes a dump.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use lj_trace_luajit::page_cache::PageCache;
use lj_trace_luajit::status::VmSummary;
use lj_trace_luajit::trace::Traces;
use lj_trace_luajit::{Vm, VmStatus, heap};
use lj_trace_process::{Process, TargetError};
use lj_trace_unwind::Unwinder;

use super::coroutine::{LuaStack, Snapshot, Status};
use super::names::Names;
use super::stack::{Entry, Readers, StackSnapshot, Target};
use super::threads::{Place, Thread};
use super::view::View;
use super::{CoroutineDump, Dump, FrameDump, FrameKind, Options, ThreadDump, VmDump};
use crate::record::machine_code;

/// How often something is read before it is said to be in motion.
const ATTEMPTS: u32 = 4;

/// Looks at everything that `process` executes. `vms` are its VMs.
///
/// # Errors
/// [`TargetError`] if the process is gone.
pub fn take(process: &Process, vms: &[Vm], options: Options) -> Result<Dump, TargetError> {
    let started = Instant::now();
    let maps = process.maps()?;
    let memory = process.memory();
    let mut taking = Taking {
        target: Target {
            memory: &memory,
            maps: &maps,
            vms,
            configs: vms.iter().map(Vm::config).collect(),
            codes: vms.iter().map(|vm| machine_code(&memory, vm)).collect(),
            stack_start: process.stack_start(),
        },
        pid: process.pid(),
        readers: Readers {
            unwinder: Unwinder::new(process.clone()),
            traces: vms.iter().map(|_| Traces::default()).collect(),
        },
        names: Names::new(process, vms, options),
        on_threads: BTreeMap::new(),
    };
    let mut threads = taking.waiting_threads(process);
    taking.running_threads(&mut threads);
    let vms = (0..vms.len()).map(|index| taking.vm(index)).collect();
    if !process.is_alive() {
        return Err(TargetError::NoSuchProcess(process.pid()));
    }
    let milliseconds = started.elapsed().as_secs_f64() * 1000.0;
    Ok(Dump { pid: process.pid(), command: process.command(), threads, vms, milliseconds })
}

/// A dump that is being taken.
struct Taking<'a> {
    target: Target<'a>,
    pid: u32,
    readers: Readers,
    names: Names<'a>,
    /// The coroutines found on C stacks that threads run on, by address.
    on_threads: BTreeMap<u64, OnThread>,
}

/// A coroutine on a thread's stack.
struct OnThread {
    /// The thread, if it is known which.
    tid: Option<u32>,
    status: Status,
    in_motion: bool,
    frames: Vec<FrameDump>,
}

impl Taking<'_> {
    /// All threads, with the stacks of those that wait.
    fn waiting_threads(&mut self, process: &Process) -> Vec<ThreadDump> {
        Thread::all(process).into_iter().map(|thread| self.thread(&thread)).collect()
    }

    fn thread(&mut self, thread: &Thread) -> ThreadDump {
        let mut dump = ThreadDump {
            tid: thread.tid,
            name: thread.name.clone(),
            state: thread.describe(),
            note: None,
            in_motion: false,
            frames: Vec::new(),
            coroutines: Vec::new(),
        };
        let mut place = thread.place;
        for attempt in 1..=ATTEMPTS {
            let Place::Waiting { rip, rsp, .. } = place else {
                // It may just have been between two system calls.
                place = Place::read(self.pid, thread.tid);
                continue;
            };
            let entry = Entry::Registers { rip, rsp };
            let snapshot = StackSnapshot::read(&self.target, entry);
            let again = StackSnapshot::read(&self.target, entry);
            let is_torn = snapshot != again;
            if !is_torn || attempt == ATTEMPTS {
                // Some of what is read now is not in the snapshot: functions, traces.
                self.resolve(again, &mut dump);
            }
            let now = Place::read(self.pid, thread.tid);
            dump.in_motion = is_torn || now != place;
            if !dump.in_motion || attempt == ATTEMPTS {
                self.on_threads.values_mut().filter(|own| own.tid == Some(thread.tid)).for_each(|own| {
                    own.in_motion = dump.in_motion;
                });
                return dump;
            }
            place = now;
        }
        // What an attempt has seen is over.
        self.on_threads.retain(|_, own| own.tid != Some(thread.tid));
        (dump.frames, dump.coroutines) = Default::default();
        if place == Place::Refused {
            dump.note =
                Some("the kernel does not say where it is: run as root, or give lj-trace CAP_SYS_PTRACE".to_owned());
        } else {
            dump.state = "running";
        }
        dump
    }

    /// Resolves a stack into the frames of `dump`, and keeps what it shows of coroutines.
    fn resolve(&mut self, snapshot: StackSnapshot, dump: &mut ThreadDump) {
        let stack = snapshot.resolve(&self.target, &mut self.readers);
        let snapshots: Vec<&Snapshot> = stack.coroutines.iter().map(|(_, snapshot)| snapshot).collect();
        // What an attempt before has seen there.
        self.on_threads.retain(|_, own| own.tid != Some(dump.tid));
        dump.frames = self.names.frames(&stack.frames, &snapshots, stack.trace);
        dump.coroutines = snapshots.iter().map(|snapshot| snapshot.coroutine.thread).collect();
        let mut seen = BTreeSet::new();
        for (index, ((vm, snapshot), walk)) in stack.coroutines.iter().zip(&stack.walks).enumerate() {
            let status = if seen.insert(*vm) { Status::Running } else { Status::Normal };
            let frames = self.names.lua_frames(walk, snapshot, stack.trace.filter(|_| index == 0));
            let on_thread = OnThread { tid: Some(dump.tid), status, in_motion: dump.in_motion, frames };
            self.on_threads.insert(snapshot.coroutine.thread, on_thread);
        }
    }

    /// Finds the stacks of threads that run, by the coroutines that the VMs call their current ones.
    fn running_threads(&mut self, threads: &mut [ThreadDump]) {
        for index in 0..self.target.vms.len() {
            let vm = &self.target.vms[index];
            let Some(snapshot) = current(&self.target, vm) else { continue };
            if snapshot.cframe == 0 || self.on_threads.contains_key(&snapshot.coroutine.thread) {
                continue;
            }
            let running: Vec<usize> = (0..threads.len())
                .filter(|&number| threads[number].state == "running" && threads[number].coroutines.is_empty())
                .collect();
            let is_first = self.target.maps.find(snapshot.cframe).is_some_and(|m| m.contains(self.target.stack_start));
            let first = running.iter().copied().find(|&number| threads[number].tid == self.pid).filter(|_| is_first);
            let only = if let [number] = running[..] { Some(number) } else { None };
            let Some(number) = first.or(only) else { continue };
            let dump = &mut threads[number];
            dump.in_motion = true;
            for _ in 0..ATTEMPTS {
                // The Lua stack is torn now and then, in calls and returns.
                let stack = StackSnapshot::read(&self.target, Entry::CFrame(snapshot.cframe));
                self.resolve(stack, dump);
                if !dump.frames.iter().any(|frame| frame.kind == FrameKind::Unresolved) {
                    break;
                }
            }
        }
        for thread in threads.iter_mut().filter(|thread| thread.state == "running" && thread.frames.is_empty()) {
            thread.note = Some("it is running: where is not known without stopping it".to_owned());
        }
        for thread in threads.iter_mut().filter(|thread| thread.state == "running" && !thread.frames.is_empty()) {
            let note = "it is running: its innermost frames change faster than they can be read (`lj-trace record` \
                        sees them exactly)";
            thread.note = Some(note.to_owned());
        }
    }

    fn vm(&mut self, index: usize) -> VmDump {
        let vm = &self.target.vms[index];
        let status = VmStatus::read(self.target.memory, vm).ok();
        let mut coroutines = heap::coroutines(self.target.memory, vm);
        // A list that changed into a ring meanwhile would show some twice.
        let mut seen = BTreeSet::new();
        coroutines.threads.retain(|thread| seen.insert(*thread));
        let listed: BTreeSet<u64> = coroutines.threads.iter().copied().collect();
        // A heap that was too large to look through may lack some that run.
        let running = self.on_threads.keys().copied().filter(|thread| !listed.contains(thread));
        let own = running.filter(|&thread| Snapshot::read(self.target.memory, vm, thread).is_some());
        coroutines.threads.extend(own.collect::<Vec<_>>());
        VmDump {
            summary: VmSummary::read(self.target.memory, self.target.maps, vm, status.as_ref()),
            state: status.map_or_else(String::new, |status| status.state.to_string()),
            complete: coroutines.complete,
            coroutines: coroutines.threads.into_iter().filter_map(|thread| self.coroutine(index, thread)).collect(),
        }
    }

    /// A coroutine; [`None`] if it was collected meanwhile.
    fn coroutine(&mut self, index: usize, thread: u64) -> Option<CoroutineDump> {
        let vm = &self.target.vms[index];
        let main = thread == vm.main_thread;
        if let Some(OnThread { tid, status, in_motion, frames }) = self.on_threads.remove(&thread) {
            return Some(CoroutineDump { address: thread, main, status, tid, in_motion, frames });
        }
        let mut before = Snapshot::read(self.target.memory, vm, thread);
        let mut in_motion = true;
        for _ in 0..ATTEMPTS {
            let now = Snapshot::read(self.target.memory, vm, thread);
            in_motion = now != before;
            before = now;
            if !in_motion {
                break;
            }
        }
        let snapshot = before?;
        let (status, frames) = self.waiting(index, &snapshot);
        Some(CoroutineDump { address: thread, main, status, tid: None, in_motion, frames })
    }

    /// What a coroutine does that is on no thread's stack.
    fn waiting(&mut self, index: usize, snapshot: &Snapshot) -> (Status, Vec<FrameDump>) {
        let vm = &self.target.vms[index];
        let frames = match snapshot.status(vm.layout.is_gc64()) {
            Status::Running => {
                let stack = StackSnapshot::read(&self.target, Entry::CFrame(snapshot.cframe));
                let is_own = |(_, first): &(usize, Snapshot)| first.coroutine.thread == snapshot.coroutine.thread;
                if !stack.coroutines.first().is_some_and(is_own) {
                    return (Status::Switched, self.lua_stack(index, snapshot));
                }
                let stack = stack.resolve(&self.target, &mut self.readers);
                let snapshots: Vec<&Snapshot> = stack.coroutines.iter().map(|(_, snapshot)| snapshot).collect();
                return (Status::Switched, self.names.frames(&stack.frames, &snapshots, stack.trace));
            }
            Status::NotStarted => {
                let function = snapshot.slot(snapshot.base);
                function.and_then(|bits| self.names.function_at(index, bits)).into_iter().collect()
            }
            Status::Finished => Vec::new(),
            _ => self.lua_stack(index, snapshot),
        };
        (snapshot.status(vm.layout.is_gc64()), frames)
    }

    fn lua_stack(&mut self, index: usize, snapshot: &Snapshot) -> Vec<FrameDump> {
        let vm = &self.target.vms[index];
        let live = PageCache::new(self.target.memory);
        let view = View { live: &live, copies: snapshot.copies().to_vec() };
        let walk = LuaStack::of_waiting(&view, vm, index, snapshot);
        self.names.lua_frames(&walk, snapshot, None)
    }
}

/// The coroutine that a VM calls its current one; in LuaJIT 2.0, which does not say, its main thread.
fn current(target: &Target<'_>, vm: &Vm) -> Option<Snapshot> {
    let status = VmStatus::read(target.memory, vm).ok()?;
    Snapshot::read(target.memory, vm, status.current.unwrap_or(vm.main_thread))
}

/// Whether no coroutine of a VM is running: its host does not call it at the moment.
pub fn is_idle(process: &Process, vm: &Vm) -> bool {
    let memory = process.memory();
    let current = VmStatus::read(&memory, vm).ok().and_then(|status| status.current);
    let runs = |thread| Snapshot::read(&memory, vm, thread).is_some_and(|snapshot| snapshot.cframe != 0);
    !current.into_iter().chain([vm.main_thread]).any(runs)
}
