//! Watches a process while it is recorded, and reports events: the process is stopped, or its VMs are closed.

use std::time::{Duration, Instant};

use lj_trace_luajit::Vm;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_process::{Halt, Process};
use lj_trace_text::untrusted;

use super::turns;
use crate::target::RecordTarget;

/// The interval between two looks at the process.
const INTERVAL: Duration = Duration::from_millis(200);

/// With many processes, this look comes less often than draining, by this factor.
const LOOKED_AT_SELDOM: usize = 4;

/// The number of looks that must find a process stopped before lj-trace reports it. Shorter halts are normal under a
/// debugger.
const LASTING: u32 = 3;

/// Watches one process.
pub struct Watch {
    process: Process,
    /// The name of the process for the user.
    name: String,
    quiet: bool,
    interval: Duration,
    next_look: Instant,
    /// What stops the process, since when, and how many looks have found it so.
    halted: Option<(Halt, Instant, u32)>,
    /// How long the process was stopped before that.
    total: Duration,
    /// The VMs that the process had at first and that have not been closed.
    vms: Vec<Vm>,
}

impl Watch {
    /// Begins to watch a target. `processes` is the number of processes in the session.
    pub fn new(target: &RecordTarget, quiet: bool, processes: usize) -> Self {
        let (process, name, vms) = (target.process.clone(), target.name(), target.vms.clone());
        // Each look reads about a dozen files.
        let interval = turns::interval(processes.saturating_mul(LOOKED_AT_SELDOM), INTERVAL);
        // A process that has just started is still stopped until lj-trace lets it run.
        let next_look = Instant::now() + if vms.is_empty() { interval } else { Duration::ZERO };
        Self { process, name, quiet, interval, next_look, halted: None, total: Duration::ZERO, vms }
    }

    /// Looks, if it is time to.
    pub fn look(&mut self, now: Instant) {
        // The only result is messages.
        if self.quiet || now < self.next_look {
            return;
        }
        let is_first = self.halted.is_none() && self.next_look + self.interval > now && self.total.is_zero();
        self.next_look = now + self.interval;
        let halt = self.process.halt();
        self.note(halt, now, is_first);
        self.find_closed();
    }

    /// Notes what stops the process at `now`.
    fn note(&mut self, halt: Option<Halt>, now: Instant, at_once: bool) {
        match (halt, &mut self.halted) {
            (None, None) => {}
            (None, Some((_, since, looks))) => {
                let lasted = now.saturating_duration_since(*since);
                if *looks >= LASTING {
                    self.say(&format!("continues after {:.1} s", lasted.as_secs_f64()));
                }
                self.total += lasted;
                self.halted = None;
            }
            (Some(halt), halted) => {
                let (halt, _, looks) = halted.get_or_insert((halt, now, if at_once { LASTING - 1 } else { 0 }));
                *looks += 1;
                if *looks == LASTING {
                    let text = describe(halt, self.process.pid());
                    self.say(&text);
                }
            }
        }
    }

    /// Reports the VMs that have been closed since the last look.
    fn find_closed(&mut self) {
        let memory = self.process.memory();
        let (open, closed): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.vms).into_iter().partition(|vm| vm.still_valid(&memory));
        self.vms = open;
        // A process that is exiting has no VMs any more either.
        if closed.is_empty() || !self.process.runs_same_program() {
            return;
        }
        for vm in &closed {
            self.say(&format!("has closed its VM at {:#x}", vm.global));
        }
        if self.vms.is_empty() {
            self.say("has no VM left: those that it creates from now on are recorded");
        }
    }

    /// Reports how long the process was stopped while it was recorded, if it was.
    pub fn end(&mut self) {
        let halted = self.halted.take().map_or(Duration::ZERO, |(_, since, _)| since.elapsed());
        let total = self.total + halted;
        if total >= INTERVAL {
            self.say(&format!("was stopped for {:.1} s of the recording", total.as_secs_f64()));
        }
    }

    fn say(&self, what: &str) {
        if !self.quiet {
            say(Priority::Info, &format!("{} {what}", self.name));
        }
    }
}

/// What stops a process, and how the user can make it run again.
fn describe(halt: &Halt, pid: u32) -> String {
    match halt {
        Halt::Signal => format!("is stopped by a signal: nothing happens in it until `kill -CONT {pid}`"),
        Halt::Tracer(tracer) => {
            let name = std::fs::read(format!("/proc/{tracer}/comm")).unwrap_or_default();
            let name = untrusted::bytes(name.trim_ascii_end());
            format!(
                "is stopped by {name} (pid {tracer}), which debugs it: nothing happens in it until that lets it go on"
            )
        }
        Halt::Freezer(file, text) => {
            let file = untrusted::bytes(file.as_os_str().as_encoded_bytes());
            format!("is in a frozen cgroup: nothing happens in it until `echo {text} > {file}`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Watch {
        Watch {
            process: Process::open(std::process::id()).unwrap(),
            name: "this test".to_owned(),
            quiet: true,
            interval: INTERVAL,
            next_look: Instant::now(),
            halted: None,
            total: Duration::ZERO,
            vms: Vec::new(),
        }
    }

    #[test]
    fn halts_are_summed_up() {
        let mut watch = watch();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (halt, second) in [(None, 0), (Some(Halt::Signal), 1), (Some(Halt::Signal), 2), (None, 4), (None, 5)] {
            watch.note(halt, at(second), false);
        }
        assert_eq!((&watch.halted, watch.total), (&None, Duration::from_secs(3)));
        watch.note(Some(Halt::Tracer(7)), at(6), true);
        assert_eq!(watch.halted, Some((Halt::Tracer(7), at(6), LASTING)));
        watch.note(None, at(8), false);
        assert_eq!(watch.total, Duration::from_secs(5));
    }

    #[test]
    fn a_halt_comes_with_the_way_on() {
        assert!(describe(&Halt::Signal, 42).contains("kill -CONT 42"));
        let own = std::process::id();
        assert!(describe(&Halt::Tracer(own), 42).contains(&format!("(pid {own})")));
        let freezer = Halt::Freezer("/sys/fs/cgroup/shop/cgroup.freeze".into(), "0");
        assert!(describe(&freezer, 42).ends_with("until `echo 0 > /sys/fs/cgroup/shop/cgroup.freeze`"));
    }
}
