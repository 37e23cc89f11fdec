//! Follows objects alongside the windows of a memory profile.

use std::sync::Once;

use lj_trace_probes::harm::Harm;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_probes::programs::Programs;
use lj_trace_probes::watchpoints::Watchpoints;

use crate::allocations::Estimation;
use crate::bounded::lifetimes::Lifetimes;
use crate::bounded::lifetimes::polled::Polled;
use crate::options::{Options, UseWatchpoint};
use crate::target::RecordTarget;

/// Begins to follow some of the objects that windows see. If the machine has no watchpoint to spare, or if a watchpoint
/// would slow the program down even without hits, the garbage collectors are polled instead.
pub fn start(target: &RecordTarget, programs: &mut Programs, estimation: &mut Estimation, polled: Polled) {
    let RecordTarget { options, process, .. } = target;
    let vms = target.recorded();
    let watchpoints = may_watch(options).then(|| Watchpoints::attach(programs, process, &vms));
    if let Some(Err(error)) = &watchpoints {
        let text = format!(
            "lj-trace: lifetimes of objects are a little less exact, from polling instead of watchpoints: {error}"
        );
        say(Priority::Info, &text);
    }
    estimation.follow_objects(Lifetimes::with(watchpoints.and_then(Result::ok), polled, process, &vms));
}

/// Whether a recording uses watchpoints, provided that the machine has some to spare.
pub fn may_watch(options: &Options) -> bool {
    options.overhead.is_some()
        && match options.testing.watchpoint {
            UseWatchpoint::Always => true,
            UseWatchpoint::Never => false,
            UseWatchpoint::Auto => is_harmless(options.verbose),
        }
}

/// Whether watchpoints have no side effects on this machine.
fn is_harmless(verbose: bool) -> bool {
    static TOLD: Once = Once::new();
    let harm = Harm::here();
    if let Some(harm) = harm.filter(|_| verbose) {
        TOLD.call_once(|| say(Priority::Info, &format!("lj-trace: collection cycles are polled: {harm}")));
    }
    harm.is_none()
}
