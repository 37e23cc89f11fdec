//! `lj-trace agent`: records all LuaJIT processes of a host, for as long as the agent runs.
//!
//! `discovery` finds processes, `rules` and `chosen` decide which of them to record, and `metadata` provides the
//! attributes of their profiles. The engine records the processes in one session, and each interval goes to all
//! `sinks`. `metrics` reports what became of it.

mod allocations;
mod chosen;
pub mod config;
pub mod discovery;
mod groups;
pub mod metadata;
mod metrics;
pub mod own_heap;
mod own_usage;
#[cfg(test)]
mod packaged;
mod ready;
pub mod rules;
pub mod sinks;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lj_trace_engine::recording::poll_interval;
use lj_trace_engine::recording::stop::Stop;
use lj_trace_engine::{EngineError, Options, RecordTarget, Session};
use lj_trace_luajit::find_first_vms;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_process::Process;
use tokio::signal::unix::Signal;
use tokio::time::Interval;

use allocations::AllocationRoom;
use chosen::ChosenProcesses;
use config::AgentConfig;
use discovery::{Discovery, FoundProcess};
use metadata::{ContainerAttributes, HostAttributes};
use metrics::{Metrics, Numbers};
use own_heap::OwnHeap;
use own_usage::{Advice, OwnUsage};
use ready::Ready;
use sinks::HostSinks;

/// How often to check which processes have exited.
const EXITS_INTERVAL: Duration = Duration::from_millis(100);

/// How often to tell a service manager that the agent is alive.
const SIGN_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait before retrying a process that could not be recorded.
const RETRY: Duration = Duration::from_secs(60);

/// How soon to check a process that has executed another program.
const SOON: Duration = Duration::from_millis(100);

/// The lowest sampling rate, in Hz, however much CPU time the agent uses.
const LEAST_RATE: u32 = 1;

/// The longest time to spend on attaching before reading samples again, so that no buffer has to wait longer.
const ATTACH_BUDGET: Duration = Duration::from_millis(50);

/// What a reload reads again.
pub struct Reloaded {
    /// The configuration.
    pub config: AgentConfig,
    /// Attributes by container id.
    pub containers: ContainerAttributes,
}

/// Why the agent stops recording.
#[derive(Debug)]
pub enum Ended {
    /// It was asked to stop.
    Stopped,
    /// The configuration has changed in a way that requires a restart.
    Restart(Box<AgentConfig>),
}

/// The agent while it runs.
pub struct Daemon<'a> {
    config: Arc<AgentConfig>,
    host: HostAttributes,
    session: Session<'a>,
    discovery: Discovery,
    sinks: Arc<HostSinks>,
    usage: OwnUsage,
    /// How to record allocations, and whose; [`None`] if nobody's are.
    allocations: Option<(Options, AllocationRoom)>,
    heap: OwnHeap,
    metrics: Option<Metrics>,
    ready: Ready,
    /// The current period of [`ChosenProcesses`].
    period: u64,
    refused: u64,
    /// Whether some processes are not recorded because the agent may not use more memory.
    is_full: bool,
    /// How often the rates were halved, because the agent itself used too much CPU time.
    halved: u32,
    next_round: Instant,
    next_exits: Instant,
    next_allocator: Instant,
    next_sign: Instant,
}

impl<'a> Daemon<'a> {
    /// Starts looking for processes. `options` say how to record each of them, `allocations` how to record what they allocate.
    ///
    /// # Errors
    /// The session cannot start, or the address for metrics is taken.
    pub fn start(
        config: AgentConfig,
        containers: ContainerAttributes,
        options: &'a Options,
        allocations: Option<Options>,
        sinks: Arc<HostSinks>,
    ) -> Result<Self, EngineError> {
        let config = Arc::new(config);
        let host = HostAttributes::read();
        let now = Instant::now();
        let metrics = config.metrics.map(Metrics::serve).transpose()?;
        let ready = Ready::default();
        let session = Session::start(options, Vec::new(), &ready, now)?;
        let discovery = Discovery::start(Arc::clone(&config), Arc::new(containers), host.clone());
        let discovery = discovery.map_err(|error| EngineError::io("start a thread", &error))?;
        // Ten thousand hosts that start at the same time must not send at the same time.
        let first = config.interval.mul_f64(fastrand::f64());
        Ok(Self {
            period: ChosenProcesses::period(&config),
            usage: OwnUsage::new(config.limits.clone(), now),
            allocations: allocations.map(|options| (options, AllocationRoom::new(config.limits.cpu, now))),
            heap: OwnHeap::default(),
            next_round: now + first,
            next_exits: now,
            next_allocator: now,
            next_sign: now,
            refused: 0,
            is_full: false,
            halved: 0,
            config,
            host,
            session,
            discovery,
            sinks,
            metrics,
            ready,
        })
    }

    /// Whether the programs and maps in the kernel can still be used.
    pub fn is_in_reach(&self) -> bool {
        self.session.recordings().all(lj_trace_engine::Recording::is_in_reach)
    }

    /// Records until it is asked to stop, or has to restart.
    pub async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        mut hangup: Signal,
        mut reload: impl FnMut(&AgentConfig) -> Result<Reloaded, String>,
    ) -> Ended {
        let mut ticks = poll_interval::ticks();
        tokio::pin!(stop);
        self.ready.tell(&self.config);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return Ended::Stopped,
                _ = hangup.recv() => {
                    match reload(&self.config) {
                        Err(message) => say(Priority::Warning, &format!("lj-trace: not reloaded: {message}")),
                        Ok(reloaded) => if let Some(ended) = self.reload(reloaded) {
                            return ended;
                        }
                    }
                }
                () = next_turn(&mut ticks, &self.discovery) => {
                    let rest = if self.turn() { self.session.interval() } else { poll_interval::SHORTEST };
                    poll_interval::relax(&mut ticks, rest);
                }
            }
        }
    }

    /// One turn of the main loop; false if found processes still wait.
    fn turn(&mut self) -> bool {
        // A failure in one process only ends the recording of that process.
        if let Err(error) = self.session.drain() {
            say(Priority::Warning, &format!("lj-trace: {}", error.message));
        }
        let now = Instant::now();
        if now >= self.next_exits {
            self.next_exits = now + EXITS_INTERVAL;
            self.end_over();
        }
        let are_all_attached = self.attach();
        // One at a time, and after new processes: it takes half a second.
        if are_all_attached && now >= self.next_allocator {
            self.next_allocator = now + EXITS_INTERVAL;
            self.attach_to_allocator(now);
        }
        if now >= self.next_round {
            self.end_round();
            self.next_round = (self.next_round + self.config.interval).max(now);
        }
        self.session.look_after_targets();
        self.heap.give_back(now);
        match self.usage.look(now) {
            Some(Advice::LessWork) => self.work_less(),
            Some(Advice::MoreWork) => self.work_more(),
            Some(Advice::FewerProcesses) => self.use_less_memory(),
            None => {}
        }
        if now >= self.next_sign {
            self.next_sign = now + SIGN_INTERVAL;
            self.ready.is_alive(|| self.numbers().status());
        }
        if let Some(metrics) = self.metrics.as_ref().filter(|metrics| metrics.is_asked()) {
            metrics.tell(Numbers { totals: self.session.totals_with_cost(), ..self.numbers() });
        }
        are_all_attached
    }

    /// Starts recording found processes, for a limited time. Returns whether those were all.
    fn attach(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < ATTACH_BUDGET {
            let Some(FoundProcess { process, maps, found, resource }) = self.discovery.next() else { return true };
            let pid = process.pid();
            // The rules may have changed while it waited here.
            let chosen = ChosenProcesses::at(self.period, &self.config, &self.host.identity());
            if self.config.leaves_out(&resource).is_some() || !chosen.contains(&process) {
                self.discovery.look_again(pid, SOON);
                continue;
            }
            if self.is_full {
                self.discovery.look_again(pid, RETRY);
                continue;
            }
            self.sinks.describe(pid, resource);
            let target = RecordTarget::of_several(self.session.options(), process.clone(), maps, found);
            if let Err(error) = self.session.try_add(target, &self.ready) {
                self.refused += 1;
                self.sinks.forget(pid);
                // A process that has exited meanwhile needs no message.
                if error.failure != lj_trace_engine::Failure::NoProcess {
                    let text = format!("lj-trace: process {pid} is not recorded: {}", error.message);
                    say(Priority::Warning, &text);
                }
                self.discovery.look_again(pid, RETRY);
                continue;
            }
            if let Some((_, allocations)) = &mut self.allocations {
                allocations.find(process, Instant::now());
            }
        }
        false
    }

    /// Starts recording what one more process allocates, if it is time to. Its samples are recorded already.
    fn attach_to_allocator(&mut self, now: Instant) {
        let recorded = self.with_allocations().collect();
        let Self { session, allocations: Some((options, allocations)), ready, refused, is_full: false, .. } = self
        else {
            return;
        };
        let Some(process) = allocations.next(&recorded, now) else { return };
        let pid = process.pid();
        let added = allocations.pay_for(|| {
            let maps = process.maps()?;
            // It may have closed its VMs, and make others later.
            let Ok(found) = find_first_vms(&process, &maps) else { return Ok(()) };
            session.try_add(RecordTarget::of_several(options, process, maps, found), ready)
        });
        if let Err(error) = added
            && error.failure != lj_trace_engine::Failure::NoProcess
        {
            *refused += 1;
            allocations.refuse(pid, now);
            let text = format!("lj-trace: what process {pid} allocates is not recorded: {}", error.message);
            say(Priority::Warning, &text);
        }
    }

    /// Drops processes that have exited, have executed another program, or are not chosen any more.
    fn end_over(&mut self) {
        let before: Vec<u32> = self.pids().collect();
        self.session.end_over();
        // Where samples are recorded no more, all begins anew.
        let sampled: HashSet<u32> = self.pids().collect();
        self.session.end_allocations_unless(|process| sampled.contains(&process.pid()));
        let period = ChosenProcesses::period(&self.config);
        if std::mem::replace(&mut self.period, period) != period {
            let chosen = ChosenProcesses::at(period, &self.config, &self.host.identity());
            self.session.end_unless(|process| chosen.contains(process));
        }
        self.part_with(&before, SOON);
    }

    /// Makes discovery check those of `before` again that are no longer recorded.
    fn part_with(&mut self, before: &[u32], after: Duration) {
        let left: Vec<u32> = self.pids().collect();
        for &pid in before.iter().filter(|pid| !left.contains(pid)) {
            self.sinks.forget(pid);
            if let Some((_, allocations)) = &mut self.allocations {
                allocations.forget(pid);
            }
            self.discovery.look_again(pid, after);
        }
    }

    /// The processes that are recorded.
    fn pids(&self) -> impl Iterator<Item = u32> {
        let sampled = self.session.recordings().filter(|recording| recording.has_time());
        sampled.map(|recording| recording.process().pid())
    }

    /// Those whose allocations are recorded as well, in the order in which that began.
    fn with_allocations(&self) -> impl Iterator<Item = u32> {
        let recorded = self.session.recordings().filter(|recording| recording.has_allocations());
        recorded.map(|recording| recording.process().pid())
    }

    fn end_round(&mut self) {
        match self.session.rotate() {
            Ok(true) => self.sinks.end_round(),
            // The next turn tries again.
            Ok(false) => {}
            Err(error) => say(Priority::Warning, &format!("lj-trace: {}", error.message)),
        }
    }

    /// Uses less CPU time: first it records what fewer processes allocate, which costs most, then it takes fewer samples.
    fn work_less(&mut self) {
        let recorded: Vec<u32> = self.with_allocations().collect();
        let Some((_, allocations)) = self.allocations.as_mut().filter(|_| !recorded.is_empty()) else {
            self.take_fewer_samples();
            return;
        };
        let (used, limit) = (self.usage.usage().cpu * 100.0, self.usage.limits().cpu * 100.0);
        // Those that came first have a history that should continue.
        let kept = &recorded[..allocations.lower(recorded.len())];
        self.session.end_allocations_unless(|process| kept.contains(&process.pid()));
        let text = format!(
            "lj-trace: uses {used:.1}% of a CPU, and may use {limit:.1}%: from now on the allocations of {} of {} processes are \
             recorded (limits.cpu allows more)",
            kept.len(),
            self.pids().count()
        );
        say(Priority::Warning, &text);
    }

    /// Uses more CPU time again, if it was to use less: first it takes more samples.
    fn work_more(&mut self) {
        if self.halved > 0 {
            self.take_more_samples();
        } else if let Some((_, allocations)) = &mut self.allocations {
            allocations.raise();
        }
    }

    fn take_fewer_samples(&mut self) {
        let (used, limit) = (self.usage.usage().cpu * 100.0, self.usage.limits().cpu * 100.0);
        match self.session.lower_rates(LEAST_RATE) {
            Ok(Some(rate)) => {
                self.halved += 1;
                let text = format!(
                    "lj-trace: uses {used:.1}% of a CPU, and may use {limit:.1}%: from now on {rate:.1} samples are taken a \
                     second, each of which counts for more (limits.cpu allows more)"
                );
                say(Priority::Warning, &text);
            }
            Ok(None) => {}
            Err(error) => say(Priority::Warning, &format!("lj-trace: {}", error.message)),
        }
    }

    fn take_more_samples(&mut self) {
        match self.session.raise_rates() {
            Ok(Some(rate)) => {
                self.halved -= 1;
                let used = self.usage.usage().cpu * 100.0;
                let text = format!("lj-trace: uses {used:.1}% of a CPU: {rate:.1} samples are taken a second again");
                say(Priority::Info, &text);
            }
            Ok(None) => self.halved = 0,
            Err(error) => say(Priority::Warning, &format!("lj-trace: {}", error.message)),
        }
    }

    fn use_less_memory(&mut self) {
        let (used, limit) = (self.usage.usage().memory >> 20, self.usage.limits().memory >> 20);
        let all: Vec<u32> = self.pids().collect();
        // Drop the processes that came last: the others have a history that should continue.
        let kept = all.len() - all.len().div_ceil(8);
        let text = format!(
            "lj-trace: uses {used} MiB, and may use {limit} MiB: {} of {} processes are recorded no more (limits.memory allows \
             more)",
            all.len() - kept,
            all.len()
        );
        say(Priority::Warning, &text);
        let kept = &all[..kept];
        self.session.end_unless(|process: &Process| kept.contains(&process.pid()));
        self.is_full = true;
        self.part_with(&all, RETRY);
    }

    /// Applies another configuration. Returns why the agent has to restart, if it has to.
    fn reload(&mut self, reloaded: Reloaded) -> Option<Ended> {
        let Reloaded { config, containers } = reloaded;
        let needs_restart = |old: &AgentConfig, new: &AgentConfig| {
            let of = |config: &AgentConfig| {
                (config.rate, config.memory, config.memory_interval, config.kernel, config.metrics)
            };
            of(old) != of(new)
        };
        if needs_restart(&self.config, &config) {
            return Some(Ended::Restart(Box::new(config)));
        }
        self.config = Arc::new(config);
        self.usage = OwnUsage::new(self.config.limits.clone(), Instant::now());
        if let Some((_, allocations)) = &mut self.allocations {
            allocations.set_limit(self.config.limits.cpu);
        }
        self.is_full = false;
        let before: Vec<u32> = self.pids().collect();
        let (host, config, sinks) = (&self.host, &self.config, &self.sinks);
        let chosen = ChosenProcesses::at(self.period, config, &host.identity());
        self.session.end_unless(|process| {
            let mut resource = metadata::resource(process, host, config, &containers);
            // The attributes from its VMs were read when recording began.
            if let Some(known) = sinks.resource(process.pid()) {
                metadata::take_vms(&mut resource, &known);
            }
            config.leaves_out(&resource).is_none() && chosen.contains(process)
        });
        self.discovery.change(Arc::clone(&self.config), Arc::new(containers));
        self.part_with(&before, Duration::ZERO);
        say(Priority::Info, &format!("reloaded: {}", self.config));
        None
    }

    fn numbers(&self) -> Numbers {
        Numbers {
            recorded: self.pids().count(),
            with_allocations: self.with_allocations().count(),
            totals: self.session.totals(),
            found: self.discovery.found(),
            refused: self.refused,
            profiles: self.sinks.profiles(),
            usage: self.usage.usage(),
            sinks: self.sinks.states(),
        }
    }

    /// Ends all recordings, and sends what is left.
    pub fn finish(self) {
        let Self { session, sinks, ready, .. } = self;
        if let Err(error) = session.finish(Ok(Stop::Signal), &ready) {
            say(Priority::Warning, &format!("lj-trace: {}", error.message));
        }
        sinks.end_round();
    }
}

/// Waits until the next turn is due, or a process was found: such a process may exit soon, so it must not wait.
async fn next_turn(ticks: &mut Interval, discovery: &Discovery) {
    tokio::select! {
        _ = ticks.tick() => {}
        () = discovery.finds() => {}
    }
}
