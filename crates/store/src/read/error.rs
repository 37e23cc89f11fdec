//! The errors of reading.

use std::io;
use std::path::PathBuf;

/// A folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the profiles in {folder}: {error}")]
pub struct ReadError {
    /// The folder.
    pub folder: PathBuf,
    /// The system's error.
    pub error: io::Error,
}

/// Why a file was left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedFile {
    /// The file cannot be opened, or is a link, a pipe or a device.
    #[error("it cannot be opened: {0}")]
    NotOpened(String),
    /// The file does not end as Parquet files do.
    #[error("no Parquet file, or one that is cut off")]
    NotParquet,
    /// The file has other columns.
    #[error("it has no column {0} as lj-trace writes it")]
    OtherColumns(String),
    /// The file's metadata is inconsistent.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

impl From<parquet::errors::ParquetError> for RefusedFile {
    fn from(error: parquet::errors::ParquetError) -> Self {
        Self::Damaged(error.to_string())
    }
}
