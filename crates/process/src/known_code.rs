//! Remembers which code a process had, to recognize code that it has loaded since.

use std::ops::Range;

use super::Maps;

/// Addresses of the code that a process had at one moment.
#[derive(Clone, Debug, Default)]
pub struct KnownCode {
    ranges: Vec<Range<u64>>,
}

impl KnownCode {
    /// All code that is mapped now.
    pub fn of(maps: &Maps) -> Self {
        let code = maps.iter().filter(|mapping| mapping.exec);
        Self { ranges: code.map(|mapping| mapping.start..mapping.end).collect() }
    }

    /// Whether the code at an address was there. Also true for addresses that can hold no code (the first page, and the
    /// kernel's half), and for all addresses if nothing is known.
    pub fn contains(&self, address: u64) -> bool {
        const FIRST: u64 = 4096;
        let no_code = address < FIRST || address >> 63 == 1;
        no_code || self.ranges.is_empty() || self.ranges.iter().any(|range| range.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_code_is_told_from_old() {
        let text = "10000-20000 r-xp 00000000 08:01 12 /bin/host\n20000-30000 rw-p 00000000 00:00 0 \n";
        let known = KnownCode::of(&Maps::parse(text));
        assert_eq!(
            [0, 0x1_0000, 0x1_ffff, 0x2_0000, u64::MAX].map(|address| known.contains(address)),
            [true, true, true, false, true]
        );
    }
}
