//! What is shown while recording.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::args::RecordArgs;
use super::recording::Recording;
use crate::target::Process;
use crate::vm::Vm;

/// A line that changes on a terminal, and plain lines at the start.
pub struct Progress {
    bar: ProgressBar,
    rate: u32,
}

impl Progress {
    /// Says what is being recorded; `attach` is how long it took to begin.
    pub fn new(args: &RecordArgs, process: &Process, vms: &[Vm], recording: &Recording, attach: Duration) -> Self {
        let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        if !args.quiet {
            let until = match args.duration {
                Some(duration) => format!("for {duration:?}"),
                None => "until Ctrl-C".to_owned(),
            };
            let what = match &recording.cpu {
                Some(cpu) => format!("at {} Hz ({}) ", args.rate, cpu.sampler.clock().describe()),
                None => String::new(),
            };
            let memory = if recording.memory.is_some() { "with every allocation " } else { "" };
            let (pid, command, attach) = (args.pid, process.command(), attach.as_millis());
            eprintln!("recording process {pid} ({command}) {what}{memory}{until}; attached in {attach} ms");
            for (number, vm) in (1..).zip(vms) {
                let number = if vms.len() == 1 { String::new() } else { format!(" {number}") };
                eprintln!("VM{number} at {:#x}: {}", vm.global, vm.describe());
            }
        }
        if args.verbose {
            for plan in recording.memory.iter().flat_map(|memory| memory.probes.plans()) {
                eprintln!("{plan}");
            }
        }
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { bar, rate: args.rate }
    }

    /// Says how far it is.
    pub fn update(&self, recording: &Recording, elapsed: Duration) {
        if self.bar.is_hidden() {
            return;
        }
        let mut message = format!("{:.0} s", elapsed.as_secs_f64());
        if let Some(samples) = recording.samples() {
            let seconds = samples as f64 / f64::from(self.rate);
            message.push_str(&format!(": {samples} samples, {seconds:.1} s of CPU time"));
        }
        if let Some(memory) = &recording.memory {
            message.push_str(&format!(": {} allocation events", memory.events()));
        }
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// Clears the line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
