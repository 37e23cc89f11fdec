//! Writes complete records, so that the stream can be ended properly even if the output fails.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use super::WriteError;

const BUFFER: usize = 64 * 1024;
/// The epilogue of both sysprof and memprof.
pub(super) const EPILOGUE: u8 = 0x80;

/// An output that is written record by record.
///
/// Errors say which part of the output is valid ([`WriteError::complete`]). After an error, nothing more is written.
#[derive(Debug)]
pub(super) struct RecordWriter<W: Write> {
    /// [`None`] once finished.
    out: Option<W>,
    buffer: Vec<u8>,
    /// Ends of the records in `buffer`.
    ends: Vec<usize>,
    written: u64,
    /// The offset of the last written record.
    last: u64,
    /// The kind of the error, if writing has failed.
    failed: Option<io::ErrorKind>,
}

impl<W: Write> RecordWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out: Some(out),
            buffer: Vec::with_capacity(BUFFER * 2),
            ends: Vec::new(),
            written: 0,
            last: 0,
            failed: None,
        }
    }

    /// Adds a record: `put` appends its bytes.
    #[inline]
    pub(super) fn record(&mut self, put: impl FnOnce(&mut Vec<u8>)) -> Result<(), WriteError> {
        if self.failed.is_some() {
            return self.write_out();
        }
        put(&mut self.buffer);
        self.ends.push(self.buffer.len());
        if self.buffer.len() >= BUFFER { self.write_out() } else { Ok(()) }
    }

    /// Passes everything recorded so far on to the output.
    pub(super) fn flush(&mut self) -> Result<(), WriteError> {
        self.write_out()?;
        match self.out.as_mut().map_or(Ok(()), Write::flush) {
            Ok(()) => Ok(()),
            Err(source) => {
                self.failed = Some(source.kind());
                Err(self.error(source))
            }
        }
    }

    /// Writes the epilogue, flushes, and returns the output.
    pub(super) fn finish(mut self) -> Result<W, WriteError> {
        self.record(|out| out.push(EPILOGUE))?;
        self.flush()?;
        self.out.take().ok_or_else(|| self.error(io::Error::other("already finished")))
    }

    /// The error, with the part of the output that is valid.
    pub(super) fn error(&self, source: io::Error) -> WriteError {
        WriteError { source, complete: self.written, last: self.last }
    }

    /// Notes that this many bytes of the buffer are written. Only complete records count.
    fn count(&mut self, done: usize) {
        let whole = self.ends.partition_point(|&end| end <= done);
        if let Some(&end) = self.ends[..whole].last() {
            let start = whole.checked_sub(2).map_or(0, |before| self.ends[before]);
            self.last = self.written + start as u64;
            self.written += end as u64;
        }
    }

    fn write_out(&mut self) -> Result<(), WriteError> {
        if let Some(kind) = self.failed {
            return Err(self.error(kind.into()));
        }
        let Some(out) = self.out.as_mut() else { return Ok(()) };
        let mut done = 0;
        while done < self.buffer.len() {
            let problem = match out.write(&self.buffer[done..]) {
                Ok(0) => io::Error::from(io::ErrorKind::WriteZero),
                Ok(n) => {
                    done += n;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.failed = Some(problem.kind());
            self.count(done);
            return Err(self.error(problem));
        }
        self.count(done);
        self.buffer.clear();
        self.ends.clear();
        Ok(())
    }
}

/// If the recorder panics, the stream must still get its end.
impl<W: Write> Drop for RecordWriter<W> {
    fn drop(&mut self) {
        if self.out.is_some() && self.failed.is_none() {
            let _ = self.record(|out| out.push(EPILOGUE)).and_then(|()| self.flush());
        }
    }
}

/// Makes a valid stream of a file that could not be written completely: cuts it after the last complete record
/// ([`WriteError::complete`]) and adds the epilogue. This works on a full disk, because cutting frees the space for the
/// epilogue. If the complete records exactly fill the last block, the last record is dropped.
///
/// `complete` must be after the symbol table and the prologue. Writers write these as their first record.
///
/// # Errors
/// The error of truncating or writing the file.
pub fn end_after(file: &File, WriteError { complete, last, .. }: &WriteError) -> io::Result<()> {
    let end_at = |offset: u64| {
        file.set_len(offset)?;
        if offset > 0 { file.write_all_at(&[EPILOGUE], offset) } else { Ok(()) }
    };
    match end_at(*complete) {
        Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge) && *last > 0 => {
            end_at(*last)
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes this many bytes, then reports a full disk.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.0);
            self.0 -= n;
            if n == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_an_error_that_knows_the_last_whole_record() {
        let mut writer = RecordWriter::new(Full(BUFFER + 25));
        let mut failure = None;
        for _ in 0..BUFFER {
            if let Err(error) = writer.record(|out| out.extend_from_slice(&[7; 10])) {
                failure = Some(error);
                break;
            }
        }
        let failure = failure.expect("more was written than fits");
        assert_eq!(failure.source.kind(), io::ErrorKind::StorageFull);
        assert_eq!(failure.complete, ((BUFFER + 25) / 10 * 10) as u64);
        assert_eq!(failure.last, failure.complete - 10);
        assert_eq!(writer.record(|out| out.push(1)).unwrap_err().complete, failure.complete);
    }

    #[test]
    fn the_last_record_is_known_across_buffers() {
        let mut writer = RecordWriter::new(Full(BUFFER));
        for length in [7, 10] {
            writer.record(|out| out.extend_from_slice(&[7; 20][..length])).unwrap();
            writer.flush().unwrap();
        }
        writer.record(|out| out.extend_from_slice(&[7; BUFFER - 1])).unwrap();
        let failure = writer.flush().unwrap_err();
        assert_eq!((failure.complete, failure.last), (17, 7));
    }

    #[test]
    fn dropping_an_unfinished_writer_ends_the_stream() {
        let mut bytes = Vec::new();
        RecordWriter::new(&mut bytes).record(|out| out.push(1)).unwrap();
        assert_eq!(bytes, [1, EPILOGUE]);
    }
}
