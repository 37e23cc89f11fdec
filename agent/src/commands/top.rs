//! `lj-trace top`: what a process does right now, in a terminal.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use clap::Args;
use lj_trace_engine::recording::budget::{self, Budget};
use lj_trace_engine::recording::poll_interval;
use lj_trace_engine::recording::stop::Stop;
use lj_trace_engine::session::Stopping;
use lj_trace_engine::target::targets;
use lj_trace_engine::{RecordTarget, Recording};
use lj_trace_process::privileges::priority;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::parse_pid;
use super::record::interrupts::Interrupts;
use super::record::{LimitArgs, Mode, RecordArgs, give_up_privileges, parse_address, parse_duration, start_guardian};
use crate::exit::CommandError;
use crate::top::view::{self, Palette};
use crate::top::{Action, App, Gauge, Tab, TopTarget, action};

/// Options of `lj-trace top`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// The process to look at
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pid: u32,

    /// Look only at the VM with this address, which `lj-trace list` shows [default: all VMs]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
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
  sudo lj-trace top --pid 1234 --mode all             and what allocates";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &TopArgs) -> Result<(), CommandError> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let message = "top draws on a terminal, and there is none: use `lj-trace record` to write to a file";
        return Err(CommandError::usage(message));
    }
    priority::raise();
    if args.mode != Mode::Sysprof {
        start_guardian()?;
    }
    let options = RecordArgs::live(args.pid, args.vm, args.mode, args.rate, args.limit.clone())?;
    let mut targets = targets(&options)?;
    // There is one for each process that is named.
    let target = &mut targets[0];
    let mut app = App::new(TopTarget {
        name: target.name(),
        vm: target.vms.first().map(|vm| vm.describe()).unwrap_or_default(),
        rate: (args.mode != Mode::Memprof).then_some(args.rate),
        memory: args.mode != Mode::Sysprof,
        interval: args.interval,
    });
    target.live = Some(app.allocations.clone());
    let mut recording = Recording::start(target, 1)?;
    give_up_privileges(&options, &[], || recording.is_in_reach());
    // It puts the terminal back in order if lj-trace panics.
    let mut terminal = ratatui::try_init().map_err(|error| CommandError::io("use the terminal", &error))?;
    let outcome = look(args, target, &mut recording, &mut app, &mut terminal);
    // If the terminal has gone there is nothing to put in order.
    let _ = ratatui::try_restore();
    recording.detach();
    outcome
}

/// Shows the process until somebody has seen enough.
fn look(
    args: &TopArgs,
    target: &RecordTarget,
    recording: &mut Recording,
    app: &mut App,
    terminal: &mut DefaultTerminal,
) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::internal(&error))?;
    let palette = Palette { colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
    let began = Instant::now();
    runtime.block_on(async {
        let interrupts = Interrupts::listen()?;
        let mut stopping = Stopping::new(interrupts.event()?, std::iter::once(&target.process))?;
        let mut ticks = poll_interval::ticks();
        let mut next = began;
        while !app.quit {
            tokio::select! {
                stop = stopping.next(None), if app.ended.is_none() => match stop {
                    Stop::TargetExited => end(stop, recording, app)?,
                    _ => break,
                },
                _ = ticks.tick() => {}
            }
            if app.ended.is_none() {
                recording.drain(Some(app), Budget::new(budget::LOOK))?;
                poll_interval::relax(&mut ticks, recording.interval());
                if recording.is_over() {
                    app.ended = Some(Stop::OverBudget.describe());
                } else if target.process.has_become_another_program() {
                    end(Stop::TargetReplaced, recording, app)?;
                }
            }
            let mut changed = act_on_keys(app)?;
            if Instant::now() >= next {
                next += args.interval.max(poll_interval::SHORTEST);
                next = next.max(Instant::now());
                if app.ended.is_none() {
                    app.elapsed = began.elapsed();
                    let vms = recording.vms().unwrap_or_else(|| target.vms.clone());
                    app.roll(Gauge::read(&target.process, &vms, recording.lost()));
                    if app.tab == Tab::Interpreted {
                        app.interpreted.explain(&target.process, &vms, app.span);
                    }
                }
                changed |= !app.paused;
            }
            if changed {
                let drawn = terminal.draw(|frame| view::draw(frame, app, palette));
                drawn.map_err(|error| CommandError::io("draw on the terminal", &error))?;
            }
        }
        Ok(())
    })
}

/// Takes the last of what there is of a process that is not there any more.
fn end(why: Stop, recording: &mut Recording, app: &mut App) -> Result<(), CommandError> {
    recording.detach();
    recording.drain_all(Some(app), Budget::new(budget::END))?;
    app.ended = Some(why.describe());
    Ok(())
}

/// Does what the keys say that were pressed since; whether the picture changes.
fn act_on_keys(app: &mut App) -> Result<bool, CommandError> {
    let failed = |error: std::io::Error| CommandError::io("read the keys", &error);
    let mut changed = false;
    while event::poll(Duration::ZERO).map_err(failed)? {
        match event::read().map_err(failed)? {
            Event::Key(key) => match action(key, app.typing) {
                // Nothing comes any more that could be held back.
                Some(Action::Pause) if app.ended.is_some() => {}
                Some(action) => {
                    app.act(action);
                    changed = true;
                }
                None => {}
            },
            Event::Resize(..) => changed = true,
            _ => {}
        }
    }
    Ok(changed)
}
