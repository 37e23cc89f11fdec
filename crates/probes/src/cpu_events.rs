//! One perf event on each CPU, which samples the recorded processes and no others. A program looks up which process
//! runs (`probe-ebpf/src/chosen.rs`), and samples it, or tail-calls the sampler of another set of programs.
//!
//! An event on a thread costs that thread time at each context switch, because the kernel sets its timer anew: 0.3 to 3
//! µs, more at higher rates. Events on CPUs cost nothing at context switches; instead, each tick costs every process on
//! the machine one lookup.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use lj_trace_common::config::{MAX_SAMPLERS, OTHER_SAMPLER, PidNamespace};
use lj_trace_process::{Process, namespace};

use crate::journal::{Priority, say};
use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, ProgramArray};
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::{PerfEvent, ProgramFd, RawTracePoint};

use super::cpu_switches::{CpuSwitches, SwitchedOn};
use super::online::{Coverage, online, online_lately};
use super::perf_event::{self, Attached};
use super::programs::Programs;
use super::set::{Set, lock, take_map};
use super::wanted::Wanted;

/// The events of one rate on all CPUs, and the samplers that they run.
pub(super) struct CpuEvents {
    rate: u32,
    /// Whether they run samplers of the second kind: a process may have one of each.
    are_light: bool,
    /// How many ticks at `rate` each tick stands for by now.
    weight: u32,
    namespace: PidNamespace,
    /// The program that each event runs.
    program: ProgramFd,
    /// The events, with the numbers of their CPUs.
    events: Vec<(u32, Attached)>,
    coverage: Coverage,
    switches: CpuSwitches,
    looked: Instant,
    /// The CPUs that were switched on so far.
    new_cpus: Vec<NewCpu>,
    /// The map `CHOSEN`.
    chosen: HashMap<MapData, u32, u32>,
    samplers: ProgramArray<MapData>,
    taken: Vec<bool>,
    _exec: RawTracePointLink,
}

/// A CPU that was switched on during recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewCpu {
    /// Its number.
    pub number: u32,
    /// Whether it has an event by now. Without privileges it gets none.
    pub is_sampled: bool,
}

/// The shortest time between two looks at which CPUs are online: each recording asks.
const LOOKS: Duration = Duration::from_millis(500);

/// The events for sets of programs that belong to one process each: such processes share events if they are recorded at
/// the same rate.
static SHARED: Mutex<Vec<Weak<Mutex<CpuEvents>>>> = Mutex::new(Vec::new());

/// A process that is sampled by events on CPUs as long as this value lives.
pub struct Chosen {
    events: Arc<Mutex<CpuEvents>>,
    /// The process's number in the PID namespace of the events.
    id: u32,
    /// The process's entry in the map `CHOSEN`.
    known_as: u32,
    /// The index of its sampler, if the sampler belongs to another set.
    sampler: Option<u32>,
    /// How many of the CPUs that were switched on are known to this recording.
    known_cpus: usize,
}

impl Chosen {
    /// Prepares to run `sampler`, of these programs, for `process`, `rate` times a second on each CPU that it runs on. `is_light` says
    /// whether it is the light sampler, which a process may have besides the other.
    ///
    /// # Errors
    /// The kernel refuses, or there are too many recordings at once.
    pub fn prepare(
        programs: &mut Programs,
        process: &Process,
        rate: u32,
        sampler: &ProgramFd,
        is_light: bool,
    ) -> anyhow::Result<Self> {
        let (namespace, id) = number(process).context("the PID namespace of the process")?;
        let mut shared = lock(&SHARED);
        shared.retain(|events| events.strong_count() != 0);
        let is_alike = |events: &Arc<Mutex<CpuEvents>>| {
            let events = lock(events);
            events.rate == rate && events.namespace == namespace && events.are_light == is_light
        };
        let known = shared.iter().filter_map(Weak::upgrade).find(is_alike);
        let events = match known {
            Some(events) => events,
            None => {
                // Its own programs may serve the events of the other sampler already.
                let is_free = programs.ebpf().map("CHOSEN").is_some();
                let spare = if is_free { None } else { Some(Set::load(Wanted::nothing(), 1)?) };
                let mut ebpf = spare.as_ref().map_or_else(|| programs.ebpf(), Set::ebpf);
                let events = Arc::new(Mutex::new(CpuEvents::open(&mut ebpf, rate, namespace, is_light)?));
                shared.push(Arc::downgrade(&events));
                events
            }
        };
        let index = lock(&events).add(sampler)?;
        let known_cpus = lock(&events).new_cpus.len();
        Ok(Self { events, id, known_as: OTHER_SAMPLER + index, sampler: Some(index), known_cpus })
    }

    /// Does the same for a process that shares its programs with others; [`None`] if it does not share them.
    pub fn of_shared(programs: &Programs) -> Option<Self> {
        let (events, id, number) = programs.shared_events()?;
        let known_cpus = lock(&events).new_cpus.len();
        Some(Self { events, id, known_as: number, sampler: None, known_cpus })
    }

    /// Starts sampling the process.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn begin(&self) -> anyhow::Result<()> {
        Ok(lock(&self.events).chosen.insert(&self.id, &self.known_as, 0)?)
    }

    /// How many ticks at the original rate each tick stands for by now. Other recordings that share the events may have
    /// slowed them down.
    pub fn weight(&self) -> u32 {
        lock(&self.events).weight
    }

    /// Makes the events tick half as often. On CPUs where the kernel refuses, they stay as they are.
    pub fn slow_down(&self) {
        self.set_weight(|weight| weight.saturating_mul(2));
    }

    /// Makes the events tick twice as often again, if they were slowed down.
    pub fn speed_up(&self) {
        self.set_weight(|weight| (weight / 2).max(1));
    }

    fn set_weight(&self, change: impl FnOnce(u32) -> u32) {
        let mut events = lock(&self.events);
        events.weight = change(events.weight);
        for (cpu, event) in &events.events {
            if let Err(error) = event.set_weight(events.rate, events.weight) {
                say(Priority::Warning, &format!("lj-trace: CPU {cpu} keeps its sampling rate: {error}"));
            }
        }
    }

    /// Duplicates the descriptors of the events, which all recordings share.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn events(&self) -> io::Result<Vec<OwnedFd>> {
        lock(&self.events).events.iter().map(|(_, event)| event.event()).collect()
    }

    /// How many CPUs the process is sampled on.
    pub fn cpus(&self) -> usize {
        lock(&self.events).coverage.count()
    }

    /// The CPUs that were switched on since the last call. They get events if lj-trace still has the privileges. A CPU
    /// without an event is reported once.
    pub fn new_cpus(&mut self) -> Vec<NewCpu> {
        let mut events = lock(&self.events);
        events.look_for_new_cpus();
        let new = events.new_cpus.get(self.known_cpus..).unwrap_or_default().to_vec();
        self.known_cpus = events.new_cpus.len();
        new
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        let mut events = lock(&self.events);
        // The entry is gone already if the process has executed another program.
        let _ = events.chosen.remove(&self.id);
        let Some(index) = self.sampler else { return };
        let _ = events.samplers.clear_index(&index);
        if let Some(taken) = events.taken.get_mut(index as usize) {
            *taken = false;
        }
    }
}

impl CpuEvents {
    /// Opens the events with these programs and maps; they sample no process yet.
    pub fn open(ebpf: &mut Ebpf, rate: u32, namespace: PidNamespace, are_light: bool) -> anyhow::Result<Self> {
        let mut place: Array<_, PidNamespace> = take_map(ebpf, "NAMESPACE")?.try_into()?;
        place.set(0, &namespace, 0)?;
        let chosen = take_map(ebpf, "CHOSEN")?.try_into()?;
        let samplers = take_map(ebpf, "SAMPLERS")?.try_into()?;
        let program: &mut RawTracePoint =
            ebpf.program_mut("chosen_executes").context("no chosen_executes")?.try_into()?;
        program.load()?;
        let link = program.attach("sched_process_exec")?;
        let exec = program.take_link(link)?;
        let program: &mut PerfEvent = ebpf.program_mut("sample_chosen").context("no sample_chosen")?.try_into()?;
        program.load()?;
        let program = program.fd()?.try_clone()?;
        let switches = CpuSwitches::listen();
        let mut events = Vec::new();
        for cpu in online()? {
            match perf_event::attach_to_cpu(rate, cpu, program.as_fd()) {
                Ok(event) => events.push((cpu, event)),
                // The CPU has gone meanwhile, or the list names CPUs that this kernel does not have.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL | libc::ENXIO)) => {}
                Err(error) => return Err(error).with_context(|| format!("an event on CPU {cpu}")),
            }
        }
        anyhow::ensure!(!events.is_empty(), "no CPU has room for an event");
        Ok(Self {
            rate,
            are_light,
            weight: 1,
            namespace,
            program,
            coverage: Coverage::of(events.iter().map(|(cpu, _)| *cpu)),
            events,
            switches,
            looked: Instant::now(),
            new_cpus: Vec::new(),
            chosen,
            samplers,
            taken: vec![false; MAX_SAMPLERS as usize],
            _exec: exec,
        })
    }

    /// Puts events on the CPUs that were switched on since the last look.
    fn look_for_new_cpus(&mut self) {
        if self.looked.elapsed() < LOOKS {
            return;
        }
        self.looked = Instant::now();
        // A CPU that was off in between has lost its event, but is online as before.
        match self.switches.switched_on() {
            SwitchedOn::These(cpus) => cpus.into_iter().for_each(|cpu| self.coverage.lose(cpu)),
            SwitchedOn::Any => self.coverage.lose_all(),
        }
        let Ok(online) = online_lately() else { return };
        for number in self.coverage.look(&online) {
            self.events.retain(|(cpu, _)| *cpu != number);
            let event = self.attach_later(number);
            let is_sampled = event.is_ok();
            if let Ok(event) = event {
                self.events.push((number, event));
                self.coverage.cover(number);
            }
            self.new_cpus.push(NewCpu { number, is_sampled });
        }
    }

    /// An event on one more CPU, that ticks as often as the others by now.
    fn attach_later(&self, cpu: u32) -> io::Result<Attached> {
        let event = perf_event::attach_to_cpu(self.rate, cpu, self.program.as_fd())?;
        event.set_weight(self.rate, self.weight)?;
        Ok(event)
    }

    /// Makes room for one more sampler and returns its index.
    fn add(&mut self, sampler: &ProgramFd) -> anyhow::Result<u32> {
        let free = self.taken.iter().position(|taken| !taken).context("too many processes are recorded at once")?;
        let index = u32::try_from(free)?;
        self.samplers.set(index, sampler, 0)?;
        self.taken[free] = true;
        Ok(index)
    }
}

/// The number by which the BPF programs know a process, and the PID namespace of that number. If lj-trace is in the
/// initial namespace, that is the one. Elsewhere lj-trace cannot learn initial numbers, but it can read a process's
/// number in the process's own namespace.
pub(super) fn number(process: &Process) -> io::Result<(PidNamespace, u32)> {
    if namespace::is_initial() {
        return Ok((PidNamespace::default(), process.pid()));
    }
    let file = std::fs::metadata(format!("/proc/{}/ns/pid", process.pid()))?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    let own = namespace::innermost(&status).ok_or(io::ErrorKind::InvalidData)?;
    // The kernel keeps the minor number in the lower 20 bits (`MINORBITS`).
    let device = u64::from(libc::major(file.dev())) << 20 | u64::from(libc::minor(file.dev()));
    Ok((PidNamespace { device, inode: file.ino() }, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_number() {
        let process = Process::open(std::process::id()).unwrap();
        let (_, id) = number(&process).unwrap();
        assert_ne!(id, 0);
    }
}
