//! From a raw sample to a stack of named frames.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use lj_trace_common::config::MAX_KERNEL_FRAMES;
use lj_trace_common::event::{
    FrameRecord, NO_POSITION, NO_VM, RecordKind, SAMPLE_ALLOCATION, SAMPLE_IN_KERNEL, SAMPLE_ON_TRACE, SAMPLE_WAIT, reg,
};
use lj_trace_common::frame::WalkEnd;
use lj_trace_common::stack_end::StackEnd;
use lj_trace_common::trace::{RunningTrace, TraceCopy};
use lj_trace_common::vm::VmState;
use lj_trace_luajit::trace::{self, Allowance, Hit, NoTrace, OnTrace, Traces, is_on_trace};
use lj_trace_luajit::{PrototypeKey, Vm};
use lj_trace_probes::sample::Sample;
use lj_trace_process::{KnownCode, Process, ProcessMemory};
use lj_trace_profile::Frame as Named;
use lj_trace_unwind::symbols::KernelSymbols;
use lj_trace_unwind::{CFrame, NativeStack, Registers, StackCopy, Unwinder, VmCode};

use super::gone_areas::GoneAreas;
use super::layout_decision::LayoutDecision;
use super::machine_code::{self, machine_code};
use super::naming::Namer;
use super::requests::{LabelLayout, RequestLabeller, RequestTally, SampleRequest};
use super::return_probe;
use super::stack_ends::StackEnds;
use super::thread_names::ThreadNames;
use super::trace_table::SampledTrace;
use super::vm_places::VmPlaces;
use super::{vm_work, wait_reason};
use crate::sample_clock::now;
use crate::stack::{INLINED, Innermost, JoinedFrame, MergedStack, SettledTop, Unresolved, fix_innermost_frame, merge};

/// A sample with its named frames.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What the innermost VM was doing; [`None`] if the sample hit no Lua at all.
    pub state: Option<VmState>,
    /// The number of the innermost VM among all VMs so far, from 0 on; [`None`] if the sample hit no known VM.
    pub vm: Option<usize>,
    /// The id of the thread.
    pub tid: u32,
    /// The name of the thread, if it can be read.
    pub thread_name: Option<Arc<str>>,
    /// The time of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// If the sample is the stack of an allocation and not a tick of the clock: the allocated bytes.
    pub allocation: Option<u64>,
    /// If the sample is a wait and not a tick of the clock: its nanoseconds.
    pub wait: Option<u64>,
    /// The number of the turn of the thread's event loop; 0 if turns are not tracked.
    pub turn: u64,
    /// Where Lua was first entered on this stack: the outermost coroutine and its C frame; [`None`] if there is no Lua.
    pub entry: Option<(u64, u64)>,
    /// The trace that the sample hit, if it is known.
    pub trace: Option<SampledTrace>,
    /// The request that the sample's coroutine serves.
    pub request: SampleRequest,
    /// The frames, innermost first.
    pub frames: Vec<ResolvedFrame>,
}

/// A named frame, with what a stream has to know of it.
#[derive(Clone, Debug)]
pub struct ResolvedFrame {
    /// The name, as reports show it.
    pub named: Arc<Named>,
    /// The code, as a stream shows it.
    pub code: Code,
}

/// What a frame executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Native code at `pc`, in the function `start..end`.
    Native {
        /// The interrupted instruction, or the return address.
        pc: u64,
        /// Where the function starts.
        start: u64,
        /// The first address after the function.
        end: u64,
    },
    /// A Lua function.
    Lua {
        /// Its prototype.
        prototype: PrototypeKey,
        /// The index of the instruction; [`None`] if it is not known.
        position: Option<u32>,
    },
    /// A frame that has only a name: a fast function or a mark.
    Name,
}

/// Counts of samples.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// All samples.
    pub samples: u64,
    /// Samples that hit Lua: a VM ran, or had called the code that ran.
    pub with_lua: u64,
    /// Samples of `with_lua` whose Lua stack is complete.
    pub lua_complete: u64,
    /// Samples of `samples` whose native stack reaches the program's entry or the thread's start.
    pub native_complete: u64,
    /// Samples whose stack is complete except for left-out frames between the innermost and the outermost ones.
    pub both_ends: u64,
    /// The number of left-out Lua frames, over all samples.
    pub left_out: u64,
    /// Samples during which the thread was in the kernel.
    pub in_kernel: u64,
    /// Samples of `samples` that are waits of threads.
    pub waits: u64,
    /// The nanoseconds of these waits.
    pub waited: u64,
    /// Samples by the state of the VM. Samples without Lua are not included.
    pub states: BTreeMap<VmState, u64>,
    /// Samples with frames that could not be resolved, by reason. A sample with several such frames counts once per reason.
    pub unresolved: BTreeMap<String, u64>,
}

/// Resolves the samples of one process.
pub struct Pipeline {
    process: Process,
    memory: ProcessMemory,
    vms: Vec<Vm>,
    places: VmPlaces,
    /// The traces of each VM.
    traces: Vec<Traces>,
    /// The CPU time that reading traces may take, for all VMs together.
    allowance: Allowance,
    /// How many traces of VMs that are gone were not read to their end.
    unfinished: u64,
    layout_decision: LayoutDecision,
    /// The indices of VMs whose layout was decided further.
    decided: Vec<usize>,
    codes: Vec<VmCode>,
    /// Areas of machine code that each VM has freed lately.
    gone: Vec<GoneAreas>,
    unwinder: Unwinder,
    namer: Namer,
    tally: Tally,
    threads: ThreadNames,
    stack_ends: StackEnds,
    kernel: KernelSymbols,
    requests: RequestLabeller,
    /// Whether waits show the functions of the kernel.
    shows_kernel: bool,
    /// The code that the process had at first.
    known_code: KnownCode,
    /// See [`Self::unknown_vms`].
    unknown_vms: u32,
    /// See [`Self::take_lateness`].
    was_late: bool,
}

impl Pipeline {
    /// A pipeline for `process` with its `vms`, in the order in which the probes know them.
    pub fn new(process: &Process, vms: &[Vm]) -> Self {
        let memory = process.memory();
        let mut places = VmPlaces::default();
        let allowance = Allowance::new();
        let mut namer = Namer::new(process, vms);
        let requests = RequestLabeller::new(process, vms, &mut namer);
        vms.iter().for_each(|_| places.add());
        Self {
            places,
            process: process.clone(),
            memory,
            vms: vms.to_vec(),
            traces: vms.iter().map(|_| Traces::within(&allowance)).collect(),
            allowance,
            unfinished: 0,
            layout_decision: LayoutDecision::default(),
            decided: Vec::new(),
            codes: vms.iter().map(|vm| machine_code(&memory, vm)).collect(),
            gone: vms.iter().map(|_| GoneAreas::default()).collect(),
            unwinder: Unwinder::new(process.clone()),
            namer,
            tally: Tally::default(),
            threads: ThreadNames::new(process),
            stack_ends: StackEnds::default(),
            kernel: KernelSymbols::default(),
            requests,
            shows_kernel: false,
            known_code: process.maps().map(|maps| KnownCode::of(&maps)).unwrap_or_default(),
            unknown_vms: 0,
            was_late: false,
        }
    }

    /// Continues with the program that the process has executed, now that it has no VM.
    pub fn follow(&mut self, process: &Process) {
        let tally = std::mem::take(&mut self.tally);
        let shows_kernel = self.shows_kernel;
        let mut next = Self { tally, shows_kernel, ..Self::new(process, &[]) };
        next.requests.find_trace_ids_of(&self.requests, &mut next.namer);
        *self = next;
    }

    /// Whether waits show the functions of the kernel, besides the reason of the wait.
    pub fn show_kernel(&mut self, shows_kernel: bool) {
        self.shows_kernel = shows_kernel;
    }

    /// The known VMs, in the order in which the probes know them.
    pub fn vms(&self) -> &[Vm] {
        &self.vms
    }

    /// Adds a VM. It gets the next index.
    pub fn add_vm(&mut self, mut vm: Vm) {
        self.teach(&mut vm, self.vms.len());
        self.requests.see_vm(&vm, &mut self.namer);
        self.codes.push(machine_code(&self.memory, &vm));
        self.gone.push(GoneAreas::default());
        self.namer.add_vm(&vm);
        self.traces.push(Traces::within(&self.allowance));
        self.vms.push(vm);
        self.places.add();
    }

    /// Lets a VM that gets this index learn what is decided about the layouts of others.
    fn teach(&mut self, vm: &mut Vm, index: usize) {
        let learned = self.vms.iter().filter(|other| vm.learn_from(other)).count();
        if learned > 0 {
            self.decided.push(index);
        }
    }

    /// Gives a VM the index of a VM that is gone.
    pub fn replace_vm(&mut self, index: usize, mut vm: Vm) {
        if index >= self.vms.len() {
            return;
        }
        self.teach(&mut vm, index);
        self.requests.see_vm(&vm, &mut self.namer);
        self.codes[index] = machine_code(&self.memory, &vm);
        self.gone[index] = GoneAreas::default();
        self.namer.replace_vm(index, &vm);
        self.replace_traces(index);
        self.vms[index] = vm;
        self.places.take(index);
    }

    /// Forgets the VMs that are not recorded any more, now that all of their samples are processed. Returns the numbers
    /// that these VMs had in [`Resolved::vm`].
    pub fn forget_left(&mut self) -> Vec<usize> {
        let free = self.places.free();
        for &index in &free {
            self.replace_traces(index);
            self.namer.forget_vm(index);
        }
        free.into_iter().filter_map(|index| self.places.number(index)).collect()
    }

    /// How many functions may have a name that it would take too much work to find.
    pub fn unsearched_names(&self) -> u64 {
        self.namer.unsearched()
    }

    fn replace_traces(&mut self, index: usize) {
        let left = std::mem::replace(&mut self.traces[index], Traces::within(&self.allowance));
        self.unfinished += left.unfinished();
    }

    /// How many traces were hit but not read to their end, because that takes too much work.
    pub fn unfinished_traces(&self) -> u64 {
        self.unfinished + self.traces.iter().map(Traces::unfinished).sum::<u64>()
    }

    /// The slots of the VMs.
    pub fn places(&mut self) -> &mut VmPlaces {
        &mut self.places
    }

    /// The VMs that are recorded, with their indices.
    pub fn known_vms(&self) -> impl Iterator<Item = (usize, &Vm)> {
        self.vms.iter().enumerate().filter(|(index, _)| self.places.is_known(*index))
    }

    /// How many VMs there have been.
    pub fn vms_so_far(&self) -> usize {
        self.places.count()
    }

    /// The number of samples since [`Self::forget_unknown_vm_samples`] that were in an interpreter or in new code, but in
    /// no known VM.
    pub fn unknown_vms(&self) -> u32 {
        self.unknown_vms
    }

    /// Resets the number of samples of unknown VMs.
    pub fn forget_unknown_vm_samples(&mut self) {
        self.unknown_vms = 0;
    }

    /// Rereads the code that the target generates while it runs. Call it before every batch of samples.
    pub fn refresh(&mut self) {
        self.namer.begin_batch();
        self.requests.look_again();
        for (index, (code, vm)) in self.codes.iter_mut().zip(&self.vms).enumerate() {
            if !self.places.is_known(index) {
                code.mcode.clear();
                code.sampled.clear();
                continue;
            }
            if let Some(before) = machine_code::refresh(code, &self.memory, vm) {
                self.gone[index].note(&before, &code.mcode, &self.process, now());
            }
            // A VM that was closed may have left its address to a later VM. The generated code there then belongs to the
            // later VM.
            let is_later = |(later, other): (usize, &Vm)| {
                later != index && other.global == vm.global && self.places.number(later) > self.places.number(index)
            };
            if self.vms.iter().enumerate().any(is_later) {
                code.mcode.clear();
            }
        }
    }

    /// The counts of samples so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Resolves one sample.
    pub fn resolve(&mut self, mut sample: Sample<'_>) -> Resolved {
        let vm = (sample.header.vm != NO_VM).then_some(sample.header.vm as usize).filter(|&vm| vm < self.vms.len());
        if let Some(vm) = vm.filter(|&vm| self.vms[vm].leaves_traces_open())
            && sample.header.flags & SAMPLE_ON_TRACE != 0
        {
            self.decide(vm);
        }
        if let Some(vm) = vm {
            self.places.see(vm, sample.header.time);
            self.know_code(vm, &sample.header.trace);
            let sampled = &mut self.codes[vm].sampled;
            for area in self.gone[vm].at(sample.header.time) {
                if !sampled.contains(area) {
                    sampled.push(area.clone());
                }
            }
        }
        let entry = outermost_entry(&sample);
        let mut native = self.unwind(&sample);
        if vm.is_none() {
            let texts = || self.vms.iter().map(|vm| &vm.text.range);
            let in_interpreter = native.frames.iter().any(|frame| texts().any(|text| text.contains(&frame.pc)));
            // Code that was loaded later may be another LuaJIT.
            let is_new = || native.frames.first().is_some_and(|frame| !self.known_code.contains(frame.pc));
            self.unknown_vms += u32::from(in_interpreter || is_new());
        }
        let top = vm.map_or(SettledTop::Certain, |vm| {
            let layout = &self.vms[vm].layout;
            fix_innermost_frame(&mut sample, &native, layout, &self.codes[vm], &mut self.unwinder, &self.memory)
        });
        if top == SettledTop::Rewalked {
            native = self.unwind(&sample);
        }
        self.stack_ends.note(&sample.header, &native);
        let mut request = self.requests.label(vm.map(|vm| &self.vms[vm]), &sample, &native);
        let on_trace = vm.and_then(|vm| self.enter_trace(vm, &mut sample, &native));
        self.was_late |= matches!(on_trace, Some(Err(NoTrace::Gone | NoTrace::Mismatch | NoTrace::Unreadable)));
        let innermost = match &on_trace {
            Some(Ok(on_trace)) => Innermost::Compiled { frames: on_trace.frames.len(), certain: on_trace.certain },
            Some(Err(reason)) => Innermost::Trace(Some(*reason)),
            None if top == SettledTop::Uncertain => Innermost::Interpreter,
            None => Innermost::Known,
        };
        let end = walk_end(sample.header.walk_end, sample.header.outer_end);
        let merged = merge(&native, &sample.frames, end, innermost);
        let in_interpreter = |vm: usize| {
            let text = &self.vms[vm].text.range;
            on_trace.is_none() && native.frames.first().is_some_and(|frame| text.contains(&frame.pc))
        };
        let state = vm.map(|vm| state_of(&self.vms[vm], &sample, in_interpreter(vm)));
        if sample.header.flags & SAMPLE_ALLOCATION == 0 {
            self.count(&sample, &merged, state);
        }
        let mut frames = self.name(&sample, &merged);
        if let (Some(vm), Some(state)) = (vm, state) {
            vm_work::mark(state, &self.vms[vm].text.range, &mut frames);
        }
        self.requests.add_plugin(&mut request, frames.iter().map(|frame| &*frame.named));
        let allocation = (sample.header.flags & SAMPLE_ALLOCATION != 0).then_some(sample.header.allocation_size);
        let wait = (sample.header.flags & SAMPLE_WAIT != 0).then_some(sample.header.allocation_size);
        let trace = on_trace.and_then(Result::ok).map(|on_trace| SampledTrace::new(on_trace.trace));
        let (tid, time, turn) = (sample.header.tid, sample.header.time, sample.header.turn);
        let thread_name = self.threads.name(tid);
        let vm = vm.and_then(|vm| self.places.number(vm));
        Resolved { state, vm, tid, thread_name, time, allocation, wait, turn, entry, trace, request, frames }
    }

    /// Looks for trace IDs of requests, too: in this variable of nginx, or in those that are known to have some.
    pub fn find_trace_ids(&mut self, variable: Option<&str>) {
        self.requests.find_trace_ids(variable, &mut self.namer);
    }

    /// Turns request labels off.
    pub fn leave_requests(&mut self) {
        self.requests = RequestLabeller::off(&self.process);
    }

    /// Where the kernel half has to look for requests or fibers; [`None`] if it already knows.
    pub fn take_label_layout(&mut self) -> Option<LabelLayout> {
        self.requests.take_layout()
    }

    /// How many requests of samples were found, and why the others were not.
    pub fn request_tally(&self) -> RequestTally {
        self.requests.tally()
    }

    /// Takes a piece of a trace that was copied.
    pub fn add_trace(&mut self, copy: &TraceCopy, bytes: &[u8]) {
        if let Some(traces) = self.traces.get_mut(copy.vm as usize) {
            traces.add_copy(copy, bytes);
        }
    }

    /// Notes the machine code that was there at the time of the sample. It may be gone by now.
    fn know_code(&mut self, vm: usize, running: &RunningTrace) {
        let RunningTrace { identity, area, area_size } = *running;
        let code = &mut self.codes[vm];
        for (start, size) in [(area, area_size), (identity.mcode, u64::from(identity.szmcode))] {
            let range = start..start.saturating_add(size);
            let is_known = |area: &Range<u64>| area.contains(&start) && range.end <= area.end;
            if size != 0 && !code.mcode.iter().chain(&code.sampled).any(is_known) {
                code.sampled.push(range);
            }
        }
    }

    /// Puts the frames within the trace that the sample hit on top of its Lua stack.
    fn enter_trace(
        &mut self,
        index: usize,
        sample: &mut Sample<'_>,
        native: &NativeStack,
    ) -> Option<Result<OnTrace, NoTrace>> {
        let vm = &self.vms[index];
        if !is_on_trace(vm, &sample.header, native) {
            return None;
        }
        let hit = Hit {
            header: &sample.header,
            native,
            frames: &sample.frames,
            lua_stack: (sample.lua_stack, sample.header.lua_copy_start),
            stack: StackCopy { start: sample.header.registers[reg::SP], bytes: sample.stack },
        };
        let bottom = hit.bottom();
        let on_trace = trace::resolve(&mut self.traces[index], &self.memory, vm, hit, || self.process.maps().ok());
        if let (Ok(on_trace), Some(bottom)) = (&on_trace, bottom) {
            sample.header.inner_frames += on_trace.frames.len() as u32 - 1;
            sample.frames.splice(bottom..=bottom, on_trace.frames.iter().copied());
        }
        Some(on_trace)
    }

    /// Decides open questions of a VM's layout, now that it has traces.
    fn decide(&mut self, index: usize) {
        if let Some(vm) = self.layout_decision.decide(&self.process, &self.vms[index]) {
            // If a thousand VMs begin at once, each would otherwise wait for its turn.
            for (other, own) in self.vms.iter_mut().enumerate() {
                if own.learn_from(&vm) {
                    self.codes[other] = machine_code(&self.memory, own);
                    self.decided.push(other);
                }
            }
        }
    }

    /// The indices of VMs whose layout was decided further since the last call. The probes need to know the layout, too.
    pub fn take_decided(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.decided)
    }

    /// Whether something that a sample has hit was gone before lj-trace could read it, since the last call.
    pub fn take_lateness(&mut self) -> bool {
        std::mem::take(&mut self.was_late)
    }

    /// Where native stacks end, by page, or [`None`] for pages whose end is not known any more: what is new for the probes
    /// since the last call.
    pub fn take_stack_ends(&mut self) -> Vec<(u64, Option<StackEnd>)> {
        self.stack_ends.take()
    }

    fn unwind(&mut self, sample: &Sample<'_>) -> NativeStack {
        let header = &sample.header;
        let start = header.registers[reg::SP];
        let mut registers = Registers::all(header.registers);
        let mut bytes = Cow::Borrowed(sample.stack);
        if header.call_stack != 0
            && let Some(trampoline) = self.unwinder.uprobe_trampoline()
        {
            return_probe::restore(&trampoline, header, &mut registers, &mut bytes);
        }
        let stack = StackCopy { start, bytes: &bytes };
        self.unwinder.unwind(&registers, &stack, &self.codes, &cframes(sample))
    }

    fn count(&mut self, sample: &Sample<'_>, merged: &MergedStack, state: Option<VmState>) {
        let (tally, weight) = (&mut self.tally, sample.weight());
        if sample.header.flags & SAMPLE_WAIT != 0 {
            tally.waits += 1;
            tally.waited = tally.waited.saturating_add(sample.header.allocation_size);
        }
        tally.samples += weight;
        tally.native_complete += weight * u64::from(merged.native_complete);
        tally.in_kernel += weight * u64::from(sample.header.flags & SAMPLE_IN_KERNEL != 0);
        if let Some(state) = state {
            tally.with_lua += weight;
            tally.lua_complete += weight * u64::from(merged.lua_complete);
            tally.both_ends += weight * u64::from(merged.both_ends);
            *tally.states.entry(state).or_default() += weight;
        }
        if merged.both_ends && state.is_some() {
            tally.left_out += weight * left_out(&merged.frames);
        }
        for reason in unresolved(&merged.frames) {
            *tally.unresolved.entry(reason).or_default() += weight;
        }
        if is_kernel_stack_cut(sample) {
            *tally.unresolved.entry(KERNEL_STACK_CUT.to_owned()).or_default() += weight;
        }
    }

    /// Names all frames; where the Lua and the native stack show the same C function, it is one frame.
    fn name(&mut self, sample: &Sample<'_>, merged: &MergedStack) -> Vec<ResolvedFrame> {
        let mut frames: Vec<ResolvedFrame> = Vec::with_capacity(merged.frames.len() + 1);
        if sample.header.flags & SAMPLE_WAIT != 0 {
            let functions = sample.kernel.iter().map(|address| self.kernel.symbol(*address)).collect::<Vec<_>>();
            frames.push(mark(wait_reason::frame(sample.header.wait_state, &functions)));
            if self.shows_kernel {
                frames.extend(functions.into_iter().map(|symbol| mark(Named::Kernel { symbol })));
            }
        } else if sample.header.flags & SAMPLE_IN_KERNEL != 0 {
            if sample.kernel.is_empty() {
                frames.push(mark(Named::Kernel { symbol: "kernel".into() }));
            }
            for &address in sample.kernel.iter().take(MAX_KERNEL_FRAMES as usize) {
                frames.push(mark(Named::Kernel { symbol: self.kernel.symbol(address) }));
            }
            if is_kernel_stack_cut(sample) {
                frames.push(mark(Named::Unresolved { reason: KERNEL_STACK_CUT.into() }));
            }
        }
        let lua = |frame: &'_ JoinedFrame| match frame {
            JoinedFrame::Lua(record) | JoinedFrame::Compiled(record) => Some(*record),
            _ => None,
        };
        self.namer.see(&merged.frames.iter().filter_map(lua).collect::<Vec<_>>());
        for frame in &merged.frames {
            match frame {
                JoinedFrame::Native { pc, is_return } => frames.push(self.native(*pc, *is_return)),
                JoinedFrame::Trace => frames.push(mark(self.trace(sample))),
                JoinedFrame::Inlined => frames.push(mark(Named::Unresolved { reason: INLINED.into() })),
                JoinedFrame::LeftOut(count) => frames.push(mark(Named::left_out(*count))),
                JoinedFrame::Unresolved(reason) => frames.push(self.unresolved(*reason)),
                JoinedFrame::Lua(record) | JoinedFrame::Compiled(record) if record.kind == RecordKind::Lua as u8 => {
                    let is_compiled = matches!(frame, JoinedFrame::Compiled(_));
                    let named = self.namer.lua(record, is_compiled);
                    // A function that is uncertain cannot be read, no matter how soon.
                    self.was_late |= record.code != 0 && matches!(*named, Named::Unresolved { .. });
                    let position = (record.position != NO_POSITION).then_some(record.position);
                    let code = Code::Lua { prototype: PrototypeKey::of(record), position };
                    frames.push(ResolvedFrame { named, code });
                }
                JoinedFrame::Lua(record) | JoinedFrame::Compiled(record) => self.c_function(record, &mut frames),
            }
        }
        frames
    }

    fn native(&mut self, pc: u64, is_return: bool) -> ResolvedFrame {
        let symbol = self.namer.native(pc, is_return);
        let named = Named::C { symbol: symbol.to_string().into(), module: Some(symbol.module.clone()) };
        let start = symbol.address;
        let end = start.saturating_add(symbol.size).max(pc.saturating_add(1));
        ResolvedFrame { named: named.into(), code: Code::Native { pc, start, end } }
    }

    /// A C function or fast function as the Lua stack shows it. If the previous frame is the native frame of the same
    /// function, the two become one frame.
    fn c_function(&mut self, record: &FrameRecord, frames: &mut Vec<ResolvedFrame>) {
        let is_own = |last: &ResolvedFrame| match last.code {
            Code::Native { start, .. } => record.code != 0 && start == record.code,
            _ => false,
        };
        let native = frames.pop_if(|last| is_own(last));
        let library: Option<Arc<str>> = self.namer.library(record).map(Into::into);
        let is_fast = record.kind == RecordKind::Fast as u8;
        frames.push(if is_fast {
            // Lua programmers know it by this name, whatever LuaJIT calls the C part.
            let name = library.unwrap_or_else(|| format!("builtin#{}", record.ffid).into());
            mark(Named::FastFunction { name })
        } else {
            let has_symbol = self.namer.native(record.code, false).name.is_some();
            let mut native = native.unwrap_or_else(|| self.native(record.code, false));
            if let (Some(name), Named::C { module, .. }, false) = (library, &*native.named, has_symbol) {
                native.named = Named::C { symbol: name, module: module.clone() }.into();
            }
            native
        });
    }

    fn unresolved(&self, reason: Unresolved) -> ResolvedFrame {
        mark(Named::Unresolved { reason: reason.to_string().into() })
    }

    fn trace(&mut self, sample: &Sample<'_>) -> Named {
        let number = u16::try_from(sample.header.vmstate).ok().filter(|&number| number != 0);
        let (vm, running) = (sample.header.vm as usize, &sample.header.trace.identity);
        let start = number.and_then(|number| self.namer.trace_start(vm, number, Some(running)));
        Named::Trace { number: number.map(u64::from), start }
    }
}

/// Marks the place where frames of the kernel are missing.
const KERNEL_STACK_CUT: &str = "kernel stack too deep";

/// Whether the kernel's stack is deeper than the part that is shown.
fn is_kernel_stack_cut(sample: &Sample<'_>) -> bool {
    sample.kernel.len() > MAX_KERNEL_FRAMES as usize
}

fn mark(named: Named) -> ResolvedFrame {
    ResolvedFrame { named: named.into(), code: Code::Name }
}

/// The number of frames that are left out of a stack.
fn left_out(frames: &[JoinedFrame]) -> u64 {
    frames.iter().map(|frame| if let JoinedFrame::LeftOut(count) = frame { *count } else { 0 }).sum()
}

/// Why frames of a stack could not be resolved. A reason appears once, since samples are counted and not frames.
fn unresolved(frames: &[JoinedFrame]) -> BTreeSet<String> {
    let reason = |frame: &JoinedFrame| match frame {
        JoinedFrame::Unresolved(reason) => Some(reason.to_string()),
        JoinedFrame::Inlined => Some(INLINED.to_owned()),
        _ => None,
    };
    frames.iter().filter_map(reason).collect()
}

/// The C frames that the kernel found, by address.
fn cframes(sample: &Sample<'_>) -> Vec<CFrame> {
    let mut cframes = Vec::new();
    let mut after_left_out = false;
    for record in &sample.frames {
        match RecordKind::from_u8(record.kind) {
            Some(RecordKind::CFrame) => {
                // Before the innermost one there is none.
                let after_left_out = std::mem::take(&mut after_left_out) && record.code != sample.header.cframe;
                cframes.push(CFrame { address: record.code, vm: usize::from(record.vm), after_left_out });
            }
            Some(RecordKind::LeftOut) => after_left_out = true,
            _ => {}
        }
    }
    // The walk may have failed before it reached the innermost C frame, or may have left it out.
    let innermost = sample.header.cframe;
    if innermost != 0 && cframes.iter().all(|cframe| cframe.address != innermost) {
        cframes.push(CFrame::new(innermost, sample.header.vm as usize));
    }
    cframes.sort_by_key(|cframe| cframe.address);
    cframes
}

/// The outermost coroutine on the stack, and its C frame.
fn outermost_entry(sample: &Sample<'_>) -> Option<(u64, u64)> {
    let outermost = sample.frames.iter().rev().find(|record| record.kind == RecordKind::CFrame as u8);
    let header = &sample.header;
    let innermost = || (header.thread != 0).then_some((header.thread, header.cframe));
    outermost.map(|record| (record.function, record.code)).or_else(innermost)
}

/// How the walks of all coroutines ended, taken together.
fn walk_end(inner: u32, outer: u32) -> WalkEnd {
    let end = |number| WalkEnd::from_u32(number).unwrap_or(WalkEnd::NoLua);
    match (end(inner), end(outer)) {
        (WalkEnd::Complete, WalkEnd::NoLua) => WalkEnd::Complete,
        (WalkEnd::Complete, outer) => outer,
        (inner, _) => inner,
    }
}

/// The state in Tarantool's terms. Other builds have no LFUNC, FFUNC and CFUNC: there, the innermost frame decides.
///
/// The interpreter says that a trace runs before it enters one, and still after one has ended. If it is `in_interpreter`,
/// that is not true yet, or no more.
fn state_of(vm: &Vm, sample: &Sample<'_>, in_interpreter: bool) -> VmState {
    let mut state = VmState::from_raw(vm.layout.states(), sample.header.vmstate);
    let on_trace = sample.header.flags & SAMPLE_ON_TRACE != 0 && state.is_interpreting();
    if state == VmState::Trace || on_trace {
        if !in_interpreter {
            return VmState::Trace;
        }
        state = VmState::Interp;
    }
    if state != VmState::Interp {
        return state;
    }
    match sample.frames.first().and_then(|top| RecordKind::from_u8(top.kind)) {
        Some(RecordKind::Lua) => VmState::Lfunc,
        Some(RecordKind::Fast) => VmState::Ffunc,
        Some(RecordKind::C) => VmState::Cfunc,
        Some(RecordKind::CFrame | RecordKind::Passed | RecordKind::LeftOut) | None => VmState::Interp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_each_reason_once() {
        let frames = [
            JoinedFrame::Unresolved(Unresolved::Interpreter),
            JoinedFrame::LeftOut(7),
            JoinedFrame::Inlined,
            JoinedFrame::Unresolved(Unresolved::Interpreter),
            JoinedFrame::Inlined,
        ];
        let expected = [INLINED.to_owned(), Unresolved::Interpreter.to_string()];
        assert_eq!(unresolved(&frames), expected.into());
        assert_eq!((left_out(&frames), left_out(&frames[2..])), (7, 0));
    }
}
