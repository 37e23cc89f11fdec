//! Writing whole records, so that an output that fails can still be ended well.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use super::WriteError;

const BUFFER: usize = 64 * 1024;
/// The epilogue of both sysprof and memprof.
pub(super) const EPILOGUE: u8 = 0x80;

/// An output that is written record by record.
///
/// Its methods fail with what is known to be whole ([`WriteError::complete`]). Once it has failed it writes no more.
#[derive(Debug)]
pub(super) struct RecordWriter<W: Write> {
    /// Gone once finished.
    out: Option<W>,
    buffer: Vec<u8>,
    /// Ends of the records in `buffer`.
    ends: Vec<usize>,
    written: u64,
    /// How writing has failed, once it has.
    failed: Option<io::ErrorKind>,
}

impl<W: Write> RecordWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out: Some(out), buffer: Vec::with_capacity(BUFFER * 2), ends: Vec::new(), written: 0, failed: None }
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

    /// Bytes of the output known to be whole records.
    pub(super) fn complete(&self) -> u64 {
        self.written
    }

    /// Passes on all that has been recorded.
    pub(super) fn flush(&mut self) -> Result<(), WriteError> {
        self.write_out()?;
        let complete = self.written;
        match self.out.as_mut().map_or(Ok(()), Write::flush) {
            Ok(()) => Ok(()),
            Err(source) => {
                self.failed = Some(source.kind());
                Err(WriteError { source, complete })
            }
        }
    }

    /// Writes the epilogue and gives the output back, flushed.
    pub(super) fn finish(mut self) -> Result<W, WriteError> {
        self.record(|out| out.push(EPILOGUE))?;
        self.flush()?;
        let complete = self.written;
        self.out.take().ok_or_else(|| WriteError { source: io::Error::other("already finished"), complete })
    }

    fn write_out(&mut self) -> Result<(), WriteError> {
        if let Some(kind) = self.failed {
            return Err(WriteError { source: kind.into(), complete: self.written });
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
            let whole = self.ends.iter().rev().find(|&&end| end <= done).copied().unwrap_or(0);
            self.written += whole as u64;
            return Err(WriteError { source: problem, complete: self.written });
        }
        self.written += done as u64;
        self.buffer.clear();
        self.ends.clear();
        Ok(())
    }
}

/// A recorder that unwinds must not leave a stream without its end either.
impl<W: Write> Drop for RecordWriter<W> {
    fn drop(&mut self) {
        if self.out.is_some() && self.failed.is_none() {
            let _ = self.record(|out| out.push(EPILOGUE)).and_then(|()| self.flush());
        }
    }
}

/// Makes a valid stream of a file whose writing failed: cuts it after `complete` bytes ([`WriteError::complete`])
/// and puts the epilogue there. On a full disk this works, for cutting frees at least the room it needs.
///
/// `complete` has to lie behind the symbol table and the prologue; writers make these their first record.
///
/// # Errors
/// What truncating or writing the file says.
pub fn end_after(file: &File, complete: u64) -> io::Result<()> {
    file.set_len(complete)?;
    if complete > 0 {
        file.write_all_at(&[EPILOGUE], complete)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, then says the disk is full.
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
        assert_eq!(writer.record(|out| out.push(1)).unwrap_err().complete, failure.complete);
    }

    #[test]
    fn dropping_an_unfinished_writer_ends_the_stream() {
        let mut bytes = Vec::new();
        RecordWriter::new(&mut bytes).record(|out| out.push(1)).unwrap();
        assert_eq!(bytes, [1, EPILOGUE]);
    }
}
