//! The thread that opens and closes the windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lj_trace_common::config::Counter;
use lj_trace_estimate::observation::Nanos;
use lj_trace_probes::calibrate::{ASSUMED, ProbeCost};
use lj_trace_probes::cost::{Counted, IN_WINDOW};
use lj_trace_probes::programs::Counts;
use lj_trace_probes::windows::{WindowOpener, WindowProbes, next_number};
use lj_trace_process::clocks::cpu_time;
use lj_trace_process::privileges::priority::come_first;
use lj_trace_process::privileges::{self, Capabilities};

use super::policy::{MOST_EVENTS, NextProbes, Past, Policy};
use crate::bounded::now;

/// The interval between two looks at an open window.
const LOOK: Duration = Duration::from_micros(500);

/// The interval between two looks at probes that stay attached.
const LOOK_AT_STAYING: Duration = Duration::from_millis(5);

/// The longest interval between two looks at probes that nobody runs into. An agent looks after hundreds of idle processes. A
/// program that begins to allocate meanwhile is slowed for that long at most, and its budget pays for that.
const LOOK_AT_QUIET: Duration = Duration::from_millis(50);

/// A window that has begun or ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WindowEvent {
    /// Probes were attached to stay: all calls are events of this window from then on.
    Staying {
        /// The number of the window.
        number: u32,
        /// The time at which the probes were attached.
        opened: Nanos,
    },
    /// A window is over.
    Closed {
        /// Its number.
        number: u32,
        /// When it was opened.
        opened: Nanos,
        /// When it was closed.
        closed: Nanos,
        /// Whether its probes had stayed.
        stayed: bool,
        /// What the window has cost the target according to the counters, in seconds of CPU time.
        cost: f64,
    },
    /// The kernel refuses to open windows from now on.
    Failed,
}

/// The thread and its reports. The thread ends when this is dropped.
pub struct Windows {
    thread: Option<JoinHandle<()>>,
    stop: Option<Sender<()>>,
    events: Receiver<WindowEvent>,
    disturbed: Arc<AtomicU64>,
}

/// The inputs of the thread.
pub struct Settings {
    /// Opens windows.
    pub opener: WindowOpener,
    /// The counters of the programs.
    pub counts: Counts,
    /// The share of the target's CPU time that windows may cost.
    pub budget: f64,
    /// The process id of the target.
    pub pid: u32,
    /// Returns what a probe costs, once that is known.
    pub probes: Box<dyn Fn() -> Option<ProbeCost> + Send>,
}

impl Windows {
    /// Begins to open windows. Opens the first one at once, to find out whether the kernel can do it.
    ///
    /// # Errors
    /// The kernel cannot attach probes this way, or the system has no more threads.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        let cores = busy_cores(settings.pid);
        let number = next_number(0);
        let first = settings.opener.put_in(number)?;
        let (stop, stopped) = mpsc::channel();
        let (sender, events) = mpsc::channel();
        let disturbed = Arc::new(AtomicU64::new(0));
        let in_thread = disturbed.clone();
        let run = move || {
            // While this thread waits for a CPU, the target runs into probes that should already be detached.
            come_first();
            // The thread needs these privileges to the end to open windows. If none can be dropped, nothing is lost.
            let _ = privileges::drop_unneeded(&privileges::TO_ATTACH, || {
                privileges::TO_ATTACH.into_iter().all(|needed| Capabilities::effective().has(needed))
            });
            let Settings { opener, counts, budget, pid, probes } = settings;
            let policy = Policy::new(budget, now(), cores);
            let used = cpu_time(pid).map(|cpu| (now(), cpu, Counted::read(&counts)));
            let (outside, closed) = (0, now());
            let mut driver = Driver {
                opener,
                counts,
                pid,
                cost: probes,
                probes: ASSUMED,
                policy,
                number,
                used,
                stopped,
                events: sender,
                first: Some(first),
                closed,
                outside,
                disturbed: in_thread,
            };
            // If nobody receives the events any more, the recording is over.
            let _ = driver.run();
            let _ = driver.opener.gate().close();
        };
        let thread = thread::Builder::new().name("windows".to_owned()).spawn(run)?;
        Ok(Self { thread: Some(thread), stop: Some(stop), events, disturbed })
    }

    /// The events since the last call.
    pub fn events(&self) -> impl Iterator<Item = WindowEvent> + '_ {
        self.events.try_iter()
    }

    /// Seconds that windows have cost the target beyond what the counters show ([`IN_WINDOW`]).
    pub fn disturbed(&self) -> f64 {
        self.disturbed.load(Ordering::Relaxed) as f64 * 1e-9
    }

    /// Ends the thread. It closes the open window and still reports that.
    pub fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.end();
    }
}

/// The number of CPUs that a process keeps busy while nothing is attached to it.
fn busy_cores(pid: u32) -> f64 {
    /// The clock of another process ticks every 4 ms.
    const LOOK: Duration = Duration::from_millis(100);
    let Some(before) = cpu_time(pid) else { return 1.0 };
    let began = now();
    thread::sleep(LOOK);
    let time = now().saturating_sub(began) as f64 * 1e-9;
    cpu_time(pid).map_or(1.0, |after| (after - before) / time)
}

/// The nanoseconds of several ticks of another process's CPU clock.
const SEVERAL_TICKS: u64 = 20_000_000;

/// The thread was told to end.
struct Stopped;

struct Driver {
    opener: WindowOpener,
    counts: Counts,
    pid: u32,
    cost: Box<dyn Fn() -> Option<ProbeCost> + Send>,
    probes: ProbeCost,
    policy: Policy,
    number: u32,
    /// When the CPU time of the target was last read, its value, and the counters at that time.
    used: Option<(Nanos, f64, Counted)>,
    stopped: Receiver<()>,
    events: Sender<WindowEvent>,
    /// The probes of the first window, which are already attached.
    first: Option<WindowProbes>,
    /// The time at which the last window was closed.
    closed: Nanos,
    /// Calls at the edges of windows, up to the last one.
    outside: u64,
    /// Nanoseconds that windows have cost the target beyond what the counters show.
    disturbed: Arc<AtomicU64>,
}

impl Driver {
    fn run(&mut self) -> Result<(), Stopped> {
        loop {
            self.note_use();
            self.probes = (self.cost)().unwrap_or(ASSUMED);
            match self.policy.choose() {
                NextProbes::Window { pause, length } => {
                    // Detaching the last probes took a part of the pause.
                    let over = self.closed + (pause * 1e9) as Nanos;
                    self.wait(Duration::from_nanos(over.saturating_sub(now())))?;
                    self.window(Duration::from_secs_f64(length))?;
                }
                NextProbes::Stay => self.stay()?,
            }
        }
    }

    /// Sleeps for `time`, unless the thread is told to end.
    fn wait(&self, time: Duration) -> Result<(), Stopped> {
        match self.stopped.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Err(Stopped),
        }
    }

    fn open(&mut self) -> Result<(WindowProbes, Nanos), Stopped> {
        let probes = match self.first.take() {
            Some(first) => Some(first),
            None => {
                self.number = next_number(self.number);
                self.opener.put_in(self.number).ok()
            }
        };
        let Some(probes) = probes.filter(|_| self.opener.gate().open(self.number).is_ok()) else {
            let _ = self.events.send(WindowEvent::Failed);
            return Err(Stopped);
        };
        Ok((probes, now()))
    }

    /// Ends the window. Returns the counters as of now, before calls at its edge are counted.
    fn close(
        &mut self,
        probes: WindowProbes,
        opened: Nanos,
        stayed: bool,
        before: Counted,
    ) -> Result<(Counted, Nanos), Stopped> {
        let (number, closed) = (self.number, now());
        self.closed = closed;
        let _ = self.opener.gate().close();
        let after = Counted::read(&self.counts);
        // The target is free within a millisecond. This thread continues only 20 to 70 ms later.
        drop(probes);
        let cost = after.memory_profile(self.probes) - before.memory_profile(self.probes);
        self.events.send(WindowEvent::Closed { number, opened, closed, stayed, cost }).map_err(|_| Stopped)?;
        Ok((after, closed))
    }

    fn window(&mut self, length: Duration) -> Result<(), Stopped> {
        let before = Counted::read(&self.counts);
        let (probes, opened) = self.open()?;
        let end = opened + length.as_nanos() as Nanos;
        let mut over = Ok(());
        while over.is_ok() {
            let left = Duration::from_nanos(end.saturating_sub(now()));
            let seen = self.counts.count(Counter::AllocatorCalls) - before.calls();
            if left.is_zero() || seen >= MOST_EVENTS {
                break;
            }
            over = self.wait(left.min(LOOK));
        }
        let (after, closed) = self.close(probes, opened, false, before)?;
        let open = closed.saturating_sub(opened) as f64 * 1e-9;
        let outside = self.counts.count(Counter::CallsOutside);
        let edges = (outside - std::mem::replace(&mut self.outside, outside)) as f64 * self.probes.call;
        let cost = after.memory_profile(self.probes) - before.memory_profile(self.probes);
        self.disturbed.fetch_add(((cost + edges) * (IN_WINDOW - 1.0) * 1e9) as u64, Ordering::Relaxed);
        let (cost, edges) = (cost * IN_WINDOW, edges * IN_WINDOW);
        self.policy.closed(Past { open, events: after.calls() - before.calls(), cost, edges });
        over
    }

    /// Leaves the probes attached as long as they cost little and no VM is missing.
    fn stay(&mut self) -> Result<(), Stopped> {
        let before = Counted::read(&self.counts);
        let allocators = self.opener.allocators();
        let (probes, opened) = self.open()?;
        let (mut spent, mut quiet) = (before, Duration::ZERO);
        let mut over = self.events.send(WindowEvent::Staying { number: self.number, opened }).map_err(|_| Stopped);
        while over.is_ok() && self.policy.may_stay() && self.opener.allocators() == allocators {
            let interval = if self.policy.is_tight() { LOOK } else { LOOK_AT_STAYING };
            over = self.wait(interval.max(quiet));
            let counted = Counted::read(&self.counts);
            // The next look comes after as much time again as has been quiet.
            quiet =
                if counted.calls() == spent.calls() { (quiet * 2).clamp(LOOK, LOOK_AT_QUIET) } else { Duration::ZERO };
            self.policy.spend(counted.memory_profile(self.probes) - spent.memory_profile(self.probes));
            spent = counted;
            self.note_use();
            if !self.policy.may_stay() {
                // The CPU time since the last tick counts, too: the target may have been idle until then.
                self.note_use_since();
            }
        }
        self.close(probes, opened, true, before)?;
        over
    }

    /// Reports the target's CPU time to the policy from time to time: its clock ticks 250 times per second, or less often.
    fn note_use(&mut self) {
        if self.used.as_ref().is_some_and(|(at, ..)| now() - at >= SEVERAL_TICKS) {
            self.note_use_since();
        }
    }

    /// Reports the target's CPU time since the last report to the policy, if its clock has ticked.
    fn note_use_since(&mut self) {
        let Some((at, cpu, counted)) = self.used else { return };
        let later = now();
        if let Some(more) = cpu_time(self.pid).filter(|more| *more > cpu || later - at >= SEVERAL_TICKS) {
            let counts = Counted::read(&self.counts);
            let beside = counts.beside(self.probes) - counted.beside(self.probes);
            self.policy.used(more - cpu, (later - at) as f64 * 1e-9, beside);
            self.used = Some((later, more, counts));
        }
    }
}
