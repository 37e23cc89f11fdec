//! Observers of the progress of a session.

use std::time::Duration;

use lj_trace_profile::answer::SeenAt;

use super::Session;
use crate::options::Options;
use crate::recording::Recording;
use crate::target::RecordTarget;

/// Observes the progress of a session, as a progress line or a service manager does.
pub trait Observer {
    /// The recording of a process has begun. `attach` is the time that this took.
    fn announce(&self, options: &Options, target: &RecordTarget, recording: &Recording, attach: Duration);

    /// The recordings of all named processes have begun.
    fn ready(&self, session: &Session<'_>);

    /// The session goes on; `elapsed` is its duration so far. Called several times per second.
    fn update(&self, session: &Session<'_>, elapsed: Duration);

    /// Where the VMs of a process were when the observer looked at them, if it did.
    fn seen(&self) -> Option<SeenAt> {
        None
    }

    /// How many seconds all threads together waited for a CPU while they were ready to run, if the observer knows it.
    fn queued(&self) -> Option<f64> {
        None
    }

    /// The session is ending; `why` is the reason.
    fn stopping(&self, why: &str);

    /// All files are complete, except those that cover several processes.
    fn finish(&self);
}
