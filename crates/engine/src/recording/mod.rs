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
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::plan::ProbePlan;
use lj_trace_probes::programs::{KeptPrograms, Programs};
use lj_trace_probes::sample::Record;
use lj_trace_probes::sample_buffer::SampleBuffer;
use lj_trace_probes::sampler::{EventPlaces, Sampler};
use lj_trace_probes::turn_cost::TurnCost;
use lj_trace_process::{Process, breakpoints};
use lj_trace_profile::model::RequestKey;
use lj_trace_profile::{Frame, ProfileKind};

use crate::allocations::MemorySummary;
use crate::cpu::{Outputs, SampleListener, Summary, Verbosity, about_process};
use crate::error::EngineError;
use crate::options::{Options, Scope};
use crate::resolve::{Pipeline, UNSEARCHED};
use crate::target::RecordTarget;
use allocations::{MemoryPreparation, MemoryRecording};
use budget::Budget;
use cost::{Calibration, CostMeter, Costs, OnThreads};
use off_cpu::OffCpuRecording;
use poll_interval::PollInterval;
use stop::Stop;
use turns::TurnsRecording;
use vm_discovery::VmDiscovery;

/// What counts samples that never arrived.
const LOST_SAMPLES: [Counter; 3] = [Counter::RingBufferFull, Counter::NoScratch, Counter::NoRegisters];

/// What counts what samples lack.
const NOTED: [Counter; 2] = [Counter::NoStack, Counter::TracesLost];

/// How often the target's memory is measured, if that is shown.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);

/// How often it is looked whether VMs are still there: that takes four reads for each.
const VMS_INTERVAL: Duration = Duration::from_secs(1);

/// Samples a second of which not fewer are taken, however much they cost.
const LEAST_RATE: u32 = 10;

/// How often it is looked for CPUs that were switched on.
const CPUS_INTERVAL: Duration = Duration::from_secs(1);

/// What is being recorded.
pub struct Recording {
    process: Process,
    programs: Programs,
    /// Where samples come from, and how they are resolved; none if there are only allocation events.
    samples: Option<(SampleBuffer, Pipeline)>,
    /// The CPU profile.
    pub cpu: Option<CpuRecording>,
    /// The memory profile.
    pub memory: Option<MemoryRecording>,
    /// What people know the process by.
    name: String,
    /// The index of the only VM that is recorded, if only one is.
    only: Option<usize>,
    /// Samples of other VMs, or outside of any, if only one is recorded.
    left_out: u64,
    /// What samples are grouped by, if they are.
    group_by: Option<RequestKey>,
    /// The labels that all samples have to have.
    only_requests: Vec<(RequestKey, String)>,
    /// Samples that have others.
    other_requests: u64,
    discovery: VmDiscovery,
    began: Instant,
    /// When it was last drained.
    drained: Instant,
    /// When it was looked for new CPUs, and how many there were.
    cpus_looked_at: Instant,
    new_cpus: u64,
    /// When samples end.
    ends: Option<Instant>,
    /// The indices of VMs that were closed, and of which samples may still come.
    leaving: Vec<u32>,
    /// When it was looked whether VMs are still there.
    vms_looked_at: Instant,
    poll_interval: PollInterval,
    cost: CostMeter,
    /// When the target's memory was measured.
    memory_measured: Option<Instant>,
    /// How long to sleep after each sample.
    slow_down: Duration,
    /// Samples and stacks of allocations that were not worked off when the time was over.
    unread_samples: u64,
    unread_stacks: u64,
}

/// What is said to whoever wants a stream of what has none.
const NO_STREAM: &str = "time off the CPU has no stream: name a file that ends in .svg, .folded, .txt, .pb.gz, \
                         .speedscope.json or .json.gz";

/// What a profile is of, as its title has it.
pub fn title(kind: ProfileKind, rate: u32) -> String {
    match kind {
        ProfileKind::Cpu => format!("CPU time at {rate} Hz"),
        ProfileKind::Wall => format!("wall-clock time of threads (on the CPU at {rate} Hz)"),
        ProfileKind::OffCpu => "time of threads off the CPU".to_owned(),
        ProfileKind::Allocations | ProfileKind::Waits => kind.to_string(),
    }
}

/// Samples that there was no room for while it was the turn of another process.
const WAITED_TOO_LONG: &str = "samples lost: too many waited for others to be worked off";

/// What became of what was recorded and not worked off.
const UNREAD_SAMPLES: &str = "samples were not worked off in time when recording ended";
const UNREAD_STACKS: &str = "stacks of allocations were not worked off in time when recording ended";

/// Stands before the number of CPUs that have no event.
const NEW_CPUS: &str = "CPUs that were switched on after recording had begun, on which nothing was sampled";

/// What reports have no room for.
const FOLDED: &str = "samples of rare stacks, which reports show as far as they share frames with others";

/// Stands before the number of samples that --only leaves out, and of those whose location or server is one too many.
const OTHER_REQUESTS: &str = "samples of other requests, which --only leaves out";
const OTHER_NAMES: &str = "samples of locations or servers beyond the first 256, which are called [other]";

/// Stands before the number of traces whose reading takes more work than there is time for.
const UNFINISHED: &str = "traces with too many possible readings, whose inlined functions are marked in part";

/// A CPU profile that is being recorded.
pub struct CpuRecording {
    /// Its perf events, if CPU time is recorded.
    pub sampler: Option<Sampler>,
    /// What sees its threads leave the CPU and come back, if that is recorded.
    off_cpu: Option<OffCpuRecording>,
    /// What sees the turns of its event loops, if these are looked at.
    turns: Option<TurnsRecording>,
    outputs: Outputs,
}

impl CpuRecording {
    /// Whether samples are of waits, too.
    pub fn has_waits(&self) -> bool {
        self.off_cpu.is_some()
    }
}

/// What a finished recording says.
pub struct Summaries {
    cpu: Option<(Summary, Vec<PathBuf>)>,
    memory: Option<(MemorySummary, Vec<PathBuf>)>,
    /// Whether the memory profile ended since it cost too much.
    over_budget: bool,
}

impl Summaries {
    /// For people. `end` says why it ended.
    pub fn text(&self, end: &str, verbosity: Verbosity) -> String {
        let cpu = self.cpu.iter().map(|(summary, files)| summary.text(end, files, verbosity));
        let memory_end = if self.over_budget { Stop::OverBudget.describe() } else { end };
        let memory = self.memory.iter().map(|(summary, files)| summary.text(memory_end, files));
        cpu.chain(memory).collect()
    }

    /// The numbers of CPU time.
    pub fn cpu(&self) -> Option<&Summary> {
        self.cpu.as_ref().map(|(summary, _)| summary)
    }

    /// CPU samples that never arrived, by reason.
    pub fn lost_samples(&self) -> &[(&'static str, u64)] {
        self.cpu.as_ref().map_or(&[], |(summary, _)| summary.lost.as_slice())
    }
}

impl Recording {
    /// Opens the outputs, loads the programs, puts in the probes. `processes` are recorded at once.
    ///
    /// # Errors
    /// Any of it fails.
    pub fn start(target: &RecordTarget, processes: usize) -> Result<Self, EngineError> {
        let mut recording = Self::prepare(target, processes, None)?;
        recording.begin()?;
        Ok(recording)
    }

    /// The same, but that samples are taken only after [`Self::begin`]. `piece` says when the outputs begin, if each piece
    /// of the recording has its own.
    ///
    /// # Errors
    /// Any of it fails.
    pub fn prepare(target: &RecordTarget, processes: usize, piece: Option<&str>) -> Result<Self, EngineError> {
        Self::attach(target, processes, piece).map_err(|error| error.unless_gone(&target.process))
    }

    /// Begins to take samples.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn begin(&mut self) -> Result<(), EngineError> {
        self.cost.begin(&self.programs);
        self.began = Instant::now();
        let Some(cpu) = &mut self.cpu else { return Ok(()) };
        if let Some(off_cpu) = &mut cpu.off_cpu {
            off_cpu.begin(&self.process)?;
        }
        if let Some(turns) = &cpu.turns {
            turns.begin()?;
        }
        cpu.sampler.as_ref().map_or(Ok(()), |sampler| Ok(sampler.begin()?))
    }

    /// Has no sample taken after that moment, however late anybody comes to end it.
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
        // Outputs first: what cannot be written is not worth a single probe.
        let outputs = options.kinds.time().map(|kind| {
            let title = format!("{}, {}", target.name(), title(kind, options.rate));
            let files = options.files(kind);
            if !kind.has_stream() && !files.streams.is_empty() {
                return Err(EngineError::usage(NO_STREAM));
            }
            // One that has none yet is going to have one.
            let vms = only.map_or(vms.len().max(1), |_| 1);
            Outputs::open(files, &title, (kind, options.rate), vms, options.jit_samples, piece)
        });
        let mut outputs: Option<Outputs> = outputs.transpose()?;
        if let Some(outputs) = &mut outputs {
            if options.traces {
                outputs.group_by_trace();
            }
            // Of several processes there is one answer.
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
        // A whole host has short-lived processes that this would take longer for than the rest.
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
        // Windows keep to a limit of their own.
        let limit = options.limits.allocations.filter(|_| options.overhead.is_none());
        let on_threads = OnThreads {
            sampler: sampler.and_then(Sampler::on_threads),
            light: memory.as_ref().and_then(MemoryRecording::light_sampler),
        };
        let calibration = Calibration::start(allocation, clock, lifetimes::may_watch(options), on_threads)?;
        let limits = [limit.filter(|_| allocation.is_some()), options.limits.cpu.filter(|_| sampler.is_some())];
        let cost = CostMeter::new(process, calibration, limits, on_threads);
        if let Some(cpu) = &mut cpu {
            // Nothing can be refused any more: earlier files may go.
            cpu.outputs.begin()?;
        }
        let (process, name, only) = (process.clone(), target.name(), *only);
        let now = Instant::now();
        let poll_interval = match options.scope {
            Scope::Host if !wanted.memory => PollInterval::of_host(options.rate, now),
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
            began: Instant::now(),
            drained: Instant::now(),
            cpus_looked_at: Instant::now(),
            new_cpus: 0,
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

    /// How many bytes its tables are going to need at once.
    pub fn next_growth(&self) -> u64 {
        self.memory.as_ref().map_or(0, MemoryRecording::next_growth)
    }

    /// Whether it can still reach what its programs have counted.
    pub fn is_in_reach(&self) -> bool {
        self.programs.are_in_reach()
    }

    /// Keeps the programs that it shares with other processes; [`None`] if it shares none.
    pub fn keep_programs(&self) -> Option<KeptPrograms> {
        self.programs.keep()
    }

    /// Takes the probes out. What they have recorded can still be drained.
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
            memory.detach();
        }
    }

    /// Where its samples come from.
    pub fn sample_buffer(&self) -> Option<&SampleBuffer> {
        self.samples.as_ref().map(|(buffer, _)| buffer)
    }

    /// Whether there is anything to do in [`Self::drain`]: samples have come, or nobody has looked after the rest for so long.
    pub fn is_due(&self, now: Instant, rest: Duration) -> bool {
        let has_samples = || self.samples.as_ref().is_some_and(|(buffer, _)| buffer.may_have_some());
        self.memory.is_some()
            || self.discovery.is_busy()
            || now.saturating_duration_since(self.drained) >= rest
            || has_samples()
    }

    /// How long after one [`Self::drain`] the next one should be.
    pub fn interval(&self, now: Instant) -> Duration {
        self.poll_interval.interval(now)
    }

    /// Takes what is ready, as far as `budget` allows; false if there may be more already. `listener` hears of it, too.
    ///
    /// # Errors
    /// An output cannot take it.
    pub fn drain(&mut self, listener: Option<&mut dyn SampleListener>, budget: Budget) -> Result<bool, EngineError> {
        self.drained = Instant::now();
        // Events would wait for samples that take long.
        let samples = self.drain_samples(listener, if self.memory.is_some() { budget.share(2) } else { budget })?;
        self.measure_memory();
        self.limit_cost()?;
        if self.only.is_none() {
            // A memory profile hears of VMs that are closed from their allocators.
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

    /// Lets other VMs have the indices of those that a memory profile has seen closed. `is_empty` says whether all samples were
    /// worked off that there were.
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

    /// Has the process searched for VMs that the programs do not know, if there is reason to, and makes those known that were
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
            // Places are not given away while allocations are recorded.
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
                // The quietest one makes room, for those that the next search finds.
                if let Some(pipeline) = pipeline.as_mut().filter(|_| memory.is_none())
                    && !pipeline.places().is_one_leaving()
                    && let Some(index) = pipeline.places().the_quietest(|index| programs.may_replace(index as u32))
                {
                    programs.forget_vm(pipeline.vms()[index].global);
                    pipeline.places().leave(index);
                    // There is one that needs the place: it is searched for again soon.
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

    /// Looks now and then whether the VMs are still there, and ends what is written of those that are not. `is_empty` says whether
    /// all samples were worked off that there are.
    fn part_with_vms(&mut self, is_empty: bool) -> Result<(), EngineError> {
        let Self { process, programs, samples, cpu, vms_looked_at, .. } = self;
        let (Some((_, pipeline)), Some(cpu)) = (samples, cpu) else { return Ok(()) };
        // Before any other is told to leave: of these, nothing is under way any more.
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

    /// Ends the files and begins the next ones; returns the paths of what was written.
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

    /// The files that were completed while recording goes on, since the last time it was asked.
    pub fn take_ended(&mut self) -> Vec<PathBuf> {
        self.cpu.as_mut().map_or_else(Vec::new, |cpu| cpu.outputs.take_ended())
    }

    /// Measures the heap and the process now and then, for what shows how they change.
    fn measure_memory(&mut self) {
        let (Some(cpu), Some((_, pipeline))) = (&mut self.cpu, &self.samples) else { return };
        let is_due = self.memory_measured.is_none_or(|last| last.elapsed() >= MEMORY_INTERVAL);
        if is_due && cpu.outputs.reports().shows_time() {
            let (heap, resident) = about_process::memory(&self.process, pipeline.known_vms().map(|(_, vm)| vm));
            cpu.outputs.reports().measure_memory(heap, resident);
            self.memory_measured = Some(Instant::now());
        }
    }

    /// Takes the probes on the allocators out once they cost the target more than they may. What they have recorded
    /// stays. Of samples that cost more than they may, fewer are taken.
    fn limit_cost(&mut self) -> Result<(), EngineError> {
        let over_budget = self.cost.look(&self.programs);
        if let Some(sampler) = self.cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut()) {
            sampler.keep_up(&mut self.programs)?;
            if self.cpus_looked_at.elapsed() >= CPUS_INTERVAL {
                self.cpus_looked_at = Instant::now();
                for number in sampler.new_cpus() {
                    let text = format!(
                        "lj-trace: CPU {number} was switched on after recording had begun: what {} does there is not sampled",
                        self.name
                    );
                    say(Priority::Warning, &text);
                    self.new_cpus += 1;
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
            memory.stop();
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

    /// Has fewer samples taken, each of which counts for more, unless somebody has done so who shares its events; or fewer than
    /// `least` a second would be left. The rate from then on, if it has changed.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn lower_rate(&mut self, least: u32) -> Result<Option<f64>, EngineError> {
        let Some(sampler) = self.cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut()) else { return Ok(None) };
        let has_changed = sampler.keep_up(&mut self.programs)? || sampler.slow_down(&mut self.programs, least)?;
        Ok(has_changed.then(|| sampler.rate()))
    }

    /// Has more samples taken again, if fewer were. The rate from then on, if it has changed.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn raise_rate(&mut self) -> Result<Option<f64>, EngineError> {
        let Some(sampler) = self.cpu.as_mut().and_then(|cpu| cpu.sampler.as_mut()) else { return Ok(None) };
        let has_changed = sampler.keep_up(&mut self.programs)? || sampler.speed_up(&mut self.programs)?;
        Ok(has_changed.then(|| sampler.rate()))
    }

    /// Whether nothing is recorded any more, since that cost too much.
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
        let mut is_first = true;
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
                std::thread::sleep(*slow_down);
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
            // At once: from then on the programs copy each trace that they meet.
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
            // Streams have no other way to say for how many ticks a sample stands.
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
            // What was under way when recording ended comes last.
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
        outcome.map(|()| is_empty)
    }

    /// Takes all that there is, as far as `budget` allows, and counts what is left.
    ///
    /// # Errors
    /// An output cannot take it.
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

    /// Counts what nobody is going to work off. Turns that were too long are told: that takes no time.
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

    /// What people know the process by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The number of CPU samples so far, if they are recorded.
    pub fn samples(&self) -> Option<u64> {
        let (_, pipeline) = self.samples.as_ref().filter(|_| self.cpu.is_some())?;
        Some(pipeline.tally().samples)
    }

    /// The hottest Lua function so far, and its share of the samples, if reports or an answer are made of them.
    pub fn hottest(&self) -> Option<(String, f64)> {
        self.cpu.as_ref()?.outputs.hottest()
    }

    /// The VMs that are recorded by now; none if there are only allocation events.
    pub fn vms(&self) -> Option<Vec<Vm>> {
        self.samples.as_ref().map(|(_, pipeline)| pipeline.known_vms().map(|(_, vm)| vm.clone()).collect())
    }

    /// How many VMs there have been so far; none if there are only allocation events.
    pub fn vms_so_far(&self) -> usize {
        self.samples.as_ref().map_or(0, |(_, pipeline)| pipeline.vms_so_far())
    }

    /// Goes on with the program that the process has executed, in which no VM was seen before: a script that ends in `exec`,
    /// env(1).
    ///
    /// # Errors
    /// The programs in the kernel cannot be told.
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

    /// How long the turns of its event loops were so far; [`None`] if they are not looked at.
    pub fn turn_lengths(&self) -> Option<TurnLengths> {
        self.cpu.as_ref()?.turns.as_ref().map(TurnsRecording::lengths)
    }

    /// The turns that had not ended when recording did, and were too long.
    pub fn turns_under_way(&self) -> Vec<EndedTurn> {
        let turns = self.cpu.as_ref().and_then(|cpu| cpu.turns.as_ref());
        turns.map(TurnsRecording::under_way).unwrap_or_default()
    }

    /// What ticks, samples and walks of stacks have cost so far.
    pub fn sampling(&mut self) -> Cost {
        self.cost.so_far(&self.programs, 0.0).cpu
    }

    /// What a turn of an event loop costs its thread here, and each system call of the machine; [`None`] if turns are not
    /// looked at.
    pub fn turn_cost(&self) -> Option<TurnCost> {
        self.cpu.as_ref()?.turns.as_ref().map(TurnsRecording::cost)
    }

    /// What was lost of turns, by reason: threads that were not followed, and milliseconds of waits.
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

    /// Writes what there is so far; returns the paths.
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

    /// Writes streams out as far as they are.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        let cpu = self.cpu.as_mut().map_or(Ok(()), |cpu| cpu.outputs.flush());
        cpu.and(self.memory.as_mut().map_or(Ok(()), MemoryRecording::flush))
    }

    /// Ends the outputs.
    ///
    /// # Errors
    /// An output cannot be written; the others are, all the same.
    pub fn finish(self, options: &Options, duration: Duration) -> Result<Summaries, EngineError> {
        let Self {
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
            ..
        } = self;
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
            noted.extend((new_cpus > 0).then_some((NEW_CPUS, new_cpus)));
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
                lowered_to: sampler.and_then(|own| (own.weight() > 1).then(|| (own.rate(), own.weight()))),
                why_threads: sampler.and_then(Sampler::why_threads).map(str::to_owned),
                off_cpu: off_cpu.map(|off_cpu| off_cpu.summary(&programs, told)),
                requests,
                wants_requests: options.wants_requests(),
                traces,
                facts: outputs.facts(),
            };
            let files = outputs.finish(&summary)?;
            Ok::<_, EngineError>((summary, files))
        });
        let over_budget = memory.as_ref().is_some_and(|memory| memory.stopped.is_some());
        let memory =
            memory.map(|memory| memory.finish(&programs, duration, memory_cost, (UNREAD_STACKS, unread_stacks)));
        // Both are finished before either's error is reported.
        let (cpu, memory) = (cpu.transpose(), memory.transpose());
        Ok(Summaries { cpu: cpu?, memory: memory?, over_budget })
    }
}

/// Samples that never arrived, by reason.
fn lost_samples(programs: &Programs, samples: Option<&(SampleBuffer, Pipeline)>) -> Vec<(&'static str, u64)> {
    let mut lost = programs.counted(&LOST_SAMPLES);
    let waited = samples.map_or(0, |(buffer, _)| buffer.lost());
    lost.extend((waited > 0).then_some((WAITED_TOO_LONG, waited)));
    lost
}

/// Tells the kernel half where requests are, once that is known.
fn tell_requests(pipeline: &mut Pipeline, programs: &mut Programs) -> Result<(), EngineError> {
    Ok(pipeline.take_request_layout().map_or(Ok(()), |layout| programs.set_requests(layout))?)
}

/// What the stacks of a process begin with in reports of several, and those of its VMs if it has several.
fn root(process: &str, vm: Option<usize>, vms: usize) -> Frame {
    let name = match vm {
        Some(vm) if vms > 1 => format!("{process}, VM {}", vm + 1),
        _ => process.to_owned(),
    };
    Frame::Root { name: name.into() }
}

/// Says it if there are breakpoints in the code of the process before ours are: what they cost is not what it costs itself.
fn warn_of_breakpoints(target: &RecordTarget) {
    /// Comparing takes some milliseconds for this.
    const MOST: u64 = 64 << 20;
    for file in breakpoints::find(&target.process, &target.maps, MOST) {
        let text = format!("lj-trace: {}: {}", target.name(), file.describe(target.process.pid()));
        say(Priority::Warning, &text);
    }
}
