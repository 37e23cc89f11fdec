//! Why a store cannot be opened.

use std::io;
use std::path::PathBuf;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder is not there, or may not be written.
    #[error("cannot keep profiles in {folder}: {error}; make the folder above it, or name another one")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Another process writes there.
    #[error("{folder} is in use by another lj-trace on this host: give each a folder of its own")]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The storage is not known, or this was built without it.
    #[error("profiles cannot go to {url}: {reason}")]
    Remote {
        /// Where they should go.
        url: String,
        /// Why not.
        reason: String,
    },
}
