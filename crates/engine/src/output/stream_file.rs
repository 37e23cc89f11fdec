//! Stream files. Whatever was written stays readable, no matter how writing ended.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd as _;
use std::path::Path;

use lj_trace_process::privileges::limits;
use lj_trace_streams::{WriteError, end_after};

use super::files::cannot_write;
use super::output_file::{OutputFile, open_existing};
use crate::error::{EngineError, Failure};

/// Opens a stream for writing; `-` is standard output. Existing contents stay until the first bytes are written. The only
/// buffer is the writer's own, since the writer knows which records are complete.
///
/// # Errors
/// Exit code 74 if the file cannot be opened.
pub fn create(path: &Path) -> Result<Box<dyn Write>, EngineError> {
    if path == Path::new("-") {
        return Ok(Box::new(StandardOutput));
    }
    let file = OutputFile::open(path).map_err(|error| cannot_write(path, &error))?;
    Ok(Box::new(file))
}

/// The size of a stream so far; 0 if it is not a file.
pub fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

/// The error of a stream that cannot be written any more. If it is a file, its contents become a valid stream.
pub fn failed(path: &Path, error: &WriteError) -> EngineError {
    if path == Path::new("-") && error.source.kind() == io::ErrorKind::BrokenPipe {
        // The reader has closed the pipe: `lj-trace --pid N -o - | head`.
        return EngineError::new(Failure::ReaderGone, "the reader of standard output has gone: recording has ended");
    }
    if end(path, error).is_ok() && error.complete > 0 {
        let source = limits::with_limit(&error.source);
        let message = format!(
            "cannot write {} any further than {} bytes: {source}; what is in it is a complete stream of what was \
             recorded up to there. Choose a place with more room with --output FILE",
            path.display(),
            error.complete
        );
        return EngineError::new(Failure::Io, message);
    }
    cannot_write(path, &error.source)
}

/// Ends a file after its last complete record. Leaves anything but a regular file as it is.
fn end(path: &Path, error: &WriteError) -> io::Result<()> {
    if !path.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    end_after(&open_existing(path)?, error)
}

/// Standard output without the standard library's buffer, which searches for ends of lines.
struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: standard output stays open as long as the process runs; the file is not dropped, so it is not closed.
        ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDOUT_FILENO) }).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: io::ErrorKind, complete: u64) -> WriteError {
        WriteError { source: kind.into(), complete, last: 0 }
    }

    #[test]
    fn a_file_is_cut_after_what_is_whole_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        std::fs::write(&path, b"wholecut").unwrap();
        let said = failed(&path, &error(io::ErrorKind::StorageFull, 5));
        assert_eq!(said.failure, Failure::Io);
        assert!(said.message.contains("a.bin any further than 5 bytes"), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), b"whole\x80");
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_failure() {
        let standard_output = Path::new("-");
        assert_eq!(failed(standard_output, &error(io::ErrorKind::BrokenPipe, 9)).failure, Failure::ReaderGone);
        assert_eq!(failed(standard_output, &error(io::ErrorKind::StorageFull, 9)).failure, Failure::Io);
    }
}
