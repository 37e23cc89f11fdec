//! The errors of reading and writing streams.

use std::io;

/// Why a stream cannot be read, or cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The input does not start with the magic of a symbol table.
    #[error(
        "not a memprof or sysprof stream: it starts with {} where a stream starts with \"ljs\"; give a .bin file that \
         lj-trace, misc.memprof or misc.sysprof wrote", in_words(.start)
    )]
    NotAStream {
        /// The first three bytes (fewer in a shorter input), as text.
        start: String,
    },
    /// The input is empty.
    #[error("it is empty: the recording was ended before it wrote anything, or has only just begun; record again")]
    Empty,
    /// A part of the stream has a version that this reader does not know.
    #[error("{part} has version {found}, but only versions up to {newest} are known; a newer lj-trace may read it")]
    UnsupportedVersion {
        /// The name of the part, with its magic.
        part: &'static str,
        /// The version found.
        found: u8,
        /// The newest version that can be read.
        newest: u8,
    },
    /// The input ends before the epilogue: the profiler was killed, or the file was cut.
    #[error("the stream is cut off at byte {offset}, within {part}: the profiler that wrote it did not finish")]
    Truncated {
        /// Where the input ends.
        offset: u64,
        /// What was expected there.
        part: &'static str,
    },
    /// A byte has a value that the grammar does not allow.
    #[error("the stream is damaged at byte {offset}: {problem}")]
    Invalid {
        /// Offset of the record or field.
        offset: u64,
        /// What is wrong.
        problem: &'static str,
    },
    /// The input cannot be read.
    #[error("cannot read the stream: {0}")]
    Io(#[from] io::Error),
}

/// The start of a file that is not a stream: as text if it is readable.
fn in_words(start: &str) -> String {
    let is_text = start.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    if is_text { format!("\"{start}\"") } else { "bytes that are no text".to_owned() }
}

impl StreamError {
    pub(super) fn invalid(offset: u64, problem: &'static str) -> Self {
        Self::Invalid { offset, problem }
    }

    /// Whether everything read so far is valid, and only the end is missing.
    pub fn is_truncation(&self) -> bool {
        matches!(self, Self::Truncated { .. })
    }
}

/// Why a stream could not be written, and how much of the output is valid.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the stream after {complete} bytes: {source}")]
pub struct WriteError {
    /// The system's error: a full disk, a closed pipe.
    pub source: io::Error,
    /// The bytes of the output up to the end of the last complete record; see [`super::end_after`].
    pub complete: u64,
    /// The offset at which that record begins; 0 if it is the first, or there is none.
    pub last: u64,
}
