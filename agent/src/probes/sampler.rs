//! The CPU sampler, attached to all threads of the target, and the buffer that hands out samples: those of the
//! clock and those of allocations.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;

use aya::maps::{MapData, RingBuf};
use aya::programs::PerfEvent;
use lj_trace_common::config::LATE_EVENT;

use super::perf_event::{self, Attached, Clock};
use super::programs::{ProbeError, Programs, take_map};
use super::sample::Record;
use crate::privileges::{Operation, limits};
use crate::target::{Process, TargetError};

/// The samples that the programs have taken.
pub struct SampleBuffer(RingBuf<MapData>);

impl SampleBuffer {
    /// The buffer of these programs, which have one.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if it was taken before.
    pub fn open(programs: &mut Programs) -> Result<Self, ProbeError> {
        let buffer = take_map(&mut programs.ebpf, "SAMPLES").and_then(|map| Ok(RingBuf::try_from(map)?));
        buffer.map(Self).map_err(ProbeError::sort)
    }

    /// Calls `take` for every record that is ready, until it wants no more; whether all were taken.
    pub fn drain(&mut self, mut take: impl FnMut(Record<'_>) -> ControlFlow<()>) -> bool {
        while let Some(record) = self.0.next() {
            if Record::parse(&record).is_some_and(|record| take(record).is_break()) {
                return false;
            }
        }
        true
    }
}

/// A running CPU sampler. Dropping it detaches it.
pub struct Sampler {
    program: &'static str,
    events: Vec<Attached>,
    clock: Clock,
}

/// The program that takes whole samples.
const SAMPLE_CPU: &str = "sample_cpu";

/// The program that tells what runs, and no more.
const SAMPLE_ACTIVITY: &str = "sample_activity";

impl Sampler {
    /// Starts sampling all threads of `process`, those started later included, `rate` times a second of CPU
    /// time each.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] by the kernel, [`ProbeError::Thread`] if a living thread cannot be sampled,
    /// [`ProbeError::Target`] if the process is gone.
    pub fn attach(programs: &mut Programs, process: &Process, rate: u32) -> Result<Self, ProbeError> {
        Self::attach_program(programs, process, rate, SAMPLE_CPU)
    }

    /// The same for samples that only tell what runs ([`super::activity`]).
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_light(programs: &mut Programs, process: &Process, rate: u32) -> Result<Self, ProbeError> {
        Self::attach_program(programs, process, rate, SAMPLE_ACTIVITY)
    }

    fn attach_program(
        programs: &mut Programs,
        process: &Process,
        rate: u32,
        name: &'static str,
    ) -> Result<Self, ProbeError> {
        let refused = |error| ProbeError::sort(error);
        program(programs, name).and_then(|program| Ok(program.load()?)).map_err(refused)?;
        let mut sampler = Self { program: name, events: Vec::new(), clock: Clock::detect() };
        sampler.attach_threads(programs, process, rate)?;
        Ok(sampler)
    }

    fn attach_threads(&mut self, programs: &mut Programs, process: &Process, rate: u32) -> Result<(), ProbeError> {
        let mut attached = HashSet::new();
        let refused = |error| ProbeError::sort(error);
        programs.change_config(|config| config.stack_start = process.stack_start()).map_err(refused)?;
        // A thread that appears while this runs was started by one that had an event by then, and inherited it, or
        // by one that had none yet. Nobody tells, so it gets one of its own, which the program ignores if the
        // thread turns out to have inherited another.
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

    /// Attaches to one thread; false if it has exited.
    fn attach_thread(&mut self, programs: &mut Programs, tid: u32, rate: u32, cookie: u64) -> Result<bool, ProbeError> {
        let refused = |error| ProbeError::sort(error);
        let fd = program(programs, self.program).and_then(|program| Ok(program.fd()?)).map_err(refused)?;
        match perf_event::attach(self.clock, rate, tid, fd.as_fd(), cookie) {
            Ok(event) => {
                self.events.push(event);
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

    /// Stops the clock: no sample is taken from here on.
    pub fn detach(&mut self) {
        self.events.clear();
    }

    /// What makes the sampler tick.
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

fn program<'a>(programs: &'a mut Programs, name: &str) -> anyhow::Result<&'a mut PerfEvent> {
    let program = programs.ebpf.program_mut(name);
    Ok(program.ok_or_else(|| anyhow::anyhow!("no program {name}"))?.try_into()?)
}
