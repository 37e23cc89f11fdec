//! `lj-trace top`: what a process does right now, in a terminal.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use clap::Args;
use lj_trace_engine::options::Scope;
use lj_trace_engine::recording::budget::{self, Budget};
use lj_trace_engine::recording::poll_interval;
use lj_trace_engine::recording::stop::Stop;
use lj_trace_engine::session::{NewChildren, Stopping};
use lj_trace_engine::target::{selected, targets};
use lj_trace_engine::waits::LiveWaits;
use lj_trace_engine::{Options, RecordTarget, Recording};
use lj_trace_process::Process;
use lj_trace_process::privileges::{self, priority};
use lj_trace_text::amount::parse_duration;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind};

use super::parse_pid;
use super::record::interrupts::Interrupts;
use super::record::{
    LimitArgs, LiveOptions, Mode, RecordArgs, can_attach, give_up_privileges, parse_address, start_guardian,
};
use super::terminal::Terminal;
use crate::exit::CommandError;
use crate::host;
use crate::top::overview::{Overview, ProcessRow};
use crate::top::view::{self, Palette};
use crate::top::{Action, App, Gauge, Tab, TopTarget, action};

/// What else chooses processes.
const WHOM: [&str; 4] = ["command", "name", "unit", "container"];

/// Options of `lj-trace top`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// The process to look at, by its id
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, required_unless_present_any = WHOM, conflicts_with_all = WHOM)]
    pid: Option<u32>,

    /// The processes to look at, by the name of their command or file: `lj-trace top nginx`
    #[arg(value_name = "NAME")]
    command: Option<String>,

    /// The same as NAME
    #[arg(long, conflicts_with_all = ["command", "unit", "container"])]
    name: Option<String>,

    /// The processes of a systemd unit
    #[arg(long, conflicts_with_all = ["command", "container"])]
    unit: Option<String>,

    /// The processes of a container, by its id, or the first digits of it
    #[arg(long, value_name = "ID", conflicts_with = "command")]
    container: Option<String>,

    /// Look at the processes with a VM that this one has started instead: the workers of nginx's master
    #[arg(long, conflicts_with_all = ["vm", "command", "name", "unit", "container"])]
    children: bool,

    /// Look only at the VM with this address, which `lj-trace list` shows [default: all VMs]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address, conflicts_with_all = WHOM)]
    vm: Option<u64>,

    /// What to look at; allocations cost the process more than CPU time
    #[arg(short, long, value_enum, default_value_t = Mode::Sysprof)]
    mode: Mode,

    /// Samples per second of CPU time of each thread
    #[arg(short, long, value_name = "HZ", default_value_t = 99)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rate: u32,

    /// What watching allocations may cost.
    #[command(flatten)]
    limit: LimitArgs,

    /// How often the picture changes, such as 1s or 500ms; sums go over the last ten times this
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace top --pid 1234                        functions by CPU time; h explains the keys
  sudo lj-trace top --pid 1234 --mode all             and what allocates
  sudo lj-trace top nginx                             all processes of that name, a line for each; Enter looks at one";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &TopArgs) -> Result<(), CommandError> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let message = "top draws on a terminal, and there is none: use `lj-trace record` to write to a file";
        return Err(CommandError::usage(message));
    }
    if args.mode.kinds().off_cpu {
        return Err(CommandError::usage(
            "top shows CPU time and memory: record time off the CPU with `lj-trace record`",
        ));
    }
    priority::raise();
    if args.mode.kinds().waits {
        let message = "top shows waits in every mode, as its sixth view: leave out --mode, and press 6";
        return Err(CommandError::usage(message));
    }
    if args.mode.has_memory() {
        start_guardian()?;
    }
    let LiveOptions { options, selector } = live(args)?;
    let (options, targets) = match selector {
        Some(selector) => selected(&selector, &options)?,
        None => {
            let targets = targets(&options)?;
            (options, targets)
        }
    };
    let known: Vec<Process> = targets.iter().map(|target| target.process.clone()).collect();
    let count = targets.len();
    let mut watched = Vec::new();
    for target in targets {
        watched.push(Watched::prepare(args, target, count, options.is_of_several())?);
    }
    watched.iter_mut().try_for_each(|own| own.recording.begin())?;
    // Processes that come later need these privileges for attaching.
    let attaches = if options.is_of_several() { &privileges::TO_ATTACH[..] } else { &[] };
    give_up_privileges(&options, attaches, || {
        watched.iter().all(|own| own.recording.is_in_reach()) && (!options.is_of_several() || can_attach(&options))
    });
    let children = options.is_of_several().then(|| NewChildren::watch(options.roots(), known)).transpose()?;
    let mut terminal = Terminal::take(&std::io::stdin(), &std::io::stdout())?;
    let mut look = Look { args, options, watched, children, overview: Overview::default() };
    let outcome = match look.until_quit(&mut terminal) {
        // Without a terminal, nobody could read the error message.
        Err(_) if terminal.has_gone() => Ok(()),
        outcome => outcome,
    };
    drop(terminal);
    look.watched.iter_mut().for_each(|own| own.recording.detach());
    outcome
}

/// The options for live recording.
fn live(args: &TopArgs) -> Result<LiveOptions, CommandError> {
    let whom = RecordArgs::words_of(args.pid, &args.command, &args.name, &args.unit, &args.container, args.children);
    let whom: Vec<&str> = whom.iter().map(String::as_str).collect();
    RecordArgs::live(&whom, args.vm, args.mode, args.rate, args.limit.clone())
}

/// A process in the live view.
struct Watched {
    /// The name by which people know it.
    name: String,
    target: RecordTarget,
    recording: Recording,
    app: App,
    /// Where coroutines wait, once the user has opened that view.
    waits: Option<LiveWaits>,
}

impl Watched {
    /// Attaches to one of `count` processes.
    fn prepare(
        args: &TopArgs,
        mut target: RecordTarget,
        processes: usize,
        of_several: bool,
    ) -> Result<Self, CommandError> {
        let app = App::new(TopTarget {
            name: target.name(),
            vm: target.vms.first().map(|vm| vm.describe()).unwrap_or_default(),
            rate: args.mode.kinds().cpu.then_some(args.rate),
            memory: args.mode.has_memory(),
            interval: args.interval,
            of_several,
        });
        target.live = Some(app.allocations.clone());
        let recording = Recording::prepare(&target, processes, None)?;
        Ok(Self { name: host::title(&target.process), target, recording, app, waits: None })
    }

    /// Reads the records that are ready.
    fn drain(&mut self, budget: Budget) -> Result<(), CommandError> {
        if self.app.ended.is_some() {
            return Ok(());
        }
        self.recording.drain(Some(&mut self.app), budget)?;
        if self.recording.is_over() {
            self.app.ended = Some(Stop::OverBudget.describe());
        } else if self.target.process.has_become_another_program() {
            self.end(Stop::TargetReplaced)?;
        }
        Ok(())
    }

    /// Reads the last records of a process that has exited.
    fn end(&mut self, why: Stop) -> Result<(), CommandError> {
        if self.app.ended.is_none() {
            self.recording.detach();
            self.recording.drain_all(Some(&mut self.app), Budget::new(budget::END))?;
            self.app.ended = Some(why.describe());
        }
        Ok(())
    }

    /// Ends an interval.
    fn roll(&mut self, elapsed: Duration) {
        let Self { target, recording, app, waits, .. } = self;
        if app.ended.is_none() {
            app.elapsed = elapsed;
            let vms = recording.vms().unwrap_or_else(|| target.vms.clone());
            app.roll(Gauge::read(&target.process, &vms, recording.lost()));
            if app.tab == Tab::Interpreted {
                app.interpreted.explain(&target.process, &vms, app.span);
            }
            if app.tab == Tab::Waits {
                let waits = waits.get_or_insert_with(|| LiveWaits::new(target));
                if std::mem::take(&mut app.waits.1) {
                    waits.clear();
                }
                app.waits.0 = waits.look();
            }
        }
    }
}

/// The live view of all processes.
struct Look<'a> {
    args: &'a TopArgs,
    options: Options,
    watched: Vec<Watched>,
    children: Option<NewChildren>,
    /// The overview, if there are several processes.
    overview: Overview,
}

impl Look<'_> {
    /// The process that is shown alone: if there are several, the one that the user has opened.
    fn alone(&mut self) -> Option<&mut App> {
        if !self.options.is_of_several() {
            return self.watched.first_mut().map(|own| &mut own.app);
        }
        let open = self.overview.open?;
        self.watched.iter_mut().find(|own| own.target.process.pid() == open).map(|own| &mut own.app)
    }

    fn drain(&mut self) -> Result<Duration, CommandError> {
        let budget = Budget::new(budget::LOOK);
        let mut left = self.watched.len();
        for own in &mut self.watched {
            own.drain(budget.share(left))?;
            left -= 1;
        }
        let interval = Recording::until_next_poll(self.watched.iter().map(|own| &own.recording));
        Ok(interval.unwrap_or(poll_interval::SHORTEST))
    }

    /// Ends an interval. Adds new processes, and notes which have exited.
    fn roll(&mut self, elapsed: Duration) -> Result<(), CommandError> {
        if let Some(children) = &self.children {
            for target in children.take(&self.options) {
                let new = Watched::prepare(self.args, target, self.watched.len() + 1, true);
                // If attaching fails, the process has mostly exited.
                if let Ok(mut new) = new
                    && new.recording.begin().is_ok()
                {
                    self.watched.push(new);
                }
            }
            let ended = self.watched.iter_mut().filter(|own| !own.target.process.is_alive());
            for own in ended {
                own.end(Stop::TargetExited)?;
            }
        }
        self.watched.iter_mut().for_each(|own| own.roll(elapsed));
        let rows = self.watched.iter().map(|own| ProcessRow::of(own.target.process.pid(), &own.name, &own.app));
        self.overview.show(rows.collect());
        Ok(())
    }

    fn draw(&mut self, terminal: &mut Terminal, elapsed: Duration) -> Result<(), CommandError> {
        let palette = Palette { colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
        match self.alone() {
            Some(app) => terminal.draw(|frame| view::draw(frame, app, palette)),
            None => {
                let what = match &self.options.scope {
                    Scope::These { what, .. } => what.clone(),
                    Scope::One | Scope::Children | Scope::Host => format!("children of process {}", self.options.pid),
                };
                let what = format!("{what}, for {:.0} s", elapsed.as_secs_f64());
                terminal.draw(|frame| view::draw_overview(frame, &self.overview, &what, palette))
            }
        }
    }

    fn quits(&mut self) -> bool {
        self.overview.quit || self.alone().is_some_and(|app| app.quit)
    }

    /// Shows them until the user quits.
    fn until_quit(&mut self, terminal: &mut Terminal) -> Result<(), CommandError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| CommandError::internal(&error))?;
        let began = Instant::now();
        runtime.block_on(async {
            let interrupts = Interrupts::listen()?;
            let processes: Vec<Process> = self.watched.iter().map(|own| own.target.process.clone()).collect();
            let mut stopping = Stopping::new(interrupts.event()?, processes.iter())?;
            let mut ticks = poll_interval::ticks();
            let mut next = began;
            while !self.quits() && !terminal.has_gone() {
                tokio::select! {
                    stop = stopping.next(None) => match stop {
                        Stop::TargetExited => {
                            stopping.ignore_exits();
                            self.watched.iter_mut().filter(|own| !own.target.process.is_alive())
                                .try_for_each(|own| own.end(stop))?;
                        }
                        _ => break,
                    },
                    _ = ticks.tick() => {}
                }
                let interval = self.drain()?;
                poll_interval::relax(&mut ticks, interval);
                let mut changed = self.act_on_events(terminal)?;
                if Instant::now() >= next {
                    next += self.args.interval.max(poll_interval::SHORTEST);
                    next = next.max(Instant::now());
                    self.roll(began.elapsed())?;
                    changed |= self.alone().is_none_or(|app| !app.paused);
                }
                if changed {
                    self.draw(terminal, began.elapsed())?;
                }
            }
            Ok(())
        })
    }

    /// Performs the actions of the keys pressed since the last call. Returns whether the picture changes.
    fn act_on_events(&mut self, terminal: &Terminal) -> Result<bool, CommandError> {
        let mut changed = false;
        while let Some(event) = terminal.event()? {
            match event {
                Event::Key(key) => changed |= self.act_on_key(key),
                Event::Resize(..) => changed = true,
                _ => {}
            }
        }
        Ok(changed)
    }

    fn act_on_key(&mut self, key: KeyEvent) -> bool {
        let goes_back = key.code == KeyCode::Backspace && key.kind != KeyEventKind::Release;
        let is_of_several = self.options.is_of_several();
        let Some(app) = self.alone() else { return self.overview.act(key) };
        if is_of_several && goes_back && !app.typing {
            self.overview.open = None;
            return true;
        }
        match action(key, app.typing) {
            // No more data comes that could be held back.
            Some(Action::Pause) if app.ended.is_some() => false,
            Some(action) => {
                app.act(action);
                true
            }
            None => false,
        }
    }
}
