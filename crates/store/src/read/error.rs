//! Why something is not read.

use std::io;
use std::path::PathBuf;

/// A folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the profiles in {folder}: {error}")]
pub struct ReadError {
    /// The folder.
    pub folder: PathBuf,
    /// What the system says.
    pub error: io::Error,
}

/// Why a file is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedFile {
    /// It cannot be opened, or is a link, a pipe, a device.
    #[error("it cannot be opened: {0}")]
    NotOpened(String),
    /// It does not end as Parquet files do.
    #[error("no Parquet file, or one that is cut off")]
    NotParquet,
    /// It has other columns.
    #[error("it has no column {0} as lj-trace writes it")]
    OtherColumns(String),
    /// What it says of itself cannot be.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

impl From<parquet::errors::ParquetError> for RefusedFile {
    fn from(error: parquet::errors::ParquetError) -> Self {
        Self::Damaged(error.to_string())
    }
}
