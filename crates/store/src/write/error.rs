//! Why a store cannot be opened.

use std::io;
use std::path::PathBuf;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder is missing or cannot be written.
    #[error("cannot keep profiles in {folder}: {error}; make the folder above it, or name another one")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another process writes to the folder.
    #[error("{folder} is in use by another lj-trace on this host: give each a folder of its own")]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The storage is not known, or this build has no support for it.
    #[error("profiles cannot go to {url}: {reason}")]
    Remote {
        /// The URL of the storage.
        url: String,
        /// The reason.
        reason: String,
    },
}
