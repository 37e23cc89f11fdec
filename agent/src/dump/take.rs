//! Takes a dump.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use lj_trace_common::event::{SampledRegisters, reg};
use lj_trace_engine::Options;
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_luajit::status::VmSummary;
use lj_trace_luajit::trace::Traces;
use lj_trace_luajit::{Vm, VmStatus, heap};
use lj_trace_process::{Process, ProcessMemory, TargetError};
use lj_trace_unwind::Unwinder;

use super::known_stacks::{KnownStacks, SharedFrames};
use super::names::Names;
use super::sampled::{self, SampledThread};
use super::stack::{DumpTarget, Entry, Readers, StackSnapshot};
use super::{CoroutineDump, Dump, DumpOptions, DumpedKind, FrameDump, SeenBy, ThreadDump, VmDump};
use lj_trace_engine::coroutines::threads::{self, OsThread, ThreadPlace};
use lj_trace_engine::coroutines::view::View;
use lj_trace_engine::coroutines::{CoroutineSnapshot, LuaStack, Status, WalkedStack, snapshots};
use lj_trace_engine::resolve::machine_code;

/// How many times to read something before it counts as in motion.
const ATTEMPTS: u32 = 4;

/// The time limit for a dump, whatever the process's memory looks like. A million coroutines take some seconds.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The time limit for searching a VM's heap for its coroutines.
const HEAP_LIMIT: Duration = Duration::from_secs(15);

/// How to find out where running threads are.
pub enum Precision<'a> {
    /// By samples: these are the options of a recording that is not written anywhere. If samples are impossible, by the
    /// records of the VMs.
    Samples(Box<Options>),
    /// The threads are stopped.
    Stopped(&'a StoppedProcess),
}

/// A process whose threads are stopped.
#[derive(Clone, Debug, Default)]
pub struct StoppedProcess {
    threads: BTreeMap<u32, (char, Option<SampledRegisters>)>,
}

impl StoppedProcess {
    /// The process's threads: their states `before`, and their registers where they stopped.
    pub fn new(before: Vec<OsThread>, stopped: &[(u32, SampledRegisters)]) -> Self {
        let mut threads: BTreeMap<_, _> = before.into_iter().map(|thread| (thread.tid, (thread.state, None))).collect();
        for (tid, registers) in stopped {
            threads.entry(*tid).or_insert(('R', None)).1 = Some(*registers);
        }
        Self { threads }
    }

    /// The registers of a stopped thread.
    fn registers(&self, pid: u32, tid: u32) -> Option<SampledRegisters> {
        let registers = self.threads.get(&tid)?.1?;
        threads::is_traced(pid, tid).then_some(registers)
    }
}

/// Reads everything that `process` is executing. `vms` are its VMs.
///
/// # Errors
/// [`TargetError`] if the process is gone.
pub fn take(
    process: &Process,
    vms: &[Vm],
    options: DumpOptions,
    precision: &Precision<'_>,
) -> Result<Dump, TargetError> {
    let started = Instant::now();
    let maps = process.maps()?;
    let memory = process.memory();
    let mut taking = Taking {
        target: DumpTarget {
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
        known: KnownStacks::default(),
        shares_walks: !options.locals,
        ends: started + TIME_LIMIT,
        stopped: match precision {
            Precision::Stopped(stopped) => Some(stopped),
            Precision::Samples(_) => None,
        },
        samples: BTreeMap::new(),
    };
    let mut threads = taking.waiting_threads(process);
    let mut no_samples = None;
    if let Precision::Samples(options) = precision {
        let runs = |thread: &&ThreadDump| thread.state == "running" || thread.in_motion;
        let wanted: Vec<u32> = threads.iter().filter(runs).map(|thread| thread.tid).collect();
        if !wanted.is_empty() {
            match sampled::sample(process, vms, options, &wanted) {
                Ok(samples) => taking.samples = samples,
                Err(error) => no_samples = Some(error.message),
            }
        }
    }
    taking.running_threads(&mut threads, no_samples.as_deref());
    let vms = (0..vms.len()).map(|index| taking.vm(index)).collect();
    if !process.is_alive() {
        return Err(TargetError::NoSuchProcess(process.pid()));
    }
    let milliseconds = started.elapsed().as_secs_f64() * 1000.0;
    let (pid, command) = (process.pid(), process.command());
    Ok(Dump { pid, command, threads, vms, milliseconds, paused: None, went_on: false })
}

/// A dump that is being taken.
struct Taking<'a> {
    target: DumpTarget<'a>,
    pid: u32,
    readers: Readers,
    names: Names<'a>,
    /// The coroutines that are on the C stacks of threads, by address.
    on_threads: BTreeMap<u64, OnThread>,
    /// The stacks of coroutines that were met so far.
    known: KnownStacks,
    /// Whether equal walks share their frames. They must not if local variables are shown, because these differ.
    shares_walks: bool,
    /// The deadline.
    ends: Instant,
    /// The stopped process, if it was stopped.
    stopped: Option<&'a StoppedProcess>,
    /// The running threads, as samples saw them.
    samples: BTreeMap<u32, SampledThread>,
}

/// The thread, if known.
struct OnThread {
    /// The thread, if known.
    tid: Option<u32>,
    status: Status,
    in_motion: bool,
    frames: Vec<FrameDump>,
}

impl Taking<'_> {
    /// All threads; those that wait have their stacks.
    fn waiting_threads(&mut self, process: &Process) -> Vec<ThreadDump> {
        OsThread::all(process).into_iter().map(|thread| self.thread(&thread)).collect()
    }

    fn thread(&mut self, thread: &OsThread) -> ThreadDump {
        let mut dump = ThreadDump {
            tid: thread.tid,
            name: thread.name.clone(),
            state: self.state(thread),
            seen_by: SeenBy::Wait,
            note: None,
            in_motion: false,
            frames: Vec::new(),
            coroutines: Vec::new(),
        };
        let (mut place, _) = self.place(thread.tid);
        for attempt in 1..=ATTEMPTS {
            let ThreadPlace::Waiting { pc, sp, .. } = place else {
                // The thread may just have been between two system calls.
                place = self.place(thread.tid).0;
                continue;
            };
            let stopped = self.place(thread.tid).1.map(Entry::Stopped);
            dump.seen_by = if stopped.is_some() { SeenBy::Stop } else { SeenBy::Wait };
            let entry = stopped.unwrap_or(Entry::Registers { pc, sp });
            let snapshot = StackSnapshot::read(&self.target, entry);
            let again = StackSnapshot::read(&self.target, entry);
            let is_torn = snapshot != again;
            if !is_torn || attempt == ATTEMPTS {
                // Functions and traces are read now; they are not part of the snapshot.
                self.resolve(again, &mut dump);
            }
            let (now, _) = self.place(thread.tid);
            dump.in_motion = is_torn || now != place;
            if !dump.in_motion || attempt == ATTEMPTS {
                self.on_threads.values_mut().filter(|own| own.tid == Some(thread.tid)).for_each(|own| {
                    own.in_motion = dump.in_motion;
                });
                return dump;
            }
            place = now;
        }
        // Drops what an earlier attempt has seen.
        self.on_threads.retain(|_, own| own.tid != Some(thread.tid));
        (dump.frames, dump.coroutines) = Default::default();
        dump.seen_by = SeenBy::Nothing;
        if place == ThreadPlace::Refused {
            dump.note =
                Some("the kernel does not say where it is: run as root, or give lj-trace CAP_SYS_PTRACE".to_owned());
        } else {
            dump.state = "running";
        }
        dump
    }

    /// Where a thread is; for a stopped thread, also its registers.
    fn place(&self, tid: u32) -> (ThreadPlace, Option<SampledRegisters>) {
        match self.stopped.and_then(|stopped| stopped.registers(self.pid, tid)) {
            Some(registers) => {
                let (pc, sp) = (registers[reg::PC], registers[reg::SP]);
                (ThreadPlace::Waiting { pc, sp, mark: 0 }, Some(registers))
            }
            None => (ThreadPlace::read(self.pid, tid), None),
        }
    }

    /// What a thread does, or did before it was stopped.
    fn state(&self, thread: &OsThread) -> &'static str {
        let before = self.stopped.and_then(|stopped| stopped.threads.get(&thread.tid));
        let before = before.map_or(thread.state, |(state, _)| *state);
        threads::describe(before)
    }

    /// Resolves a stack into the frames of `dump`, and keeps what it shows about coroutines.
    fn resolve(&mut self, snapshot: StackSnapshot, dump: &mut ThreadDump) {
        let stack = snapshot.resolve(&self.target, &mut self.readers);
        let snapshots: Vec<&CoroutineSnapshot> = stack.coroutines.iter().map(|(_, snapshot)| snapshot).collect();
        // Drops what an earlier attempt has seen on this thread.
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

    /// Finds the stacks of running threads: by samples, and by the coroutines that the VMs name as current.
    /// `no_samples` says why there are no samples.
    fn running_threads(&mut self, threads: &mut [ThreadDump], no_samples: Option<&str>) {
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
            let is_sampled = |number: &usize| {
                let sample = self.samples.get(&threads[*number].tid);
                sample.is_some_and(|sample| sample.vm == Some(index))
            };
            let sampled = running.iter().copied().find(is_sampled);
            let Some(number) = sampled.or(first).or(only) else { continue };
            let dump = &mut threads[number];
            (dump.in_motion, dump.seen_by) = (true, SeenBy::Vm);
            for _ in 0..ATTEMPTS {
                // Calls and returns may tear the Lua stack now and then.
                let stack = StackSnapshot::read(&self.target, Entry::CFrame(snapshot.cframe));
                self.resolve(stack, dump);
                if !dump.frames.iter().any(|frame| frame.kind == DumpedKind::Unresolved) {
                    break;
                }
            }
        }
        for thread in threads {
            if let Some(sample) = self.samples.remove(&thread.tid) {
                (thread.state, thread.seen_by, thread.in_motion) = ("running", SeenBy::Sample, false);
                thread.frames = sample.frames;
            } else if thread.state == "running" && self.stopped.is_none() {
                let known = if thread.frames.is_empty() {
                    "it is running: where is not known without stopping it"
                } else {
                    "it is running: its innermost frames change faster than they can be read"
                };
                thread.note = Some(match no_samples {
                    Some(why) => {
                        format!("{known}. A sample would show it, but: {why}. Or stop it for a moment: --pause")
                    }
                    None => format!("{known}. No sample hit it. Stop it for a moment: --pause"),
                });
            }
        }
    }

    fn vm(&mut self, index: usize) -> VmDump {
        let DumpTarget { memory, maps, vms, .. } = self.target;
        let vm = &vms[index];
        let status = VmStatus::read(memory, vm).ok();
        let limit = HEAP_LIMIT.min(self.ends.saturating_duration_since(Instant::now()));
        let heap::Coroutines { mut threads, complete } = heap::coroutines(memory, vm, limit);
        // A list that became a ring while it was read would show some coroutines twice.
        let mut listed: HashSet<u64> = HashSet::with_capacity(threads.len());
        threads.retain(|thread| listed.insert(*thread));
        // If a heap was too large to search, the list may lack running coroutines.
        let running = self.on_threads.keys().copied().filter(|thread| !listed.contains(thread));
        threads.extend(running.filter(|&thread| CoroutineSnapshot::read(memory, vm, thread).is_some()));
        drop(listed);
        let (mut coroutines, mut left_out) = (Vec::with_capacity(threads.len()), 0);
        for some in threads.chunks(snapshots::TOGETHER) {
            if Instant::now() >= self.ends {
                left_out += some.len();
                continue;
            }
            // What functions are is read once for all of these coroutines.
            let live = PageCache::new(memory);
            snapshots::twice(memory, vm, some, |thread, before, now| {
                match self.coroutine(index, thread, (before, now), &live) {
                    Ok(shown) => coroutines.extend(shown),
                    Err(NoRoom) => left_out += 1,
                }
            });
        }
        coroutines.shrink_to_fit();
        VmDump {
            summary: VmSummary::read(&PageCache::new(memory), maps, vm, status.as_ref()),
            state: status.map_or_else(String::new, |status| status.state.to_string()),
            complete,
            coroutines,
            left_out,
        }
    }

    /// Reads a coroutine twice; [`None`] if it was collected meanwhile.
    fn coroutine(
        &mut self,
        index: usize,
        thread: u64,
        (mut before, mut now): (Option<CoroutineSnapshot>, Option<CoroutineSnapshot>),
        live: &PageCache<'_, ProcessMemory>,
    ) -> Result<Option<CoroutineDump>, NoRoom> {
        let vm = &self.target.vms[index];
        let main = thread == vm.main_thread;
        if let Some(OnThread { tid, status, in_motion, frames }) = self.on_threads.remove(&thread) {
            let frames = frames.into();
            return Ok(Some(CoroutineDump { address: thread, main, status, tid, in_motion, frames }));
        }
        for _ in 1..ATTEMPTS {
            if now == before {
                break;
            }
            before = now;
            now = CoroutineSnapshot::read(self.target.memory, vm, thread);
        }
        let in_motion = now != before;
        let Some(snapshot) = now else { return Ok(None) };
        let (status, frames) = self.waiting(index, &snapshot, live)?;
        Ok(Some(CoroutineDump { address: thread, main, status, tid: None, in_motion, frames }))
    }

    /// The status of a coroutine that is not on any thread's stack.
    fn waiting(
        &mut self,
        index: usize,
        snapshot: &CoroutineSnapshot,
        live: &PageCache<'_, ProcessMemory>,
    ) -> Result<(Status, SharedFrames), NoRoom> {
        let vm = &self.target.vms[index];
        let status = snapshot.status(vm.layout.is_gc64());
        let frames = match status {
            Status::Running => {
                let stack = StackSnapshot::read(&self.target, Entry::CFrame(snapshot.cframe));
                let is_own =
                    |(_, first): &(usize, CoroutineSnapshot)| first.coroutine.thread == snapshot.coroutine.thread;
                if !stack.coroutines.first().is_some_and(is_own) {
                    return Ok((Status::Switched, self.lua_stack(index, snapshot, live)?));
                }
                let stack = stack.resolve(&self.target, &mut self.readers);
                let snapshots: Vec<&CoroutineSnapshot> =
                    stack.coroutines.iter().map(|(_, snapshot)| snapshot).collect();
                let frames = self.names.frames(&stack.frames, &snapshots, stack.trace);
                return Ok((Status::Switched, self.known.keep(frames).ok_or(NoRoom)?));
            }
            Status::NotStarted => {
                let function = snapshot.slot(snapshot.base);
                function.and_then(|bits| self.names.function_at(index, bits)).into_iter().collect()
            }
            Status::Finished => Vec::new(),
            _ => return Ok((status, self.lua_stack(index, snapshot, live)?)),
        };
        Ok((status, self.known.keep(frames).ok_or(NoRoom)?))
    }

    fn lua_stack(
        &mut self,
        index: usize,
        snapshot: &CoroutineSnapshot,
        live: &PageCache<'_, ProcessMemory>,
    ) -> Result<SharedFrames, NoRoom> {
        let vm = &self.target.vms[index];
        let view = View { live, copies: snapshot.copies().to_vec() };
        let walk = LuaStack::of_waiting(&view, vm, index, snapshot);
        let walked = if self.shares_walks { WalkedStack::of(&walk) } else { None };
        if let Some(known) = walked.as_ref().and_then(|walked| self.known.of_walk(walked)) {
            return Ok(known);
        }
        let frames = self.known.keep(self.names.lua_frames(&walk, snapshot, None)).ok_or(NoRoom)?;
        if let Some(walked) = walked {
            self.known.note(walked, &frames);
        }
        Ok(frames)
    }
}

/// The stacks together need too much memory.
struct NoRoom;

/// The coroutine that a VM names as its current one. LuaJIT 2.0 does not name any; there it is the main thread.
fn current(target: &DumpTarget<'_>, vm: &Vm) -> Option<CoroutineSnapshot> {
    let status = VmStatus::read(target.memory, vm).ok()?;
    CoroutineSnapshot::read(target.memory, vm, status.current.unwrap_or(vm.main_thread))
}
