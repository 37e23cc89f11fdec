//! A memory profile of bounded cost: its windows, and what is observed without probes.

use lj_trace_luajit::Vm;
use lj_trace_probes::activity::ActivityBuffer;
use lj_trace_probes::allocator::AllocationProbes;
use lj_trace_probes::calibrate::ASSUMED;
use lj_trace_probes::cost::IN_WINDOW;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::mechanism::Mechanism;
use lj_trace_probes::perf_event::Clock;
use lj_trace_probes::plan::ProbePlan;
use lj_trace_probes::programs::{ProbeError, Programs};
use lj_trace_probes::running_threads::RunningThreads;
use lj_trace_probes::sampler::Sampler;
use lj_trace_probes::windows::WindowOpener;

use super::cost;
use super::unknown_vms::UnknownVms;
use crate::allocations::Estimation;
use crate::bounded::counters::Counters;
use crate::bounded::lifetimes::polled::Polled;
use crate::bounded::windows::driver::{Settings, WindowEvent, Windows};
use crate::error::EngineError;
use crate::options::{Options, Scope};
use crate::target::RecordTarget;

/// What light samples may cost: a part of the budget, and at most this share of CPU time. With the most of it regardless of the
/// budget, they left nothing of 1% for windows.
const SAMPLER_PART: f64 = 0.15;
const SAMPLER_BUDGET: f64 = 0.005;

/// The run time of the BPF program of a light sample, in seconds.
const LIGHT_SAMPLE: f64 = 4e-6;

/// The range of the light sampling rate, in samples per second of CPU time.
const SLOWEST: f64 = 99.0;
const FASTEST: f64 = 999.0;

/// What lj-trace may spend to find out what windows cost, in seconds of CPU time. The first four windows count in full,
/// with 2 ms each, and probes that stay attached are checked every 5 ms. All of that is multiplied by the factor by which
/// windows disturb caches.
const LEARNING: f64 = (4.0 * 0.002 + 0.005) * IN_WINDOW;

/// Warns if a recording is so short that it may exceed its budget.
fn warn_of_short(options: &Options, budget: f64) {
    let Some(duration) = options.duration else { return };
    // This assumes that the program keeps one CPU busy. Others have less CPU time.
    let allowed = duration.as_secs_f64() * budget;
    if allowed < 2.0 * LEARNING {
        let text = format!(
            "lj-trace: {:.0}% of {duration:?} is {:.0} ms of CPU time, and measuring the cost of windows may take {:.0} ms: the \
             budget may be exceeded; record for {:.0} s or longer",
            budget * 100.0,
            allowed * 1e3,
            LEARNING * 1e3,
            (2.0 * LEARNING / budget).ceil()
        );
        say(Priority::Warning, &text);
    }
}

/// The threads and samplers of a recording in windows.
pub struct WindowRecording {
    windows: Windows,
    counters: Counters,
    sampler: Sampler,
    activity: ActivityBuffer,
    /// Light samples per second of CPU time.
    rate: f64,
    budget: f64,
    unknown_vms: UnknownVms,
}

impl WindowRecording {
    /// Begins. The target may lose the share `budget` of its CPU time. VMs in `polled` are polled in addition to their
    /// counters.
    ///
    /// # Errors
    /// The kernel cannot open windows, or the sampler cannot be attached.
    pub fn start(
        target: &RecordTarget,
        programs: &mut Programs,
        probes: &AllocationProbes,
        opener: WindowOpener,
        budget: f64,
        polled: Polled,
    ) -> Result<Self, EngineError> {
        warn_of_short(&target.options, budget);
        let process = &target.process;
        if programs.mechanism() == Mechanism::Classic {
            return Err(ProbeError::no_windows(std::io::ErrorKind::Unsupported.into()).into());
        }
        let tick = cost::tick(Clock::detect()).unwrap_or(ASSUMED.tick);
        let rate = ((SAMPLER_PART * budget).min(SAMPLER_BUDGET) / (tick + LIGHT_SAMPLE)).clamp(SLOWEST, FASTEST);
        let activity = ActivityBuffer::open(programs)?;
        let sampler = Sampler::attach_light(programs, process, rate as u32)?;
        // Without it, totals of programs with fast cycles have wider errors.
        let running = RunningThreads::of(programs, process.pid()).ok();
        let counters =
            Counters::start(process, target.recorded(), polled, target.options.scope == Scope::Host, running);
        let counters = counters.map_err(|error| EngineError::io("start a thread", &error))?;
        let is_cheap = probes.plans().iter().all(ProbePlan::is_cheap);
        let settings = Settings {
            opener,
            counts: programs.counts().clone(),
            budget,
            pid: process.pid(),
            probes: Box::new(move || cost::known_probes(is_cheap, tick)),
        };
        let windows = Windows::start(settings).map_err(ProbeError::no_windows)?;
        let (rate, unknown_vms) = (f64::from(rate as u32), UnknownVms::new(&target.maps, &target.vms));
        Ok(Self { windows, counters, sampler, activity, rate, budget, unknown_vms })
    }

    /// The clock and the rate of the sampler, if its events are on threads.
    pub fn on_threads(&self) -> Option<(Clock, u32)> {
        self.sampler.on_threads()
    }

    /// Ticks of the sampler per second on each CPU, if its events are there.
    pub fn ticks_on_cpus(&self) -> Option<f64> {
        self.sampler.ticks_on_cpus()
    }

    /// The clock of the sampler.
    pub fn clock(&self) -> Clock {
        self.sampler.clock()
    }

    /// Takes the observations since the last call.
    pub fn drain(&mut self, estimation: &mut Estimation) {
        estimation.set_sampling(self.rate);
        estimation.set_budget(self.budget);
        for event in self.windows.events() {
            if event == WindowEvent::Failed {
                let text = "lj-trace: the kernel no longer accepts probes: allocations from now on are missing";
                say(Priority::Warning, text);
            }
            estimation.window(event);
        }
        if estimation.has_given_up_watchpoints() {
            let text = "lj-trace: the program has so many collection cycles that watching each would cost it more than 1% of \
                        its time: lifetimes of objects come from polling, which may lose track of some";
            say(Priority::Info, text);
        }
        self.counters.readings().for_each(|reading| estimation.reading(reading));
        self.activity.drain(usize::MAX, |mut sample| {
            self.unknown_vms.look(&mut sample);
            estimation.sample(&sample);
        });
    }

    /// Seconds that windows have cost the target beyond what the counters show.
    pub fn disturbed(&self) -> f64 {
        self.windows.disturbed()
    }

    /// The samples in an interpreter that ran no known VM.
    pub fn unknown_vms(&mut self) -> &mut UnknownVms {
        &mut self.unknown_vms
    }

    /// Adds a VM that is now known.
    pub fn add_vm(&mut self, vm: &Vm) {
        self.unknown_vms.add_vm(vm);
        self.counters.add_vm(vm.clone());
    }

    /// Ends the windows and everything that runs beside them. Their observations can still be drained.
    pub fn end(&mut self) {
        self.windows.end();
        self.sampler.detach();
        self.counters.end();
    }
}
