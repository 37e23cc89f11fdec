//! Follows objects beside the windows of a memory profile.

use std::sync::OnceLock;

use super::args::{RecordArgs, UseWatchpoint};
use super::targets::RecordTarget;
use crate::bounded::lifetimes::Lifetimes;
use crate::bounded::lifetimes::polled::Polled;
use crate::probes::calibrate;
use crate::probes::programs::Programs;
use crate::probes::watchpoints::Watchpoints;
use crate::record::Estimation;
use crate::service::journal::{Priority, say};

/// A watchpoint that slows string instructions by this factor is not worth what it tells.
const HARMLESS: f64 = 1.1;

/// Begins to follow some of the objects that windows see. Where the machine has no watchpoints to spare, or the program would
/// be slower for one that is not even hit, the collectors are polled.
pub fn start(target: &RecordTarget, programs: &mut Programs, estimation: &mut Estimation, polled: Polled) {
    let RecordTarget { args, process, .. } = target;
    let vms = target.recorded();
    let watchpoints = may_watch(args).then(|| Watchpoints::attach(programs, process, &vms));
    if let Some(Err(error)) = &watchpoints {
        let text = format!(
            "lj-trace: how long objects live is told a little less exactly, from polling instead of watchpoints: {error}"
        );
        say(Priority::Info, &text);
    }
    estimation.follow_objects(Lifetimes::with(watchpoints.and_then(Result::ok), polled, process, &vms));
}

/// Whether a recording has watchpoints, if it gets any.
pub fn may_watch(args: &RecordArgs) -> bool {
    args.overhead.is_some()
        && match args.watchpoint {
            UseWatchpoint::Always => true,
            UseWatchpoint::Never => false,
            UseWatchpoint::Auto => is_harmless(args.verbose),
        }
}

/// Whether a watchpoint slows nothing here as long as it is not hit. It does not change while lj-trace runs.
fn is_harmless(verbose: bool) -> bool {
    static MEASURED: OnceLock<Option<f64>> = OnceLock::new();
    // If there are none, it is told when one is wanted.
    let measure = || {
        let factor = calibrate::armed().ok()?;
        if factor >= HARMLESS && verbose {
            let text = format!(
                "lj-trace: collection cycles are polled: while there is a watchpoint, this processor takes {factor:.1} times \
                 as long to copy by string instructions"
            );
            say(Priority::Info, &text);
        }
        Some(factor)
    };
    MEASURED.get_or_init(measure).is_none_or(|factor| factor < HARMLESS)
}
