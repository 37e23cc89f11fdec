//! The CPU sampler, attached to all CPUs or to all threads of the target.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::PerfEvent;
use lj_trace_common::config::{Config, LATE_EVENT};
use lj_trace_process::privileges::{Operation, limits};
use lj_trace_process::{Process, TargetError};

use super::cpu_events::Chosen;
pub use super::cpu_events::NewCpu;
use super::error::{ProbeError, whole};
use super::highest_rate::{SETTING, highest_rate, highest_rate_lately};
use super::perf_event::{self, Attached, Clock};
use super::programs::Programs;
use super::timely::Timely;

/// A CPU sampler. Dropping it detaches it.
pub struct Sampler {
    program: &'static str,
    events: Events,
    clock: Clock,
    rate: u32,
    /// How many ticks at `rate` each sample stands for, as the program knows it.
    weight: u32,
    timely: Option<Timely>,
    cpus: Option<usize>,
    /// Why the events are on threads, if they were wanted on CPUs.
    why_threads: Option<String>,
}

/// The events that tick.
enum Events {
    /// Events on all CPUs.
    OnCpus(Chosen),
    /// Events on the threads of the process.
    OnThreads(Vec<Attached>),
}

/// Where the events should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum EventPlaces {
    /// On CPUs if the kernel allows it.
    #[default]
    Auto,
    /// On threads.
    Threads,
}

/// The program that takes full samples.
const SAMPLE_CPU: &str = "sample_cpu";

/// The program that only records what runs.
const SAMPLE_ACTIVITY: &str = "sample_activity";

impl Sampler {
    /// Prepares to sample all threads of `process`, also those that start later, `rate` times a second of each thread's
    /// CPU time. [`Self::begin`] starts it.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] by the kernel, [`ProbeError::Thread`] if a living thread cannot be sampled,
    /// [`ProbeError::Target`] if the process is gone.
    pub fn attach(
        programs: &mut Programs,
        process: &Process,
        rate: u32,
        places: EventPlaces,
    ) -> Result<Self, ProbeError> {
        Self::attach_program(programs, process, rate, SAMPLE_CPU, places)
    }

    /// Starts light samples, which only record what runs ([`super::activity`]).
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_light(programs: &mut Programs, process: &Process, rate: u32) -> Result<Self, ProbeError> {
        let sampler = Self::attach_program(programs, process, rate, SAMPLE_ACTIVITY, EventPlaces::Auto)?;
        sampler.begin()?;
        Ok(sampler)
    }

    fn attach_program(
        programs: &mut Programs,
        process: &Process,
        rate: u32,
        name: &'static str,
        places: EventPlaces,
    ) -> Result<Self, ProbeError> {
        let refused = |error| ProbeError::sort(error);
        programs.change_config(|config| config.stack_start = process.stack_start()).map_err(refused)?;
        let clock = Clock::detect();
        let mut sampler = Self {
            program: name,
            events: Events::OnThreads(Vec::new()),
            clock,
            rate,
            weight: 1,
            timely: None,
            cpus: None,
            why_threads: None,
        };
        if let Some(chosen) = Chosen::of_shared(programs) {
            (sampler.clock, sampler.cpus) = (Clock::CpuClock, Some(chosen.cpus()));
            sampler.events = Events::OnCpus(chosen);
            return Ok(sampler);
        }
        let mut ebpf = programs.ebpf();
        program(&mut ebpf, name).and_then(|program| Ok(program.load()?)).map_err(refused)?;
        drop(ebpf);
        sampler.why_threads = programs.why_alone().map(str::to_owned);
        if places == EventPlaces::Auto && sampler.why_threads.is_none() {
            let fd = program(&mut programs.ebpf(), name)
                .and_then(|program| Ok(program.fd()?.try_clone()?))
                .map_err(refused)?;
            match Chosen::prepare(programs, process, rate, &fd, name == SAMPLE_ACTIVITY) {
                Ok(chosen) => {
                    (sampler.clock, sampler.cpus) = (Clock::CpuClock, Some(chosen.cpus()));
                    sampler.events = Events::OnCpus(chosen);
                    return Ok(sampler);
                }
                Err(error) => sampler.why_threads = Some(whole(&error)),
            }
        }
        sampler.attach_threads(programs, process, rate)?;
        Ok(sampler)
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] by the kernel.
    pub fn begin(&self) -> Result<(), ProbeError> {
        match &self.events {
            Events::OnCpus(chosen) => chosen.begin().map_err(ProbeError::sort),
            Events::OnThreads(events) => events.iter().try_for_each(Attached::begin).map_err(ProbeError::sort),
        }
    }

    /// Continues after the process has executed another program.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] by the kernel.
    pub fn follow(&mut self, programs: &mut Programs, process: &Process) -> Result<(), ProbeError> {
        programs.change_config(|config| config.stack_start = process.stack_start()).map_err(ProbeError::sort)?;
        // Events on threads end when the process executes another program.
        if matches!(self.events, Events::OnThreads(_)) {
            self.events = Events::OnThreads(Vec::new());
            self.attach_threads(programs, process, self.rate)?;
        }
        self.begin()
    }

    /// How many samples a second it takes now.
    pub fn rate(&self) -> f64 {
        f64::from(self.rate) / f64::from(self.weight)
    }

    /// The time from one tick to the next; [`None`] if the events are on threads, whose clocks stand still while others run.
    pub fn tick(&self) -> Option<Duration> {
        self.cpus.map(|_| Duration::from_nanos(perf_event::cpu_period(self.rate, self.weight)))
    }

    /// How many ticks at the original rate each sample stands for.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// From now on takes half as many samples a second, each of which stands for twice as many ticks. Does nothing but
    /// [`Self::keep_up`] if other recordings, which share the events, have changed how often they tick. False if the rate
    /// would fall below `least`.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn slow_down(&mut self, programs: &mut Programs, least: u32) -> Result<bool, ProbeError> {
        if self.keep_up(programs)? {
            return Ok(true);
        }
        if self.rate / (2 * self.weight) < least {
            return Ok(false);
        }
        match &self.events {
            Events::OnCpus(chosen) => chosen.slow_down(),
            // Events that threads have inherited cannot be reached, so the program skips ticks instead.
            Events::OnThreads(_) => self.set_weight(programs, 2 * self.weight)?,
        }
        self.keep_up(programs)?;
        Ok(true)
    }

    /// Slows down as far as the kernel demands. Returns how many samples a second it allows if that has changed anything.
    ///
    /// # Errors
    /// As [`Self::slow_down`].
    pub fn obey_kernel(&mut self, programs: &mut Programs) -> Result<Option<u32>, ProbeError> {
        self.keep_up(programs)?;
        let allowed = highest_rate_lately();
        // Events on threads go on to tick at their rate, and begin only if it is allowed.
        if matches!(self.events, Events::OnThreads(_)) || self.rate() <= f64::from(allowed) {
            return Ok(None);
        }
        while self.rate() > f64::from(allowed) && self.slow_down(programs, 1)? {}
        Ok(Some(allowed))
    }

    /// Doubles the sampling rate again and halves the weight of each sample. False if sampling was not slowed down, or if
    /// the kernel does not allow that rate.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn speed_up(&mut self, programs: &mut Programs) -> Result<bool, ProbeError> {
        if self.weight == 1 || self.rate() * 2.0 > f64::from(highest_rate_lately()) {
            return Ok(false);
        }
        match &self.events {
            Events::OnCpus(chosen) => chosen.speed_up(),
            Events::OnThreads(_) => self.set_weight(programs, self.weight / 2)?,
        }
        self.keep_up(programs)?;
        Ok(true)
    }

    /// Tells the program the new weight of samples if other recordings, which share the events, have changed how often
    /// they tick. Returns whether they have.
    ///
    /// # Errors
    /// As [`Self::slow_down`].
    pub fn keep_up(&mut self, programs: &mut Programs) -> Result<bool, ProbeError> {
        let Events::OnCpus(chosen) = &self.events else { return Ok(false) };
        let weight = chosen.weight();
        if weight == self.weight {
            return Ok(false);
        }
        self.set_weight(programs, weight)?;
        Ok(true)
    }

    fn set_weight(&mut self, programs: &mut Programs, weight: u32) -> Result<(), ProbeError> {
        let leaves_out = matches!(self.events, Events::OnThreads(_));
        let change = |config: &mut Config| (config.weight, config.leaves_out) = (weight, u32::from(leaves_out));
        programs.change_config(change).map_err(ProbeError::sort)?;
        self.weight = weight;
        Ok(())
    }

    /// Ends sampling at that moment, even if nobody detaches it then. This also ends it for all recordings that share
    /// the events.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn end_at(&mut self, when: Instant) -> io::Result<()> {
        let events = match &self.events {
            Events::OnCpus(chosen) => chosen.events()?,
            Events::OnThreads(events) => events.iter().map(Attached::event).collect::<io::Result<_>>()?,
        };
        self.timely = Some(Timely::at(when, move || {
            for event in &events {
                // An error does not matter: the event is closed soon.
                let _ = perf_event::enable(event, false);
            }
        })?);
        Ok(())
    }

    /// The CPUs that were switched on since the last call: what ran there meanwhile was not sampled.
    pub fn new_cpus(&mut self) -> Vec<NewCpu> {
        match &mut self.events {
            Events::OnCpus(chosen) => chosen.new_cpus(),
            Events::OnThreads(_) => Vec::new(),
        }
    }

    /// The number of CPUs that have events; [`None`] if the events are on threads.
    pub fn cpus(&self) -> Option<usize> {
        self.cpus
    }

    /// Ticks per second on each CPU; [`None`] if the events are on threads.
    pub fn ticks_on_cpus(&self) -> Option<f64> {
        self.cpus.map(|_| self.rate())
    }

    /// The clock and the rate, if events are on threads.
    pub fn on_threads(&self) -> Option<(Clock, u32)> {
        self.cpus.is_none().then_some((self.clock, self.rate))
    }

    /// Why there are no events on CPUs, if they were wanted there.
    pub fn why_threads(&self) -> Option<&str> {
        self.why_threads.as_deref()
    }

    fn attach_threads(&mut self, programs: &mut Programs, process: &Process, rate: u32) -> Result<(), ProbeError> {
        let allowed = highest_rate();
        if rate > allowed {
            return Err(ProbeError::Limit {
                cause: format!("the kernel allows no event on a thread to tick {rate} times a second"),
                limit: format!("use --rate {allowed}, or raise its limit: sudo sysctl {SETTING}=100000"),
            });
        }
        let mut attached = HashSet::new();
        let refused = |error| ProbeError::sort(error);
        // A thread that appears during this loop was started by a thread that already had an event, and inherited it;
        // or by a thread that had none yet. lj-trace cannot tell which, so the new thread gets an event of its own. The
        // program ignores that event if it finds that the thread has inherited one.
        for cookie in [0, LATE_EVENT, LATE_EVENT] {
            let new: Vec<u32> = process.threads()?.into_iter().filter(|tid| !attached.contains(tid)).collect();
            if new.is_empty() {
                break;
            }
            if cookie == LATE_EVENT {
                programs.change_config(|config| config.late_events = 1).map_err(refused)?;
            }
            for tid in new {
                if self.attach_thread(programs, tid, rate, cookie)? {
                    attached.insert(tid);
                }
            }
        }
        if attached.is_empty() {
            return Err(TargetError::NoSuchProcess(process.pid()).into());
        }
        Ok(())
    }

    /// Attaches to one thread; false if the thread has exited.
    fn attach_thread(&mut self, programs: &mut Programs, tid: u32, rate: u32, cookie: u64) -> Result<bool, ProbeError> {
        let refused = |error| ProbeError::sort(error);
        let mut ebpf = programs.ebpf();
        let fd = program(&mut ebpf, self.program).and_then(|program| Ok(program.fd()?)).map_err(refused)?;
        match perf_event::attach(self.clock, rate, tid, fd.as_fd(), cookie) {
            Ok(event) => {
                if let Events::OnThreads(events) = &mut self.events {
                    events.push(event);
                }
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                Err(ProbeError::not_permitted(Operation::PerfEvents))
            }
            Err(source) => Err(match limits::reached(&source) {
                Some(limit) => ProbeError::Limit { cause: format!("thread {tid}: {source}"), limit },
                None => ProbeError::Thread { tid, source },
            }),
        }
    }

    /// Stops the clock: from here on no sample is taken.
    pub fn detach(&mut self) {
        self.timely = None;
        self.events = Events::OnThreads(Vec::new());
    }

    /// What makes the sampler tick.
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut PerfEvent> {
    let program = ebpf.program_mut(name);
    Ok(program.ok_or_else(|| anyhow::anyhow!("no program {name}"))?.try_into()?)
}
