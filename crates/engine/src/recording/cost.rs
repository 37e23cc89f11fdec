//! Watches what a recording costs its target; a memory profile ends when it exceeds its limit.

use std::collections::VecDeque;
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use lj_trace_probes::calibrate::{self, ASSUMED, ProbeCost};
use lj_trace_probes::cost::{Cost, Counted};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::mechanism::Mechanism;
use lj_trace_probes::perf_event::Clock;
use lj_trace_probes::programs::Programs;
use lj_trace_probes::switching;
use lj_trace_process::clocks::cpu_time;
use lj_trace_process::privileges::{self, Capabilities, Capability};
use lj_trace_process::{Process, Switches};

use crate::error::EngineError;

/// The interval between two readings of the target's CPU time.
const INTERVAL: Duration = Duration::from_millis(100);

/// The least wall-clock time and the least CPU time, in seconds, that a verdict needs. With less, chance decides.
const LEAST_TIME: Duration = Duration::from_millis(500);
const LEAST_CPU: f64 = 0.1;

/// Adds up what recording costs one process.
pub struct CostMeter {
    calibration: Calibration,
    pid: u32,
    limit: Option<f64>,
    /// What samples may cost, and whether fewer samples also mean fewer ticks.
    samples_limit: Option<(f64, bool)>,
    /// Context switches, if the recording makes them cost more.
    switches: Option<Switches>,
    /// The first reading of the recording.
    first: Option<Reading>,
    /// The reading that showed that the memory profile cost too much.
    over_budget: Option<Reading>,
    /// The latest readings. A verdict compares with the oldest of them.
    window: VecDeque<Reading>,
}

/// The profiles that cost too much.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OverBudget {
    /// The memory profile's share of the target's CPU time, if it is above the limit.
    pub memory: Option<f64>,
    /// The samples' share of the target's CPU time, if it is above the limit.
    pub samples: Option<f64>,
}

/// The state at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    /// CPU time of the process, in seconds.
    cpu: f64,
    counted: Counted,
}

impl CostMeter {
    /// A memory profile may cost the share `limit` of the target's CPU time; samples, `samples_limit`. `on_threads` says whether there are events on threads,
    /// which cost something at each context switch.
    pub fn new(process: &Process, calibration: Calibration, limits: [Option<f64>; 2], on_threads: OnThreads) -> Self {
        let [limit, samples_limit] = limits;
        let samples_limit = samples_limit.map(|limit| (limit, on_threads.sampler.is_none()));
        let switches = on_threads.any().then(|| Switches::of(process.pid()));
        let (first, over_budget, window) = (None, None, VecDeque::new());
        Self { calibration, pid: process.pid(), limit, samples_limit, switches, first, over_budget, window }
    }

    /// Begins to measure: CPU time that the process has used before does not count.
    pub fn begin(&mut self, programs: &Programs) {
        let cpu = cpu_time(self.pid);
        self.first = cpu.map(|cpu| Reading { at: Instant::now(), cpu, counted: Counted::read(programs.counts()) });
    }

    /// Checks, if it is time to, which profiles cost more than they may.
    pub fn look(&mut self, programs: &Programs) -> OverBudget {
        let now = Instant::now();
        if self.window.back().is_some_and(|last| now - last.at < INTERVAL) {
            return OverBudget::default();
        }
        // A process that has exited has no CPU clock.
        let Some(cpu) = cpu_time(self.pid) else { return OverBudget::default() };
        let reading = Reading { at: now, cpu, counted: Counted::read(programs.counts()) };
        if let Some(switches) = &mut self.switches {
            switches.look();
        }
        self.first.get_or_insert(reading);
        self.window.push_back(reading);
        let probes = self.calibration.result().map(|(probes, _)| probes);
        self.judge(probes).unwrap_or_default()
    }

    /// Starts a new window of readings: something has changed, and the next verdict covers only what comes after it.
    pub fn begin_anew(&mut self) {
        self.window.clear();
    }

    /// The verdict on the last readings. What probes cost may take seconds to measure, on a CPU that is busy with the target;
    /// until then, samples are judged by their own time alone, and a memory profile is not judged.
    fn judge(&mut self, probes: Option<ProbeCost>) -> Option<OverBudget> {
        let last = *self.window.back()?;
        let enough = |from: &Reading| last.at - from.at >= LEAST_TIME && last.cpu - from.cpu >= LEAST_CPU;
        while self.window.get(1).is_some_and(enough) {
            self.window.pop_front();
        }
        let from = self.window.front().filter(|from| enough(from))?;
        let share = |cost: &dyn Fn(&Counted) -> f64| {
            ((cost(&last.counted) - cost(&from.counted)) / (last.cpu - from.cpu)).min(1.0)
        };
        let memory = probes.map_or(0.0, |probes| share(&|counted| counted.memory_profile(probes)));
        let memory = self.limit.take_if(|limit| memory > *limit).map(|_| memory);
        if memory.is_some() {
            self.over_budget = Some(last);
        }
        let samples = self.samples_limit.and_then(|(limit, with_ticks)| {
            let all = match probes {
                Some(probes) => share(&|counted| counted.cpu_profile(probes)),
                None => share(&Counted::samples_alone),
            };
            // If ticks go on at the same rate, they cost something even without samples.
            let is_of_use = with_ticks || share(&Counted::samples_alone) > all / 30.0;
            (all > limit && is_of_use).then_some(all)
        });
        Some(OverBudget { memory, samples })
    }

    /// What samples and the memory profile have cost up to now, in seconds; nothing before it is known what a probe costs.
    pub fn seconds_so_far(&mut self, programs: &Programs, disturbed: f64) -> [f64; 2] {
        let Some((probes, _)) = self.calibration.result() else { return [0.0; 2] };
        let switches = self.switches.as_mut().map_or(0, Switches::count);
        let counted = Counted::read(programs.counts()).with_switches(switches);
        let memory = counted.memory_profile(probes) + counted.edges(probes) + counted.beside(probes) + disturbed;
        [counted.cpu_profile(probes), memory]
    }

    /// What recording has cost in total. `disturbed` is what windows of the memory profile have cost beyond what the
    /// counters show, in seconds.
    pub fn so_far(&mut self, programs: &Programs, disturbed: f64) -> Costs {
        let (probes, measured) = self.calibration.wait();
        let switches = self.switches.as_mut().map_or(0, Switches::count);
        let counted = Counted::read(programs.counts()).with_switches(switches);
        let last = match cpu_time(self.pid) {
            Some(cpu) => Some((cpu, counted)),
            // The CPU time that the process used after the last reading is not known.
            None => self.window.back().map(|last| (last.cpu, last.counted.with_switches(switches))),
        };
        let used = self.first.zip(last).map(|(first, (cpu, _))| cpu - first.cpu);
        let memory_last = self.over_budget.map(|last| (last.cpu, last.counted)).or(last);
        let of = |cost: &dyn Fn(&Counted) -> f64, more: f64, last: Option<(f64, Counted)>, events, event, switch| {
            let share = self.first.zip(last).and_then(|(first, (cpu, counted))| {
                let used = cpu - first.cpu;
                (used > 0.0).then(|| ((cost(&counted) - cost(&first.counted) + more) / used).clamp(0.0, 1.0))
            });
            Cost {
                seconds: cost(&counted) + more,
                switching: counted.switching(switch),
                share,
                events,
                event,
                measured,
            }
        };
        Costs {
            cpu: of(&|counted| counted.cpu_profile(probes), 0.0, last, counted.samples(), "sample", probes.switch),
            memory: of(
                &|counted| counted.memory_profile(probes) + counted.edges(probes) + counted.beside(probes),
                disturbed,
                memory_last,
                counted.calls(),
                "call of the allocator",
                probes.light_switch,
            ),
            used,
            tick: probes.tick + LOOK,
        }
    }
}

/// What a recording has cost in total.
pub struct Costs {
    /// The cost of the CPU profile.
    pub cpu: Cost,
    /// The cost of the memory profile.
    pub memory: Cost,
    /// CPU time that the process has used, in seconds; [`None`] if it is not known.
    pub used: Option<f64>,
    /// If perf events are on CPUs: what a tick costs a process that is not recorded, in seconds.
    pub tick: f64,
}

/// The time to find out that a process is not recorded, in seconds: a BPF program with one look into a hash map, measured
/// on a virtual machine with Linux 6.18.
const LOOK: f64 = 0.1e-6;

/// Perf events on threads. They cost something at each context switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnThreads {
    /// The clock and the rate of the sampler.
    pub sampler: Option<(Clock, u32)>,
    /// The clock and the rate of the light sampler.
    pub light: Option<(Clock, u32)>,
}

impl OnThreads {
    /// Whether there are events on threads at all.
    pub fn any(self) -> bool {
        self.sampler.or(self.light).is_some()
    }
}

/// What probes cost on this machine, once that has been measured.
pub enum Calibration {
    /// The measurement is under way, in a thread of its own.
    Running(Receiver<(ProbeCost, bool)>),
    /// The costs, and whether those of probes and ticks were measured rather than assumed.
    Done(ProbeCost, bool),
}

/// The measured cost of probes on an allocator. The index is whether the kernel emulates the instructions under the probes.
static ALLOCATION: [OnceLock<Option<ProbeCost>>; 2] = [OnceLock::new(), OnceLock::new()];

static HIT: OnceLock<Option<f64>> = OnceLock::new();

/// The cost of probes if it has already been measured, combined with the cost of a tick; measures nothing. [`None`] before
/// the first measurement.
pub(super) fn known_probes(is_cheap: bool, tick: f64) -> Option<ProbeCost> {
    let probes = ALLOCATION[usize::from(is_cheap)].get().copied().flatten()?;
    Some(ProbeCost { tick, hit: HIT.get().copied().flatten().unwrap_or(ASSUMED.hit), ..probes })
}

/// The cost of probes on an allocator, if it can be measured. It is measured once: it does not change while lj-trace runs,
/// however many processes it records. `is_cheap` says whether the kernel emulates the instructions under the probes.
fn allocation_probes(mechanism: Mechanism, is_cheap: bool) -> Option<ProbeCost> {
    *ALLOCATION[usize::from(is_cheap)].get_or_init(|| told(calibrate::allocation_probes(mechanism, is_cheap)))
}

/// The cost of a tick of this clock in seconds, if it can be measured.
pub(super) fn tick(clock: Clock) -> Option<f64> {
    static MEASURED: OnceLock<Option<f64>> = OnceLock::new();
    *MEASURED.get_or_init(|| told(calibrate::tick(clock)))
}

/// The cost of a hit of a watchpoint in seconds, if it can be measured.
fn hit() -> Option<f64> {
    *HIT.get_or_init(|| told(calibrate::hit()))
}

/// Reports why a cost could not be measured.
fn told<T>(measured: io::Result<T>) -> Option<T> {
    let say_why = |error: &io::Error| {
        say(
            Priority::Info,
            &format!("lj-trace: the cost of a probe is assumed, since it cannot be measured here: {error}"),
        );
    };
    measured.inspect_err(say_why).ok()
}

impl Calibration {
    /// Begins to measure, in a thread of its own. If allocations are recorded, `allocation` has the mechanism of their
    /// probes, and whether the kernel emulates the instructions under the probes. `clock` is the clock of the sampler,
    /// `is_watching` says whether there are watchpoints, and `on_threads` are the events that cost something at context
    /// switches.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(
        allocation: Option<(Mechanism, bool)>,
        clock: Option<Clock>,
        is_watching: bool,
        on_threads: OnThreads,
    ) -> Result<Self, EngineError> {
        let (sender, receiver) = mpsc::channel();
        let measure = move || {
            // A new thread has all privileges of lj-trace.
            let _ =
                privileges::keep_only(Capabilities::of(&[Capability::Bpf, Capability::Perfmon, Capability::SysAdmin]));
            let probes = allocation.map(|(mechanism, is_cheap)| allocation_probes(mechanism, is_cheap));
            let tick = clock.map(tick);
            let switch = |events: Option<(Clock, u32)>| events.map(|(clock, rate)| told(switching::armed(clock, rate)));
            let [switch, light_switch] = [on_threads.sampler, on_threads.light].map(switch);
            let measured = ![probes.map(|probes| probes.is_some()), tick.map(|tick| tick.is_some())]
                .contains(&Some(false))
                && ![switch, light_switch].contains(&Some(None));
            // Switches without events on threads cost nothing.
            let [switch, light_switch] = [(switch, ASSUMED.switch), (light_switch, ASSUMED.light_switch)]
                .map(|(measured, assumed)| measured.map_or(0.0, |measured| measured.unwrap_or(assumed)));
            let probes = probes.flatten().unwrap_or(ASSUMED);
            let tick = tick.flatten().unwrap_or(ASSUMED.tick);
            let hit = is_watching.then(hit).flatten().unwrap_or(ASSUMED.hit);
            // The recording may already have ended.
            let _ = sender.send((ProbeCost { tick, hit, switch, light_switch, ..probes }, measured));
        };
        let started = thread::Builder::new().name("calibrate".to_owned()).spawn(measure);
        started.map_err(|error| EngineError::io("start a thread", &error))?;
        Ok(Self::Running(receiver))
    }

    /// The result, if it is known by now.
    fn result(&mut self) -> Option<(ProbeCost, bool)> {
        if let Self::Running(receiver) = self {
            let (probes, measured) = receiver.try_recv().ok()?;
            *self = Self::Done(probes, measured);
        }
        match self {
            Self::Done(probes, measured) => Some((*probes, *measured)),
            Self::Running(_) => None,
        }
    }

    /// Waits for the result.
    fn wait(&mut self) -> (ProbeCost, bool) {
        let (probes, measured) = match self {
            Self::Running(receiver) => receiver.recv().unwrap_or((ASSUMED, false)),
            Self::Done(probes, measured) => (*probes, *measured),
        };
        *self = Self::Done(probes, measured);
        (probes, measured)
    }
}
