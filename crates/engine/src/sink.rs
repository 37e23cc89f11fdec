//! Where profiles go.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use lj_trace_process::Process;
pub use lj_trace_profile::Interval;
use lj_trace_profile::ProfileKind;

use crate::error::EngineError;

/// Takes the intervals of a profile as they end. A file that is written at the end of a recording is a sink with one
/// interval, or with many under `--rotate`. Code that pushes profiles to a server is also a sink.
pub trait Sink {
    /// Prepares for the interval that begins at `next` (formatted for file names, `20261123T094500Z`). The call comes
    /// before the current interval ends: if the sink cannot go on, the caller learns it while nothing is lost.
    ///
    /// # Errors
    /// The sink cannot take another interval. The current interval goes on.
    fn prepare(&mut self, next: &str) -> Result<(), EngineError>;

    /// Shows the current interval so far, because a user or a caller asked for it. Returns the path of the file, as
    /// [`end`](Self::end) does.
    ///
    /// # Errors
    /// The sink cannot show the interval.
    fn show(&mut self, interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError>;

    /// Takes an interval that is over. Returns the path of its file, if the interval is in a file that the user knows by
    /// name.
    ///
    /// # Errors
    /// The sink cannot take the interval. Its data is lost for this sink.
    fn end(&mut self, interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError>;
}

/// Makes the sinks that a process gets for each kind of profile, besides its files.
pub trait SinkFactory: Debug + Send + Sync {
    /// The sinks of a process whose recording is about to begin.
    fn sinks(&self, process: &Process, kind: ProfileKind) -> Vec<Box<dyn Sink>>;
}

/// One factory for all processes of a session.
pub type SharedSinkFactory = Arc<dyn SinkFactory>;

/// Hands an ended interval to all of `sinks`; returns the paths of the files that contain it.
///
/// # Errors
/// The error of the first sink that could not take it. The other sinks take the interval all the same.
pub(crate) fn end_all(sinks: &mut [Box<dyn Sink>], interval: &Interval<'_>) -> Result<Vec<PathBuf>, EngineError> {
    let ended: Vec<_> = sinks.iter_mut().map(|sink| sink.end(interval)).collect();
    Ok(ended.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Makes all of `sinks` show the interval so far; returns the paths of the files that contain it.
///
/// # Errors
/// The error of the first sink that cannot show it.
pub(crate) fn show_all(sinks: &mut [Box<dyn Sink>], interval: &Interval<'_>) -> Result<Vec<PathBuf>, EngineError> {
    sinks.iter_mut().filter_map(|sink| sink.show(interval).transpose()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// The intervals that a sink has taken: the kind and the total of each.
    pub type Taken = Rc<RefCell<Vec<(ProfileKind, u64)>>>;

    /// Keeps the totals in memory, in place of a sink that would send them to a server.
    #[derive(Default)]
    pub struct Totals(pub Taken);

    impl Sink for Totals {
        fn prepare(&mut self, _next: &str) -> Result<(), EngineError> {
            Ok(())
        }

        fn show(&mut self, _interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError> {
            Ok(None)
        }

        fn end(&mut self, interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError> {
            assert!(interval.began <= interval.ended);
            self.0.borrow_mut().push((interval.kind, interval.profile.total()));
            Ok(None)
        }
    }
}
