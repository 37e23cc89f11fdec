//! Children that a process starts while it is recorded: nginx makes new workers when it reloads its configuration, and some
//! servers fork whenever they need to.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use lj_trace_luajit::{FirstVms, find_first_vms};
use lj_trace_process::family::descendants_of_all;
use lj_trace_process::started::StartedProcesses;
use lj_trace_process::{Maps, Process};

use crate::error::EngineError;
use crate::options::Options;
use crate::target::RecordTarget;

/// The interval between two looks for children. A child is recorded once two looks have found it: then it was not forked
/// only to execute another program.
const INTERVAL: Duration = Duration::from_millis(50);

/// The interval between two checks that recorded processes are still alive.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The wait until a child without a VM is looked at again, since it may get a VM later. The wait doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Looks for new children, in a thread of its own.
pub struct NewChildren {
    found: Receiver<Found>,
    is_wanted: Arc<AtomicBool>,
}

/// A child with VMs.
struct Found {
    process: Process,
    maps: Maps,
    found: FirstVms,
}

impl NewChildren {
    /// Begins to look for children of the processes `roots`, except those that are `known`.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn watch(roots: Vec<u32>, known: Vec<Process>) -> Result<Self, EngineError> {
        let (sender, found) = mpsc::channel();
        let is_wanted = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&is_wanted);
        let watch = move || {
            let mut watch = Watch::new(roots, known);
            while goes_on.load(Ordering::Relaxed) {
                for found in watch.look(Instant::now()) {
                    if sender.send(found).is_err() {
                        return;
                    }
                }
                thread::sleep(INTERVAL);
            }
        };
        let started = thread::Builder::new().name("children".to_owned()).spawn(watch);
        started.map_err(|error| EngineError::io("start a thread", &error))?;
        Ok(Self { found, is_wanted })
    }

    /// The children that were found since the last call, as targets.
    pub fn take(&self, options: &Options) -> impl Iterator<Item = RecordTarget> {
        let found = self.found.try_iter();
        found.map(|Found { process, maps, found }| RecordTarget::of_several(options, process, maps, found))
    }
}

impl Drop for NewChildren {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }
}

struct Watch {
    roots: Vec<u32>,
    /// The recorded processes. Their children count as well, even after the parent is gone.
    recorded: Vec<Process>,
    /// The processes without a VM: when to look at them next, and how long to wait after that.
    seen: HashMap<u32, (Instant, Duration)>,
    family: Family,
    /// When recorded processes were last checked to be alive.
    looked_at: Option<Instant>,
}

/// The descendants of the processes, as of the last look.
#[derive(Default)]
struct Family {
    members: Vec<u32>,
    started: StartedProcesses,
}

impl Family {
    /// Updates the list of descendants.
    fn look(&mut self, roots: &[u32]) {
        for process in self.started.look() {
            // A parent starts before its children, so it is already among the members.
            let is_family = roots.contains(&process.parent) || self.members.contains(&process.parent);
            if is_family && !self.members.contains(&process.pid) {
                self.members.push(process.pid);
            }
        }
        let now = Instant::now();
        if self.started.is_list_due(now) {
            self.members = descendants_of_all(roots);
            self.started.listed(now);
        }
    }
}

impl Watch {
    fn new(roots: Vec<u32>, recorded: Vec<Process>) -> Self {
        Self { roots, recorded, seen: HashMap::new(), family: Family::default(), looked_at: None }
    }

    fn look(&mut self, now: Instant) -> Vec<Found> {
        let roots: Vec<u32> = self.roots.iter().copied().chain(self.recorded.iter().map(Process::pid)).collect();
        self.family.look(&roots);
        let family = self.family.members.clone();
        if self.looked_at.is_none_or(|last| now.duration_since(last) >= ALIVE_INTERVAL) {
            self.looked_at = Some(now);
            // The system reuses process ids. A process that executes another program is not recorded again, because its
            // files exist already.
            self.recorded.retain(Process::is_alive);
        }
        self.seen.retain(|pid, _| family.contains(pid));
        let mut found = Vec::new();
        for pid in family {
            if self.recorded.iter().any(|process| process.pid() == pid) || !self.is_due(pid, now) {
                continue;
            }
            let Some(child) = find(pid) else {
                if Process::open(pid).is_err() {
                    self.family.members.retain(|member| *member != pid);
                    self.seen.remove(&pid);
                }
                continue;
            };
            self.seen.remove(&pid);
            self.recorded.push(child.process.clone());
            found.push(child);
        }
        found
    }

    /// Whether it is time to look at this process.
    fn is_due(&mut self, pid: u32, now: Instant) -> bool {
        match self.seen.get_mut(&pid) {
            None => {
                self.seen.insert(pid, (now + INTERVAL / 2, FIRST_WAIT));
                false
            }
            Some((next, _)) if *next > now => false,
            Some((next, wait)) => {
                *next = now + *wait;
                *wait = LONGEST_WAIT.min(*wait * 2);
                true
            }
        }
    }
}

/// The VMs of a process; [`None`] if it has none, or lj-trace cannot read it.
fn find(pid: u32) -> Option<Found> {
    let process = Process::open(pid).ok()?;
    let maps = process.maps().ok()?;
    let found = find_first_vms(&process, &maps).ok()?;
    Some(Found { process, maps, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_looked_at_when_it_has_stayed_and_then_less_and_less_often() {
        let mut watch = Watch::new(vec![1], Vec::new());
        let start = Instant::now();
        let looked: Vec<u128> = (0..200)
            .map(|round| start + INTERVAL * round)
            .filter(|now| watch.is_due(7, *now))
            .map(|now| (now - start).as_millis())
            .collect();
        assert_eq!(looked, [50, 250, 650, 1450, 3050, 6250]);
    }

    #[test]
    fn children_without_a_vm_are_none() {
        let mut child = std::process::Command::new("sleep").arg("9").spawn().unwrap();
        let mut watch = Watch::new(vec![std::process::id()], Vec::new());
        let now = Instant::now();
        assert!(watch.look(now).is_empty() && watch.look(now + INTERVAL).is_empty());
        assert!(watch.seen.contains_key(&child.id()) && watch.recorded.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        watch.look(now + LONGEST_WAIT);
        assert!(!watch.seen.contains_key(&child.id()));
    }
}
