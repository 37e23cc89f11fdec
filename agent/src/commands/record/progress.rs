//! Progress while recording.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use lj_trace_engine::recording::CpuRecording;
use lj_trace_engine::session::Observer;
use lj_trace_engine::{Options, RecordTarget, Recording, Session};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_profile::answer::{SeenAt, share_of};
use lj_trace_text::{COLUMNS, Room};

use super::cpu_queue::CpuQueue;
use super::vm_looks::VmLooks;
use crate::service::notify::Notifier;

/// Progress reports: a line that is updated on a terminal, plain lines at the start, and reports to a service manager.
pub struct Progress {
    bar: ProgressBar,
    rate: u32,
    quiet: bool,
    notifier: Notifier,
    hottest: RefCell<Hottest>,
    looks: RefCell<VmLooks>,
    queue: RefCell<CpuQueue>,
}

/// The hottest function. It is computed only now and then, because that takes a pass over all stacks.
#[derive(Default)]
struct Hottest {
    text: String,
    /// When to compute it again.
    next: Option<Instant>,
}

/// The least time between two computations.
const LOOKS: Duration = Duration::from_secs(1);

/// The pause is also this many times as long as a computation takes, which limits it to 1% of a CPU.
const REST: u32 = 100;

impl Hottest {
    fn look(&mut self, session: &Session<'_>) {
        let begin = Instant::now();
        if self.next.is_some_and(|next| begin < next) {
            return;
        }
        let hottest = session.hottest();
        self.text = hottest.map_or_else(String::new, |(name, share)| format!("; {} in {name}", share_of(share)));
        self.next = Some(Instant::now() + LOOKS.max(begin.elapsed() * REST));
    }
}

impl Progress {
    /// A progress display without output so far.
    pub fn new(options: &Options) -> Self {
        let bar = if options.quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self {
            bar,
            rate: options.rate,
            quiet: options.quiet,
            notifier: Notifier::new(),
            hottest: RefCell::default(),
            looks: RefCell::default(),
            queue: RefCell::default(),
        }
    }

    /// Whether only warnings are shown.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Reports that lj-trace waits. Also tells the user why, if that is news.
    pub fn waiting(&self, news: Option<&str>) {
        self.notifier.waiting("waiting for a VM");
        if let Some(why) = news.filter(|_| !self.quiet) {
            say(Priority::Info, &format!("waiting for a VM until Ctrl-C: {why}"));
        }
    }
}

impl Observer for Progress {
    fn announce(&self, options: &Options, target: &RecordTarget, recording: &Recording, attach: Duration) {
        self.bar.suspend(|| {
            if !options.quiet {
                let until = match options.duration {
                    Some(duration) => format!("for {duration:?}"),
                    None => "until Ctrl-C".to_owned(),
                };
                let what = match &recording.cpu {
                    Some(cpu) => {
                        let clock = cpu.sampler.as_ref().map(|own| own.clock().describe());
                        let on = clock.map(|clock| format!("at {} Hz ({clock}) ", options.rate)).unwrap_or_default();
                        format!("{on}{}", if cpu.has_waits() { "while it is off the CPU " } else { "" })
                    }
                    None => String::new(),
                };
                let memory = if recording.memory.is_some() { "with every allocation " } else { "" };
                let (pid, command, attach) = (target.options.pid, target.process.command(), attach.as_millis());
                let text =
                    format!("recording process {pid} ({command}) {what}{memory}{until}; attached in {attach} ms");
                say(Priority::Info, &text);
                say_vms(target);
            }
            if options.verbose {
                for probes in recording.memory.iter().map(|memory| &memory.probes) {
                    probes.plans().iter().for_each(|plan| say(Priority::Info, &plan.to_string()));
                    say(Priority::Info, &probes.programs().to_string());
                }
            }
        });
    }

    fn ready(&self, session: &Session<'_>) {
        let names: Vec<&str> = session.recordings().map(Recording::name).collect();
        self.notifier.ready(&format!("recording {}", names.join(", ")));
    }

    fn update(&self, session: &Session<'_>, elapsed: Duration) {
        self.notifier.progress(|| message(session.recordings(), self.rate, elapsed));
        if !self.quiet {
            self.looks.borrow_mut().look(session);
            self.queue.borrow_mut().look(session);
        }
        if !self.bar.is_hidden() {
            let mut hottest = self.hottest.borrow_mut();
            hottest.look(session);
            let message = message(session.recordings(), self.rate, elapsed);
            let room = Room::Columns(COLUMNS).beside(SPINNER + message.chars().count());
            self.bar.set_message(format!("{message}{}", room.label(&hottest.text)));
            self.bar.tick();
        }
    }

    fn seen(&self) -> Option<SeenAt> {
        self.looks.borrow().most()
    }

    fn queued(&self) -> Option<f64> {
        self.queue.borrow().seconds()
    }

    fn stopping(&self, why: &str) {
        self.notifier.stopping(&format!("{why}, writing the files"));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The columns before the message.
const SPINNER: usize = 2;

/// The progress message.
fn message<'a>(recordings: impl Iterator<Item = &'a Recording> + Clone, rate: u32, elapsed: Duration) -> String {
    let mut message = format!("{:.0} s", elapsed.as_secs_f64());
    if recordings.clone().any(|recording| recording.cpu.is_some()) {
        let samples: u64 = recordings.clone().filter_map(Recording::samples).sum();
        let has_waits = recordings.clone().filter_map(|own| own.cpu.as_ref()).any(CpuRecording::has_waits);
        let seconds = samples as f64 / f64::from(rate);
        let time = if has_waits { String::new() } else { format!(", {seconds:.1} s of CPU time") };
        message.push_str(&format!(": {samples} samples{time}"));
    }
    if recordings.clone().any(|recording| recording.memory.is_some()) {
        let events = recordings.filter_map(|recording| recording.memory.as_ref()).map(|memory| memory.events());
        message.push_str(&format!(": {} allocation events", events.sum::<u64>()));
    }
    message
}

/// Names the recorded VMs, with their numbers if there are several.
fn say_vms(target: &RecordTarget) {
    let recorded = target.vms.iter().enumerate().filter(|(index, _)| target.only.is_none_or(|only| only == *index));
    for (index, vm) in recorded {
        let number = if target.vms.len() == 1 { String::new() } else { format!(" {}", index + 1) };
        say(Priority::Info, &format!("VM{number} at {:#x}: {}", vm.global, vm.describe()));
    }
}
