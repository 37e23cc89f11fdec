//! Why a recording ends.

/// Why recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal asked for it.
    Signal,
    /// The time is over.
    Duration,
    /// The process has exited.
    TargetExited,
    /// It cost the process more than it may.
    OverBudget,
    /// The memory that lj-trace may use is used up.
    OutOfMemory,
    /// It has executed another program.
    TargetReplaced,
    /// A stream is as large as it may be.
    TooLarge,
    /// Nobody reads the output any more.
    ReaderGone,
    /// Something went wrong with it, while others go on.
    Failed,
}

impl Stop {
    /// In a few words.
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
