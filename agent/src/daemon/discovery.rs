//! Finds the LuaJIT processes of this host as they start, on a thread of its own.
//!
//! It checks a process soon after the start, and again while the process may still turn out to use LuaJIT: less and
//! less often, and only if the process has mapped something since.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lj_trace_luajit::{FindError, FirstVms, find_first_vms};
use lj_trace_probes::task_events::TaskEvents;
use lj_trace_process::started::StartedProcesses;
use lj_trace_process::{Maps, Process, TargetError, proc_file};
use lj_trace_profile::Resource;
use tokio::sync::Notify;

use super::chosen::ChosenProcesses;
use super::config::AgentConfig;
use super::metadata::{self, ContainerAttributes, HostAttributes};
use crate::host::CodeFiles;

/// The shortest time from one look for new processes to the next.
const INTERVAL: Duration = Duration::from_millis(20);

/// The longest, where the kernel wakes us up when a process starts: the rules may have changed meanwhile.
const LONGEST_REST: Duration = Duration::from_millis(200);

/// Where it does not: how often we look if no process has started for [`QUIET`].
const QUIET_INTERVAL: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_secs(2);

/// After this time a round looks for new processes again, whatever is left to check.
const LONGEST_ROUND: Duration = Duration::from_millis(40);

/// How old a process must be for its first check: by then it is probably no longer a fork that is about to execute
/// another program.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// The wait after the first check, and the longest wait. After each check the wait doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The longest wait for a process that has LuaJIT's code but no VM yet.
const LONGEST_WAIT_FOR_VM: Duration = Duration::from_secs(5);

/// How many found processes may wait for the agent to attach.
const MOST_WAITING: usize = 64;

/// A process with VMs to record.
#[derive(Debug)]
pub struct FoundProcess {
    /// The process.
    pub process: Process,
    /// Its mappings.
    pub maps: Maps,
    /// Its VMs.
    pub found: FirstVms,
    /// The attributes of its profiles.
    pub resource: Resource,
}

/// The state of discovery, for the metrics and `--dry-run`.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryState {
    /// LuaJIT processes that are not recorded, by process ID: the name, and the reason.
    pub left_out: HashMap<u32, (String, String)>,
    /// Whether all processes that existed at the start have been checked.
    pub is_settled: bool,
    /// How many processes could not be checked for lack of privileges.
    pub not_permitted: usize,
}

/// Looks for processes until it is dropped.
pub struct Discovery {
    candidates: Receiver<FoundProcess>,
    shared: Arc<Shared>,
}

struct Shared {
    goes_on: AtomicBool,
    /// Signals that a process was found.
    something: Notify,
    /// Processes to check again as if they had just started.
    again: Mutex<Vec<Again>>,
    found: Mutex<DiscoveryState>,
}

/// What to check again.
enum Again {
    /// A process that is no longer recorded, after this time.
    Process(u32, Duration),
    /// All processes that were left out, because the rules have changed.
    All(Arc<AgentConfig>, Arc<ContainerAttributes>),
}

impl Discovery {
    /// Starts looking.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(
        config: Arc<AgentConfig>,
        containers: Arc<ContainerAttributes>,
        host: HostAttributes,
    ) -> std::io::Result<Self> {
        let (sender, candidates) = mpsc::sync_channel(MOST_WAITING);
        let shared = Arc::new(Shared {
            goes_on: AtomicBool::new(true),
            something: Notify::new(),
            again: Mutex::default(),
            found: Mutex::default(),
        });
        let mut look = Look {
            config,
            containers,
            host,
            files: CodeFiles::default(),
            seen: HashMap::new(),
            next_due: Instant::now(),
            last_start: Instant::now(),
            started: StartedProcesses::default(),
            // Without them it looks more often.
            task_events: TaskEvents::open().ok(),
            period: 0,
            shared: Arc::clone(&shared),
            sender,
        };
        let work = move || {
            while look.shared.goes_on.load(Ordering::Relaxed) {
                match look.round(Instant::now()) {
                    None => return,
                    Some(Round::Done) => look.rest(),
                    Some(Round::MoreIsDue) => {}
                }
            }
        };
        thread::Builder::new().name("discovery".to_owned()).spawn(work)?;
        Ok(Self { candidates, shared })
    }

    /// Waits until a process is found.
    pub async fn finds(&self) {
        self.shared.something.notified().await;
    }

    /// The next process that was found, if there is one.
    pub fn next(&self) -> Option<FoundProcess> {
        self.candidates.try_recv().ok()
    }

    /// Reports that a process is no longer recorded: it is checked again after some time, as it may have executed
    /// another program.
    pub fn look_again(&self, pid: u32, after: Duration) {
        lock(&self.shared.again).push(Again::Process(pid, after));
    }

    /// Reports that the rules have changed: every process that was left out is checked again.
    pub fn change(&self, config: Arc<AgentConfig>, containers: Arc<ContainerAttributes>) {
        lock(&self.shared.again).push(Again::All(config, containers));
    }

    /// The processes that are not recorded, and why.
    pub fn found(&self) -> DiscoveryState {
        lock(&self.shared.found).clone()
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.shared.goes_on.store(false, Ordering::Relaxed);
    }
}

/// Nothing panics while it holds one of these locks, and the data is consistent at each moment.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A known process.
#[derive(Clone, Debug)]
struct Seen {
    next: Instant,
    wait: Duration,
    state: State,
}

impl Seen {
    /// Whether it will be checked again.
    fn is_looked_at(&self) -> bool {
        self.state != State::Recorded
    }
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// It was not checked yet.
    New,
    /// It had no LuaJIT, or no VM, when it had mapped this many pages.
    Without(Option<u64>),
    /// The agent's main loop takes care of it.
    Recorded,
    /// It has LuaJIT, but is not recorded.
    LeftOut,
}

struct Look {
    config: Arc<AgentConfig>,
    containers: Arc<ContainerAttributes>,
    host: HostAttributes,
    files: CodeFiles,
    seen: HashMap<u32, Seen>,
    /// No process is due before this time.
    next_due: Instant,
    /// When a process was seen last that had just started.
    last_start: Instant,
    started: StartedProcesses,
    /// Wakes us up when a process starts.
    task_events: Option<TaskEvents>,
    /// The current period of [`ChosenProcesses`].
    period: u64,
    shared: Arc<Shared>,
    sender: SyncSender<FoundProcess>,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Nothing is left to do for now.
    Done,
    /// It took too long: the remaining processes have to wait for newer ones.
    MoreIsDue,
}

/// The result of a check.
enum Outcome {
    FoundProcess(Box<FoundProcess>),
    /// Nothing to record for now: the number of mapped pages, and whether the process has LuaJIT's code.
    Without(Option<u64>, bool),
    LeftOut(String, String),
    NotPermitted,
    Gone,
}

impl Look {
    /// Sleeps until the next round: until a process may have started, or one is due.
    fn rest(&mut self) {
        thread::sleep(INTERVAL);
        if self.started.expects_more() {
            return;
        }
        let due = self.next_due.saturating_duration_since(Instant::now());
        match &self.task_events {
            Some(events) => {
                if events.wait(due.min(LONGEST_REST)).is_err() {
                    self.task_events = None;
                }
            }
            None if self.last_start.elapsed() < QUIET => {}
            None => thread::sleep(due.min(QUIET_INTERVAL.saturating_sub(INTERVAL))),
        }
    }

    /// One round; [`None`] if nobody receives the found processes any more.
    fn round(&mut self, now: Instant) -> Option<Round> {
        let began = Instant::now();
        self.look_again(now);
        self.meet(now);
        // Nearly always nothing is due. Without this test, many processes would cost more than few.
        if now < self.next_due {
            return Some(Round::Done);
        }
        let due = self.seen.iter().filter(|(_, seen)| seen.is_looked_at() && seen.next <= now);
        let mut due: Vec<(Instant, u32)> = due.map(|(pid, seen)| (seen.next, *pid)).collect();
        // The newest come first: if there are too many to check, the oldest may be about to exit.
        due.sort_unstable_by_key(|due| Reverse(*due));
        for (_, pid) in due {
            if began.elapsed() >= LONGEST_ROUND {
                return Some(Round::MoreIsDue);
            }
            self.visit(pid, now)?;
        }
        if self.seen.values().all(|seen| seen.state != State::New) {
            lock(&self.shared.found).is_settled = true;
        }
        let next = self.seen.values().filter(|seen| seen.is_looked_at()).map(|seen| seen.next).min();
        self.next_due = next.unwrap_or(now + LONGEST_WAIT);
        Some(Round::Done)
    }

    fn look_again(&mut self, now: Instant) {
        let all = std::mem::take(&mut *lock(&self.shared.again));
        for again in all {
            match again {
                Again::Process(pid, after) => {
                    if let Some(seen) = self.seen.get_mut(&pid) {
                        *seen = Seen { next: now + after, wait: FIRST_WAIT, state: State::New };
                        self.next_due = self.next_due.min(seen.next);
                    }
                }
                Again::All(config, containers) => {
                    (self.config, self.containers) = (config, containers);
                    self.reconsider(now);
                }
            }
        }
        let period = ChosenProcesses::period(&self.config);
        if std::mem::replace(&mut self.period, period) != period {
            self.reconsider(now);
        }
    }

    fn reconsider(&mut self, now: Instant) {
        for seen in self.seen.values_mut().filter(|seen| seen.state == State::LeftOut) {
            *seen = Seen { next: now, wait: FIRST_WAIT, state: State::New };
        }
        self.next_due = now;
    }

    /// Finds out which processes have started and which have exited.
    fn meet(&mut self, now: Instant) {
        for process in self.started.look() {
            self.last_start = now;
            self.add(process.pid, now);
        }
        let began = Instant::now();
        if self.started.is_list_due(began) {
            // CPUs that were switched on since have no event.
            self.task_events.take_if(|events| !events.is_complete());
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            let all: BTreeSet<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
            self.seen.retain(|pid, _| all.contains(pid));
            lock(&self.shared.found).left_out.retain(|pid, _| all.contains(pid));
            all.into_iter().for_each(|pid| self.add(pid, now));
            self.started.listed(began);
        }
    }

    fn add(&mut self, pid: u32, now: Instant) {
        if pid != std::process::id() {
            let new = || Seen { next: now + FIRST_LOOK, wait: FIRST_WAIT, state: State::New };
            let seen = self.seen.entry(pid).or_insert_with(new);
            if seen.is_looked_at() {
                self.next_due = self.next_due.min(seen.next);
            }
        }
    }

    fn visit(&mut self, pid: u32, now: Instant) -> Option<()> {
        let seen = self.seen.get(&pid)?.clone();
        let outcome = match seen.state {
            State::Without(Some(pages)) if mapped_pages(pid) == Some(pages) => Outcome::Without(Some(pages), false),
            _ => self.look_at(pid),
        };
        let wait = |longest: Duration| (seen.wait * 2).min(longest);
        let next = match outcome {
            Outcome::FoundProcess(candidate) => {
                lock(&self.shared.found).left_out.remove(&pid);
                self.sender.send(*candidate).ok()?;
                self.shared.something.notify_one();
                Seen { state: State::Recorded, ..seen }
            }
            Outcome::Without(pages, has_code) => {
                lock(&self.shared.found).left_out.remove(&pid);
                // It may get a VM without mapping anything.
                let pages = pages.filter(|_| !has_code);
                let longest = if has_code { LONGEST_WAIT_FOR_VM } else { LONGEST_WAIT };
                Seen { next: now + seen.wait, wait: wait(longest), state: State::Without(pages) }
            }
            Outcome::LeftOut(name, why) => {
                lock(&self.shared.found).left_out.insert(pid, (name, why));
                Seen { next: now + LONGEST_WAIT, wait: LONGEST_WAIT, state: State::LeftOut }
            }
            Outcome::NotPermitted => {
                lock(&self.shared.found).not_permitted += 1;
                Seen { next: now + LONGEST_WAIT, wait: LONGEST_WAIT, state: State::Without(None) }
            }
            Outcome::Gone => {
                self.seen.remove(&pid);
                lock(&self.shared.found).left_out.remove(&pid);
                return Some(());
            }
        };
        self.seen.insert(pid, next);
        Some(())
    }

    fn look_at(&self, pid: u32) -> Outcome {
        let pages = mapped_pages(pid);
        let process = match Process::open(pid) {
            Ok(process) => process,
            Err(TargetError::NotPermitted { .. }) => return Outcome::NotPermitted,
            // A kernel thread always remains one, but its number may go to another process one day.
            Err(TargetError::KernelThread(_)) => return Outcome::Without(pages, false),
            Err(_) => return Outcome::Gone,
        };
        let Ok(maps) = process.maps() else { return Outcome::Gone };
        if !self.files.any_in(&process, &maps) {
            return Outcome::Without(pages, false);
        }
        let found = match find_first_vms(&process, &maps) {
            Ok(found) => found,
            Err(FindError::NoVm { .. } | FindError::Target(_)) => return Outcome::Without(pages, true),
            Err(error) => return Outcome::LeftOut(process.command(), error.to_string()),
        };
        let mut resource = metadata::resource(&process, &self.host, &self.config, &self.containers);
        metadata::add_vms(&mut resource, &process, &maps, &found.vms);
        if let Some(why) = self.config.leaves_out(&resource) {
            return Outcome::LeftOut(process.command(), why.describe().to_owned());
        }
        let chosen = ChosenProcesses::at(self.period, &self.config, &self.host.identity());
        if !chosen.contains(&process) {
            return Outcome::LeftOut(process.command(), "its turn comes in another probability-period".to_owned());
        }
        chosen.label(&mut resource);
        Outcome::FoundProcess(Box::new(FoundProcess { process, maps, found, resource }))
    }
}

/// How many pages a process has mapped, from `/proc/PID/statm`.
fn mapped_pages(pid: u32) -> Option<u64> {
    proc_file::read_text(format!("/proc/{pid}/statm")).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn discovery() -> Discovery {
        Discovery::start(Arc::default(), Arc::default(), HostAttributes::default()).unwrap()
    }

    #[test]
    fn processes_without_luajit_are_no_candidates() {
        let mut child = Command::new("sleep").arg("9").spawn().unwrap();
        let discovery = discovery();
        thread::sleep(10 * INTERVAL);
        let own = std::iter::from_fn(|| discovery.next()).find(|found| found.process.pid() == child.id());
        assert!(own.is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
