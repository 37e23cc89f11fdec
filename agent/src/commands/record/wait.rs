//! `--wait`: recording begins once the process has a VM. A host may load LuaJIT late, or execute another program first.

use std::time::{Duration, Instant};

use lj_trace_engine::options::Scope;
use lj_trace_engine::target::targets;
use lj_trace_engine::{EngineError, Failure, Options, RecordTarget};
use lj_trace_probes::journal::{Priority, say};

use super::interrupts::Interrupts;
use super::progress::Progress;
use crate::exit::{CommandError, ExitCode};

/// The shortest and the longest time between two checks of the process. It grows if searching the memory takes long.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);

/// Checks take at most 1/20 of the time, so that waiting costs little.
const SHARE: u32 = 20;

/// The processes that `options` select. With `waits`, this does not ask which process may be meant instead.
///
/// # Errors
/// There is nothing to record.
pub fn find(options: &Options, waits: bool) -> Result<Vec<RecordTarget>, EngineError> {
    if waits && options.scope == Scope::One {
        return RecordTarget::new(options.clone()).map(|target| vec![target]);
    }
    targets(options)
}

/// Waits until `find` succeeds, and returns its result; [`None`] if a signal ends the waiting. Failures in `may_come`
/// do not end the waiting.
///
/// # Errors
/// The process has exited, cannot be read, or the time limit for waiting is over.
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
        // The reason may change meanwhile.
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
