//! Progress while a long stream is being read.

use std::io::{self, Read};

use indicatif::{ProgressBar, ProgressStyle};

/// A stream with a progress bar on standard error, if that is a terminal.
pub struct WithProgress<R> {
    input: R,
    bar: ProgressBar,
}

/// The largest stream, in bytes, that needs no bar: it takes less than a second.
const SHORT: u64 = 64 << 20;

impl<R: Read> WithProgress<R> {
    /// For an input of `length` bytes, if that is known.
    pub fn new(input: R, length: Option<u64>, quiet: bool) -> Self {
        let bar = match length {
            Some(length) if length > SHORT && !quiet => ProgressBar::new(length),
            _ => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("reading {bar:40} {percent}% of {total_bytes}, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { input, bar }
    }
}

impl<R: Read> Read for WithProgress<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}

impl<R> Drop for WithProgress<R> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_what_is_read() {
        let bytes = [7; 1000];
        let mut input = WithProgress::new(bytes.as_slice(), Some(SHORT * 2), true);
        let mut read = Vec::new();
        input.read_to_end(&mut read).unwrap();
        assert_eq!((read.len(), input.bar.position()), (1000, 1000));
    }
}
