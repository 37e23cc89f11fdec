//! The CPU sampler: loads the BPF program, attaches it to all threads of the target, hands out samples.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd as _;

use aya::maps::{Array, HashMap, MapData, PerCpuArray, RingBuf};
use aya::programs::PerfEvent;
use aya::{Ebpf, EbpfLoader};
use lj_trace_common::config::{Config, Counter, LATE_EVENT, MAX_STACK, MAX_VMS, STACK_CHUNK};
use lj_trace_common::vm::VmConfig;

use super::object;
use super::perf_event::{self, Attached, Clock};
use super::sample::Sample;
use crate::target::{Process, TargetError};

/// Why sampling cannot begin. Each message names the cause and the fix.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The binary has no BPF programs inside.
    #[error(transparent)]
    Object(#[from] object::NoBpfPrograms),
    /// The kernel wants more privileges.
    #[error(
        "not permitted to use {what}: run as root (`sudo lj-trace ...`), or give lj-trace CAP_BPF and CAP_PERFMON \
         (`lj-trace doctor` tells what is missing)"
    )]
    NotPermitted {
        /// What was refused.
        what: &'static str,
    },
    /// The kernel refused the BPF program for another reason.
    #[error("the kernel refused the BPF programs (Linux 5.17 or later is needed): {}", last_lines(.0))]
    Load(anyhow::Error),
    /// The target went away or may not be looked at.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A thread cannot be sampled.
    #[error("cannot sample thread {tid}: {source}")]
    Attach {
        /// The thread.
        tid: u32,
        /// Why not.
        source: io::Error,
    },
}

/// A running CPU sampler. Dropping it detaches everything.
pub struct Sampler {
    samples: RingBuf<MapData>,
    counts: PerCpuArray<MapData, u64>,
    events: Vec<Attached>,
    clock: Clock,
    config: Config,
    // The programs live as long as this does.
    ebpf: Ebpf,
}

impl Sampler {
    /// Loads the programs and tells them about the target's VMs, of which the first [`MAX_VMS`] count.
    ///
    /// # Errors
    /// [`SamplerError::NotPermitted`] without privileges, [`SamplerError::Load`] on kernels that lack
    /// something.
    pub fn load(vms: &[VmConfig]) -> Result<Self, SamplerError> {
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| SamplerError::Load(error.into()))?;
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("SCRATCH", cpus.get())
            .load(object::object()?)
            .map_err(|error| load_error(error.into()))?;
        let config = configure(&mut ebpf, vms).map_err(load_error)?;
        let program = sampler_program(&mut ebpf).map_err(load_error)?;
        program.load().map_err(|error| load_error(error.into()))?;
        let samples = take_map(&mut ebpf, "SAMPLES").and_then(|map| Ok(RingBuf::try_from(map)?));
        let counts = take_map(&mut ebpf, "COUNTS").and_then(|map| Ok(PerCpuArray::try_from(map)?));
        Ok(Self {
            samples: samples.map_err(load_error)?,
            counts: counts.map_err(load_error)?,
            events: Vec::new(),
            clock: Clock::detect(),
            config,
            ebpf,
        })
    }

    /// Starts sampling all threads of `process`, those started later included, `rate` times a second of CPU
    /// time each.
    ///
    /// # Errors
    /// [`SamplerError::Attach`] if a living thread cannot be sampled, [`SamplerError::Target`] if the process
    /// is gone.
    pub fn attach(&mut self, process: &Process, rate: u32) -> Result<(), SamplerError> {
        let mut attached = HashSet::new();
        // A thread that appears while this runs was started by one that had an event by then, and inherited it, or
        // by one that had none yet. Nobody tells, so it gets one of its own, which the program ignores if the
        // thread turns out to have inherited another.
        for cookie in [0, LATE_EVENT, LATE_EVENT] {
            let new: Vec<u32> = process.threads()?.into_iter().filter(|tid| !attached.contains(tid)).collect();
            if new.is_empty() {
                break;
            }
            if cookie == LATE_EVENT {
                self.config.late_events = 1;
                write_config(&mut self.ebpf, &self.config).map_err(load_error)?;
            }
            for tid in new {
                if self.attach_thread(tid, rate, cookie)? {
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
    fn attach_thread(&mut self, tid: u32, rate: u32, cookie: u64) -> Result<bool, SamplerError> {
        let program = sampler_program(&mut self.ebpf).map_err(load_error)?;
        let fd = program.fd().map_err(|error| load_error(error.into()))?;
        match perf_event::attach(self.clock, rate, tid, fd.as_fd(), cookie) {
            Ok(event) => {
                self.events.push(event);
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                Err(SamplerError::NotPermitted { what: "perf events" })
            }
            Err(source) => Err(SamplerError::Attach { tid, source }),
        }
    }

    /// Stops the clock: no sample is taken from here on. What was taken can still be drained.
    pub fn detach(&mut self) {
        self.events.clear();
    }

    /// What makes the sampler tick.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Calls `take` for every sample that is ready; returns how many there were.
    pub fn drain(&mut self, mut take: impl FnMut(Sample<'_>)) -> usize {
        let mut count = 0;
        while let Some(record) = self.samples.next() {
            if let Some(sample) = Sample::parse(&record) {
                take(sample);
            }
            count += 1;
        }
        count
    }

    /// How often `counter` was counted, on all CPUs.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts.get(&(counter as u32), 0).map_or(0, |values| values.iter().sum())
    }
}

fn sampler_program(ebpf: &mut Ebpf) -> anyhow::Result<&mut PerfEvent> {
    let program = ebpf.program_mut("sample_cpu").ok_or_else(|| anyhow::anyhow!("no program sample_cpu"))?;
    Ok(program.try_into()?)
}

fn take_map(ebpf: &mut Ebpf, name: &str) -> anyhow::Result<aya::maps::Map> {
    ebpf.take_map(name).ok_or_else(|| anyhow::anyhow!("no map {name}"))
}

fn map_mut<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut aya::maps::Map> {
    ebpf.map_mut(name).ok_or_else(|| anyhow::anyhow!("no map {name}"))
}

/// Fills the maps that tell the programs what to look at.
fn configure(ebpf: &mut Ebpf, vms: &[VmConfig]) -> anyhow::Result<Config> {
    let vms = &vms[..vms.len().min(MAX_VMS as usize)];
    let mut list: Array<_, VmConfig> = map_mut(ebpf, "VMS")?.try_into()?;
    for (index, vm) in (0..).zip(vms) {
        list.set(index, vm, 0)?;
    }
    let mut globals: HashMap<_, u64, u32> = map_mut(ebpf, "GLOBALS")?.try_into()?;
    for (index, vm) in (0..).zip(vms) {
        globals.insert(&vm.global, &index, 0)?;
    }
    let config = Config {
        vms: vms.len() as u32,
        any_gc64: vms.iter().any(|vm| vm.layout.is_gc64()).into(),
        any_gc32: vms.iter().any(|vm| !vm.layout.is_gc64()).into(),
        late_events: 0,
        stack_limit: MAX_STACK / STACK_CHUNK * STACK_CHUNK,
    };
    write_config(ebpf, &config)?;
    Ok(config)
}

fn write_config(ebpf: &mut Ebpf, config: &Config) -> anyhow::Result<()> {
    let mut settings: Array<_, Config> = map_mut(ebpf, "CONFIG")?.try_into()?;
    settings.set(0, config, 0)?;
    Ok(())
}

/// The end of an error's text: the verifier says a thousand lines before it comes to the point.
fn last_lines(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.first().filter(|_| lines.len() > 6).copied();
    let tail = &lines[lines.len().saturating_sub(6)..];
    first.into_iter().chain(tail.iter().copied()).collect::<Vec<_>>().join("\n  ")
}

/// Tells missing privileges from everything else.
fn load_error(error: anyhow::Error) -> SamplerError {
    let refused = error.chain().any(|cause| {
        let errno = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        matches!(errno, Some(libc::EPERM | libc::EACCES))
    });
    // The verifier refuses with EACCES too, but then it says why.
    let verifier = error.chain().any(|cause| cause.to_string().contains("verifier"));
    if refused && !verifier { SamplerError::NotPermitted { what: "BPF" } } else { SamplerError::Load(error) }
}
