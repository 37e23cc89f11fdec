//! The allocations of a recording.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lj_trace_common::config::{Counter, SHARED_USER_DATA};
use lj_trace_luajit::Vm;
use lj_trace_probes::allocator::{AllocationProbes, AllocationRecord, Handlers};
use lj_trace_probes::cost::Cost;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::perf_event::Clock;
use lj_trace_probes::programs::Programs;
use lj_trace_process::Process;
use lj_trace_profile::{ProfileKind, Weight};
use lj_trace_text::Room;

use super::accounts::Accounts;
use super::budget::Budget;
use super::changes::{Changes, NewAllocator};
use super::lifetimes;
use super::unknown_vms::{UnknownVmSampler, UnknownVms};
use super::windows::WindowRecording;
use crate::allocations::{
    AllocationRequests, CSymbols, EstimateSummary, Gap, LedgerFile, MemoryEvents, MemoryOutputOptions, MemoryOutputs,
    MemorySummary, NameRoom,
};
use crate::bounded::lifetimes::polled::Polled;
use crate::bounded::now;
use crate::error::EngineError;
use crate::resolve::{LayoutDecision, Resolved, TraceTable};
use crate::target::RecordTarget;

/// The most events to take in a row, before the recording attends to anything else.
const BATCH: usize = 1 << 16;

/// The number of events between two looks at the clock.
const BETWEEN_LOOKS: usize = 1 << 8;

/// Events that were recorded, but not processed in time.
const UNREAD_EVENTS: &str = "events were not worked off in time when recording ended";

/// Bytes whose lines had no room of their own and were folded.
const FOLDED_SOURCES: &str =
    "bytes were allocated at lines that were too rare to have room for each: they are [rare stacks]";

/// The counters of events that never arrived, or arrived incomplete.
const LOST: [Counter; 4] = [Counter::PendingFull, Counter::NamesLost, Counter::ScratchBusy, Counter::StacksLost];

/// Events for which the ring buffer had no room. The VMs' tallies have their number.
const RING_FULL: &str = "allocation events lost: the ring buffer was full";

/// Why a stream cannot be of some requests alone.
const STREAM_OF_REQUESTS: &str = "a stream of a memory profile (.bin) has no labels, so --only cannot choose what is in it: \
                                  name another output, such as --output cart.svg";

/// Why an estimate cannot be of requests.
const ESTIMATE_OF_REQUESTS: &str = "--overhead estimates a memory profile as a whole, and not by request: leave out --group-by and --only, or --overhead";

/// The outputs of a memory profile, before its probes are attached.
pub struct MemoryPreparation {
    /// The events of each VM, by the VM's index; [`None`] for VMs that are not recorded.
    events: Vec<Option<MemoryEvents>>,
    c_symbols: CSymbols,
    outputs: MemoryOutputs,
    ledger: Option<LedgerFile>,
    room: NameRoom,
    requests: AllocationRequests,
}

/// How long a recording that is over waits for names of functions: the program no longer pays for it.
const LAST_NAMES: Duration = Duration::from_millis(500);

impl MemoryPreparation {
    /// Opens the outputs, and reads the objects that the VMs have so far.
    ///
    /// # Errors
    /// The options contradict each other, or an output cannot be written.
    pub fn new(target: &RecordTarget) -> Result<Self, EngineError> {
        let RecordTarget { options, process, vms, only, live, .. } = target;
        if options.alloc_stacks.is_some() && options.weight.is_some_and(|weight| weight != Weight::Allocated) {
            let message = "stacks of allocations (--alloc-stacks) can be weighed by --weight allocated only";
            return Err(EngineError::usage(message));
        }
        let files = options.files(ProfileKind::Allocations);
        if !options.only_requests.is_empty() && !files.streams.is_empty() {
            return Err(EngineError::usage(STREAM_OF_REQUESTS));
        }
        if options.overhead.is_some() && options.wants_requests() {
            return Err(EngineError::usage(ESTIMATE_OF_REQUESTS));
        }
        let mut outputs = MemoryOutputs::open(&MemoryOutputOptions {
            files,
            version: options.stream_version,
            vms: only.map_or(vms.len(), |_| 1),
            title: target.name(),
            weight: options.weight.unwrap_or_default(),
            stack_every: options.alloc_stacks,
            live: live.clone(),
            windows: options.overhead.is_some(),
        })?;
        if let Some(factory) = &options.sinks {
            outputs.add_sinks(factory.sinks(process, ProfileKind::Allocations));
        }
        let ledger = options.ledger.as_deref().map(LedgerFile::open).transpose()?;
        let room = NameRoom::default();
        let read = |(index, vm)| {
            // If only one VM is recorded, it has no number.
            let number = if only.is_some() { 0 } else { index };
            let is_recorded = only.is_none_or(|only| only == index);
            let read = || {
                outputs.create(number)?;
                let mut events = MemoryEvents::read(process, vm, number, options.stream_version, &room);
                if options.traces {
                    events.group_by_trace();
                }
                Ok(events)
            };
            is_recorded.then(read).transpose()
        };
        let events = vms.iter().enumerate().map(read).collect::<Result<_, EngineError>>()?;
        let c_symbols = CSymbols::new(process, outputs.want_c_symbols());
        let requests = AllocationRequests::new(options, process, vms);
        Ok(Self { events, c_symbols, outputs, ledger, room, requests })
    }

    /// Attaches the probes.
    ///
    /// # Errors
    /// An allocator cannot be probed.
    pub fn attach(self, target: &RecordTarget, programs: &mut Programs) -> Result<MemoryRecording, EngineError> {
        let RecordTarget { options, process, maps, vms, only, .. } = target;
        let handlers = if options.testing.no_uprobe_session { Handlers::RECORD_SEPARATELY } else { Handlers::RECORD };
        if let Some(layout) = self.requests.layout() {
            programs.set_allocating_requests(layout)?;
        }
        let mut requests = self.requests;
        if let Some(layout) = requests.look_for_fibers() {
            programs.set_allocating_fibers(layout)?;
        }
        let polled = Polled::new(process);
        let (probes, bounded) = match options.overhead {
            None => (AllocationProbes::attach(programs, process, maps, vms, handlers)?, None),
            Some(budget) => {
                let (probes, opener) = AllocationProbes::in_windows(programs, process, maps, vms, handlers)?;
                let bounded = WindowRecording::start(target, programs, &probes, opener, budget, polled.clone())?;
                (probes, Some(bounded))
            }
        };
        let Self { events, c_symbols, mut outputs, ledger, room, .. } = self;
        // An object that lives from one interval to the next belongs to neither.
        if let Some(estimation) = outputs.estimation().filter(|_| options.sinks.is_none()) {
            lifetimes::start(target, programs, estimation, polled);
        }
        let only = only.and_then(|only| u32::try_from(only).ok());
        let unknown_vm_sampler = options.looks_out().then(|| UnknownVmSampler::start(programs, process)).transpose();
        if let Err(error) = &unknown_vm_sampler {
            let text = format!("lj-trace: new VMs that bring their own allocators will be missed: {error}");
            say(Priority::Info, &text);
        }
        Ok(MemoryRecording {
            unknown_vm_sampler: unknown_vm_sampler.ok().flatten().map(|sampler| (sampler, UnknownVms::new(maps, vms))),
            version: options.stream_version,
            changes: Changes::new(process),
            gone: Vec::new(),
            closed: Vec::new(),
            traces_of_closed: None,
            left_out: 0,
            accounts: Accounts::default(),
            bounded,
            probes,
            stopped: None,
            began: Instant::now(),
            interval: (Instant::now(), options.allocation_interval),
            started: false,
            events,
            layout_decision: LayoutDecision::default(),
            c_symbols,
            outputs,
            ledger,
            room,
            requests,
            vms: vms.len(),
            only,
            orphan_events: 0,
        })
    }
}

/// A memory profile under way.
pub struct MemoryRecording {
    /// If the probes are attached in windows only: opens the windows, and observes what can be known without probes.
    bounded: Option<WindowRecording>,
    /// The probes on the allocators.
    pub probes: AllocationProbes,
    /// If the profile was stopped because it cost too much: the time from its beginning to that stop.
    pub stopped: Option<Duration>,
    began: Instant,
    /// When the current interval began, and how long an interval lasts at least.
    interval: (Instant, Duration),
    /// Whether the streams have their symbol tables. The tables are written while events already wait in the buffer, so
    /// that attaching does not wait for them.
    started: bool,
    /// The events of each VM, by the VM's index in the programs.
    events: Vec<Option<MemoryEvents>>,
    layout_decision: LayoutDecision,
    c_symbols: CSymbols,
    outputs: MemoryOutputs,
    /// The file that lists what became of every call.
    ledger: Option<LedgerFile>,
    /// How much room is left for names.
    room: NameRoom,
    requests: AllocationRequests,
    /// The number of VMs so far.
    vms: usize,
    /// The index of the only VM to record, if only one is recorded.
    only: Option<u32>,
    /// Events of unknown VMs, or of VMs that are not to be recorded.
    orphan_events: u64,
    /// A light sampler that discovers unknown VMs, if nothing else does.
    unknown_vm_sampler: Option<(UnknownVmSampler, UnknownVms)>,
    /// The version of the streams.
    version: u8,
    /// Watches for changes of VMs that the probes do not see.
    changes: Changes,
    /// The indices of VMs that are gone, from which events may still come.
    gone: Vec<u32>,
    /// The indices of closed VMs. Other VMs may take them.
    closed: Vec<u32>,
    /// What the traces of closed VMs have allocated, if that is counted.
    traces_of_closed: Option<TraceTable>,
    /// The number of new VMs that cannot be recorded.
    left_out: u64,
    /// What became of the calls of closed VMs.
    accounts: Accounts,
}

/// Takes a record of a known VM.
#[inline]
fn add(
    events: &mut MemoryEvents,
    record: &AllocationRecord,
    c_symbols: &mut CSymbols,
    requests: &mut AllocationRequests,
    out: &mut MemoryOutputs,
) -> Result<(), EngineError> {
    match record {
        AllocationRecord::Event(event) => events.add(event, c_symbols, requests, out),
        AllocationRecord::Request(seen) => {
            let serving = requests.see(events.vm(), seen);
            events.serve(serving);
            Ok(())
        }
        AllocationRecord::Fiber(seen) => {
            events.serve(requests.see_fiber(seen));
            Ok(())
        }
        AllocationRecord::Prototype(seen) => events.name_prototype(seen, out),
        AllocationRecord::Trace(seen) => {
            events.see_trace(seen);
            Ok(())
        }
    }
}

impl MemoryRecording {
    /// Whether events wait.
    pub fn has_some(&self) -> bool {
        self.probes.has_some()
    }

    /// Takes the events that are ready: at most a batch, and only as far as `budget` allows. Returns false if there may be
    /// more.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn drain(&mut self, programs: &mut Programs, process: &Process, budget: Budget) -> Result<bool, EngineError> {
        let (began, time) = (now(), Instant::now());
        if let Some(layout) = self.requests.look_for_fibers() {
            programs.set_allocating_fibers(layout)?;
        }
        if let Some(layout) = self.requests.look_for_routes() {
            programs.set_allocating_requests(layout)?;
        }
        let is_empty = self.drain_events(programs, process, budget)?;
        self.look_after_vms(programs, process, is_empty)?;
        if is_empty {
            self.changes.catch_up(time);
        }
        if let (Some(bounded), Some(estimation)) = (&mut self.bounded, self.outputs.estimation()) {
            bounded.drain(estimation);
            if is_empty {
                estimation.complete(began);
            }
        }
        Ok(is_empty)
    }

    fn drain_events(
        &mut self,
        programs: &mut Programs,
        process: &Process,
        budget: Budget,
    ) -> Result<bool, EngineError> {
        if !std::mem::replace(&mut self.started, true) {
            self.start()?;
        }
        self.events.iter_mut().flatten().try_for_each(|events| events.begin_batch(&mut self.outputs))?;
        let mut taken = 0;
        while taken < BATCH {
            let Self { probes, events, layout_decision, c_symbols, requests, outputs, only, orphan_events, .. } = self;
            let mut outcome = Ok(());
            let mut decided = None;
            let (mut of_new_vm, mut closed) = (None, None);
            let limit = BETWEEN_LOOKS.min(BATCH - taken);
            let some = probes.drain(limit, |record| match events.get_mut(record.vm() as usize) {
                _ if only.is_some_and(|only| only != record.vm()) => {
                    *orphan_events += u64::from(matches!(record, AllocationRecord::Event(_)));
                    ControlFlow::Continue(())
                }
                Some(Some(events)) => {
                    if events.is_undecided(&record)
                        && let Some(vm) = layout_decision.decide(process, events.vm())
                    {
                        decided = Some((record.vm(), vm.config()));
                        events.decide(vm);
                    }
                    outcome = add(events, &record, c_symbols, requests, outputs);
                    if events.is_last(&record) {
                        closed = Some(record.vm());
                    }
                    if outcome.is_ok() && closed.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                }
                _ => {
                    of_new_vm = Some(record);
                    ControlFlow::Break(())
                }
            });
            taken += some;
            outcome?;
            // The probes need the layout, too.
            if let Some((index, vm)) = decided {
                programs.update_vm(index, &vm)?;
            }
            if let Some(index) = closed {
                self.end_vm(programs, index)?;
                if budget.is_over() {
                    return Ok(false);
                }
                continue;
            }
            match of_new_vm {
                Some(record) => self.register_vm_of(&record, programs, process)?,
                None if some < limit => return Ok(true),
                None if budget.is_over() => return Ok(false),
                None => {}
            }
        }
        Ok(false)
    }

    /// Counts the events that will stay unread.
    pub fn count_unread(&mut self) {
        let Self { probes, accounts, .. } = self;
        probes.drain(usize::MAX, |record| {
            if matches!(record, AllocationRecord::Event(_)) {
                accounts.leave_unread(record.vm());
            }
            ControlFlow::Continue(())
        });
    }

    /// Ends the outputs of a closed VM, once no event of it can come any more.
    fn end_vm(&mut self, programs: &mut Programs, index: u32) -> Result<(), EngineError> {
        let Some(place) = self.events.get_mut(index as usize) else { return Ok(()) };
        // If its place must stay, its events stay as well: later VMs of the same layout learn it from them.
        let mut events = if programs.may_replace(index) { place.take() } else { None };
        let Some(own) = events.as_mut().or(place.as_mut()) else { return Ok(()) };
        let (number, tally, counted) = (own.number(), own.take_tally(), programs.tally(index));
        if self.accounts.is_closed(index, counted.generation) {
            return Ok(());
        }
        self.accounts.close(index, number, counted, tally);
        self.changes.forget(index);
        self.probes.forget_vm(index);
        if let Some(table) = events.as_ref().and_then(MemoryEvents::by_trace) {
            self.traces_of_closed.get_or_insert_with(TraceTable::default).merge(table);
        }
        let lost: &[_] = if counted.ring_full == 0 { &[] } else { &[(RING_FULL, counted.ring_full)] };
        self.outputs.end_vm(number, lost)?;
        if events.is_some() {
            self.closed.push(index);
        }
        Ok(())
    }

    /// Handles changes of VMs that come without calls of their allocators. `is_empty` says whether no event is left to
    /// process.
    fn look_after_vms(
        &mut self,
        programs: &mut Programs,
        process: &Process,
        is_empty: bool,
    ) -> Result<(), EngineError> {
        if self.stopped.is_some() {
            return Ok(());
        }
        // Do this before more VMs are found gone: no event of these VMs is under way any more.
        if is_empty {
            for index in std::mem::take(&mut self.gone) {
                if let Some(Some(events)) = self.events.get_mut(index as usize) {
                    events.free_first_block(&mut self.outputs)?;
                }
                self.end_vm(programs, index)?;
            }
        }
        // With windows, events that no window sees are estimated.
        let looks = self.bounded.is_none() && self.only.is_none() && self.changes.is_time();
        for index in 0..self.events.len() as u32 {
            let Some(Some(events)) = self.events.get(index as usize) else { continue };
            if self.accounts.is_closed(index, programs.tally(index).generation) || self.gone.contains(&index) {
                continue;
            }
            let vm = events.vm();
            if let Some(change) = self.changes.allocator(programs, &self.probes, index, vm) {
                let (vm, number) = (vm.clone(), events.number());
                self.follow(programs, process, &vm, index, number, change)?;
            } else if looks && self.changes.is_gone(programs, index, vm) {
                if programs.index_of(vm.global) == Some(index) {
                    programs.forget_vm(vm.global);
                }
                programs.forget_allocators(index);
                self.gone.push(index);
            }
        }
        Ok(())
    }

    /// Also records what a VM allocates from another allocator, from now on.
    fn follow(
        &mut self,
        programs: &mut Programs,
        process: &Process,
        vm: &Vm,
        index: u32,
        number: usize,
        change: NewAllocator,
    ) -> Result<(), EngineError> {
        let was_seen = self.probes.knows(change.now.0);
        let other = programs.user_of(change.now.1).filter(|&other| other != index && other != SHARED_USER_DATA);
        let outcome = self.probes.follow_vm(programs, process, &process.maps()?, vm, index);
        // An allocator that is already probed is seen at once, whichever VM calls it.
        if was_seen && outcome.is_ok() {
            if let Some(other) = other {
                let text = format!(
                    "lj-trace: VM {} has got the allocator of VM {} (lua_setallocf): its calls of the last {:.0} ms count for that \
                     VM",
                    number + 1,
                    self.events.get(other as usize).and_then(Option::as_ref).map_or(0, |other| other.number() + 1),
                    change.seen.elapsed().as_secs_f64() * 1000.0
                );
                say(Priority::Warning, &text);
            }
            return Ok(());
        }
        let gap = Gap { vm: number + 1, seconds: change.seen.elapsed().as_secs_f64(), followed: outcome.is_ok() };
        self.accounts.note_gap(gap);
        let text = match &outcome {
            Ok(()) => format!(
                "lj-trace: VM {} has got another allocator (lua_setallocf): its calls are recorded from now on, and were missed for {:.0} ms at most",
                gap.vm,
                gap.seconds * 1000.0
            ),
            Err(error) => format!(
                "lj-trace: VM {} has got another allocator (lua_setallocf), whose calls are not recorded: {error}",
                gap.vm
            ),
        };
        say(Priority::Warning, &text);
        Ok(())
    }

    /// The indices of VMs that were closed since the last call, and whose events are all processed.
    pub fn take_closed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.closed)
    }

    /// The size of its largest stream so far, in bytes.
    pub fn largest_stream(&self) -> u64 {
        self.outputs.largest_stream()
    }

    /// Detaches the probes before the recording ends.
    pub fn stop(&mut self, programs: &Programs) {
        self.stopped = Some(self.began.elapsed());
        self.detach(programs);
    }

    /// Detaches the probes.
    pub fn detach(&mut self, programs: &Programs) {
        if self.probes.are_lost() {
            let text = "lj-trace: LOST: the probes were gone before the recording ended, since the process that holds them \
                        (lj-trace-guard) was killed: allocations from then on are missing";
            say(Priority::Warning, text);
        }
        if let Some(bounded) = &mut self.bounded {
            bounded.end();
        }
        self.probes.detach(programs);
    }

    /// Starts the streams.
    fn start(&mut self) -> Result<(), EngineError> {
        let Self { events, c_symbols, outputs, .. } = self;
        c_symbols.read();
        events.iter_mut().flatten().try_for_each(|events| events.start(c_symbols, outputs))
    }

    /// Registers a new VM at its first record.
    fn register_vm_of(
        &mut self,
        record: &AllocationRecord,
        programs: &mut Programs,
        process: &Process,
    ) -> Result<(), EngineError> {
        let template = programs.new_vm(record.vm()).and_then(|(global, template)| {
            let template = self.events.get(template as usize)?.as_ref()?;
            Some((template.vm().copy_at(global), template))
        });
        // If the process has executed another program, VMs of that program do not belong to this recording.
        let template = template.filter(|_| process.runs_same_program());
        let Some((vm, template)) = template else {
            self.orphan_events += 1;
            return Ok(());
        };
        let events = template.of_another(process, &vm, self.vms);
        self.insert(record.vm(), events)?;
        let Self { events, c_symbols, requests, outputs, .. } = self;
        let events = events[record.vm() as usize].as_mut();
        events.map_or(Ok(()), |events| add(events, record, c_symbols, requests, outputs))
    }

    /// The number of samples in an interpreter that ran no known VM.
    pub fn unknown_vms(&mut self) -> u32 {
        match (&mut self.bounded, &mut self.unknown_vm_sampler) {
            (Some(bounded), _) => bounded.unknown_vms().count(),
            (None, Some((sampler, unknown_vms))) => {
                sampler.drain(unknown_vms);
                unknown_vms.count()
            }
            (None, None) => 0,
        }
    }

    /// Resets the number of samples of unknown VMs.
    pub fn forget_unknown_vm_samples(&mut self) {
        if let Some(bounded) = &mut self.bounded {
            bounded.unknown_vms().forget();
        }
        if let Some((_, unknown_vms)) = &mut self.unknown_vm_sampler {
            unknown_vms.forget();
        }
    }

    /// Records a new VM that the probes have not noticed, if its allocator can be probed.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn register_found_vm(
        &mut self,
        programs: &mut Programs,
        process: &Process,
        vm: &Vm,
        index: u32,
    ) -> Result<(), EngineError> {
        let maps = process.maps()?;
        if let Some((_, unknown_vms)) = &mut self.unknown_vm_sampler {
            unknown_vms.add_vm(vm);
        }
        if self.stopped.is_some() {
            return Ok(());
        }
        if let Err(error) = self.probes.add_vm(programs, process, &maps, vm, index) {
            self.left_out += 1;
            let text = format!("lj-trace: the new VM at {:#x} is not recorded: {error}", vm.global);
            say(Priority::Warning, &text);
            return Ok(());
        }
        if let Some(layout) = self.requests.see_vm(vm) {
            programs.set_allocating_requests(layout)?;
        }
        let number = self.vms;
        let mut events = MemoryEvents::read(process, vm, number, self.version, &self.room);
        if self.events.iter().flatten().any(|events| events.by_trace().is_some()) {
            events.group_by_trace();
        }
        self.insert(index, events)?;
        if let Some(bounded) = &mut self.bounded {
            bounded.add_vm(vm);
        }
        if let Some(estimation) = self.outputs.estimation() {
            estimation.add_vm(vm);
        }
        Ok(())
    }

    /// Starts the outputs of a VM. The VM gets the next number.
    fn insert(&mut self, index: u32, mut events: MemoryEvents) -> Result<(), EngineError> {
        self.outputs.create(self.vms)?;
        if self.started {
            events.start(&self.c_symbols, &mut self.outputs)?;
        }
        self.vms += 1;
        let index = index as usize;
        if self.events.len() <= index {
            self.events.resize_with(index + 1, || None);
        }
        self.events[index] = Some(events);
        Ok(())
    }

    /// Seconds that windows have cost the target beyond what the counters show.
    pub fn disturbed(&self) -> f64 {
        self.bounded.as_ref().map_or(0.0, WindowRecording::disturbed)
    }

    /// The clock and the rate of the light sampler, if it has events on threads.
    pub fn light_sampler(&self) -> Option<(Clock, u32)> {
        let bounded = self.bounded.as_ref().and_then(WindowRecording::on_threads);
        bounded.or_else(|| self.unknown_vm_sampler.as_ref().and_then(|(sampler, _)| sampler.on_threads()))
    }

    /// Ticks of the light sampler per second on each CPU, if its events are there.
    pub fn ticks_on_cpus(&self) -> Option<f64> {
        let bounded = self.bounded.as_ref().and_then(WindowRecording::ticks_on_cpus);
        bounded.or_else(|| self.unknown_vm_sampler.as_ref().and_then(|(sampler, _)| sampler.ticks_on_cpus()))
    }

    /// The clock of the light sampler, if there is one.
    pub fn clock(&self) -> Option<Clock> {
        self.bounded.as_ref().map(WindowRecording::clock)
    }

    /// Adds the stack of an allocation of `size` bytes.
    pub fn add_stack(&mut self, sample: &Resolved, size: u64) {
        self.outputs.add_stack(sample, size);
    }

    /// The number of bytes by which its tables grow with the next step.
    pub fn next_growth(&self) -> u64 {
        self.outputs.next_growth()
    }

    /// The number of events so far.
    pub fn events(&self) -> u64 {
        let open = self.events.iter().flatten().map(|events| events.tally().events);
        self.accounts.closed().events + open.sum::<u64>()
    }

    /// Writes the outputs so far.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        self.outputs.write_interim()
    }

    /// Writes the buffered data of the streams to their files.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        self.outputs.flush()
    }

    /// The bytes that each trace of all VMs has allocated, if they are counted.
    fn by_trace(&self) -> Option<TraceTable> {
        let open = self.events.iter().flatten().filter_map(MemoryEvents::by_trace);
        let tables = self.traces_of_closed.iter().chain(open);
        tables.fold(None, |sum, table| {
            let mut sum = sum.unwrap_or_else(TraceTable::default);
            sum.merge(table);
            Some(sum)
        })
    }

    /// Ends an interval of the estimation, if it has lasted long enough, and begins the next one. Returns the paths of the
    /// written files.
    ///
    /// # Errors
    /// A sink cannot take the interval.
    pub fn end_interval(&mut self, programs: &Programs) -> Result<Vec<PathBuf>, EngineError> {
        let (began, least) = self.interval;
        if began.elapsed() < least {
            return Ok(Vec::new());
        }
        self.interval.0 = Instant::now();
        let lost = self.lost(programs);
        if let (Some(bounded), Some(estimation)) = (&mut self.bounded, self.outputs.estimation()) {
            bounded.drain(estimation);
        }
        self.outputs.end_interval(&lost)
    }

    /// Events that never arrived so far, by reason.
    pub fn lost(&self, programs: &Programs) -> Vec<(&'static str, u64)> {
        let ring_full = self.accounts.ring_full_so_far(programs);
        let mut lost = programs.counted(&LOST);
        lost.extend((ring_full != 0).then_some((RING_FULL, ring_full)));
        lost
    }

    /// Ends the outputs. Returns the summary and the paths of the files.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn finish(
        mut self,
        programs: &Programs,
        duration: Duration,
        (cost, others): (Cost, Option<f64>),
        unread_stacks: (&'static str, u64),
    ) -> Result<(MemorySummary, Vec<PathBuf>), EngineError> {
        let until = Instant::now() + LAST_NAMES;
        for events in self.events.iter_mut().flatten() {
            events.finish_names(until, &mut self.outputs)?;
        }
        if self.bounded.is_none() {
            let Self { events, changes, accounts, gone, outputs, .. } = &mut self;
            let events = events.iter_mut().enumerate();
            for (index, events) in events.filter_map(|(index, events)| Some((index as u32, events.as_mut()?))) {
                // Its first block is freed by an event: by one of the stream, or by one that nobody has read.
                if accounts.is_closed(index, programs.tally(index).generation) || accounts.has_unread(index) {
                    continue;
                }
                // A VM that was found gone by a single look so far, or not yet: its first block is not freed. Another VM
                // may be at its address by now.
                if gone.contains(&index) || changes.is_closed(programs, index, events.vm()) {
                    events.free_first_block(outputs)?;
                }
            }
        }
        let open = self.events.iter().flatten();
        let tally = open.fold(self.accounts.closed(), |sum, events| sum.plus(events.tally()));
        let ledger = self.accounts.finish(programs, &self.events);
        let estimate = self.outputs.estimation().map(|estimation| {
            if let Some(bounded) = &mut self.bounded {
                bounded.drain(estimation);
            }
            estimation.finish();
            EstimateSummary::new(estimation)
        });
        let mut noted = programs.counted(&[Counter::UnknownVm, Counter::VmsBeyond]);
        noted.extend(ledger.no_events().into_iter().filter(|(_, count)| *count != 0));
        if self.left_out > 0 {
            noted.push(("VMs that came into being and could not be recorded", self.left_out));
        }
        let folded = self.outputs.folded();
        noted.extend((folded > 0).then_some((FOLDED_SOURCES, folded)));
        let mut lost = programs.counted(&LOST);
        lost.extend(
            [(RING_FULL, ledger.ring_full()), (UNREAD_EVENTS, self.accounts.unread()), unread_stacks]
                .into_iter()
                .filter(|(_, count)| *count > 0),
        );
        let summary = MemorySummary {
            answer: self.outputs.answer(Room::of(&std::io::stderr())),
            estimate,
            duration: self.stopped.unwrap_or(duration),
            tally,
            cost,
            others,
            ledger,
            lost,
            noted,
            requests: self.requests.summary(),
            traces: self.by_trace().map(|table| table.text("bytes", tally.allocated)),
        };
        let written = self.ledger.map(|file| file.write(&summary.ledger)).transpose();
        let mut files = self.outputs.finish(&summary.lost)?;
        files.extend(written?);
        Ok((summary, files))
    }
}
