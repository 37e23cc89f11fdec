//! Damages input, as a disk, a network or an attacker may damage a file.

use lj_trace_process::Process;

/// Pseudorandom numbers, the same for the same seed (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in `0..limit`, which must not be empty.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit.max(1)
    }
}

/// Numbers that often break programs.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_fff0,
    0xffff_ffff_ffff_ffff,
];

/// A copy of `good` with some damage; parts may come from the `others`.
pub fn damaged(good: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=random.below(6) {
        if bytes.is_empty() {
            break;
        }
        // The beginning of a file says how to read the rest, so it gets more damage.
        let reach = if random.below(3) == 0 { bytes.len().min(128) } else { bytes.len() };
        let at = random.below(reach);
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 | 3 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let width = (1 << random.below(4)).min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&edge[..width]);
            }
            // A number of several bytes, as streams encode them.
            4 => {
                let length = 1 + random.below(12);
                bytes.splice(at..at, std::iter::repeat_n(0xff, length));
            }
            5 => bytes.truncate(at),
            6 => {
                let end = at + random.below((bytes.len() - at).min(64));
                bytes.drain(at..end);
            }
            _ => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len());
                let to = from + random.below((other.len() - from).min(256));
                bytes.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    bytes
}

/// A copy of lines of JSON, with damage that leaves most of it readable: changed numbers, and lines that are moved,
/// repeated, or endless.
pub fn damaged_lines(good: &[u8], random: &mut Random) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = good.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..=random.below(6) {
        let at = random.below(lines.len());
        match random.below(8) {
            0 => lines.swap(at, 0),
            1 => {
                let line = lines[at].clone();
                lines.extend(std::iter::repeat_n(line, 1 + random.below(1000)));
            }
            2 => {
                let middle = lines[at].len() / 2;
                let long = std::iter::repeat_n(b"0[{ \"x"[random.below(6)], 1 << random.below(24));
                lines[at].splice(middle..middle, long);
            }
            3 => lines[at] = damaged(&lines[at], &[good.to_vec()], random),
            // Changes a number.
            _ => {
                let line = &mut lines[at];
                let Some(start) = (random.below(line.len().max(1))..line.len()).find(|&at| line[at].is_ascii_digit())
                else {
                    continue;
                };
                let end = (start..line.len()).find(|&at| !line[at].is_ascii_digit()).unwrap_or(line.len());
                let number = EDGES[random.below(EDGES.len())].to_string();
                line.splice(start..end, number.into_bytes());
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.concat()
}

/// A stream with fewer symbols of C functions. It has thousands of them, and most damage would hit those.
pub fn shorter_stream(stream: &[u8]) -> Vec<u8> {
    let body =
        (0..stream.len()).rev().find(|&at| stream[at..].starts_with(b"ljp\x02") || stream[at..].starts_with(b"ljm"));
    let body = &stream[body.unwrap()..];
    // The header, two symbols of any kind, and the end of the symbol table.
    let mut short = b"ljs\x03\0\0\0\x00\x80\x20\x08@fuzz.lu\x03\x01\x80\x20\x04main\x80".to_vec();
    short.extend_from_slice(&body[..body.len().min(6000)]);
    short
}

/// The ELF file that the kernel maps into each process.
pub fn vdso() -> Vec<u8> {
    let process = Process::open(std::process::id()).unwrap();
    let maps = process.maps().unwrap();
    let mapping = maps.iter().find(|mapping| mapping.path == "[vdso]").unwrap();
    process.memory().read_bytes(mapping.start, mapping.len() as usize).unwrap()
}
