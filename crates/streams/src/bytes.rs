//! The encoding that all streams use: single bytes, ULEB128 integers, strings.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use super::StreamError;
use super::hash::StringSet;

const BUFFER: usize = 256 * 1024;
/// The most distinct strings to keep, so that later equal strings can share them.
const STRINGS: usize = 1 << 17;
/// The most bytes of a `u64` in ULEB128.
const ULEB_MAX: usize = 10;

/// A buffered input that knows its read position.
#[derive(Debug)]
pub(super) struct ByteReader<R> {
    input: BufReader<R>,
    offset: u64,
    strings: StringSet,
}

impl<R: Read> ByteReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(BUFFER, input), offset: 0, strings: StringSet::default() }
    }

    /// The number of bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads one byte. `part` names what it belongs to, for error messages.
    #[inline]
    pub(super) fn byte(&mut self, part: &'static str) -> Result<u8, StreamError> {
        if let Some(&byte) = self.input.buffer().first() {
            self.input.consume(1);
            self.offset += 1;
            return Ok(byte);
        }
        Ok(self.array::<1>(part)?[0])
    }

    /// Reads a fixed number of bytes.
    pub(super) fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], StreamError> {
        let mut array = [0; N];
        for slot in &mut array {
            match self.input.read_exact(std::slice::from_mut(slot)) {
                Ok(()) => self.offset += 1,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(self.truncated(part)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(array)
    }

    /// Reads an integer in ULEB128.
    #[inline]
    pub(super) fn uleb(&mut self, part: &'static str) -> Result<u64, StreamError> {
        let Some(mut rest) = self.input.buffer().get(..ULEB_MAX) else {
            return self.uleb_at_buffer_end(part);
        };
        if let Some((value, used)) = rest.first_chunk().and_then(|&bytes| short_uleb(bytes)) {
            self.input.consume(used);
            self.offset += used as u64;
            return Ok(value);
        }
        let value = leb128::read::unsigned(&mut rest)
            .map_err(|_| StreamError::invalid(self.offset, "a number does not fit in 64 bits"))?;
        let used = ULEB_MAX - rest.len();
        self.input.consume(used);
        self.offset += used as u64;
        Ok(value)
    }

    #[cold]
    fn uleb_at_buffer_end(&mut self, part: &'static str) -> Result<u64, StreamError> {
        let start = self.offset;
        let mut bytes = [0; ULEB_MAX];
        for length in 1..=ULEB_MAX {
            let byte = self.array::<1>(part)?[0];
            bytes[length - 1] = byte;
            if byte & 0x80 == 0 {
                return leb128::read::unsigned(&mut &bytes[..length])
                    .map_err(|_| StreamError::invalid(start, "a number does not fit in 64 bits"));
            }
        }
        Err(StreamError::invalid(start, "a number does not fit in 64 bits"))
    }

    /// Reads a string: its length, then its bytes. Memory grows with the bytes that are really there, not with the claimed
    /// length.
    ///
    /// Equal strings share one allocation: in-process memprof writes all C symbols again and again.
    pub(super) fn string(&mut self, part: &'static str) -> Result<Arc<[u8]>, StreamError> {
        let length = self.uleb(part)?;
        if let Some(string) = usize::try_from(length).ok().and_then(|length| self.input.buffer().get(..length)) {
            let shared = match self.strings.get(string) {
                Some(shared) => shared.clone(),
                None => {
                    if self.strings.len() == STRINGS {
                        self.strings.clear();
                    }
                    let shared: Arc<[u8]> = string.into();
                    self.strings.insert(shared.clone());
                    shared
                }
            };
            self.input.consume(shared.len());
            self.offset += length;
            return Ok(shared);
        }
        let mut string = Vec::new();
        let read = (&mut self.input).take(length).read_to_end(&mut string)?;
        self.offset += read as u64;
        if (read as u64) < length {
            return Err(self.truncated(part));
        }
        Ok(string.into())
    }

    /// Reads a prologue: magic, version and three reserved bytes.
    pub(super) fn prologue(&mut self, part: &'static str) -> Result<([u8; 3], u8), StreamError> {
        let [m0, m1, m2, version, ..] = self.array::<7>(part)?;
        Ok(([m0, m1, m2], version))
    }

    pub(super) fn truncated(&self, part: &'static str) -> StreamError {
        StreamError::Truncated { offset: self.offset, part }
    }
}

/// The ULEB128 integer at the beginning of `bytes`, and its length, if it ends within them. It decodes all bytes at once,
/// since most of a stream are addresses of 47 bits, which take 7 bytes.
#[inline]
fn short_uleb(bytes: [u8; 8]) -> Option<(u64, usize)> {
    const MORE: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(bytes);
    let ends = !word & MORE;
    if ends == 0 {
        return None;
    }
    let used = ends.trailing_zeros() as usize / 8 + 1;
    let groups = word & !MORE & u64::MAX >> (64 - 8 * used);
    // Move groups of 7 bits together: two by two, four by four, eight by eight.
    let pairs = groups & 0x007f_007f_007f_007f | (groups & 0x7f00_7f00_7f00_7f00) >> 1;
    let fours = pairs & 0x0000_3fff_0000_3fff | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    Some((fours & 0x0fff_ffff | (fours & 0x0fff_ffff_0000_0000) >> 4, used))
}

/// Appends an integer in ULEB128.
pub(super) fn put_uleb(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else {
        // Writing to memory cannot fail.
        let _ = leb128::write::unsigned(out, value);
    }
}

/// Appends a string: its length, then its bytes.
pub(super) fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    put_uleb(out, string.len() as u64);
    let _ = out.write_all(string);
}

/// Appends a prologue; the reserved bytes are zero, as all of Tarantool's profilers write them.
pub(super) fn put_prologue(out: &mut Vec<u8>, magic: [u8; 3], version: u8) {
    out.extend_from_slice(&magic);
    out.extend_from_slice(&[version, 0, 0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte at a time, so that every field meets the end of the buffer.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = out.len().min(1);
            self.0.read(&mut out[..n])
        }
    }

    #[test]
    fn integers_survive_a_round_trip_at_any_buffer_position() {
        let values = [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 47, u64::MAX];
        let mut bytes = Vec::new();
        values.iter().for_each(|&value| put_uleb(&mut bytes, value));
        let mut whole = ByteReader::new(&bytes[..]);
        let mut trickle = ByteReader::new(Trickle(&bytes));
        for value in values {
            assert_eq!(whole.uleb("test").unwrap(), value);
            assert_eq!(trickle.uleb("test").unwrap(), value);
        }
        assert_eq!(whole.offset(), bytes.len() as u64);
        assert_eq!(trickle.offset(), bytes.len() as u64);
    }

    #[test]
    fn integers_of_every_length_are_read_at_once() {
        for bits in 0..=56 {
            // Alternating bits, so that a group in the wrong place shows.
            for value in [(1_u64 << bits) - 1, (1_u64 << bits) / 2, 0x5a5a_a5a5_c3c3_3c3c & ((1_u64 << bits) - 1)] {
                let mut bytes = Vec::new();
                put_uleb(&mut bytes, value);
                let length = bytes.len();
                bytes.resize(8, 0xff);
                assert_eq!(short_uleb(bytes.try_into().unwrap()), Some((value, length)), "{value:#x}");
            }
        }
        assert_eq!(short_uleb([0x80; 8]), None);
        // A longer encoding than necessary, which the format allows.
        assert_eq!(short_uleb([0x81, 0x80, 0, 1, 1, 1, 1, 1]), Some((1, 3)));
    }

    #[test]
    fn an_integer_over_64_bits_is_invalid_where_it_starts() {
        let bytes = [1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0];
        let mut whole = ByteReader::new(&bytes[..]);
        let mut trickle = ByteReader::new(Trickle(&bytes));
        whole.byte("test").unwrap();
        trickle.byte("test").unwrap();
        assert!(matches!(whole.uleb("test"), Err(StreamError::Invalid { offset: 1, .. })));
        assert!(matches!(trickle.uleb("test"), Err(StreamError::Invalid { offset: 1, .. })));
    }

    #[test]
    fn a_string_longer_than_the_input_is_truncated_not_allocated() {
        let mut bytes = Vec::new();
        put_uleb(&mut bytes, 1 << 60);
        bytes.extend_from_slice(b"short");
        let end = bytes.len() as u64;
        let error = ByteReader::new(&bytes[..]).string("a name").unwrap_err();
        assert!(matches!(error, StreamError::Truncated { offset, .. } if offset == end), "{error}");
    }
}
