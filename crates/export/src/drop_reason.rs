//! Why something is lost.

/// Why something was not sent and never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The queue in memory was full, and no spool took it.
    QueueFull,
    /// The spool was full: the oldest made room.
    SpoolFull,
    /// The server refused it for good: 400, 404 and others.
    Refused,
    /// The server wants other credentials: 401 or 403.
    Unauthorized,
    /// It is too large for the server, and cannot be halved.
    TooLarge,
    /// The server took a part of it only. How much of it was refused is estimated from the number of profiles.
    PartlyRejected,
    /// The server failed at it again and again, and not at others.
    Failing,
    /// What the spool has of it was not what had been written.
    Corrupt,
    /// lj-trace ended before it could be sent, and no spool took it.
    ShutDown,
}

impl DropReason {
    /// A word for it, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::SpoolFull => "spool_full",
            Self::Refused => "refused",
            Self::Unauthorized => "unauthorized",
            Self::TooLarge => "too_large",
            Self::PartlyRejected => "partly_rejected",
            Self::Failing => "failing",
            Self::Corrupt => "corrupt",
            Self::ShutDown => "shut_down",
        }
    }
}
