//! `lj-trace record`: attach, record until told to stop, write the results, say what was found.

mod accounts;
mod args;
mod bounded;
pub(super) mod budget;
mod changes;
mod children;
pub(super) mod cost;
pub(super) mod interrupts;
mod lifetimes;
mod memory;
pub(super) mod poll_interval;
mod progress;
pub(super) mod recording;
mod session;
pub(super) mod stopping;
pub(super) mod targets;
mod unknown_vms;
mod vm_discovery;
mod wait;
mod watch;

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub use args::{Mode, RecordArgs};
pub(super) use args::{parse_address, parse_duration};
use children::NewChildren;
use interrupts::Interrupts;
use lj_trace_probes::calibrate::try_probe;
use lj_trace_probes::guardian;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::mechanism::Mechanism;
use lj_trace_probes::perf_event::{Clock, try_open};
use lj_trace_process::Process;
use lj_trace_process::privileges::{self, Capabilities, Capability, priority};
use progress::Progress;
use recording::Recording;
use session::Session;
use stopping::{Stop, Stopping};
use targets::{RecordTarget, targets};

use crate::exit::CommandError;
use crate::record::allow_replacing;
use crate::service::memory::MemoryLimit;

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &RecordArgs) -> Result<(), CommandError> {
    let started = Instant::now();
    args.check_standard_output()?;
    args.check_rotation()?;
    bounded::check(args)?;
    if args.force {
        allow_replacing();
    }
    priority::raise();
    let interrupts = Interrupts::listen()?;
    if args.mode != Mode::Sysprof {
        start_guardian()?;
    }
    let progress = Progress::new(args);
    let targets = if args.wait.is_some() { wait::targets(args, &interrupts, &progress)? } else { Some(targets(args)?) };
    let Some(targets) = targets else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::internal(&error))?;
    let signals = Signals::listen(&runtime, args, &targets, &interrupts)?;
    let known = targets.iter().map(|target| target.process.clone()).collect();
    let mut session = Session::start(args, targets, &progress, started)?;
    // Those that come later have to be attached to as well.
    let attaches = if args.children { &privileges::TO_ATTACH[..] } else { &[] };
    give_up_privileges(args, attaches, || {
        session.recordings().all(Recording::is_in_reach) && (!args.children || can_attach(args.mode))
    });
    let children = args.children.then(|| NewChildren::watch(args.pid, known)).transpose()?;
    let stop = runtime.block_on(record(args, signals, &mut session, children.as_ref(), &progress));
    session.finish(stop, &progress)
}

/// Starts what puts probes in and takes them out: before there are threads, and much memory.
pub(super) fn start_guardian() -> Result<(), CommandError> {
    guardian::start().map_err(|error| CommandError::internal(&error))
}

/// What the guardian goes on with once all is attached: what probes cost is still being measured, and new VMs may have
/// allocators of their own.
fn guardian_needs(args: &RecordArgs) -> Capabilities {
    let is_classic = args.wanted(1).mechanism == Mechanism::Classic;
    let more: &[Capability] = if is_classic { &[Capability::SysAdmin] } else { &[] };
    Capabilities::of(&[&privileges::TO_ATTACH[..], more].concat())
}

/// Gives up what nothing needs any more that is attached, but for `more`. `works` says whether it can still do what it
/// has to.
pub(super) fn give_up_privileges(args: &RecordArgs, more: &[Capability], mut works: impl FnMut() -> bool) {
    // The kernel's symbols are read when the first one is asked for.
    let symbols: &[Capability] = if args.kernel { &[Capability::Syslog] } else { &[] };
    // VMs that come into being may have allocators that nobody has used before: links can be made without privileges,
    // perf events cannot.
    let is_classic = args.vm.is_none() && args.wanted(1).mechanism == Mechanism::Classic;
    let later: &[Capability] = if is_classic { &privileges::TO_ATTACH } else { &[] };
    let works = || works() && (!is_classic || try_probe(Mechanism::Classic).is_ok());
    guardian::keep_only(guardian_needs(args));
    // VMs and children that come into being get files of their own.
    let files: &[Capability] =
        if args.folders().all(|folder| is_own(&folder)) { &[] } else { &[Capability::DacOverride] };
    if let Err(error) = privileges::drop_unneeded(&[more, symbols, later, files].concat(), works) {
        say(Priority::Warning, &format!("lj-trace: goes on with all privileges, they cannot be given up: {error}"));
    }
}

/// Whether files can be made in a folder without any privilege, since it belongs to this user.
fn is_own(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // SAFETY: geteuid(2) takes nothing, and always succeeds.
    let own = unsafe { libc::geteuid() };
    std::fs::metadata(folder).is_ok_and(|folder| folder.uid() == own && folder.mode() & 0o300 == 0o300)
}

/// Whether this thread could still attach to a process.
fn can_attach(mode: Mode) -> bool {
    let samples = mode == Mode::Memprof || try_open(Clock::CpuClock).is_ok();
    // Probes that are perf events want `CAP_SYS_ADMIN`.
    let probes = mode == Mode::Sysprof
        || Mechanism::detect() == Mechanism::Multi
        || Capabilities::effective().has(Capability::SysAdmin);
    samples && probes
}

/// What may happen while a recording runs.
struct Signals {
    stopping: Stopping,
    /// Somebody wants to see what there is so far.
    interim: Signal,
}

impl Signals {
    fn listen(
        runtime: &Runtime,
        args: &RecordArgs,
        targets: &[RecordTarget],
        interrupts: &Interrupts,
    ) -> Result<Self, CommandError> {
        let _runtime = runtime.enter();
        // A parent makes new children as long as it is there.
        let parent = args.children.then(|| Process::open(args.pid)).transpose()?;
        let processes: Vec<&Process> = match &parent {
            Some(parent) => vec![parent],
            None => targets.iter().map(|target| &target.process).collect(),
        };
        let stopping = Stopping::new(interrupts, processes.into_iter())?;
        let interim = signal(SignalKind::user_defined1()).map_err(|error| CommandError::internal(&error))?;
        Ok(Self { stopping, interim })
    }
}

/// How often it is looked for children that have exited, and for new ones.
const CHILDREN_INTERVAL: Duration = Duration::from_millis(200);

/// How often it is looked how much memory is left, and how large files are: tables grow by some 50 MB a second where everything
/// that is allocated is kept.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);

/// The same where only CPU time is recorded, and files have no limit: tables grow with the stacks.
const CPU_MEMORY_INTERVAL: Duration = Duration::from_millis(500);

/// Records until something ends it.
async fn record(
    args: &RecordArgs,
    Signals { mut stopping, mut interim }: Signals,
    session: &mut Session<'_>,
    children: Option<&NewChildren>,
    progress: &Progress,
) -> Result<Stop, CommandError> {
    let began = Instant::now();
    let deadline = session.deadline();
    let mut ticks = poll_interval::ticks();
    let mut next_look = began;
    let mut next_memory = began;
    let mut next_piece = args.rotate.and_then(|time| began.checked_add(time));
    let mut has_parent = true;
    loop {
        tokio::select! {
            // What ends it comes first, however much there is to do.
            biased;
            reason = stopping.next(deadline) => match reason {
                // Its children may go on without it.
                Stop::TargetExited if children.is_some() => {
                    has_parent = false;
                    stopping.ignore_exits();
                }
                reason => break Ok(reason),
            },
            _ = interim.recv() => session.write_interim()?,
            _ = ticks.tick() => {
                session.drain()?;
                poll_interval::relax(&mut ticks, session.interval());
                if session.is_over() && children.is_none() {
                    break Ok(Stop::OverBudget);
                }
                progress.update(session.recordings(), began.elapsed());
                session.look_after_targets();
                if children.is_none() && session.is_replaced() {
                    break Ok(Stop::TargetReplaced);
                }
            }
        }
        if Instant::now() >= next_memory {
            let grows_fast = args.mode != Mode::Sysprof || args.max_size.is_some() || args.rotate.is_some();
            next_memory = Instant::now() + if grows_fast { MEMORY_INTERVAL } else { CPU_MEMORY_INTERVAL };
            let size = session.recordings().map(Recording::largest_stream).max().unwrap_or(0);
            let is_large = args.max_size.is_some_and(|most| size >= most);
            match args.rotate {
                None if is_large => break Ok(Stop::TooLarge),
                // If it is too early for another name, it is tried again at the next look.
                Some(time)
                    if (is_large || next_piece.is_some_and(|due| Instant::now() >= due)) && session.rotate()? =>
                {
                    next_piece = Instant::now().checked_add(time);
                }
                _ => {}
            }
            // It may have been changed.
            if let Some(memory) = MemoryLimit::of_this_process().filter(|limit| limit.is_near(session.next_growth())) {
                let megabytes = memory.bytes() >> 20;
                let text = format!(
                    "lj-trace: nearly all of the {megabytes} MB that it may use (MemoryMax=, or the container's limit) \
                     are in use: stopped, what was recorded is kept"
                );
                say(Priority::Warning, &text);
                break Ok(Stop::OutOfMemory);
            }
        }
        if let Some(children) = children.filter(|_| Instant::now() >= next_look) {
            next_look = Instant::now() + CHILDREN_INTERVAL;
            session.end_over();
            children.take(args).for_each(|target| session.add(target, progress));
            if !has_parent && !session.is_running() {
                break Ok(Stop::TargetExited);
            }
        }
    }
}
