//! What is shown while recording.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::args::RecordArgs;
use super::recording::Recording;
use super::targets::RecordTarget;

/// A line that changes on a terminal, and plain lines at the start.
pub struct Progress {
    bar: ProgressBar,
    rate: u32,
}

impl Progress {
    /// Says what is being recorded; `attach` is how long it took to begin.
    pub fn new(args: &RecordArgs, targets: &[RecordTarget], recordings: &[Recording], attach: Duration) -> Self {
        let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        if !args.quiet {
            let until = match args.duration {
                Some(duration) => format!("for {duration:?}"),
                None => "until Ctrl-C".to_owned(),
            };
            for (target, recording) in targets.iter().zip(recordings) {
                let what = match &recording.cpu {
                    Some(cpu) => format!("at {} Hz ({}) ", args.rate, cpu.sampler.clock().describe()),
                    None => String::new(),
                };
                let memory = if recording.memory.is_some() { "with every allocation " } else { "" };
                let (pid, command, attach) = (target.args.pid, target.process.command(), attach.as_millis());
                eprintln!("recording process {pid} ({command}) {what}{memory}{until}; attached in {attach} ms");
                say_vms(target);
            }
        }
        if args.verbose {
            let memory = recordings.iter().filter_map(|recording| recording.memory.as_ref());
            for probes in memory.map(|memory| &memory.probes) {
                probes.plans().iter().for_each(|plan| eprintln!("{plan}"));
                eprintln!("{}", probes.programs());
            }
        }
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { bar, rate: args.rate }
    }

    /// Says how far it is.
    pub fn update(&self, recordings: &[Recording], elapsed: Duration) {
        if self.bar.is_hidden() {
            return;
        }
        let mut message = format!("{:.0} s", elapsed.as_secs_f64());
        if recordings.iter().any(|recording| recording.cpu.is_some()) {
            let samples: u64 = recordings.iter().filter_map(Recording::samples).sum();
            let seconds = samples as f64 / f64::from(self.rate);
            message.push_str(&format!(": {samples} samples, {seconds:.1} s of CPU time"));
        }
        if recordings.iter().any(|recording| recording.memory.is_some()) {
            let events =
                recordings.iter().filter_map(|recording| recording.memory.as_ref()).map(|memory| memory.events());
            message.push_str(&format!(": {} allocation events", events.sum::<u64>()));
        }
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// Clears the line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Names the VMs that are recorded, with their numbers if there are several.
fn say_vms(target: &RecordTarget) {
    let recorded = target.vms.iter().enumerate().filter(|(index, _)| target.only.is_none_or(|only| only == *index));
    for (index, vm) in recorded {
        let number = if target.vms.len() == 1 { String::new() } else { format!(" {}", index + 1) };
        eprintln!("VM{number} at {:#x}: {}", vm.global, vm.describe());
    }
}
