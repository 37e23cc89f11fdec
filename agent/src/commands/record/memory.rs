//! The allocations of a recording.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lj_trace_common::config::Counter;

use super::args::{BenchmarkProbes, RecordArgs, default_output};
use super::bounded::BoundedRecording;
use super::budget::Budget;
use super::lifetimes;
use super::lookout::{Lookout, Strangers};
use super::targets::RecordTarget;
use crate::bounded::lifetimes::polled::Polled;
use crate::bounded::now;
use crate::commands::exit::CommandError;
use crate::probes::allocator::{AllocationProbes, AllocationRecord, Handlers};
use crate::probes::perf_event::Clock;
use crate::probes::programs::Programs;
use crate::record::{
    CSymbols, CallAccounts, Cost, Deciding, EstimateSummary, MemoryEvents, MemoryOutputOptions, MemoryOutputs,
    MemorySummary, MemoryTally, Resolved, Room, TraceTable,
};
use crate::report::Weight;
use crate::service::journal::{Priority, say};
use crate::target::Process;
use crate::vm::Vm;

/// Events that are taken at once before anything else is looked after.
const BATCH: usize = 1 << 16;

/// Events that are taken before it is looked what time it is.
const BETWEEN_LOOKS: usize = 1 << 8;

/// What became of events that were recorded and not worked off.
const UNREAD_EVENTS: &str = "events were not worked off in time when recording ended";

/// What was folded since there was no room for each.
const FOLDED_SOURCES: &str =
    "bytes were allocated at lines that were too rare to have room for each: they are [rare stacks]";

/// What counts events that never arrived, or not whole.
pub const LOST: [Counter; 5] =
    [Counter::AllocationsLost, Counter::PendingFull, Counter::NamesLost, Counter::ScratchBusy, Counter::StacksLost];

/// Where the events of a memory profile go, before there are any.
pub struct MemoryPreparation {
    /// By the VMs' indices; none for those that are not recorded.
    events: Vec<Option<MemoryEvents>>,
    c_symbols: CSymbols,
    outputs: MemoryOutputs,
    room: Room,
}

impl MemoryPreparation {
    /// Opens the outputs, and reads what the VMs have by now.
    ///
    /// # Errors
    /// The options contradict each other, or an output cannot be written.
    pub fn new(target: &RecordTarget) -> Result<Self, CommandError> {
        let RecordTarget { args, process, vms, only, live, .. } = target;
        if args.alloc_stacks.is_some() && args.weight.is_some_and(|weight| weight != Weight::Allocated) {
            let message = "stacks of allocations (--alloc-stacks) can be weighed by --weight allocated only";
            return Err(CommandError::usage(message));
        }
        let mut outputs = MemoryOutputs::open(&MemoryOutputOptions {
            outputs: args.outputs("memprof"),
            default: default_output(args.pid, "memprof"),
            version: args.stream_version,
            vms: only.map_or(vms.len(), |_| 1),
            title: target.name(),
            weight: args.weight.unwrap_or_default(),
            stack_every: args.alloc_stacks,
            live: live.clone(),
            windows: args.overhead.is_some(),
        })?;
        let room = Room::default();
        let read = |(index, vm)| {
            // The only one that is recorded has no number.
            let number = if only.is_some() { 0 } else { index };
            let is_recorded = only.is_none_or(|only| only == index);
            let read = || {
                outputs.create(number)?;
                let mut events = MemoryEvents::read(process, vm, number, args.stream_version, &room);
                if args.traces {
                    events.group_by_trace();
                }
                Ok(events)
            };
            is_recorded.then(read).transpose()
        };
        let events = vms.iter().enumerate().map(read).collect::<Result<_, CommandError>>()?;
        let c_symbols = CSymbols::new(process, outputs.want_c_symbols());
        Ok(Self { events, c_symbols, outputs, room })
    }

    /// Puts in the probes.
    ///
    /// # Errors
    /// An allocator cannot be probed.
    pub fn attach(self, target: &RecordTarget, programs: &mut Programs) -> Result<MemoryRecording, CommandError> {
        let RecordTarget { args, process, maps, vms, only, .. } = target;
        let handlers = match args {
            RecordArgs { benchmark_probes: Some(probes), .. } => match probes {
                BenchmarkProbes::Empty => Handlers::Empty,
                BenchmarkProbes::Recording => Handlers::Recording,
                BenchmarkProbes::Attributing => Handlers::Attributing,
            },
            RecordArgs { no_uprobe_session: true, .. } => Handlers::RecordSeparately,
            _ => Handlers::Record,
        };
        let polled = Polled::new(process);
        let (probes, bounded) = match args.overhead {
            None => (AllocationProbes::attach(programs, process, maps, vms, handlers)?, None),
            Some(budget) => {
                let (probes, opener) = AllocationProbes::in_windows(programs, process, maps, vms, handlers)?;
                let bounded = BoundedRecording::start(target, programs, &probes, opener, budget, polled.clone())?;
                (probes, Some(bounded))
            }
        };
        let Self { events, c_symbols, mut outputs, room } = self;
        if let Some(estimation) = outputs.estimation() {
            lifetimes::start(target, programs, estimation, polled);
        }
        let only = only.and_then(|only| u32::try_from(only).ok());
        let lookout = args.looks_out().then(|| Lookout::start(programs, process)).transpose();
        if let Err(error) = &lookout {
            let text = format!("lj-trace: new VMs with new allocators will not be noticed: {error}");
            say(Priority::Info, &text);
        }
        Ok(MemoryRecording {
            lookout: lookout.ok().flatten().map(|lookout| (lookout, Strangers::new(maps, vms))),
            version: args.stream_version,
            left_out: 0,
            unread: 0,
            bounded,
            probes,
            stopped: None,
            began: Instant::now(),
            started: false,
            events,
            deciding: Deciding::default(),
            c_symbols,
            outputs,
            room,
            vms: vms.len(),
            only,
            strays: 0,
        })
    }
}

/// A memory profile that is being recorded.
pub struct MemoryRecording {
    /// If the probes are there in windows only: what opens these, and what is known without them.
    bounded: Option<BoundedRecording>,
    /// The probes on the allocators.
    pub probes: AllocationProbes,
    /// When it was stopped since it cost too much: how long after it had begun.
    pub stopped: Option<Duration>,
    began: Instant,
    /// Whether the streams have their symbols: these are written while events wait in the buffer, so that attaching
    /// does not have to wait for them.
    started: bool,
    /// By the VMs' indices in the programs.
    events: Vec<Option<MemoryEvents>>,
    deciding: Deciding,
    c_symbols: CSymbols,
    outputs: MemoryOutputs,
    /// What there is for names.
    room: Room,
    /// How many VMs there were so far.
    vms: usize,
    /// The index of the only VM that is recorded, if only one is.
    only: Option<u32>,
    /// Events of VMs that nothing is known of, or that are not to be recorded.
    strays: u64,
    /// If nothing else tells of VMs that nobody knows.
    lookout: Option<(Lookout, Strangers)>,
    /// That of the streams.
    version: u8,
    /// VMs that came into being and cannot be recorded.
    left_out: u64,
    /// Events that were not worked off when the time was over.
    unread: u64,
}

/// Takes a record of a VM that is known.
#[inline]
fn add(
    events: &mut MemoryEvents,
    record: &AllocationRecord,
    c_symbols: &mut CSymbols,
    out: &mut MemoryOutputs,
) -> Result<(), CommandError> {
    match record {
        AllocationRecord::Event(event) => events.add(event, c_symbols, out),
        AllocationRecord::Prototype(seen) => events.introduce(seen, out),
        AllocationRecord::Trace(seen) => {
            events.see_trace(seen);
            Ok(())
        }
    }
}

impl MemoryRecording {
    /// Takes the events that are ready, up to a batch of them, and as far as `budget` allows; false if there may be more.
    ///
    /// # Errors
    /// An output cannot take them.
    pub fn drain(&mut self, programs: &mut Programs, process: &Process, budget: Budget) -> Result<bool, CommandError> {
        let began = now();
        let is_empty = self.drain_events(programs, process, budget)?;
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
    ) -> Result<bool, CommandError> {
        if !std::mem::replace(&mut self.started, true) {
            self.start()?;
        }
        self.events.iter_mut().flatten().for_each(MemoryEvents::begin_batch);
        let mut taken = 0;
        while taken < BATCH {
            let Self { probes, events, deciding, c_symbols, outputs, only, strays, .. } = self;
            let mut outcome = Ok(());
            let mut decided = None;
            let mut of_new_vm = None;
            let limit = BETWEEN_LOOKS.min(BATCH - taken);
            let some = probes.drain(limit, |record| match events.get_mut(record.vm() as usize) {
                _ if only.is_some_and(|only| only != record.vm()) => {
                    *strays += u64::from(matches!(record, AllocationRecord::Event(_)));
                    ControlFlow::Continue(())
                }
                Some(Some(events)) => {
                    if events.is_undecided(&record)
                        && let Some(vm) = deciding.decide(process, events.vm())
                    {
                        decided = Some((record.vm(), vm.config()));
                        events.decide(vm);
                    }
                    outcome = add(events, &record, c_symbols, outputs);
                    if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                }
                _ => {
                    of_new_vm = Some(record);
                    ControlFlow::Break(())
                }
            });
            taken += some;
            outcome?;
            // The probes are to know it too.
            if let Some((index, vm)) = decided {
                programs.update_vm(index, &vm)?;
            }
            match of_new_vm {
                Some(record) => self.meet(&record, programs, process)?,
                None if some < limit => return Ok(true),
                None if budget.is_over() => return Ok(false),
                None => {}
            }
        }
        Ok(false)
    }

    /// Counts the events that nobody is going to work off.
    pub fn count_unread(&mut self) {
        let unread = &mut self.unread;
        self.probes.drain(usize::MAX, |record| {
            *unread += u64::from(matches!(record, AllocationRecord::Event(_)));
            ControlFlow::Continue(())
        });
    }

    /// The size of its largest stream so far, in bytes.
    pub fn largest_stream(&self) -> u64 {
        self.outputs.largest_stream()
    }

    /// Takes the probes out before the recording ends.
    pub fn stop(&mut self) {
        self.stopped = Some(self.began.elapsed());
        self.detach();
    }

    /// Takes the probes out.
    pub fn detach(&mut self) {
        if self.probes.are_lost() {
            let text = "lj-trace: LOST: the probes were gone before the recording ended, since the process that holds them \
                        (lj-trace-guard) was killed: what was allocated from then on is missing";
            say(Priority::Warning, text);
        }
        if let Some(bounded) = &mut self.bounded {
            bounded.end();
        }
        self.probes.detach();
    }

    /// Starts the streams.
    fn start(&mut self) -> Result<(), CommandError> {
        let Self { events, c_symbols, outputs, .. } = self;
        c_symbols.read();
        events.iter_mut().flatten().try_for_each(|events| events.start(c_symbols, outputs))
    }

    /// Takes the first record of a VM that has come into being since.
    fn meet(
        &mut self,
        record: &AllocationRecord,
        programs: &mut Programs,
        process: &Process,
    ) -> Result<(), CommandError> {
        let template = programs.new_vm(record.vm()).and_then(|(global, template)| {
            let template = self.events.get(template as usize)?.as_ref()?;
            Some((template.vm().copy_at(global), template))
        });
        // One of a program that was executed since is none of this recording.
        let template = template.filter(|_| process.runs_same_program());
        let Some((vm, template)) = template else {
            self.strays += 1;
            return Ok(());
        };
        let events = template.of_another(process, &vm, self.vms);
        self.insert(record.vm(), events)?;
        let Self { events, c_symbols, outputs, .. } = self;
        events[record.vm() as usize].as_mut().map_or(Ok(()), |events| add(events, record, c_symbols, outputs))
    }

    /// How many samples were in an interpreter that no known VM was running.
    pub fn strangers(&mut self) -> u32 {
        match (&mut self.bounded, &mut self.lookout) {
            (Some(bounded), _) => bounded.strangers().count(),
            (None, Some((lookout, strangers))) => {
                lookout.drain(strangers);
                strangers.count()
            }
            (None, None) => 0,
        }
    }

    /// Counts them anew.
    pub fn forget_strangers(&mut self) {
        if let Some(bounded) = &mut self.bounded {
            bounded.strangers().forget();
        }
        if let Some((_, strangers)) = &mut self.lookout {
            strangers.forget();
        }
    }

    /// Records a VM that came into being without the probes' noticing, if its allocator can be probed.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn admit(
        &mut self,
        programs: &mut Programs,
        process: &Process,
        vm: &Vm,
        index: u32,
    ) -> Result<(), CommandError> {
        let maps = process.maps()?;
        if let Some((_, strangers)) = &mut self.lookout {
            strangers.add_vm(vm);
        }
        if self.stopped.is_some() {
            return Ok(());
        }
        if let Err(error) = self.probes.add_vm(programs, process, &maps, vm, index) {
            self.left_out += 1;
            let text = format!("lj-trace: a VM that came into being, {:#x}, is not recorded: {error}", vm.global);
            say(Priority::Warning, &text);
            return Ok(());
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

    /// Starts what is written of a VM, which has the next number.
    fn insert(&mut self, index: u32, mut events: MemoryEvents) -> Result<(), CommandError> {
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

    /// Seconds that the target has lost to windows beyond what counters tell.
    pub fn disturbed(&self) -> f64 {
        self.bounded.as_ref().map_or(0.0, BoundedRecording::disturbed)
    }

    /// The clock and the rate of the light sampler, if there is one with events on threads.
    pub fn light_sampler(&self) -> Option<(Clock, u32)> {
        let bounded = self.bounded.as_ref().and_then(BoundedRecording::on_threads);
        bounded.or_else(|| self.lookout.as_ref().and_then(|(lookout, _)| lookout.on_threads()))
    }

    /// What makes the light sampler tick, if there is one.
    pub fn clock(&self) -> Option<Clock> {
        self.bounded.as_ref().map(BoundedRecording::clock)
    }

    /// Takes the stack of an allocation of `size` bytes.
    pub fn add_stack(&mut self, sample: &Resolved, size: u64) {
        self.outputs.add_stack(sample, size);
    }

    /// How many bytes its tables are going to need at once.
    pub fn next_growth(&self) -> u64 {
        self.outputs.next_growth()
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events.iter().flatten().map(|events| events.tally().events).sum()
    }

    /// Writes what there is so far.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<(), CommandError> {
        self.outputs.write_interim()
    }

    /// Writes streams out as far as they are.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn flush(&mut self) -> Result<(), CommandError> {
        self.outputs.flush()
    }

    /// The bytes that each trace of all VMs has allocated, if they were counted.
    fn by_trace(&self) -> Option<TraceTable> {
        let tables = self.events.iter().flatten().filter_map(MemoryEvents::by_trace);
        tables.fold(None, |sum, table| {
            let mut sum = sum.unwrap_or_else(TraceTable::default);
            sum.merge(table);
            Some(sum)
        })
    }

    /// Ends the outputs. Says what was recorded, and where it is.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn finish(
        mut self,
        programs: &Programs,
        duration: Duration,
        cost: Cost,
        unread_stacks: (&'static str, u64),
    ) -> Result<(MemorySummary, Vec<PathBuf>), CommandError> {
        let tally = self.events.iter().flatten().fold(MemoryTally::default(), |sum, events| sum.plus(events.tally()));
        let sum = |counters: &[Counter]| counters.iter().map(|&counter| programs.count(counter)).sum();
        let accounts = CallAccounts {
            calls: sum(&[Counter::AllocatorCalls]),
            written: sum(&[Counter::AllocationsWritten]),
            lost: sum(&[Counter::AllocationsLost, Counter::PendingFull]),
            no_event: sum(&[Counter::AllocationsFailed, Counter::NothingFreed, Counter::UnknownVm]),
            received: tally.events + self.strays + self.unread,
        };
        let estimate = self.outputs.estimation().map(|estimation| {
            if let Some(bounded) = &mut self.bounded {
                bounded.drain(estimation);
            }
            estimation.finish();
            EstimateSummary::new(estimation)
        });
        let mut noted = programs.counted(&[Counter::UnknownVm, Counter::AllocationsFailed, Counter::NothingFreed]);
        if self.left_out > 0 {
            noted.push(("VMs that came into being and could not be recorded", self.left_out));
        }
        let folded = self.outputs.folded();
        noted.extend((folded > 0).then_some((FOLDED_SOURCES, folded)));
        let mut lost = programs.counted(&LOST);
        lost.extend([(UNREAD_EVENTS, self.unread), unread_stacks].into_iter().filter(|(_, count)| *count > 0));
        let summary = MemorySummary {
            estimate,
            duration: self.stopped.unwrap_or(duration),
            tally,
            cost,
            accounts,
            lost,
            noted,
            traces: self.by_trace().map(|table| table.text("bytes", tally.allocated)),
        };
        let files = self.outputs.finish(&summary.lost)?;
        Ok((summary, files))
    }
}
