//! Snapshots in files: lines of JSON in gzip, so that `zcat FILE | jq` reads them, too.
//!
//! The first line is the process. Then each VM has a line, followed by lines with its [`super::objects`] in hexadecimal
//! digits, and by a line for each step of its paths.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::object::Kind;
use super::objects;
use super::snapshot::{Heap, PathRow, Snapshot};

/// The extension of snapshot files.
pub const ENDING: &str = ".heap.gz";

/// The version of the format. This code may not understand everything in a later version.
const VERSION: u32 = 2;

/// The most bytes to read, without objects: a line has some hundred bytes, and a VM has at most 65536 lines. The parsed
/// data takes about as much memory. Objects take two digits for each of their bytes in the file, and half of that in
/// memory.
const MAX_BYTES: u64 = 64 << 20;
const MAX_DIGITS: u64 = 2 * objects::MAX_BYTES as u64 + (1 << 20);

/// The number of bytes of objects per line.
const OBJECTS: usize = 256 << 10;

/// The longest line. The line of a VM has its largest objects, so it is the longest.
const MAX_LINE: u64 = 4 << 20;

/// The most VMs, and the most steps of each VM, that a snapshot has.
const MAX_VMS: usize = 256;
const MAX_PATHS: usize = (1 << 16) + 4096;

/// The most bytes that all paths may take as text, in which each step repeats all steps before it, plus `PATH` bytes for
/// each path and `HELD` bytes for each type that it holds.
const MAX_PATH_BYTES: usize = 48 << 20;
const PATH: usize = 64;
const HELD: usize = 32;

/// Why a file cannot be read as a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be opened or read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// The file is not a snapshot.
    #[error("no snapshot of a heap (line {line}: {reason}); `lj-trace heap --pid N -o NAME{ENDING}` writes one")]
    Malformed {
        /// The line with the error.
        line: usize,
        /// What is wrong with the line.
        reason: String,
    },
    /// A later version of lj-trace has written the file.
    #[error("written by a later version of lj-trace (format {0})")]
    Version(u32),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileLine<'a> {
    Process { version: u32, snapshot: std::borrow::Cow<'a, Snapshot> },
    Vm(Box<Heap>),
    Objects(std::borrow::Cow<'a, str>),
    Path(std::borrow::Cow<'a, PathRow>),
}

/// Writes a snapshot.
///
/// # Errors
/// The output cannot be written.
pub fn write(snapshot: &Snapshot, out: impl Write) -> io::Result<()> {
    use std::borrow::Cow;
    let mut out = GzEncoder::new(BufWriter::new(out), Compression::default());
    let mut line = |line: &FileLine<'_>| {
        serde_json::to_writer(&mut out, line)?;
        out.write_all(b"\n")
    };
    let process =
        Snapshot { vms: Vec::new(), command: snapshot.command.clone(), outside: snapshot.outside.clone(), ..*snapshot };
    line(&FileLine::Process { version: VERSION, snapshot: Cow::Owned(process) })?;
    for heap in &snapshot.vms {
        let alone = Heap { paths: Vec::new(), objects: None, ..heap.clone() };
        line(&FileLine::Vm(Box::new(alone)))?;
        if let Some(objects) = &heap.objects {
            // No objects at all differ from objects that are not known.
            line(&FileLine::Objects(Cow::Borrowed("")))?;
            for bytes in objects.bytes().chunks(OBJECTS) {
                line(&FileLine::Objects(Cow::Owned(digits(bytes))))?;
            }
        }
        for path in &heap.paths {
            line(&FileLine::Path(Cow::Borrowed(path)))?;
        }
    }
    out.finish()?.flush()
}

fn digits(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let two = |byte: &u8| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]].map(char::from);
    bytes.iter().flat_map(two).collect()
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    /// The value of each byte as a digit, in a table since a file has millions of digits.
    static VALUES: [u8; 256] = {
        let (mut values, mut byte) = ([NONE; 256], 0);
        while byte < 256 {
            if let Some(value) = (byte as u8 as char).to_digit(16) {
                values[byte] = value as u8;
            }
            byte += 1;
        }
        values
    };
    const NONE: u8 = 0xff;
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let mut bytes = Vec::with_capacity(pairs.len());
    let mut all = 0;
    for &[high, low] in pairs {
        let (high, low) = (VALUES[usize::from(high)], VALUES[usize::from(low)]);
        all |= high | low;
        bytes.push(high << 4 | low & 15);
    }
    (rest.is_empty() && all <= 15).then_some(bytes)
}

/// Reads the snapshot in a file.
///
/// # Errors
/// [`FileError`].
pub fn open(path: &Path) -> Result<Snapshot, FileError> {
    read(File::open(path)?)
}

/// Reads a snapshot.
///
/// # Errors
/// [`FileError`].
pub fn read(file: impl io::Read) -> Result<Snapshot, FileError> {
    let mut lines = BufReader::new(MultiGzDecoder::new(file).take(MAX_BYTES + MAX_DIGITS));
    let mut snapshot: Option<Snapshot> = None;
    let mut text = Vec::new();
    // The lengths of the paths of the last VM, and of all paths together.
    let (mut lengths, mut words) = (Vec::<usize>::new(), 0_usize);
    // The bytes of all objects, and of all other lines.
    let (mut of_objects, mut others) = (0_usize, 0_u64);
    for number in 1.. {
        let malformed = |reason: String| FileError::Malformed { line: number, reason };
        text.clear();
        match (&mut lines).take(MAX_LINE).read_until(b'\n', &mut text) {
            Ok(0) => break,
            Ok(length) if length as u64 == MAX_LINE => return Err(malformed("it is too long".to_owned())),
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                return Err(malformed(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
        if !text.starts_with(b"{\"objects\"") {
            others += text.len() as u64;
        }
        if others > MAX_BYTES {
            return Err(malformed("it is too long".to_owned()));
        }
        let line: FileLine<'_> = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        match (line, &mut snapshot) {
            (FileLine::Process { version, .. }, _) if version > VERSION => return Err(FileError::Version(version)),
            (FileLine::Process { snapshot: process, .. }, none @ None) => *none = Some(process.into_owned()),
            (FileLine::Vm(heap), Some(snapshot)) if snapshot.vms.len() < MAX_VMS && heap.paths.is_empty() => {
                snapshot.vms.push(*heap);
                lengths.clear();
            }
            (FileLine::Objects(text), Some(Snapshot { vms, .. })) => {
                let heap = vms.last_mut().ok_or_else(|| malformed("objects before their VM".to_owned()))?;
                let bytes = bytes_of(&text).ok_or_else(|| malformed("no digits".to_owned()))?;
                of_objects += bytes.len();
                let objects = heap.objects.get_or_insert_default();
                if of_objects > objects::MAX_BYTES || !objects.extend(&bytes) {
                    return Err(malformed("more objects than are kept of any heap".to_owned()));
                }
            }
            (FileLine::Path(path), Some(Snapshot { vms, .. })) => {
                let heap = vms.last_mut().ok_or_else(|| malformed("a path before its VM".to_owned()))?;
                let path = path.into_owned();
                if path.parent.is_some_and(|parent| parent >= heap.paths.len()) {
                    return Err(malformed("a step before the one that it follows".to_owned()));
                }
                let before = path.parent.map_or(0, |parent| lengths[parent]);
                let length = before.saturating_add(path.step.len() + 1);
                words = words.saturating_add(length.saturating_add(PATH + HELD * path.held.len()));
                if heap.paths.len() >= MAX_PATHS || path.held.len() > Kind::ALL.len() || words > MAX_PATH_BYTES {
                    return Err(malformed("more or longer paths than any heap has".to_owned()));
                }
                lengths.push(length);
                heap.paths.push(path);
            }
            _ => return Err(malformed("lines in another order".to_owned())),
        }
    }
    snapshot.ok_or_else(|| FileError::Malformed { line: 1, reason: "it is empty".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Objects;
    use crate::tree::tests::heap;

    fn snapshot() -> Snapshot {
        Snapshot {
            pid: 7,
            command: "lua\"jit\n".into(),
            time: 1_700_000_000,
            rss: 1 << 30,
            milliseconds: 1.5,
            paused: Some(0.3),
            went_on: false,
            bytes_read: 99,
            outside: Vec::new(),
            vms: vec![heap(&[(None, "globals", 1, 10), (Some(0), ".a", 2, 20)]), heap(&[(None, "registry", 3, 30)])],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        let mut snapshot = snapshot();
        let mut objects = Objects::default();
        assert!(objects.extend(&(0..=255).cycle().take(3 * OBJECTS / 2).collect::<Vec<u8>>()));
        snapshot.vms[1].objects = Some(objects);
        snapshot.vms.push(Heap { objects: Some(Objects::default()), ..snapshot.vms[0].clone() });
        write(&snapshot, &mut bytes).unwrap();
        assert_eq!(read(bytes.as_slice()).unwrap(), snapshot);
    }

    #[test]
    fn what_an_earlier_version_has_written_is_read() {
        let old = br#"{"process":{"version":1,"snapshot":{"pid":7,"command":"x","time":1,"rss":2,"milliseconds":1.5,"paused":null,"went_on":false,"bytes_read":9,"vms":[]}}}"#;
        let snapshot = read(packed(&String::from_utf8_lossy(old)).as_slice()).unwrap();
        assert_eq!((snapshot.pid, snapshot.outside.len()), (7, 0));
    }

    #[test]
    fn objects_without_an_end_are_refused() {
        let mut bytes = Vec::new();
        write(&snapshot(), &mut bytes).unwrap();
        let mut out = GzEncoder::new(bytes, Compression::fast());
        let line = format!("{{\"objects\":\"{}\"}}\n", "0".repeat(2 * OBJECTS));
        (0..=objects::MAX_BYTES / OBJECTS).for_each(|_| out.write_all(line.as_bytes()).unwrap());
        let error = read(out.finish().unwrap().as_slice()).unwrap_err().to_string();
        assert!(error.contains("more objects"), "{error}");
    }

    #[test]
    fn bombs_are_refused_early() {
        // A gigabyte of blanks takes a megabyte in gzip.
        let blanks = vec![b' '; 1 << 20];
        for piece in [&blanks[..], b"{\"vm\":[\n".as_slice()] {
            let mut out = GzEncoder::new(Vec::new(), Compression::fast());
            (0..1 << 30 >> 20).for_each(|_| out.write_all(piece).unwrap());
            let error = read(out.finish().unwrap().as_slice()).unwrap_err().to_string();
            assert!(error.contains("no snapshot of a heap"), "{error}");
        }
    }

    #[test]
    fn endless_ways_are_refused() {
        let chain: Vec<_> = (0..60_000_usize).map(|index| (index.checked_sub(1), ".step", 1, 10)).collect();
        let mut bytes = Vec::new();
        write(&Snapshot { vms: vec![heap(&chain)], ..snapshot() }, &mut bytes).unwrap();
        // As text, the paths would take 10 GB.
        let error = read(bytes.as_slice()).unwrap_err().to_string();
        assert!(error.contains("longer paths"), "{error}");
    }

    #[test]
    fn digits_are_what_they_were_made_of_and_nothing_else() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes_of(&digits(&bytes)), Some(bytes));
        assert_eq!(bytes_of("AfF0"), Some(vec![0xaf, 0xf0]));
        for odd in ["0", "0g", "g0", " 1", "1\u{e9}", "000"] {
            assert_eq!(bytes_of(odd), None, "{odd}");
        }
    }

    fn packed(text: &str) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn other_files_are_refused_and_never_cause_a_panic() {
        for bytes in [b"".as_slice(), b"ljm\x02 a stream", &packed(""), &packed("{}\n"), &packed("[1,2]\n")] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.contains("no snapshot of a heap"), "{error}");
        }
        let mut bytes = Vec::new();
        write(&snapshot(), &mut bytes).unwrap();
        for length in 0..bytes.len() {
            let _ = read(&bytes[..length]);
        }
        let mut text = String::new();
        MultiGzDecoder::new(bytes.as_slice()).read_to_string(&mut text).unwrap();
        let later = text.replacen(&format!("\"version\":{VERSION}"), "\"version\":9", 1);
        assert!(matches!(read(packed(&later).as_slice()), Err(FileError::Version(9))));
        let torn = text.replacen("\"parent\":0", "\"parent\":7", 1);
        assert!(matches!(read(packed(&torn).as_slice()), Err(FileError::Malformed { .. })));
        let unordered: String = text.lines().rev().map(|line| format!("{line}\n")).collect();
        assert!(matches!(read(packed(&unordered).as_slice()), Err(FileError::Malformed { .. })));
    }
}
