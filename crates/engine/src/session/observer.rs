//! Who is told how far a session is.

use std::time::Duration;

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

    /// It is ending, and why.
    fn stopping(&self, why: &str);

    /// All files are complete but those that hold several processes.
    fn finish(&self);
}
