//! Follows objects beside the windows of a memory profile.

use super::targets::RecordTarget;
use crate::bounded::lifetimes::Lifetimes;
use crate::probes::programs::Programs;
use crate::record::Estimation;
use crate::service::journal::{Priority, say};

/// Begins to follow some of the objects that windows see. Where the machine has no watchpoints to spare, the profile does
/// without, and says so.
pub fn start(target: &RecordTarget, programs: &mut Programs, estimation: &mut Estimation) {
    let RecordTarget { process, vms, only, .. } = target;
    // In the order of their numbers in the outputs: the only one that is recorded has none.
    let vms: Vec<_> = match only {
        Some(only) => vms.get(*only).cloned().into_iter().collect(),
        None => vms.clone(),
    };
    match Lifetimes::attach(programs, process, &vms) {
        Ok(lifetimes) => estimation.follow_objects(lifetimes),
        Err(error) => {
            let text =
                format!("lj-trace: the profile will not tell how long objects live, without watchpoints: {error}");
            say(Priority::Info, &text);
        }
    }
}
