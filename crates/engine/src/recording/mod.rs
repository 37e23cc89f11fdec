//! A recording: from the first probe to the last line of its summary.

mod accounts;
mod allocations;
pub mod budget;
mod changes;
mod cost;
mod lifetimes;
mod off_cpu;
pub mod poll_interval;
pub mod stop;
mod turns;
mod under_way;
mod unknown_vms;
mod vm_discovery;
mod windows;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lj_trace_common::config::Counter;
use lj_trace_common::event::{NO_VM, SAMPLE_ALLOCATION};
use lj_trace_common::turn::{EndedTurn, TurnLengths};
use lj_trace_common::vm::VmConfig;
use lj_trace_luajit::Vm;
use lj_trace_probes::cost::Cost;
use lj_trace_probes::highest_rate::SETTING;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::plan::ProbePlan;
use lj_trace_probes::programs::{KeptPrograms, Programs};
use lj_trace_probes::sample::Record;
use lj_trace_probes::sample_buffer::SampleBuffer;
use lj_trace_probes::sampler::{EventPlaces, NewCpu, Sampler};
use lj_trace_probes::turn_cost::TurnCost;
use lj_trace_process::{Process, breakpoints};
use lj_trace_profile::model::RequestKey;
use lj_trace_profile::{Frame, ProfileKind};

use crate::allocations::MemorySummary;
use crate::cpu::{Outputs, SampleListener, Summary, Verbosity, about_process};
use crate::error::EngineError;
use crate::options::{Options, Scope};
use crate::request_counter::{EndedSummary, RequestCounter};
use crate::resolve::{LabelLayout, Pipeline, UNSEARCHED};
use crate::sample_clock;
use crate::target::RecordTarget;
use allocations::{MemoryPreparation, MemoryRecording};
use budget::Budget;
use cost::{Calibration, CostMeter, Costs, OnThreads};
use off_cpu::OffCpuRecording;
use poll_interval::{PollInterval, PollWish};
use stop::Stop;
use turns::TurnsRecording;
use vm_discovery::VmDiscovery;

/// The counters of samples that never arrived.
const LOST_SAMPLES: [Counter; 3] = [Counter::RingBufferFull, Counter::NoScratch, Counter::NoRegisters];

/// The counters of samples that arrived without a stack or without traces.
const NOTED: [Counter; 2] = [Counter::NoStack, Counter::TracesLost];

/// The interval between two measurements of the target's memory, if outputs show it.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);

/// The interval between two checks that the VMs still exist. A check takes four reads for each VM.
const VMS_INTERVAL: Duration = Duration::from_secs(1);

/// The lowest sampling rate, in samples per second: the rate is not lowered beyond this, however much samples cost.
const LEAST_RATE: u32 = 10;

/// The interval between two checks for CPUs that were switched on.
const CPUS_INTERVAL: Duration = Duration::from_secs(1);

/// The recording of one process.
pub struct Recording {
    process: Process,
    programs: Programs,
    /// The buffer that samples come from, and the pipeline that resolves them; [`None`] if there are only allocation
    /// events.
    samples: Option<(SampleBuffer, Pipeline)>,
    /// The CPU profile.
    pub cpu: Option<CpuRecording>,
    /// The memory profile.
    pub memory: Option<MemoryRecording>,
    /// The name of the process for the user.
    name: String,
    /// The index of the only VM to record, if only one is recorded.
    only: Option<usize>,
    /// Samples of other VMs or outside of any VM, if only one VM is recorded.
    left_out: u64,
    /// The request label to group samples by, if any.
    group_by: Option<RequestKey>,
    /// The labels that all samples must have.
    only_requests: Vec<(RequestKey, String)>,
    /// Samples with other labels.
    other_requests: u64,
    discovery: VmDiscovery,
    /// Counts the requests that the process ends, if that was asked for, or says why not.
    requests: Option<Result<RequestCounter, String>>,
    began: Instant,
    /// When the recording was last drained.
    drained: Instant,
    /// When the recording last checked for new CPUs.
    cpus_looked_at: Instant,
    /// How many samples a second the kernel allowed, if that was too few.
    allowed_rate: Option<u32>,
    /// How many it found, with a perf event and without.
    new_cpus: [u64; 2],
    /// When sampling ends.
    ends: Option<Instant>,
    /// The indices of closed VMs from which samples may still come.
    leaving: Vec<u32>,
    /// When the recording last checked that its VMs still exist.
    vms_looked_at: Instant,
    poll_interval: PollInterval,
    cost: CostMeter,
    /// When the target's memory was last measured.
    memory_measured: Option<Instant>,
    /// The time to sleep after each sample.
    slow_down: Duration,
    /// Samples, and stacks of allocations, that were still unread when recording ended.
    unread_samples: u64,
    unread_stacks: u64,
}

/// The error for a request for a stream of a profile that has none.
const NO_STREAM: &str = "time off the CPU has no stream: name a file that ends in .svg, .folded, .txt, .pb.gz, \
                         .speedscope.json or .json.gz";

/// The title of a profile: its kind, and the sampling rate.
pub fn title(kind: ProfileKind, rate: u32) -> String {
    match kind {
        ProfileKind::Cpu => format!("CPU time at {rate} Hz"),
        ProfileKind::Wall => format!("wall-clock time of threads (on the CPU at {rate} Hz)"),
        ProfileKind::OffCpu => "time of threads off the CPU".to_owned(),
        ProfileKind::Allocations | ProfileKind::Waits => kind.to_string(),
    }
}

/// Samples that were lost because the buffer was full while lj-trace worked on another process.
const WAITED_TOO_LONG: &str = "samples lost: too many waited for others to be worked off";

/// Data that was recorded, but not processed in time.
const UNREAD_SAMPLES: &str = "samples were not worked off in time when recording ended";
const UNREAD_STACKS: &str = "stacks of allocations were not worked off in time when recording ended";

/// Precede the numbers of CPUs that got a perf event late, and that got none.
const NEW_CPUS: [&str; 2] = [
    "times that a CPU was switched on, on which the first two seconds were not sampled",
    "CPUs that were switched on after recording had begun, on which nothing was sampled",
];

/// Samples that reports have no room for.
const FOLDED: &str = "samples of rare stacks, which reports show as far as they share frames with others";

/// Precedes the number of samples that --only leaves out, and of samples whose location or server was beyond the limit.
const OTHER_REQUESTS: &str = "samples of other requests, which --only leaves out";
const OTHER_NAMES: &str =
    "samples of locations, servers, plugins or fibers beyond the first 256, which are called [other]";

/// Precedes the number of traces that have too many possible readings to try all of them.
const UNFINISHED: &str = "traces with too many possible readings, whose inlined functions are marked in part";

/// A CPU profile under way.
pub struct CpuRecording {
    /// The sampler's perf events, if CPU time is recorded.
    pub sampler: Option<Sampler>,
    /// Records when the process's threads leave the CPU and come back, if that is recorded.
    off_cpu: Option<OffCpuRecording>,
    /// Records the turns of the process's event loops, if turns are tracked.
    turns: Option<TurnsRecording>,
    outputs: Outputs,
}

impl CpuRecording {
    /// Whether the profile also has samples of waits.
    pub fn has_waits(&self) -> bool {
        self.off_cpu.is_some()
    }
}

/// The summaries of a finished recording.
pub struct Summaries {
    cpu: Option<(Summary, Vec<PathBuf>)>,
    memory: Option<(MemorySummary, Vec<PathBuf>)>,
    /// The requests that have ended, if they were to be counted, or why they could not be.
    ended: Option<Result<EndedSummary, String>>,
    /// Whether the memory profile ended early because it cost too much.
    over_budget: bool,
}

impl Summaries {
    /// The summaries as text for the user. `end` says why the recording ended.
    pub fn text(&self, end: &str, verbosity: Verbosity) -> String {
        let cpu = self.cpu.iter().map(|(summary, files)| summary.text(end, files, verbosity));
        let memory_end = if self.over_budget { Stop::OverBudget.describe() } else { end };
        let memory = self.memory.iter().map(|(summary, files)| summary.text(memory_end, files));
        cpu.chain(memory).collect()
    }

    /// The summary of CPU time.
    pub fn cpu(&self) -> Option<&Summary> {
        self.cpu.as_ref().map(|(summary, _)| summary)
    }

    /// The summary of the memory profile.
    pub fn memory(&self) -> Option<&MemorySummary> {
        self.memory.as_ref().map(|(summary, _)| summary)
    }

    /// The requests that have ended, if they were to be counted.
    ///
    /// # Errors
    /// Why they could not be counted.
    pub fn ended(&self) -> Option<Result<&EndedSummary, &str>> {
        self.ended.as_ref().map(|ended| ended.as_ref().map_err(String::as_str))
    }

    /// What samples and the memory profile have cost the process, in seconds of CPU time.
    pub fn seconds(&self) -> [f64; 2] {
        let memory = self.memory.as_ref().map(|(summary, _)| summary.cost.seconds);
        [self.cpu().map_or(0.0, |summary| summary.cost.seconds), memory.unwrap_or(0.0)]
    }

    /// CPU samples that never arrived, by reason.
    pub fn lost_samples(&self) -> &[(&'static str, u64)] {
        self.cpu.as_ref().map_or(&[], |(summary, _)| summary.lost.as_slice())
    }
}

impl Recording {
    /// Opens the outputs, loads the BPF programs, and attaches the probes. `processes` is the number of processes that are
    /// recorded at once.
    ///
    /// # Errors
    /// Any of these steps fails.
    pub fn start(target: &RecordTarget, processes: usize) -> Result<Self, EngineError> {
        let mut recording = Self::prepare(target, processes, None)?;
        recording.begin()?;
        Ok(recording)
    }

    /// The same, except that samples are taken only after [`Self::begin`]. If the recording is written in pieces, `piece`
    /// is the time at which the first piece begins, formatted for file names.
    ///
    /// # Errors
    /// Any of these steps fails.
    pub fn prepare(target: &RecordTarget, processes: usize, piece: Option<&str>) -> Result<Self, EngineError> {
        Self::attach(target, processes, piece).map_err(|error| error.unless_gone(&target.process))
    }

    /// Begins to take samples.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn begin(&mut self) -> Result<(), EngineError> {
        self.cost.begin(&self.programs);
        if let Some(Ok(requests)) = &mut self.requests {
            requests.begin();
        }
        self.began = Instant::now();
        self.obey_kernel()?;
        let Some(cpu) = &mut self.cpu else { return Ok(()) };
        if let Some(off_cpu) = &mut cpu.off_cpu {
            off_cpu.begin(&self.process)?;
        }
        if let Some(turns) = &cpu.turns {
            turns.begin()?;
        }
        cpu.sampler.as_ref().map_or(Ok(()), |sampler| Ok(sampler.begin()?))
    }

    /// Stops sampling at `when`, even if the recording is ended later than that.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn end_at(&mut self, when: Instant) -> Result<(), EngineError> {
        let Some(cpu) = &mut self.cpu else { return Ok(()) };
        let Some(sampler) = &mut cpu.sampler else { return Ok(()) };
        self.ends = Some(when);
        sampler.end_at(when).map_err(|error| EngineError::io("end in time", &error))
    }

    fn attach(target: &RecordTarget, processes: usize, piece: Option<&str>) -> Result<Self, EngineError> {
        let RecordTarget { options, process, vms, only, .. } = target;
        let wanted = options.wanted(processes);
        if options.weight.is_some() && !wanted.memory {
            return Err(EngineError::usage("--weight is for memory profiles: add --mode memprof, or all"));
        }
        // Outputs first: without a writable output, there is no point in attaching probes.
        let outputs = options.kinds.time().map(|kind| {
            let title = format!("{}, {}", target.name(), title(kind, options.rate));
            let files = options.files(kind);
            if !kind.has_stream() && !files.streams.is_empty() {
                return Err(EngineError::usage(NO_STREAM));
            }
            // A process without a VM is going to have one.
            let vms = only.map_or(vms.len().max(1), |_| 1);
            Outputs::open(files, &title, (kind, options.rate), vms, options.jit_samples, piece)
        });
        let mut outputs: Option<Outputs> = outputs.transpose()?;
        if let Some(outputs) = &mut outputs {
            if options.traces {
                outputs.group_by_trace();
            }
            // With several processes, there is one answer for all of them.
            if !options.quiet && !options.is_of_several() {
                outputs.keep_answer();
            }
            if let Some(factory) = &options.sinks {
                let kind = options.kinds.time().unwrap_or(ProfileKind::Cpu);
                outputs.reports().add_sinks(factory.sinks(process, kind));
            }
            outputs.describe(process);
        }
        let memory = wanted.memory.then(|| MemoryPreparation::new(target)).transpose()?;
        // Many processes of a host are short-lived: this check would take longer than the rest of their recording.
        if !matches!(options.scope, Scope::Host) {
            warn_of_breakpoints(target);
        }
        let configs: Vec<VmConfig> = vms.iter().map(Vm::config).collect();
        let mut programs = if wanted.may_share() && options.testing.events == EventPlaces::Auto {
            Programs::join(wanted, process, options.rate, &configs)?
        } else {
            Programs::load(wanted, &configs)?
        };
        let has_samples = options.kinds.time().is_some() || wanted.stack_every != 0;
        let samples = has_samples.then(|| {
            let buffer = SampleBuffer::open(&programs)?;
            let mut pipeline = Pipeline::new(process, vms);
            if options.testing.no_requests {
                pipeline.leave_requests();
            }
            if options.wants_trace_ids() {
                pipeline.find_trace_ids(options.trace_variable.as_deref());
            }
            tell_requests(&mut pipeline, &mut programs)?;
            pipeline.show_kernel(options.kernel);
            Ok::<_, EngineError>((buffer, pipeline))
        });
        let samples = samples.transpose()?;
        let cpu = outputs.map(|outputs| {
            let (rate, places) = (options.rate, options.testing.events);
            let sampler = wanted.cpu.then(|| Sampler::attach(&mut programs, process, rate, places)).transpose()?;
            let off_cpu = wanted.off_cpu.then(|| OffCpuRecording::attach(&mut programs, process, wanted.cpu));
            let turns =
                options.turns.map(|limits| TurnsRecording::attach(&mut programs, process, limits)).transpose()?;
            Ok::<_, EngineError>(CpuRecording { sampler, off_cpu: off_cpu.transpose()?, turns, outputs })
        });
        let mut cpu = cpu.transpose()?;
        let memory = memory.map(|memory| memory.attach(target, &mut programs)).transpose()?;
        let discovery = VmDiscovery::new(process, target.may_have_more && only.is_none(), vms.is_empty());
        let allocation =
            memory.as_ref().map(|memory| (programs.mechanism(), memory.probes.plans().iter().all(ProbePlan::is_cheap)));
        let sampler = cpu.as_ref().and_then(|cpu| cpu.sampler.as_ref());
        let clock = sampler.map(Sampler::clock);
        let clock = clock.or_else(|| memory.as_ref().and_then(MemoryRecording::clock));
        // Allocation windows keep to the limit of `overhead` instead.
        let limit = options.limits.allocations.filter(|_| options.overhead.is_none());
        let on_threads = OnThreads {
            sampler: sampler.and_then(Sampler::on_threads),
            light: memory.as_ref().and_then(MemoryRecording::light_sampler),
        };
        let calibration = Calibration::start(allocation, clock, lifetimes::may_watch(options), on_threads)?;
        let limits = [limit.filter(|_| allocation.is_some()), options.limits.cpu.filter(|_| sampler.is_some())];
        let cost = CostMeter::new(process, calibration, limits, on_threads);
        if let Some(cpu) = &mut cpu {
            // From here on nothing can fail any more: earlier files may be overwritten.
            cpu.outputs.begin()?;
        }
        let requests = options.per_request.then(|| RequestCounter::start(target));
        let (process, name, only) = (process.clone(), target.name(), *only);
        let now = Instant::now();
        let poll_interval = match options.scope {
            Scope::Host if wanted.memory => PollInterval::of_windows(now),
            Scope::Host => PollInterval::of_host(options.rate, now),
            _ => PollInterval::new((!wanted.memory).then_some(options.rate), now),
        };
        let (left_out, memory_measured) = (0, None);
        Ok(Self {
            process,
            programs,
            samples,
            cpu,
            memory,
            discovery,
            requests,
            began: Instant::now(),
            drained: Instant::now(),
            cpus_looked_at: Instant::now(),
            allowed_rate: None,
            new_cpus: [0; 2],
            ends: None,
            leaving: Vec::new(),
            vms_looked_at: Instant::now(),
            poll_interval,
            cost,
            name,
            only,
            left_out,
            group_by: options.group_by,
            only_requests: options.only_requests.clone(),
            other_requests: 0,
            memory_measured,
            slow_down: options.testing.slow_down.unwrap_or_default(),
            unread_samples: 0,
            unread_stacks: 0,
        })
    }

    /// The size of its largest stream so far, in bytes.
    pub fn largest_stream(&self) -> u64 {
        let cpu = self.cpu.as_ref().map_or(0, |cpu| cpu.outputs.largest_stream());
        cpu.max(self.memory.as_ref().map_or(0, MemoryRecording::largest_stream))
    }

    /// The number of bytes by which its tables grow with the next step.
    pub fn next_growth(&self) -> u64 {
        self.memory.as_ref().map_or(0, MemoryRecording::next_growth)
    }

    /// Whether the counters of its BPF programs are still in reach.
    pub fn is_in_reach(&self) -> bool {
        self.programs.are_in_reach()
    }

    /// Keeps the BPF programs that it shares with other processes loaded; [`None`] if it shares none.
    pub fn keep_programs(&self) -> Option<KeptPrograms> {
        self.programs.keep()
    }

    /// Detaches the probes. The data that they have recorded can still be drained.
    pub fn detach(&mut self) {
        if let Some(cpu) = &mut self.cpu {
            if let Some(sampler) = &mut cpu.sampler {
                sampler.detach();
            }
            if let Some(turns) = &mut cpu.turns {
                turns.end();
            }
            if let (Some(off_cpu), Some((_, pipeline))) = (&mut cpu.off_cpu, &self.samples) {
                off_cpu.end(&self.process, pipeline);
            }
            cpu.outputs.reports().add_modules(&self.process);
        }
        if let Some(memory) = &mut self.memory {
            memory.detach(&self.programs);
        }
        if let Some(Ok(requests)) = &mut self.requests {
            requests.end();
        }
    }

    /// The buffer that its samples come from.
    pub fn sample_buffer(&self) -> Option<&SampleBuffer> {
        self.samples.as_ref().map(|(buffer, _)| buffer)
    }

    /// Whether there is anything to do in [`Self::drain`]: samples or events have come, or the last drain is `rest` ago.
    pub fn is_due(&self, now: Instant, rest: Duration) -> bool {
        let has_samples = || self.samples.as_ref().is_some_and(|(buffer, _)| buffer.may_have_some());
        self.memory.as_ref().is_some_and(MemoryRecording::has_some)
            || self.discovery.is_busy()
            || now.saturating_duration_since(self.drained) >= rest
            || has_samples()
    }

    /// How long to wait before [`Self::drain`] is called for all of these again; [`None`] if there are none.
    pub fn until_next_poll<'a>(recordings: impl IntoIterator<Item = &'a Self>) -> Option<Duration> {
        let now = Instant::now();
        poll_interval::earliest(recordings.into_iter().map(|own| own.poll_wish(now)), now)
    }

    fn poll_wish(&self, now: Instant) -> PollWish {
        let sampler = self.cpu.as_ref().and_then(|cpu| cpu.sampler.as_ref()).filter(|_| self.memory.is_none());
        self.poll_interval.wish(now, sampler.and_then(Sampler::tick))
    }

    /// Takes the samples and events that are ready, as far as `budget` allows. `listener` gets them, too. Returns false if
    /// there may be more already.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn drain(&mut self, listener: Option<&mut dyn SampleListener>, budget: Budget) -> Result<bool, EngineError> {
        self.drained = Instant::now();
        // Without this, events would wait while samples take long.
        let samples = self.drain_samples(listener, if self.memory.is_some() { budget.share(2) } else { budget })?;
        self.measure_memory();
        if let Some(Ok(requests)) = &mut self.requests {
            requests.keep_up();
        }
        self.limit_cost()?;
        if self.only.is_none() {
            // A memory profile learns from its allocators which VMs are closed.
            if self.memory.is_none() {
                self.part_with_vms(samples)?;
            }
            self.register_new_vms()?;
        }
        let Self { programs, process, memory, .. } = self;
        let memory = memory.as_mut().map_or(Ok(true), |memory| memory.drain(programs, process, budget))?;
        self.release_places(samples)?;
        Ok(memory && samples)
    }

    /// Frees the indices of the VMs that a memory profile has seen closed, for other VMs. `is_empty` says whether no sample
    /// is left to process.
    fn release_places(&mut self, is_empty: bool) -> Result<(), EngineError> {
        let Self { programs, samples, cpu, memory, leaving, .. } = self;
        let Some(memory) = memory else { return Ok(()) };
        let Some((_, pipeline)) = samples else {
            memory.take_closed().into_iter().for_each(|index| programs.release_vm(index));
            return Ok(());
        };
        if is_empty && !leaving.is_empty() {
            leaving.iter().for_each(|&index| pipeline.places().leave(index as usize));
            for vm in pipeline.forget_left() {
                cpu.as_mut().map_or(Ok(()), |cpu| cpu.outputs.end_vm(vm))?;
            }
            leaving.drain(..).for_each(|index| programs.release_vm(index));
        }
        leaving.extend(memory.take_closed());
        Ok(())
    }

    /// Searches the process for VMs that the programs do not know, if there is reason to, and registers the VMs that were
    /// found.
    fn register_new_vms(&mut self) -> Result<(), EngineError> {
        let Self { process, programs, samples, memory, discovery, .. } = self;
        let mut pipeline = samples.as_mut().map(|(_, pipeline)| pipeline);
        let seen = pipeline.as_ref().map_or(0, |pipeline| pipeline.unknown_vms());
        if discovery.are_due(seen + memory.as_mut().map_or(0, MemoryRecording::unknown_vms)) {
            if let Some(pipeline) = &mut pipeline {
                pipeline.forget_unknown_vm_samples();
            }
            if let Some(memory) = memory {
                memory.forget_unknown_vm_samples();
            }
            discovery.search(process);
        }
        let Some(found) = discovery.found() else { return Ok(()) };
        let mut is_new = false;
        for vm in found {
            let is_known =
                pipeline.as_ref().is_some_and(|own| own.known_vms().any(|(_, known)| known.global == vm.global));
            if is_known || programs.index_of(vm.global).is_some() {
                continue;
            }
            // While allocations are recorded, a VM keeps its index to the end.
            let places = pipeline.as_mut().filter(|_| memory.is_none());
            if let Some(pipeline) = places
                && let Some(index) = pipeline.places().a_free_one()
            {
                programs.update_vm(index as u32, &vm.config())?;
                pipeline.replace_vm(index, vm);
                is_new = true;
                continue;
            }
            let Some(index) = programs.add_late_vm(&vm.config())? else {
                // The quietest VM gives up its index, for the VM that the next search finds.
                if let Some(pipeline) = pipeline.as_mut().filter(|_| memory.is_none())
                    && !pipeline.places().is_one_leaving()
                    && let Some(index) = pipeline.places().the_quietest(|index| programs.may_replace(index as u32))
                {
                    programs.forget_vm(pipeline.vms()[index].global);
                    pipeline.places().leave(index);
                    // A VM still needs an index: the next search comes soon.
                    is_new = true;
                }
                break;
            };
            is_new = true;
            if let Some(pipeline) = pipeline.as_mut().filter(|own| index as usize == own.vms().len()) {
                pipeline.add_vm(vm.clone());
            }
            if let Some(memory) = memory {
                memory.register_found_vm(programs, process, &vm, index)?;
            }
        }
        discovery.note(is_new);
        Ok(())
    }

    /// Checks from time to time that the VMs still exist, and ends the outputs of those that do not. `is_empty` says
    /// whether no sample is left to process.
    fn part_with_vms(&mut self, is_empty: bool) -> Result<(), EngineError> {
        let Self { process, programs, samples, cpu, vms_looked_at, .. } = self;
        let (Some((_, pipeline)), Some(cpu)) = (samples, cpu) else { return Ok(()) };
        // Do this before any further VM is marked as leaving: no sample of these VMs is under way any more.
        if is_empty && pipeline.places().is_one_leaving() {
            pipeline.forget_left().into_iter().try_for_each(|vm| cpu.outputs.end_vm(vm))?;
        }
        if vms_looked_at.elapsed() >= VMS_INTERVAL {
            *vms_looked_at = Instant::now();
            let memory = process.memory();
            let looks = pipeline.known_vms().map(|(index, vm)| (index, vm.global, vm.still_valid(&memory)));
            for (index, global, is_there) in looks.collect::<Vec<_>>() {
                if pipeline.places().look(index, is_there) {
                    programs.forget_vm(global);
                    pipeline.places().leave(index);
                }
            }
        }
        Ok(())
    }

    /// Ends the files and begins the next ones; returns the paths of the ended files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn rotate(&mut self, piece: &str) -> Result<Vec<PathBuf>, EngineError> {
        let Self { cpu, memory, programs, samples, process, .. } = self;
        let mut written = Vec::new();
        if let Some(cpu) = cpu {
            cpu.outputs.reports().add_modules(process);
            written.extend(cpu.outputs.rotate(piece, &lost_samples(programs, samples.as_ref()))?);
        }
        if let Some(memory) = memory {
            written.extend(memory.end_interval(programs)?);
        }
        Ok(written)
    }

    /// The files that were completed since the last call, while recording goes on.
    pub fn take_ended(&mut self) -> Vec<PathBuf> {
        self.cpu.as_mut().map_or_else(Vec::new, |cpu| cpu.outputs.take_ended())
    }

    /// Measures the heap and the process from time to time, for outputs that show how these sizes change.
    fn measure_memory(&mut self) {
        let (Some(cpu), Some((_, pipeline))) = (&mut self.cpu, &self.samples) else { return };
        let is_due = self.memory_measured.is_none_or(|last| last.elapsed() >= MEMORY_INTERVAL);
        if is_due && cpu.outputs.reports().shows_time() {
            let (heap, resident) = about_process::memory(&self.process, pipeline.known_vms().map(|(_, vm)| vm));
            cpu.outputs.reports().measure_memory(heap, resident);
            self.memory_measured = Some(Instant::now());
        }
    }

    /// Notes that other recordings have changed how often the perf events tick that it shares with them.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn keep_up(&mut self) -> Result<(), EngineError> {
        let Some(sampler) = self.cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut()) else { return Ok(()) };
        if sampler.keep_up(&mut self.programs)? {
            // What samples have cost at the other rate is no reason to change this one.
            self.cost.begin_anew();
        }
        Ok(())
    }

    /// Lowers the sampling rate if the kernel allows less: samples would be missing without a sign.
    fn obey_kernel(&mut self) -> Result<(), EngineError> {
        let Some(sampler) = self.cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut()) else { return Ok(()) };
        if let Some(allowed) = sampler.obey_kernel(&mut self.programs)? {
            self.allowed_rate = Some(allowed);
            let (rate, weight) = (sampler.rate(), sampler.weight());
            let text = format!(
                "lj-trace: the kernel allows {allowed} samples a second ({SETTING}): {rate:.0} are taken, each of which counts \
                 as {weight}"
            );
            say(Priority::Warning, &text);
        }
        Ok(())
    }

    /// Detaches the probes on the allocators once they cost the target more than the limit; the data that they have
    /// recorded stays. If samples cost more than their limit, lowers the sampling rate.
    fn limit_cost(&mut self) -> Result<(), EngineError> {
        self.keep_up()?;
        let over_budget = self.cost.look(&self.programs);
        if self.cpus_looked_at.elapsed() >= CPUS_INTERVAL {
            self.obey_kernel()?;
        }
        if let Some(sampler) = self.cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut()) {
            if self.cpus_looked_at.elapsed() >= CPUS_INTERVAL {
                self.cpus_looked_at = Instant::now();
                for NewCpu { number, is_sampled } in sampler.new_cpus() {
                    let [covered, uncovered] = &mut self.new_cpus;
                    if is_sampled {
                        *covered += 1;
                        continue;
                    }
                    *uncovered += 1;
                    let text = format!(
                        "lj-trace: CPU {number} was switched on after recording had begun: what {} does there is not sampled",
                        self.name
                    );
                    say(Priority::Warning, &text);
                }
            }
            if let Some(share) = over_budget.samples
                && sampler.slow_down(&mut self.programs, LEAST_RATE)?
            {
                self.cost.begin_anew();
                let (rate, weight) = (sampler.rate(), sampler.weight());
                let text = format!(
                    "lj-trace: samples cost {} {:.0}% of its CPU time: from now on {rate:.0} are taken a second, each of \
                     which counts as {weight} (--max-overhead allows more, --no-limit any cost)",
                    self.name,
                    share * 100.0
                );
                say(Priority::Warning, &text);
            }
        }
        let Some(share) = over_budget.memory else { return Ok(()) };
        if let Some(memory) = &mut self.memory {
            memory.stop(&self.programs);
            let text = format!(
                "lj-trace: recording memory costs {} {:.0}% of its CPU time: stopped, what was recorded is kept \
                 (--overhead 5% records in windows that cost no more than that and estimates the rest; --max-overhead \
                 allows more, --no-limit any cost)",
                self.name,
                share * 100.0
            );
            say(Priority::Warning, &text);
        }
        Ok(())
    }

    /// Lowers the sampling rate, so that each sample counts for more. Does nothing if another recording that shares the
    /// perf events has already done so, or if the rate would fall below `least` samples per second. Returns the new rate if
    /// it has changed.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn lower_rate(&mut self, least: u32) -> Result<Option<f64>, EngineError> {
        let Some(sampler) = self.cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut()) else { return Ok(None) };
        let has_changed = sampler.slow_down(&mut self.programs, least)?;
        Ok(has_changed.then(|| sampler.rate()))
    }

    /// Raises the sampling rate again, if it was lowered. Returns the new rate if it has changed.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn raise_rate(&mut self) -> Result<Option<f64>, EngineError> {
        let Some(sampler) = self.cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut()) else { return Ok(None) };
        let has_changed = sampler.keep_up(&mut self.programs)? || sampler.speed_up(&mut self.programs)?;
        Ok(has_changed.then(|| sampler.rate()))
    }

    /// Whether the recording has stopped completely because it cost too much.
    pub fn is_over(&self) -> bool {
        self.cpu.is_none() && self.memory.as_ref().is_some_and(|memory| memory.stopped.is_some())
    }

    fn drain_samples(
        &mut self,
        mut listener: Option<&mut dyn SampleListener>,
        budget: Budget,
    ) -> Result<bool, EngineError> {
        let Self { process, programs, samples, cpu, memory, name, only, left_out, poll_interval, slow_down, .. } = self;
        let Self { group_by, only_requests, other_requests, .. } = self;
        let Some((buffer, pipeline)) = samples else { return Ok(true) };
        let (mut is_first, mut ticked) = (true, None);
        let mut outcome = Ok(());
        let go_on = || if budget.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let is_empty = buffer.drain(|record| {
            let sample = match record {
                Record::Sample(sample) => sample,
                Record::Trace(copy, bytes) => {
                    pipeline.add_trace(&copy, bytes);
                    return ControlFlow::Continue(());
                }
                Record::Turn(turn) => {
                    if let Some(listener) = listener.as_deref_mut() {
                        listener.turn(&turn);
                    }
                    return go_on();
                }
            };
            if std::mem::take(&mut is_first) {
                pipeline.refresh();
            }
            if !slow_down.is_zero() {
                spend(*slow_down);
            }
            if sample.is_of_tick() {
                ticked = Some(sample.header.time);
            }
            let weight = sample.weight();
            if only.is_some_and(|only| sample.header.vm as usize != only) {
                *left_out += weight;
                return go_on();
            }
            if sample.header.vm != NO_VM {
                VmDiscovery::register_vms(process, pipeline, programs, sample.header.vm as usize);
            }
            let mut resolved = pipeline.resolve(sample);
            // At once: from now on, the programs copy each trace that they meet.
            for index in pipeline.take_decided() {
                let updated = programs.update_vm(index as u32, &pipeline.vms()[index].config());
                outcome = std::mem::replace(&mut outcome, Ok(())).and(updated.map_err(Into::into));
            }
            if only.is_some() {
                resolved.vm = Some(0);
            }
            if !resolved.request.has(only_requests) {
                *other_requests += weight;
                return go_on();
            }
            if let Some(key) = *group_by {
                resolved.request.group_by(key);
            }
            // Streams have no other way to say how many ticks a sample counts for.
            for _ in 0..weight {
                if let Some(listener) = listener.as_deref_mut().filter(|_| resolved.allocation.is_none()) {
                    listener.sample(&resolved, root(name, resolved.vm, pipeline.vms_so_far()));
                }
                match (resolved.allocation, &mut *cpu, &mut *memory) {
                    (Some(size), _, Some(memory)) => memory.add_stack(&resolved, size),
                    (None, Some(cpu), _) if outcome.is_ok() => outcome = cpu.outputs.add(&resolved),
                    _ => {}
                }
            }
            go_on()
        });
        if is_empty && let Some(CpuRecording { off_cpu: Some(off_cpu), outputs, .. }) = cpu {
            // Waits that were under way when recording ended come last.
            for wait in off_cpu.take_under_way() {
                if only.is_some_and(|only| wait.vm() != Some(only)) {
                    *left_out += 1;
                    continue;
                }
                let mut resolved = pipeline.resolve(wait.sample());
                if only.is_some() {
                    resolved.vm = Some(0);
                }
                if let Some(listener) = listener.as_deref_mut() {
                    listener.sample(&resolved, root(name, resolved.vm, pipeline.vms_so_far()));
                }
                outcome = outcome.and_then(|()| outputs.add(&resolved));
            }
        }
        programs.set_stack_ends(&pipeline.take_stack_ends());
        tell_requests(pipeline, programs)?;
        if pipeline.take_lateness() {
            poll_interval.was_late(Instant::now());
        }
        if let Some(when) = ticked.and_then(sample_clock::instant_of) {
            poll_interval.has_ticked(when);
        }
        outcome.map(|()| is_empty)
    }

    /// Takes everything that is ready, as far as `budget` allows, and counts what is left.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn drain_all(
        &mut self,
        mut listener: Option<&mut dyn SampleListener>,
        budget: Budget,
    ) -> Result<(), EngineError> {
        loop {
            let mut listener = listener.as_mut().map(|listener| &mut **listener as &mut dyn SampleListener);
            let again = listener.as_mut().map(|listener| &mut **listener as &mut dyn SampleListener);
            if self.drain(again, budget)? {
                return Ok(());
            }
            if budget.is_over() {
                self.count_unread(listener);
                return Ok(());
            }
        }
    }

    /// Counts the data that will stay unread. Turns that were too long still go to the listener: that takes no time.
    fn count_unread(&mut self, mut listener: Option<&mut dyn SampleListener>) {
        let Self { samples, memory, unread_samples, unread_stacks, .. } = self;
        if let Some((buffer, _)) = samples {
            buffer.drain(|record| {
                match record {
                    Record::Sample(sample) => {
                        let is_stack = sample.header.flags & SAMPLE_ALLOCATION != 0;
                        *if is_stack { &mut *unread_stacks } else { &mut *unread_samples } += sample.weight();
                    }
                    Record::Turn(turn) => {
                        if let Some(listener) = listener.as_deref_mut() {
                            listener.turn(&turn);
                        }
                    }
                    Record::Trace(..) => {}
                }
                ControlFlow::Continue(())
            });
        }
        if let Some(memory) = memory {
            memory.count_unread();
        }
    }

    /// The name of the process for the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The number of CPU samples so far; [`None`] if they are not recorded.
    pub fn samples(&self) -> Option<u64> {
        let (_, pipeline) = self.samples.as_ref().filter(|_| self.cpu.is_some())?;
        Some(pipeline.tally().samples)
    }

    /// The hottest Lua function so far and its share of the samples; [`None`] without reports and without an answer.
    pub fn hottest(&self) -> Option<(String, f64)> {
        self.cpu.as_ref()?.outputs.hottest()
    }

    /// The VMs that are recorded by now; [`None`] if there are only allocation events.
    pub fn vms(&self) -> Option<Vec<Vm>> {
        self.samples.as_ref().map(|(_, pipeline)| pipeline.known_vms().map(|(_, vm)| vm.clone()).collect())
    }

    /// How many VMs there have been so far; 0 if there are only allocation events.
    pub fn vms_so_far(&self) -> usize {
        self.samples.as_ref().map_or(0, |(_, pipeline)| pipeline.vms_so_far())
    }

    /// Continues with the program that the process has executed, if no VM was seen in the process before. An example is a
    /// script that ends in `exec`, or env(1).
    ///
    /// # Errors
    /// The programs in the kernel cannot be updated.
    pub fn follow(&mut self, process: &Process) -> Result<(), EngineError> {
        self.process = process.clone();
        if let Some((_, pipeline)) = &mut self.samples {
            pipeline.follow(process);
        }
        self.discovery = VmDiscovery::new(process, false, true);
        let Self { cpu, programs, .. } = self;
        let sampler = cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut());
        Ok(sampler.map_or(Ok(()), |sampler| sampler.follow(programs, process))?)
    }

    /// Samples and events that never arrived so far, by reason.
    pub fn lost(&self) -> Vec<(&'static str, u64)> {
        let samples = self.cpu.iter().flat_map(|_| lost_samples(&self.programs, self.samples.as_ref()));
        samples.chain(self.memory.iter().flat_map(|memory| memory.lost(&self.programs))).collect()
    }

    /// How long the turns of its event loops were so far; [`None`] if turns are not tracked.
    pub fn turn_lengths(&self) -> Option<TurnLengths> {
        self.cpu.as_ref()?.turns.as_ref().map(TurnsRecording::lengths)
    }

    /// The turns that were too long and had not ended when recording did.
    pub fn turns_under_way(&self) -> Vec<EndedTurn> {
        let turns = self.cpu.as_ref().and_then(|cpu| cpu.turns.as_ref());
        turns.map(TurnsRecording::under_way).unwrap_or_default()
    }

    /// Whether it records samples or waits of the process.
    pub fn has_time(&self) -> bool {
        self.cpu.is_some()
    }

    /// Whether it records what the process allocates.
    pub fn has_allocations(&self) -> bool {
        self.memory.is_some()
    }

    /// What samples and the memory profile have cost the process so far, in seconds of CPU time; nothing before it is known what a
    /// probe costs.
    pub fn seconds_so_far(&mut self) -> [f64; 2] {
        let disturbed = self.memory.as_ref().map_or(0.0, MemoryRecording::disturbed);
        let [samples, memory] = self.cost.seconds_so_far(&self.programs, disturbed);
        [if self.has_time() { samples } else { 0.0 }, if self.has_allocations() { memory } else { 0.0 }]
    }

    /// What ticks, samples and walks of stacks have cost so far.
    pub fn sampling(&mut self) -> Cost {
        self.cost.so_far(&self.programs, 0.0).cpu
    }

    /// What turn tracking costs: for each turn of an event loop here, and for each system call on the machine; [`None`] if
    /// turns are not tracked.
    pub fn turn_cost(&self) -> Option<TurnCost> {
        self.cpu.as_ref()?.turns.as_ref().map(TurnsRecording::cost)
    }

    /// Losses of turns, by reason: threads that were not followed, and milliseconds of waits.
    pub fn lost_turns(&self) -> Vec<(&'static str, u64)> {
        const WAITS: [(Counter, &str); 4] = [
            (Counter::WaitTimeUnscheduled, "ms of waits without a stack: the kernel had no room for the walk"),
            (Counter::WaitTimeBusy, "ms of waits without a stack: the CPU's working memory was in use"),
            (Counter::WaitTimeUnsent, "ms of waits without a stack: the ring buffer was full"),
            (Counter::TimeUnseen, "ms are unknown: the kernel did not show that threads came back to a CPU"),
        ];
        let waits = WAITS.map(|(counter, reason)| (reason, self.programs.count(counter).div_ceil(1_000_000)));
        let threads = self.programs.counted(&[Counter::OffCpuThreadsBeyond]);
        let unread = (UNREAD_SAMPLES, self.unread_samples);
        waits.into_iter().chain([unread]).filter(|(_, count)| *count != 0).chain(threads).collect()
    }

    /// Writes the outputs so far; returns their paths.
    ///
    /// # Errors
    /// An output cannot be written.
    pub fn write_interim(&mut self) -> Result<Vec<PathBuf>, EngineError> {
        let mut paths = self.cpu.as_mut().map_or_else(|| Ok(Vec::new()), |cpu| cpu.outputs.write_interim())?;
        if let Some(memory) = &mut self.memory {
            paths.extend(memory.write_interim()?);
        }
        Ok(paths)
    }

    /// Writes the buffered data of the streams to their files.
    ///
    /// # Errors
    /// A stream cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        let cpu = self.cpu.as_mut().map_or(Ok(()), |cpu| cpu.outputs.flush());
        cpu.and(self.memory.as_mut().map_or(Ok(()), MemoryRecording::flush))
    }

    /// Ends the outputs.
    ///
    /// # Errors
    /// An output cannot be written. The other outputs are written all the same.
    pub fn finish(self, options: &Options, duration: Duration) -> Result<Summaries, EngineError> {
        let Self {
            allowed_rate,
            programs,
            samples,
            cpu,
            memory,
            mut cost,
            left_out,
            other_requests,
            unread_samples,
            unread_stacks,
            began,
            ends,
            new_cpus,
            requests: ended,
            ..
        } = self;
        let ended = ended.map(|counter| counter.map(RequestCounter::finish));
        let sampled = ends.map_or(duration, |ends| duration.min(ends.saturating_duration_since(began)));
        let disturbed = memory.as_ref().map_or(0.0, MemoryRecording::disturbed);
        let Costs { cpu: cpu_cost, memory: memory_cost, used, tick } = cost.so_far(&programs, disturbed);
        let lost_samples = lost_samples(&programs, samples.as_ref());
        let unfinished = samples.as_ref().map_or(0, |(_, pipeline)| pipeline.unfinished_traces());
        let unsearched = samples.as_ref().map_or(0, |(_, pipeline)| pipeline.unsearched_names());
        let requests = samples.as_ref().map(|(_, pipeline)| pipeline.request_tally()).unwrap_or_default();
        let tally = samples.map(|(_, pipeline)| pipeline.tally().clone()).unwrap_or_default();
        let told = tally.waited;
        let cpu = cpu.map(|CpuRecording { sampler, off_cpu, turns: _, mut outputs }| {
            let sampler = sampler.as_ref();
            let mut lost = lost_samples;
            lost.extend((unread_samples > 0).then_some((UNREAD_SAMPLES, unread_samples)));
            let traces = outputs.traces().map(|table| table.text("samples", tally.samples));
            let mut noted = programs.counted(&NOTED);
            let folded = outputs.folded();
            noted.extend((folded > 0).then_some((FOLDED, folded)));
            let new_cpus = NEW_CPUS.into_iter().zip(new_cpus);
            noted.extend(new_cpus.filter(|(_, count)| *count > 0));
            noted.extend((unfinished > 0).then_some((UNFINISHED, unfinished)));
            noted.extend((other_requests > 0).then_some((OTHER_REQUESTS, other_requests)));
            noted.extend((requests.others > 0).then_some((OTHER_NAMES, requests.others)));
            noted.extend((unsearched > 0).then_some((UNSEARCHED, unsearched)));
            let summary = Summary {
                pid: options.pid,
                rate: options.rate,
                duration: sampled,
                tally,
                lost,
                noted,
                left_out,
                cost: cpu_cost,
                used,
                others: sampler.and_then(|sampler| sampler.cpus().map(|_| tick * sampler.rate())),
                allowed_rate,
                lowered_to: sampler.and_then(|own| (own.weight() > 1).then(|| (own.rate(), own.weight()))),
                why_threads: sampler.and_then(Sampler::why_threads).map(str::to_owned),
                off_cpu: off_cpu.map(|off_cpu| off_cpu.summary(&programs, told)),
                requests,
                wants_requests: options.wants_requests(),
                wants_routes: options.asks_for(RequestKey::Route),
                wants_trace_ids: options.wants_trace_ids(),
                traces,
                facts: outputs.facts(),
            };
            let files = outputs.finish(&summary)?;
            Ok::<_, EngineError>((summary, files))
        });
        let over_budget = memory.as_ref().is_some_and(|memory| memory.stopped.is_some());
        let memory = memory.map(|memory| {
            let others = memory.ticks_on_cpus().map(|ticks| tick * ticks);
            memory.finish(&programs, duration, (memory_cost, others), (UNREAD_STACKS, unread_stacks))
        });
        // Both are finished before either's error is reported.
        let (cpu, memory) = (cpu.transpose(), memory.transpose());
        Ok(Summaries { cpu: cpu?, memory: memory?, ended, over_budget })
    }
}

/// Samples that never arrived, by reason.
fn lost_samples(programs: &Programs, samples: Option<&(SampleBuffer, Pipeline)>) -> Vec<(&'static str, u64)> {
    let mut lost = programs.counted(&LOST_SAMPLES);
    let waited = samples.map_or(0, |(buffer, _)| buffer.lost());
    lost.extend((waited > 0).then_some((WAITED_TOO_LONG, waited)));
    lost
}

/// Passes the layout of requests or fibers to the kernel half, once it is known.
fn tell_requests(pipeline: &mut Pipeline, programs: &mut Programs) -> Result<(), EngineError> {
    match pipeline.take_label_layout() {
        Some(LabelLayout::Requests(layout)) => programs.set_requests(layout)?,
        Some(LabelLayout::Fibers(layout)) => programs.set_fibers(layout)?,
        None => {}
    }
    Ok(())
}

/// The root frame of a process in reports of several processes; it names the VM if the process has several.
fn root(process: &str, vm: Option<usize>, vms: usize) -> Frame {
    let name = match vm {
        Some(vm) if vms > 1 => format!("{process}, VM {}", vm + 1),
        _ => process.to_owned(),
    };
    Frame::Root { name: name.into() }
}

/// Warns of breakpoints that are in the code of the process before ours: their cost is not the cost of the process itself.
fn warn_of_breakpoints(target: &RecordTarget) {
    /// The most bytes of code to compare. Comparing that much takes some milliseconds.
    const MOST: u64 = 64 << 20;
    for file in breakpoints::find(&target.process, &target.maps, MOST) {
        let text = format!("lj-trace: {}: {}", target.name(), file.describe(target.process.pid()));
        say(Priority::Warning, &text);
    }
}

/// Keeps a CPU busy for this time.
fn spend(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}
