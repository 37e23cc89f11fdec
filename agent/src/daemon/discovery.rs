//! Finds the LuaJIT processes of this host as they start, in a thread of its own.
//!
//! A process is looked at soon after it has started, and again while it may still become one of LuaJIT: less and less often, and
//! only if it has mapped something since.

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

/// After so long it is looked for new processes again, whatever is left to look at.
const LONGEST_ROUND: Duration = Duration::from_millis(40);

/// A process that was met is looked at after so long: it has not just been forked to become another program.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// After each look, the next one comes twice as late.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The same for one that has LuaJIT's code in it, and no VM yet.
const LONGEST_WAIT_FOR_VM: Duration = Duration::from_secs(5);

/// What waits to be attached to.
const MOST_WAITING: usize = 64;

/// A process with VMs that is to be recorded.
#[derive(Debug)]
pub struct FoundProcess {
    /// The process.
    pub process: Process,
    /// Its mappings.
    pub maps: Maps,
    /// Its VMs.
    pub found: FirstVms,
    /// What its profiles are labelled with.
    pub resource: Resource,
}

/// How processes are found, for the metrics and `--dry-run`.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryState {
    /// LuaJIT processes that are not recorded, by process id: what they are called, and why.
    pub left_out: HashMap<u32, (String, String)>,
    /// Whether all processes were looked at that there were at first.
    pub is_settled: bool,
    /// Processes of which nobody knows, since privileges are missing.
    pub not_permitted: usize,
}

/// Looks for processes until it is dropped.
pub struct Discovery {
    candidates: Receiver<FoundProcess>,
    shared: Arc<Shared>,
}

struct Shared {
    goes_on: AtomicBool,
    /// Something was found.
    something: Notify,
    /// Those that are looked at again as if they had just started.
    again: Mutex<Vec<Again>>,
    found: Mutex<DiscoveryState>,
}

/// What is to be looked at again.
enum Again {
    /// A process that is recorded no more, after so long.
    Process(u32, Duration),
    /// All that were left out: the rules have changed.
    All(Arc<AgentConfig>, Arc<ContainerAttributes>),
}

impl Discovery {
    /// Begins.
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

    /// Ends when a process was found.
    pub async fn finds(&self) {
        self.shared.something.notified().await;
    }

    /// A process that was found since, if there is one.
    pub fn next(&self) -> Option<FoundProcess> {
        self.candidates.try_recv().ok()
    }

    /// A process is recorded no more: it is looked at again after some time, as one that has executed another program.
    pub fn look_again(&self, pid: u32, after: Duration) {
        lock(&self.shared.again).push(Again::Process(pid, after));
    }

    /// The rules have changed: whatever was left out is looked at again.
    pub fn change(&self, config: Arc<AgentConfig>, containers: Arc<ContainerAttributes>) {
        lock(&self.shared.again).push(Again::All(config, containers));
    }

    /// What is not recorded, and why.
    pub fn found(&self) -> DiscoveryState {
        lock(&self.shared.found).clone()
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.shared.goes_on.store(false, Ordering::Relaxed);
    }
}

/// Nothing panics while it holds one of these, and what they hold is whole at each moment.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that was met.
#[derive(Clone, Debug)]
struct Seen {
    next: Instant,
    wait: Duration,
    state: State,
}

impl Seen {
    /// Whether it is looked at again, some time.
    fn is_looked_at(&self) -> bool {
        self.state != State::Recorded
    }
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// It was not looked at yet.
    New,
    /// It has no LuaJIT in it, or no VM, and had mapped so many pages.
    Without(Option<u64>),
    /// Somebody else looks after it.
    Recorded,
    /// It has LuaJIT, and is not recorded.
    LeftOut,
}

struct Look {
    config: Arc<AgentConfig>,
    containers: Arc<ContainerAttributes>,
    host: HostAttributes,
    files: CodeFiles,
    seen: HashMap<u32, Seen>,
    /// Before that, none of them is due.
    next_due: Instant,
    /// When a process was seen last that had just started.
    last_start: Instant,
    started: StartedProcesses,
    /// Wakes us up when a process starts.
    task_events: Option<TaskEvents>,
    /// Of [`ChosenProcesses`].
    period: u64,
    shared: Arc<Shared>,
    sender: SyncSender<FoundProcess>,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Nothing is left to do for now.
    Done,
    /// It took long: the rest has to wait for newer processes.
    MoreIsDue,
}

/// What a look at a process came to.
enum Outcome {
    FoundProcess(Box<FoundProcess>),
    /// Nothing to record, now: it has mapped so many pages; whether it has LuaJIT's code in it.
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

    /// One turn; [`None`] if nobody takes what it finds.
    fn round(&mut self, now: Instant) -> Option<Round> {
        let began = Instant::now();
        self.look_again(now);
        self.meet(now);
        // Nearly always nothing is: not even asking each process then keeps many of them from costing more than few.
        if now < self.next_due {
            return Some(Round::Done);
        }
        let due = self.seen.iter().filter(|(_, seen)| seen.is_looked_at() && seen.next <= now);
        let mut due: Vec<(Instant, u32)> = due.map(|(pid, seen)| (seen.next, *pid)).collect();
        // The newest have most of their time before them: where more come than can be looked at, the oldest may be about to exit.
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

    /// Finds out who has come and who has gone.
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
                // It may come to have a VM without mapping anything.
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
            // A kernel thread never becomes anything else; its number may be another's one day.
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

/// How many pages a process has mapped, as `/proc/PID/statm` has it.
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
