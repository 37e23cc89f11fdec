//! `--mode waits`: looks at coroutines until told to stop.

use indicatif::{ProgressBar, ProgressStyle};
use lj_trace_engine::session::{NewChildren, SessionControl};
use lj_trace_engine::{Options, RecordTarget, WaitSession};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_process::Process;
use lj_trace_process::privileges::Capability;
use lj_trace_text::{COLUMNS, fit_end};
use tokio::runtime::Runtime;

use super::give_up_privileges;
use super::interrupts::Interrupts;
use super::program::StartedProgram;
use crate::exit::{CommandError, ExitCode};
use crate::service::notify::Notifier;

/// Records waits. `known` are the processes of `targets`; `program` is the program that lj-trace has started, if it
/// has.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(
    options: &Options,
    targets: Vec<RecordTarget>,
    (known, control): (Vec<Process>, SessionControl),
    runtime: &Runtime,
    (mut program, interrupts): (Option<StartedProgram>, &Interrupts),
) -> Result<ExitCode, CommandError> {
    let notifier = Notifier::new();
    let names: Vec<String> = targets.iter().map(RecordTarget::name).collect();
    let mut session = WaitSession::start(options, targets)?;
    // Signals that end lj-trace are passed on to the program.
    let passes_on = if program.is_some() { &[Capability::Kill][..] } else { &[] };
    give_up_privileges(options, passes_on, || true);
    let children = options.is_of_several().then(|| NewChildren::watch(options.roots(), known)).transpose()?;
    program.as_mut().map_or(Ok(()), StartedProgram::go)?;
    notifier.ready(&format!("looking at the coroutines of {}", names.join(", ")));
    let bar = if options.quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let tell = |message: &str| {
        notifier.progress(|| message.to_owned());
        bar.set_message(fit_end(message, COLUMNS - 2));
        bar.tick();
    };
    let stop = runtime.block_on(session.run(control, children.as_ref(), &tell));
    bar.finish_and_clear();
    if let Ok(stop) = &stop {
        notifier.stopping(&format!("{}, writing the files", stop.describe()));
    }
    let has_vm = session.has_vm();
    let recorded = session.finish(stop);
    let Some(program) = program else {
        recorded?;
        return Ok(ExitCode::OK);
    };
    if !has_vm {
        say(Priority::Warning, &format!("lj-trace: no LuaJIT VM was seen in {}", program.name()));
    }
    let code = program.wait(interrupts, options.quiet)?;
    recorded?;
    Ok(code)
}
