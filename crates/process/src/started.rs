//! Which processes have started since the last look, without a look at all that there are.
//!
//! The kernel gives numbers to processes and threads in their order, and tells the last one (`/proc/loadavg`). So only those between
//! two looks have to be looked at.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::proc_file;

/// If it has given more numbers than that, it takes less to list all processes.
const MANY: u32 = 256;

/// All processes are to be listed as often as that, whatever was seen of those that have started.
const LIST_INTERVAL: Duration = Duration::from_secs(10);

/// Where others start processes all the time, the next list waits for so many times as long as the last one took.
const WAIT: u32 = 100;

/// A process that has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartedProcess {
    /// Its id.
    pub pid: u32,
    /// That of the process that has started it, or of whoever looks after it since that one is gone.
    pub parent: u32,
}

/// Looks for processes that have started.
#[derive(Debug, Default)]
pub struct StartedProcesses {
    last: Option<u32>,
    /// `/proc/loadavg`: it is read many times a second.
    file: Option<File>,
    /// Numbers that nothing had at the last look: the kernel gives one before it shows who has it.
    absent: Vec<u32>,
    /// When all were listed; [`None`] if some were missed since.
    listed: Option<Instant>,
    /// When that may be done again.
    next_list: Option<Instant>,
}

impl StartedProcesses {
    /// Those since the last look; some may be gone already.
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

    /// Whether it is time to list all processes: some were missed, or it was long ago. Who does so tells it by
    /// [`listed`](Self::listed).
    pub fn is_list_due(&self, now: Instant) -> bool {
        let is_old = self.listed.is_none_or(|listed| now.duration_since(listed) >= LIST_INTERVAL);
        is_old && self.next_list.is_none_or(|next| now >= next)
    }

    /// Notes that all were listed, from that moment until now.
    pub fn listed(&mut self, began: Instant) {
        self.listed = Some(began);
        self.next_list = Instant::now().checked_add(began.elapsed() * WAIT);
    }

    /// [`None`] if nobody knows: it was the first look, numbers began anew, or there were too many.
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

    /// The number that the kernel has given last, to a process or a thread, in our PID namespace. [`None`] if it does not tell.
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

/// Who has a number.
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
            // Of some, the kernel had not shown more than the number.
            let mut seen = Vec::new();
            for _ in 0..2 {
                seen.extend(looks.look());
            }
            // Many others have started, or their numbers have begun anew.
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
