//! Saved memory of a VM: everything that was read from it, in a small file.
//!
//! The file is an xz stream of lines of text, then bytes:
//! 1. `lj-trace saved memory 1`
//! 2. the address of the main thread, the address of the `global_State` (both hexadecimal), `true` with GC64, else
//!    `false`; then the size of the interpreter's C frames from its unwind information, or `-` where the VM shows it
//!    itself: it does not if the main thread has no C frame, as in a program that runs Lua in fibers
//! 3. the process's mappings, as in `/proc/PID/maps`, and an empty line
//! 4. until the end, by address: the start of a range and its length (two little-endian `u64`), and its bytes.
//!
//! Only writable memory is saved: no machine code, and nothing from files.

#![allow(dead_code, reason = "not every test uses all of it")]

pub mod recorder;
pub mod walk;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};
use lj_trace_luajit::Candidate;
use lj_trace_process::Maps;

const FIRST_LINE: &str = "lj-trace saved memory 1";

/// The folder with the saved files, and the script that was running.
pub fn folder() -> PathBuf {
    // In this package, seen from its neighbours, or from the package of the fuzz targets.
    let folders = ["tests/saved", "../luajit/tests/saved", "../crates/luajit/tests/saved"];
    let mut folders = folders.map(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).into_iter();
    folders.find(|folder| folder.is_dir()).unwrap()
}

/// Saved memory.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Where the VM lies in it.
    pub place: Candidate,
    /// Size of the interpreter's C frames in bytes, if the proof needs it.
    pub cframe_size: Option<u64>,
    /// The process's mappings.
    pub maps: Maps,
    /// The ranges by their start; no two of them touch.
    ranges: BTreeMap<u64, Vec<u8>>,
}

impl Saved {
    /// Loads the file with this name.
    pub fn load(name: &str) -> Self {
        let packed = std::fs::read(folder().join(format!("{name}.xz"))).unwrap();
        let mut bytes = Vec::new();
        liblzma::read::XzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
        let text_end = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap() + 2;
        let text = std::str::from_utf8(&bytes[..text_end]).unwrap();
        let mut lines = text.splitn(3, '\n');
        assert_eq!(lines.next(), Some(FIRST_LINE));
        let words: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let address = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let place = Candidate { thread: address(words[0]), global: address(words[1]), gc64: words[2].parse().unwrap() };
        let cframe_size = words[3].parse().ok();
        let maps = Maps::parse(lines.next().unwrap());
        let (mut ranges, mut rest) = (BTreeMap::new(), &bytes[text_end..]);
        while let Some((head, tail)) = rest.split_at_checked(16) {
            let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
            let (range, next) = tail.split_at(number(8) as usize);
            ranges.insert(number(0), range.to_vec());
            rest = next;
        }
        Self { place, cframe_size, maps, ranges }
    }

    /// The saved bytes from `address` on.
    fn at(&self, address: u64) -> Option<&[u8]> {
        let (start, bytes) = self.ranges.range(..=address).next_back()?;
        bytes.get(usize::try_from(address - start).ok()?..)
    }

    /// Changes saved bytes.
    pub fn put(&mut self, address: u64, new: &[u8]) {
        let (start, bytes) = self.ranges.range_mut(..=address).next_back().unwrap();
        bytes[(address - start) as usize..][..new.len()].copy_from_slice(new);
    }

    /// Adds bytes where none were saved.
    pub fn add(&mut self, address: u64, bytes: Vec<u8>) {
        assert!(self.at(address).is_none_or(<[u8]>::is_empty), "something is there");
        self.ranges.insert(address, bytes);
    }

    /// Changes a reference of the VM.
    pub fn put_ref(&mut self, address: u64, new: u64) {
        let width = if self.place.gc64 { 8 } else { 4 };
        self.put(address, &new.to_le_bytes()[..width]);
    }

    /// Addresses of all saved bytes: the start and the length of each range.
    pub fn ranges(&self) -> Vec<(u64, usize)> {
        self.ranges.iter().map(|(start, bytes)| (*start, bytes.len())).collect()
    }
}

impl ReadMemory for Saved {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        self.at(address).and_then(plain).ok_or(Unreadable)
    }
}

/// The value at the beginning of `bytes`.
pub fn plain<T: Pod>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: there are as many bytes as `T` has, `Pod` accepts any of them, and the read is unaligned.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
