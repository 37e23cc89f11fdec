//! The LuaJIT builds in files where VMs were proven: another process that maps the same file has the same build.
//!
//! A proof compares a VM with hundreds of layouts, which takes 20 ms: too long for processes that live for 100 ms. With
//! the file's own layout, one look tells whether it fits.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lj_trace_process::{Mapping, Maps, Process};

use super::machine::{InterpreterText, Vm};
use super::page_cache::PageCache;
use super::prove::{Failures, Look};
use super::scan::Candidate;

/// The most files that are kept: a host has only a few files with LuaJIT.
const MAX_KNOWN: usize = 64;

/// The identity of a file. A file that is changed counts as another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
    /// The user of the process that mapped the file: what one user's programs pretend must not be trusted for another user.
    user: u32,
}

impl FileIdentity {
    fn of(process: &Process, mapping: &Mapping) -> Option<Self> {
        let file: Metadata = process.open_mapped_file(mapping).ok()?.metadata().ok()?;
        let user = std::fs::metadata(format!("/proc/{}", process.pid())).ok()?.uid();
        Some(Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.len(),
            changed: (file.ctime(), file.ctime_nsec()),
            user,
        })
    }
}

/// A VM that was proven, and the file that its interpreter's code is in.
#[derive(Clone, Debug)]
struct KnownFile {
    identity: FileIdentity,
    /// Device and inode as in `/proc/PID/maps`, to skip other files without opening them.
    mapped_as: ((u32, u32), u64),
    /// Address at which the first byte of the file would be mapped, computed from the mapping of the code.
    origin: u64,
    vm: Vm,
}

static KNOWN: Mutex<Vec<KnownFile>> = Mutex::new(Vec::new());

/// No code panics while it holds the lock, so a poisoned lock is still good.
fn known() -> MutexGuard<'static, Vec<KnownFile>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mapping with the code at `address`, if a file backs it.
fn code_mapping(maps: &Maps, address: u64) -> Option<&Mapping> {
    maps.find(address).filter(|mapping| mapping.exec && !mapping.write && mapping.is_file())
}

fn origin(mapping: &Mapping) -> u64 {
    mapping.start.wrapping_sub(mapping.offset)
}

/// Remembers the build of a VM that was proven.
pub fn remember(process: &Process, maps: &Maps, vm: &Vm) {
    let Some(mapping) = code_mapping(maps, vm.text.range.start) else { return };
    // Only an exact end of the code range is good: it has to be the same in each process.
    if !vm.text.exact || vm.text.range.end > mapping.end {
        return;
    }
    let Some(identity) = FileIdentity::of(process, mapping) else { return };
    let mut known = known();
    let (mapped_as, origin) = ((mapping.device, mapping.inode), origin(mapping));
    let of_file = known.iter().position(|known| known.identity == identity && kind(&known.vm) == kind(vm));
    match of_file {
        // Keep what was decided before: another VM may have shown less.
        Some(index) if known[index].vm.undecided.len() <= vm.undecided.len() => return,
        Some(index) => drop(known.remove(index)),
        None if known.len() >= MAX_KNOWN => drop(known.remove(0)),
        None => {}
    }
    known.push(KnownFile { identity, mapped_as, origin, vm: vm.clone() });
}

/// The properties that candidates of this VM's kind share.
fn kind(vm: &Vm) -> (bool, u64) {
    (vm.layout.is_gc64(), vm.global.wrapping_sub(vm.main_thread))
}

/// The VM at `candidate`, if its interpreter is in a file with a known build, and that build's layout fits at first
/// sight. [`None`] if the VM has to be proven.
pub fn recall(process: &Process, maps: &Maps, candidate: Candidate) -> Option<Vm> {
    let own_kind = (candidate.gc64, candidate.global.wrapping_sub(candidate.thread));
    let mapped = |known: &KnownFile, mapping: &Mapping| {
        mapping.exec && !mapping.write && (mapping.device, mapping.inode) == known.mapped_as
    };
    let fitting: Vec<KnownFile> = known().iter().filter(|known| kind(&known.vm) == own_kind).cloned().collect();
    fitting.into_iter().find_map(|known| {
        let mapping = maps.iter().find(|mapping| mapping.is_file() && mapped(&known, mapping))?;
        let vm = known.vm.at(candidate, origin(mapping).wrapping_sub(known.origin));
        let is_there = fits(process, maps, candidate, &vm, mapping);
        (is_there && FileIdentity::of(process, mapping) == Some(known.identity)).then_some(vm)
    })
}

fn fits(process: &Process, maps: &Maps, candidate: Candidate, vm: &Vm, mapping: &Mapping) -> bool {
    let memory = process.memory();
    let pages = PageCache::new(&memory);
    let look = Look::once(&pages, maps, candidate);
    let targets = look.dispatch_targets(&vm.layout);
    let range = &vm.text.range;
    !targets.is_empty()
        && mapping.start <= range.start
        && range.end <= mapping.end
        && targets.iter().all(|target| range.contains(target))
        && look.failures(&vm.layout) == Failures::NONE
        && vm.still_valid(&memory)
}

impl Vm {
    /// A VM of the same build at `candidate`, whose interpreter code lies `delta` bytes higher.
    fn at(&self, candidate: Candidate, delta: u64) -> Self {
        let range = self.text.range.start.wrapping_add(delta)..self.text.range.end.wrapping_add(delta);
        let text = InterpreterText { range, exact: self.text.exact, edges: self.text.edges.moved_by(delta) };
        Self { global: candidate.global, main_thread: candidate.thread, text, ..self.clone() }
    }
}
