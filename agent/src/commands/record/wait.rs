//! `--wait`: recording begins once the process has a VM. A host may load LuaJIT late, or execute another program first.

use std::time::{Duration, Instant};

use lj_trace_engine::options::Scope;
use lj_trace_engine::target::targets;
use lj_trace_engine::{EngineError, Failure, Options, RecordTarget};
use lj_trace_probes::journal::{Priority, say};

use super::interrupts::Interrupts;
use super::progress::Progress;
use crate::exit::{CommandError, ExitCode};

/// How often the process is looked at, at most; and at least, where looking through its memory takes long.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);

/// Looking takes no more than one part of this many of the time, so that waiting costs little.
const SHARE: u32 = 20;

/// What `options` are about. If it `waits` for a VM, it is not asked which process may be meant instead.
///
/// # Errors
/// There is nothing to be recorded.
pub fn find(options: &Options, waits: bool) -> Result<Vec<RecordTarget>, EngineError> {
    if waits && options.scope == Scope::One {
        return RecordTarget::new(options.clone()).map(|target| vec![target]);
    }
    targets(options)
}

/// Waits until something to record is found, and gives that; [`None`] if a signal ends the waiting. A failure
/// in `may_come` is waited out.
///
/// # Errors
/// The process has exited, cannot be looked at, or the time that was given for waiting is over.
pub fn until_found<T>(
    find: impl Fn() -> Result<T, EngineError>,
    may_come: &[Failure],
    limit: Option<Duration>,
    interrupts: &Interrupts,
    progress: &Progress,
) -> Result<Option<T>, CommandError> {
    let began = Instant::now();
    let mut said = String::new();
    loop {
        let look = Instant::now();
        let refusal = match find() {
            Err(error) if may_come.contains(&error.failure) => error.message,
            found => return Ok(Some(found?)),
        };
        if let Some(limit) = limit.filter(|limit| began.elapsed() >= *limit) {
            let message = format!("waited for {limit:?}, and still {refusal}");
            return Err(CommandError::new(ExitCode::NO_LUAJIT, message));
        }
        // What is wrong with it may change meanwhile.
        progress.waiting((said != refusal).then_some(&refusal));
        said = refusal;
        let pause = (look.elapsed() * SHARE).clamp(SHORTEST, LONGEST);
        let left = limit.map_or(pause, |limit| limit.saturating_sub(began.elapsed()));
        if interrupts.heard_within(pause.min(left)) {
            if !progress.is_quiet() {
                say(Priority::Info, "stopped by a signal while it waited: nothing was recorded");
            }
            return Ok(None);
        }
    }
}
