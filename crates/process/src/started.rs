//! Finds the processes that have started since the last look, without a look at all processes.
//!
//! The kernel numbers processes and threads in ascending order, and shows the last number (`/proc/loadavg`). So only
//! the numbers between two looks need a check.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::proc_file;

/// If there are more new numbers than this, listing all processes takes less time.
const MANY: u32 = 256;

/// All processes must be listed this often, whatever was seen of new ones.
const LIST_INTERVAL: Duration = Duration::from_secs(10);

/// If other programs start processes all the time, the next list waits for this multiple of the time that the last one took.
const WAIT: u32 = 100;

/// A process that has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartedProcess {
    /// Its process id.
    pub pid: u32,
    /// The id of the process that has started it, or of the process that has adopted it since.
    pub parent: u32,
}

/// Finds processes that have started.
#[derive(Debug, Default)]
pub struct StartedProcesses {
    last: Option<u32>,
    /// `/proc/loadavg`, kept open because it is read many times a second.
    file: Option<File>,
    /// Numbers that belonged to nothing at the last look: the kernel gives out a number before it shows the process.
    absent: Vec<u32>,
    /// When all processes were last listed; [`None`] if some were missed since.
    listed: Option<Instant>,
    /// The earliest time of the next list.
    next_list: Option<Instant>,
}

impl StartedProcesses {
    /// The processes that have started since the last look; some may be gone already.
    pub fn look(&mut self) -> Vec<StartedProcess> {
        self.since().unwrap_or_else(|| {
            self.listed = None;
            Vec::new()
        })
    }

    /// Whether the kernel had given numbers at the last look whose processes it did not show yet: one more look finds them.
    pub fn expects_more(&self) -> bool {
        !self.absent.is_empty()
    }

    /// Whether it is time to list all processes: some were missed, or the last list is old. After listing them, call
    /// [`listed`](Self::listed).
    pub fn is_list_due(&self, now: Instant) -> bool {
        let is_old = self.listed.is_none_or(|listed| now.duration_since(listed) >= LIST_INTERVAL);
        is_old && self.next_list.is_none_or(|next| now >= next)
    }

    /// Notes that all processes were listed, between `began` and now.
    pub fn listed(&mut self, began: Instant) {
        self.listed = Some(began);
        self.next_list = Instant::now().checked_add(began.elapsed() * WAIT);
    }

    /// [`None`] if the new processes are not known: at the first look, after numbers began anew, or if there were too many.
    fn since(&mut self) -> Option<Vec<StartedProcess>> {
        let last = self.last_number();
        let before = std::mem::replace(&mut self.last, last);
        let (last, before) = (last?, before?);
        let Some(new) = last.checked_sub(before).filter(|new| *new <= MANY) else {
            self.absent.clear();
            return None;
        };
        let mut started = Vec::new();
        for pid in std::mem::take(&mut self.absent) {
            if let Numbered::Process(process) = numbered(pid) {
                started.push(process);
            }
        }
        for pid in last - new + 1..=last {
            match numbered(pid) {
                Numbered::Process(process) => started.push(process),
                Numbered::Thread => {}
                Numbered::Nothing => self.absent.push(pid),
            }
        }
        Some(started)
    }

    /// The last number that the kernel gave to a process or a thread in this PID namespace. [`None`] if it cannot be read.
    fn last_number(&mut self) -> Option<u32> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open("/proc/loadavg").ok()?),
        };
        let mut text = [0; 128];
        let length = file.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..length]).ok()?.split_whitespace().next_back()?.parse().ok()
    }
}

/// The owner of a number.
enum Numbered {
    Process(StartedProcess),
    Thread,
    Nothing,
}

fn numbered(pid: u32) -> Numbered {
    let Ok(status) = proc_file::read_text(format!("/proc/{pid}/status")) else { return Numbered::Nothing };
    let field = |name| -> Option<u32> {
        status.lines().find_map(|line| line.strip_prefix(name)).and_then(|value| value.trim().parse().ok())
    };
    match (field("Tgid:"), field("PPid:")) {
        (Some(group), Some(parent)) if group == pid => Numbered::Process(StartedProcess { pid, parent }),
        _ => Numbered::Thread,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn every_process_is_seen_and_no_thread() {
        let mut looks = StartedProcesses::default();
        assert_eq!((looks.look(), looks.is_list_due(Instant::now())), (Vec::new(), true));
        looks.listed(Instant::now());
        for round in 0..40_usize {
            let mut children: Vec<_> =
                (0..round % 5).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
            // SAFETY: it takes nothing and cannot fail.
            let tid = thread::spawn(|| unsafe { libc::gettid() } as u32).join().unwrap();
            // For some numbers, the kernel had not shown the process yet.
            let mut seen = Vec::new();
            for _ in 0..2 {
                seen.extend(looks.look());
            }
            // Many other processes have started, or their numbers have begun anew.
            if looks.listed.is_none() {
                seen = children
                    .iter()
                    .map(|child| StartedProcess { pid: child.id(), parent: std::process::id() })
                    .collect();
                looks.listed(Instant::now());
            }
            for child in &mut children {
                let own = StartedProcess { pid: child.id(), parent: std::process::id() };
                assert_eq!(seen.iter().filter(|one| **one == own).count(), 1, "round {round}: {seen:?}");
                child.kill().unwrap();
                child.wait().unwrap();
            }
            assert!(seen.iter().all(|one| one.pid != tid));
        }
    }
}
