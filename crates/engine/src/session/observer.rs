//! Who is told how far a session is.

use std::time::Duration;

use lj_trace_profile::answer::SeenAt;

use super::Session;
use crate::options::Options;
use crate::recording::Recording;
use crate::target::RecordTarget;

/// Is told how far a session is: a progress line, a service manager.
pub trait Observer {
    /// A process is being recorded; `attach` is how long it took to begin.
    fn announce(&self, options: &Options, target: &RecordTarget, recording: &Recording, attach: Duration);

    /// All processes that were named are being recorded.
    fn ready(&self, session: &Session<'_>);

    /// It goes on, and has for so long. Comes several times a second.
    fn update(&self, session: &Session<'_>, elapsed: Duration);

    /// Where the VMs of a process were when it looked at them, if it did.
    fn seen(&self) -> Option<SeenAt> {
        None
    }

    /// For how many seconds all threads together were ready to run and had no CPU, if it knows.
    fn queued(&self) -> Option<f64> {
        None
    }

    /// It is ending, and why.
    fn stopping(&self, why: &str);

    /// All files are complete but those that hold several processes.
    fn finish(&self);
}
