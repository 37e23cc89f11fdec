//! `lj-trace record`: attach, record until told to stop, write the results, summarize.

mod args;
mod cpu_queue;
mod debug_files;
pub(super) mod interrupts;
mod program;
mod progress;
mod vm_looks;
mod wait;
mod waits;

use std::path::Path;
use std::time::{Duration, Instant};

use lj_trace_engine::options::Scope;
use lj_trace_engine::output::allow_replacing;
use lj_trace_engine::session::{NewChildren, SessionControl, Stopping};
use lj_trace_engine::target::selected;
use lj_trace_engine::{EngineError, Failure, Options, RecordTarget, Recording, Session};
use lj_trace_probes::calibrate::try_probe;
use lj_trace_probes::guardian;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::mechanism::Mechanism;
use lj_trace_probes::perf_event::{Clock, try_open};
use lj_trace_process::Process;
use lj_trace_process::privileges::{self, Capabilities, Capability, priority};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

pub use args::{LimitArgs, LiveOptions, Mode, RecordArgs};
pub(super) use args::{no_text_for_terminal, parse_address};
use interrupts::Interrupts;
use program::StartedProgram;
use progress::Progress;

use crate::exit::{CommandError, ExitCode};

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &RecordArgs) -> Result<ExitCode, CommandError> {
    let started = Instant::now();
    let options = args.options()?;
    if args.force {
        allow_replacing();
    }
    // Started first: the program must not inherit what lj-trace does to itself.
    let mut program = match &args.program[..] {
        [] => None,
        words => Some(StartedProgram::start(words, args.as_root)?),
    };
    priority::raise();
    let interrupts = Interrupts::listen()?;
    if options.kinds.allocations {
        start_guardian()?;
    }
    let progress = Progress::new(&options);
    let selector = args.selector();
    let find = || match &selector {
        _ if program.is_some() => of_program(&options, program.as_ref()),
        Some(selector) => selected(selector, &options),
        None => wait::find(&options, args.wait.is_some()).map(|targets| (options.clone(), targets)),
    };
    let found = match args.wait {
        Some(limit) => {
            // A process that was selected by ID exists from the beginning.
            let may_come =
                if selector.is_some() { &[Failure::NoLuajit, Failure::NoProcess][..] } else { &[Failure::NoLuajit] };
            wait::until_found(find, may_come, limit, &interrupts, &progress)?
        }
        None => Some(find()?),
    };
    let Some((options, targets)) = found else { return Ok(ExitCode::OK) };
    if let Some(urls) = &args.debuginfod {
        debug_files::fetch(urls.as_deref(), &targets, &interrupts, args.quiet)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::internal(&error))?;
    let control = listen(&runtime, &options, &targets, &interrupts)?;
    let known = targets.iter().map(|target| target.process.clone()).collect();
    if options.kinds.waits {
        return waits::run(&options, targets, (known, control), &runtime, (program, &interrupts));
    }
    let mut session = Session::start(&options, targets, &progress, started)?;
    // Processes that come later need these privileges for attaching.
    let attaches = if options.is_of_several() { &privileges::TO_ATTACH[..] } else { &[] };
    // Signals that end lj-trace are passed on to the program.
    let passes_on = if program.is_some() { &[Capability::Kill][..] } else { &[] };
    give_up_privileges(&options, &[attaches, passes_on].concat(), || {
        session.recordings().all(Recording::is_in_reach) && (!options.is_of_several() || can_attach(&options))
    });
    let children = options.is_of_several().then(|| NewChildren::watch(options.roots(), known)).transpose()?;
    program.as_mut().map_or(Ok(()), StartedProgram::go)?;
    let began = Instant::now();
    let stop = runtime.block_on(session.run(control, children.as_ref(), &progress));
    let no_vm = session.recordings().next().is_some() && session.recordings().all(|own| own.vms_so_far() == 0);
    let lasted = began.elapsed();
    let recorded = session.finish(stop, &progress);
    let Some(program) = program else {
        recorded?;
        return Ok(ExitCode::OK);
    };
    if no_vm {
        say(Priority::Warning, &without_vm(program.name(), lasted, options.rate));
    }
    let code = program.wait(&interrupts, options.quiet)?;
    recorded?;
    Ok(code)
}

/// The targets of a recording of a program that lj-trace has started.
fn of_program(
    options: &Options,
    program: Option<&StartedProgram>,
) -> Result<(Options, Vec<RecordTarget>), EngineError> {
    let (pid, name) = program.map(|program| (program.pid(), program.name())).unwrap_or_default();
    let scope = match options.scope {
        Scope::Children => Scope::These { pids: vec![pid], what: format!("{name} and what it starts") },
        _ => Scope::One,
    };
    let options = Options { pid, scope, ..options.clone() };
    let own = if options.is_of_several() { options.of_child(pid) } else { options.clone() };
    Ok((options, vec![RecordTarget::starting(own)?]))
}

/// The message about a program in which no VM was found.
fn without_vm(name: &str, lasted: Duration, rate: u32) -> String {
    let milliseconds = lasted.as_secs_f64() * 1e3;
    format!(
        "lj-trace: no LuaJIT VM was seen in {name} within {milliseconds:.0} ms: what samples there are show its native stacks \
         alone. It takes some 20 ms to find a VM, and samples come {rate} times a second: have a short program do its work more \
         often. If it starts others, --children records them"
    )
}

/// Starts the guardian, which inserts and removes probes. This comes before there are threads, and while lj-trace is
/// still small.
pub(super) fn start_guardian() -> Result<(), CommandError> {
    guardian::start().map_err(|error| CommandError::internal(&error))
}

/// The privileges that the guardian keeps once everything is attached: the cost of probes is still being measured, and
/// new VMs may have allocators of their own.
fn guardian_needs(options: &Options) -> Capabilities {
    let is_classic = options.wanted(1).mechanism == Mechanism::Classic;
    let more: &[Capability] = if is_classic { &[Capability::SysAdmin] } else { &[] };
    Capabilities::of(&[&privileges::TO_ATTACH[..], more].concat())
}

/// Gives up the privileges that nothing needs any more, except `more`. `works` says whether the recording still works.
pub(super) fn give_up_privileges(options: &Options, more: &[Capability], mut works: impl FnMut() -> bool) {
    // The kernel's symbols are read when the first one is needed.
    let symbols: &[Capability] = if options.kernel || options.kinds.off_cpu { &[Capability::Syslog] } else { &[] };
    // New VMs may have allocators that no VM has used before. Probes by links can be added without privileges, perf
    // events cannot.
    let is_classic = options.vm.is_none() && options.wanted(1).mechanism == Mechanism::Classic;
    let later: &[Capability] = if is_classic { &privileges::TO_ATTACH } else { &[] };
    let works = || works() && (!is_classic || try_probe(Mechanism::Classic).is_ok());
    guardian::keep_only(guardian_needs(options));
    // New VMs and children get files of their own.
    let files: &[Capability] =
        if options.folders().all(|folder| is_own(&folder)) { &[] } else { &[Capability::DacOverride] };
    if let Err(error) = privileges::drop_unneeded(&[more, symbols, later, files].concat(), works) {
        say(Priority::Warning, &format!("lj-trace: keeps all privileges, since they cannot be given up: {error}"));
    }
}

/// Whether files can be created in a folder without any privilege, because it belongs to this user.
fn is_own(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // SAFETY: geteuid(2) takes nothing, and always succeeds.
    let own = unsafe { libc::geteuid() };
    std::fs::metadata(folder).is_ok_and(|folder| folder.uid() == own && folder.mode() & 0o300 == 0o300)
}

/// Whether this thread could still attach to a process.
pub(super) fn can_attach(options: &Options) -> bool {
    let samples = !options.kinds.cpu || try_open(Clock::CpuClock).is_ok();
    // Probes through perf events require `CAP_SYS_ADMIN`.
    let probes = !options.kinds.allocations
        || Mechanism::detect() == Mechanism::Multi
        || Capabilities::effective().has(Capability::SysAdmin);
    samples && probes
}

/// Listens for requests during a recording: signals that end it, or that ask for a snapshot of the results.
fn listen(
    runtime: &Runtime,
    options: &Options,
    targets: &[RecordTarget],
    interrupts: &Interrupts,
) -> Result<SessionControl, CommandError> {
    let _runtime = runtime.enter();
    // A parent creates new children as long as it exists.
    let parents: Vec<Process> = match options.scope {
        Scope::One | Scope::Host => Vec::new(),
        Scope::Children => vec![Process::open(options.pid)?],
        // A parent that has exited need not be waited for.
        Scope::These { .. } => options.roots().into_iter().filter_map(|pid| Process::open(pid).ok()).collect(),
    };
    let processes: Vec<&Process> =
        parents.iter().chain(targets.iter().filter(|_| parents.is_empty()).map(|target| &target.process)).collect();
    let stopping = Stopping::new(interrupts.event()?, processes.into_iter())?;
    let interim = signal(SignalKind::user_defined1()).map_err(|error| CommandError::internal(&error))?;
    Ok(SessionControl { stopping, interim })
}
