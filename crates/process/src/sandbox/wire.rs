//! A reader's answers as bytes: fixed-width little-endian numbers, and lists with a length in front. The receiver
//! trusts none of it: it drops any answer that does not fit.

use lj_trace_common::arch::Register;

/// The bytes that are left to take values from.
pub type Bytes<'a> = &'a [u8];

/// A value that can be sent as bytes.
pub trait Wire: Sized {
    /// Appends the value to `out`.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes a value from the beginning of the bytes; [`None`] if they do not hold one.
    fn take(from: &mut Bytes<'_>) -> Option<Self>;
}

/// Parses a value that takes up all of these bytes; [`None`] if they do not hold exactly one.
pub fn parse<T: Wire>(mut bytes: Bytes<'_>) -> Option<T> {
    let value = T::take(&mut bytes)?;
    bytes.is_empty().then_some(value)
}

/// Takes a list of bytes, without copying it.
pub fn take_bytes<'a>(from: &mut Bytes<'a>) -> Option<&'a [u8]> {
    let length = usize::try_from(u64::take(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}

/// Appends a list of bytes.
pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    (bytes.len() as u64).put(out);
    out.extend_from_slice(bytes);
}

macro_rules! number {
    ($($number:ty)*) => {
        $(impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut Bytes<'_>) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_le_bytes(*bytes))
            }
        })*
    };
}

number!(u8 u16 u32 u64 i64);

impl Wire for Register {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        Self::from_dwarf(u8::take(from)?.into())
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        if bool::take(from)? { T::take(from).map(Some) } else { Some(None) }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let count = u64::take(from)?;
        // Each value takes at least one byte: a length must not claim more memory than what was sent.
        if count > from.len() as u64 {
            return None;
        }
        (0..count).map(|_| T::take(from)).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_arrives() {
        let value = (vec![Some(7_u64), None], (true, vec![1_u8, 2]));
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        assert_eq!(parse(&bytes), Some(value.clone()));
        for length in 0..bytes.len() {
            assert_eq!(parse::<(Vec<Option<u64>>, (bool, Vec<u8>))>(&bytes[..length]), None, "cut off at {length}");
        }
        bytes.push(0);
        assert_eq!(parse::<(Vec<Option<u64>>, (bool, Vec<u8>))>(&bytes), None, "more than that");
    }

    #[test]
    fn claims_take_no_memory() {
        let claim = u64::MAX.to_le_bytes();
        assert_eq!(parse::<Vec<u64>>(&claim), None);
        assert_eq!(take_bytes(&mut &claim[..]), None);
        assert_eq!(parse::<bool>(&[2]), None);
    }
}
