//! Where profiles go.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use lj_trace_process::Process;
pub use lj_trace_profile::Interval;
use lj_trace_profile::ProfileKind;

use crate::error::EngineError;

/// Takes the intervals of a profile as they end. A file that is written when a recording ends is a sink with one interval;
/// with `--rotate`, one with many; what pushes profiles to a server is another.
pub trait Sink {
    /// Makes ready for the interval that begins at `next` (as names of files have it, `20261123T094500Z`). It comes before
    /// the end of the one that is under way, so that what cannot go on is known while nothing is lost.
    ///
    /// # Errors
    /// It cannot take another interval. The one that is under way goes on.
    fn prepare(&mut self, next: &str) -> Result<(), EngineError>;

    /// Shows what there is so far of the interval that is under way: somebody has asked for it. Returns the file that it is
    /// in, as [`end`](Self::end).
    ///
    /// # Errors
    /// It cannot be shown.
    fn show(&mut self, interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError>;

    /// Takes an interval that is over; returns the file that it is in, if there is one that people know by a name.
    ///
    /// # Errors
    /// It cannot be taken: what was recorded in it is lost for this sink.
    fn end(&mut self, interval: &Interval<'_>) -> Result<Option<PathBuf>, EngineError>;
}

/// Makes the sinks that one process gets for one kind of profile, beside its files.
pub trait SinkFactory: Debug + Send + Sync {
    /// The sinks of a process that is about to be recorded.
    fn sinks(&self, process: &Process, kind: ProfileKind) -> Vec<Box<dyn Sink>>;
}

/// One for all processes of a session.
pub type SharedSinkFactory = Arc<dyn SinkFactory>;

/// Takes an interval to all of `sinks`; returns the files that it is in.
///
/// # Errors
/// The first of them that could not take it; the others have it all the same.
pub(crate) fn end_all(sinks: &mut [Box<dyn Sink>], interval: &Interval<'_>) -> Result<Vec<PathBuf>, EngineError> {
    let ended: Vec<_> = sinks.iter_mut().map(|sink| sink.end(interval)).collect();
    Ok(ended.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Has all of `sinks` show what there is so far; returns the files that it is in.
///
/// # Errors
/// The first of them that cannot.
pub(crate) fn show_all(sinks: &mut [Box<dyn Sink>], interval: &Interval<'_>) -> Result<Vec<PathBuf>, EngineError> {
    sinks.iter_mut().filter_map(|sink| sink.show(interval).transpose()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// What a sink has taken: the kind and the total of each interval.
    pub type Taken = Rc<RefCell<Vec<(ProfileKind, u64)>>>;

    /// Keeps the totals in memory, as something that pushes would send them.
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
