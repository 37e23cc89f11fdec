//! Counts how often the threads of a process left a CPU.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The longest time between two looks: what a thread did between the last look and its end is lost.
const INTERVAL: Duration = Duration::from_secs(1);

/// If there are many threads, a look takes long: looks are then so rare that they take at most this part of a core.
const SHARE: u32 = 200;

/// Counts the context switches of a process from now on.
#[derive(Debug)]
pub struct Switches {
    pid: u32,
    /// Context switches of each thread, at the last look.
    threads: HashMap<u32, u64>,
    sum: u64,
    next: Instant,
}

impl Switches {
    /// Begins to count the context switches of process `pid`.
    pub fn of(pid: u32) -> Self {
        let threads = read(pid).collect();
        Self { pid, threads, sum: 0, next: Instant::now() + INTERVAL }
    }

    /// Takes a look, if it is time for one.
    pub fn look(&mut self) {
        let now = Instant::now();
        if now >= self.next {
            self.count();
            self.next = now + INTERVAL.max(now.elapsed() * SHARE);
        }
    }

    /// How many context switches there were so far, voluntary and involuntary.
    pub fn count(&mut self) -> u64 {
        let now: HashMap<u32, u64> = read(self.pid).collect();
        for (thread, switches) in &now {
            self.sum += switches.saturating_sub(self.threads.get(thread).copied().unwrap_or(0));
        }
        self.threads = now;
        self.sum
    }
}

/// The threads of a process, each with the number of its context switches since it started.
fn read(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    let folder = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        Some((thread, parse(&std::fs::read_to_string(entry.path().join("status")).ok()?)?))
    })
}

/// The sum of both kinds of switches in a `/proc/PID/task/TID/status` (proc(5)).
fn parse(status: &str) -> Option<u64> {
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    Some(line("voluntary_ctxt_switches:")? + line("nonvoluntary_ctxt_switches:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_count() {
        let status = "Name:\tluajit\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(parse(status), Some(695));
        assert_eq!(parse("Name:\tluajit\n"), None);
    }

    #[test]
    fn threads_that_end_and_begin_are_counted() {
        let mut switches = Switches::of(std::process::id());
        let sleeps = || (0..20).for_each(|_| std::thread::sleep(Duration::from_micros(10)));
        sleeps();
        assert!(switches.count() >= 20);
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sleeps();
            let _ = wait.recv();
        });
        std::thread::sleep(Duration::from_millis(50));
        let before = switches.count();
        assert!(before >= 41);
        drop(end);
        thread.join().unwrap();
        assert!(switches.count() >= before);
    }
}
