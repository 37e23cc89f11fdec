//! Why a recording ends.

/// The reason why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal asked for it.
    Signal,
    /// The duration is over.
    Duration,
    /// The process has exited.
    TargetExited,
    /// The recording cost the process more than the limit.
    OverBudget,
    /// The memory that lj-trace may use is used up.
    OutOfMemory,
    /// The process has executed another program.
    TargetReplaced,
    /// A stream has reached its maximal size.
    TooLarge,
    /// The reader of the output has closed it.
    ReaderGone,
    /// The recording of this process failed, while others go on.
    Failed,
}

impl Stop {
    /// The reason in a few words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Signal => "stopped by a signal",
            Self::Duration => "finished",
            Self::TargetExited => "the process has exited",
            Self::OverBudget => "stopped because it cost the process too much",
            Self::OutOfMemory => "stopped before memory ran out",
            Self::TargetReplaced => "the process has executed another program",
            Self::TooLarge => "a stream has reached --max-size",
            Self::ReaderGone => "the reader of the output has gone",
            Self::Failed => "stopped by an error",
        }
    }
}
