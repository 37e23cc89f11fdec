//! Why data is lost.

/// Why a request was not sent and never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The queue in memory was full, and no spool took it.
    QueueFull,
    /// The spool was full, so the oldest request made room.
    SpoolFull,
    /// The server refused the request for good: 400, 404 and others.
    Refused,
    /// The server requires other credentials: 401 or 403.
    Unauthorized,
    /// The request is too large for the server, and cannot be halved.
    TooLarge,
    /// The server accepted only a part of it. The size of the refused part is estimated from the number of profiles.
    PartlyRejected,
    /// The server failed at this request again and again, but not at others.
    Failing,
    /// The content of the spool file was not what lj-trace had written.
    Corrupt,
    /// lj-trace ended before it could be sent, and no spool took it.
    ShutDown,
}

impl DropReason {
    /// The reason's name in metrics.
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
