//! Creates files of saved memory from a process that does not run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use lj_trace_common::memory::{Pod, ReadMemory, Unreadable};
use lj_trace_luajit::object::field;
use lj_trace_luajit::{Candidate, Vm};
use lj_trace_process::{Maps, Process, ProcessMemory};

use super::{FIRST_LINE, folder, plain};

/// The most bytes of a read. Larger reads only fill caches, and are refused, so that only needed memory is saved.
const LARGEST: usize = 1024;

/// How many objects of the collector's list are kept. After these, the list continues with its last object, the main
/// thread: a VM may have thousands of objects in between that no test needs.
const OBJECTS: usize = 64;

/// Live memory that remembers which parts were read.
pub struct Recorder {
    memory: ProcessMemory,
    pid: u32,
    maps: Maps,
    /// A reference that is saved with another value than it has.
    changed: Option<(u64, Vec<u8>)>,
    /// Start and end of each read.
    read: RefCell<BTreeMap<u64, u64>>,
}

impl Recorder {
    /// A recorder for a VM's process.
    pub fn new(process: &Process, maps: Maps, vm: &Vm) -> Self {
        let (memory, pid) = (process.memory(), process.pid());
        let mut recorder = Self { memory, pid, maps, changed: None, read: RefCell::default() };
        recorder.shorten(vm);
        recorder
    }

    /// Leaves out the middle of the list of objects.
    fn shorten(&mut self, vm: &Vm) {
        let gc64 = vm.layout.is_gc64();
        let mut link = field(vm.global, vm.layout.g_gc_root);
        for _ in 0..OBJECTS {
            link = self.memory.read_ref(gc64, link).unwrap();
            if link == vm.main_thread {
                return;
            }
        }
        self.changed = Some((link, vm.main_thread.to_le_bytes()[..if gc64 { 8 } else { 4 }].to_vec()));
    }

    fn bytes(&self, start: u64, length: usize) -> Result<Vec<u8>, Unreadable> {
        let mut bytes = self.memory.read_bytes(start, length)?;
        if let Some((address, new)) = &self.changed {
            for (at, new) in (*address..).zip(new) {
                if let Some(byte) = at.checked_sub(start).and_then(|at| bytes.get_mut(at as usize)) {
                    *byte = *new;
                }
            }
        }
        Ok(bytes)
    }

    /// Writes the memory that was read into the file with this name; returns the size of the file.
    pub fn save(&self, place: Candidate, cframe_size: Option<u64>, name: &str) -> usize {
        let cframe_size = cframe_size.map_or("-".to_owned(), |size| size.to_string());
        let Candidate { thread, global, gc64 } = place;
        let mut text = format!("{FIRST_LINE}\n{thread:x} {global:x} {gc64} {cframe_size}\n");
        for line in std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap().lines() {
            // Do not save where files are installed: that is private.
            let (head, path) = line.rsplit_once('/').unwrap_or((line, ""));
            let head = head.split_once('/').map_or(head, |(head, _)| head);
            writeln!(text, "{head}{}{path}", if path.is_empty() { "" } else { "/" }).unwrap();
        }
        text.push('\n');
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (&start, &end) in &*self.read.borrow() {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let mut bytes = text.into_bytes();
        for (start, end) in merged {
            bytes.extend(start.to_le_bytes());
            bytes.extend((end - start).to_le_bytes());
            bytes.extend(self.bytes(start, (end - start) as usize).unwrap());
        }
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 9);
        encoder.write_all(&bytes).unwrap();
        let packed = encoder.finish().unwrap();
        std::fs::write(folder().join(format!("{name}.xz")), &packed).unwrap();
        packed.len()
    }
}

impl ReadMemory for Recorder {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        let size = size_of::<T>();
        if size > LARGEST || !self.maps.find(address).is_some_and(|mapping| mapping.write) {
            return Err(Unreadable);
        }
        let bytes = self.bytes(address, size)?;
        let end = address + size as u64;
        self.read.borrow_mut().entry(address).and_modify(|known| *known = end.max(*known)).or_insert(end);
        plain(&bytes).ok_or(Unreadable)
    }
}
