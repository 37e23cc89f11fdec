//! Follows objects beside the windows of a memory profile.

use super::targets::RecordTarget;
use crate::bounded::lifetimes::Lifetimes;
use crate::bounded::lifetimes::polled::Polled;
use crate::probes::programs::Programs;
use crate::probes::watchpoints::Watchpoints;
use crate::record::Estimation;
use crate::service::journal::{Priority, say};

/// Begins to follow some of the objects that windows see. Where the machine has no watchpoints to spare, the collectors are
/// polled, which is said.
pub fn start(target: &RecordTarget, programs: &mut Programs, estimation: &mut Estimation, polled: Polled) {
    let RecordTarget { args, process, .. } = target;
    let vms = target.recorded();
    let watchpoints = (!args.no_watchpoint).then(|| Watchpoints::attach(programs, process, &vms));
    if let Some(Err(error)) = &watchpoints {
        let text = format!(
            "lj-trace: how long objects live is told a little less exactly, from polling instead of watchpoints: {error}"
        );
        say(Priority::Info, &text);
    }
    estimation.follow_objects(Lifetimes::with(watchpoints.and_then(Result::ok), polled, process, &vms));
}
