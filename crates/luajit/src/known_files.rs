//! The builds of LuaJIT in files that VMs were proven in: another process that has the same file mapped has the same build.
//!
//! A proof holds a VM against hundreds of layouts, which takes 20 ms: too long for processes that live for 100 ms. With the
//! file's own layout, one look tells whether it fits.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lj_trace_process::{Mapping, Maps, Process};

use super::machine::{InterpreterText, Vm};
use super::page_cache::PageCache;
use super::prove::{Failures, Look};
use super::scan::Candidate;

/// Files that are kept: a host has few with LuaJIT in them.
const MAX_KNOWN: usize = 64;

/// A file as it is now. One that is changed becomes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
    /// Whose process showed it: what one user's programs pretend is not believed of another's.
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
    /// As `/proc/PID/maps` has it, to pass over other files without opening them.
    mapped_as: ((u32, u32), u64),
    /// Where the file's first byte would be mapped, from its code's mapping on.
    origin: u64,
    vm: Vm,
}

static KNOWN: Mutex<Vec<KnownFile>> = Mutex::new(Vec::new());

/// Nothing panics while it is held.
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
    // Its end is not described everywhere: it has to be the same in each process.
    if !vm.text.exact || vm.text.range.end > mapping.end {
        return;
    }
    let Some(identity) = FileIdentity::of(process, mapping) else { return };
    let mut known = known();
    let (mapped_as, origin) = ((mapping.device, mapping.inode), origin(mapping));
    let of_file = known.iter().position(|known| known.identity == identity && kind(&known.vm) == kind(vm));
    match of_file {
        // What was decided stays: another VM may have shown less.
        Some(index) if known[index].vm.undecided.len() <= vm.undecided.len() => return,
        Some(index) => drop(known.remove(index)),
        None if known.len() >= MAX_KNOWN => drop(known.remove(0)),
        None => {}
    }
    known.push(KnownFile { identity, mapped_as, origin, vm: vm.clone() });
}

/// What its candidates look like.
fn kind(vm: &Vm) -> (bool, u64) {
    (vm.layout.is_gc64(), vm.global.wrapping_sub(vm.main_thread))
}

/// The VM at `candidate`, if its interpreter is in a file of which the build is known, and that fits at first sight. [`None`] if
/// it has to be proven.
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
    /// One of the same build at `candidate`, whose interpreter's code lies `delta` bytes higher.
    fn at(&self, candidate: Candidate, delta: u64) -> Self {
        let range = self.text.range.start.wrapping_add(delta)..self.text.range.end.wrapping_add(delta);
        let text = InterpreterText { range, exact: self.text.exact, edges: self.text.edges.moved_by(delta) };
        Self { global: candidate.global, main_thread: candidate.thread, text, ..self.clone() }
    }
}
