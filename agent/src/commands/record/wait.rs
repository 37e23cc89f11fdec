//! `--wait`: recording begins once the process has a VM. A host may load LuaJIT late, or execute another program first.

use std::time::{Duration, Instant};

use lj_trace_probes::journal::{Priority, say};

use lj_trace_engine::target::children;
use lj_trace_engine::{Failure, Options, RecordTarget};

use super::interrupts::Interrupts;
use super::progress::Progress;
use crate::exit::{CommandError, ExitCode};

/// How often the process is looked at, at most; and at least, where looking through its memory takes long.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);

/// Looking takes no more than one part of this many of the time, so that waiting costs little.
const SHARE: u32 = 20;

/// Waits until there is something to record, and gives that; [`None`] if a signal ends the waiting.
///
/// # Errors
/// The process has exited, cannot be looked at, or the time that was given for waiting is over.
pub fn targets(
    options: &Options,
    limit: Option<Duration>,
    interrupts: &Interrupts,
    progress: &Progress,
) -> Result<Option<Vec<RecordTarget>>, CommandError> {
    let began = Instant::now();
    let mut said = String::new();
    loop {
        let look = Instant::now();
        let found = if options.children {
            children(options)
        } else {
            RecordTarget::new(options.clone()).map(|target| vec![target])
        };
        let refusal = match found {
            Err(error) if error.failure == Failure::NoLuajit => error.message,
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
            if !options.quiet {
                say(Priority::Info, "stopped by a signal while it waited: nothing was recorded");
            }
            return Ok(None);
        }
    }
}
