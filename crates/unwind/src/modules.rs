//! The ELF files mapped into the target. Each is opened for the first address in it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lj_trace_process::{Mapping, Maps, Process};

use super::module::Module;
use super::opened::FileView;

/// The shortest time between two reads of the maps for addresses outside of all known mappings.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// The number of files that are always kept open. If there are more, files that are no longer mapped are closed: some
/// programs generate libraries and load them.
const MAX_FILES: usize = 256;

/// What the kernel calls its page of uretprobe trampolines.
const UPROBES: &str = "[uprobes]";

/// What lies at an address of the target.
#[derive(Clone, Debug)]
pub enum CodePlace {
    /// An ELF file (or the vDSO).
    Module(Located),
    /// Executable memory that is no ELF file: generated code, or a file of another format.
    NotElf,
    /// The kernel's page of uretprobe trampolines.
    UprobeTrampoline,
    /// No executable mapping.
    Nowhere,
}

/// An address in a module.
#[derive(Clone, Debug)]
pub struct Located {
    /// The module.
    pub module: Arc<Module>,
    /// The load bias: what was added to the addresses in the file when it was mapped.
    pub bias: u64,
}

/// Identifies the file of a mapping: device, inode, and path (some file systems show equal inodes for different devices).
type FileKey = ((u32, u32), u64, String);

/// The modules of a process.
#[derive(Debug)]
pub struct Modules {
    process: Process,
    /// The executable mappings, sorted.
    mappings: Vec<Mapped>,
    by_file: HashMap<FileKey, Option<Arc<Module>>>,
    /// The file view of the process, once it was needed.
    view: OnceLock<Option<FileView>>,
    last_refresh: Option<Instant>,
}

#[derive(Debug)]
struct Mapped {
    mapping: Mapping,
    place: OnceLock<CodePlace>,
}

impl Modules {
    /// The modules of `process`; nothing is read yet.
    pub fn new(process: Process) -> Self {
        Self { process, mappings: Vec::new(), by_file: HashMap::new(), view: OnceLock::new(), last_refresh: None }
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// What lies at `address`. If no known mapping covers the address, it reads the maps again, since a library may
    /// have been loaded; but not each time. The second result tells whether the maps have changed.
    pub fn find(&mut self, address: u64) -> (CodePlace, bool) {
        let changed = self.index(address).is_none() && self.refresh_if_due();
        let place = self.index(address).map_or(CodePlace::Nowhere, |index| self.place(index));
        (place, changed)
    }

    /// Reads the maps again; returns whether anything executable has changed. If the process is gone, the last known maps stay.
    pub fn refresh(&mut self) -> bool {
        self.last_refresh = Some(Instant::now());
        let Ok(maps) = self.process.maps() else { return false };
        if maps.is_empty() {
            return false;
        }
        let new: Vec<_> = executable(&maps).collect();
        if new.iter().copied().eq(self.mappings.iter().map(|mapped| &mapped.mapping)) {
            return false;
        }
        // An unchanged mapping keeps its module; a changed one is examined again.
        let mut old = std::mem::take(&mut self.mappings);
        let mut keep = |mapping: &Mapping| {
            let index = old.iter().position(|mapped| mapped.mapping == *mapping);
            index.map_or_else(OnceLock::new, |index| old.swap_remove(index).place)
        };
        self.mappings =
            new.into_iter().map(|mapping| Mapped { mapping: mapping.clone(), place: keep(mapping) }).collect();
        true
    }

    /// Opens every module that is mapped now, and returns all with their load biases. Open modules stay readable after
    /// the process has exited.
    pub fn open_all(&mut self) -> Vec<Located> {
        self.refresh();
        let places = (0..self.mappings.len()).map(|index| self.place(index)).collect::<Vec<_>>();
        let mut all: Vec<Located> = Vec::new();
        for place in places {
            if let CodePlace::Module(located) = place
                && !all.iter().any(|other| other.bias == located.bias && Arc::ptr_eq(&other.module, &located.module))
            {
                all.push(located);
            }
        }
        all
    }

    /// The kernel's page of uretprobe trampolines. If it is not known, the maps are read again, but not each time.
    pub fn uprobe_trampoline(&mut self) -> Option<Range<u64>> {
        let find = |modules: &Self| {
            let mapping = modules.mappings.iter().map(|mapped| &mapped.mapping).find(|own| own.path == UPROBES)?;
            Some(mapping.start..mapping.end)
        };
        find(self).or_else(|| if self.refresh_if_due() { find(self) } else { None })
    }

    fn index(&self, address: u64) -> Option<usize> {
        let index = self.mappings.partition_point(|mapped| mapped.mapping.end <= address);
        self.mappings.get(index).is_some_and(|mapped| mapped.mapping.contains(address)).then_some(index)
    }

    /// Reads the maps again unless that was just done; returns whether anything executable has changed.
    pub fn refresh_if_due(&mut self) -> bool {
        let due = self.last_refresh.is_none_or(|last| last.elapsed() >= REFRESH_INTERVAL);
        due && self.refresh()
    }

    fn place(&mut self, index: usize) -> CodePlace {
        let Some(mapped) = self.mappings.get(index) else { return CodePlace::Nowhere };
        if let Some(place) = mapped.place.get() {
            return place.clone();
        }
        let mapping = mapped.mapping.clone();
        let place = self.identify(&mapping);
        self.mappings[index].place.get_or_init(|| place).clone()
    }

    fn identify(&mut self, mapping: &Mapping) -> CodePlace {
        if mapping.path == UPROBES {
            return CodePlace::UprobeTrampoline;
        }
        let module = if mapping.path == "[vdso]" {
            Module::from_memory("[vdso]", &self.process.memory(), mapping).map(Arc::new)
        } else if mapping.is_file() {
            let key = (mapping.device, mapping.inode, mapping.path.clone());
            let process = &self.process;
            if self.by_file.len() >= MAX_FILES {
                let is_mapped = |(device, inode, path): &FileKey| {
                    let mut mappings = self.mappings.iter().map(|mapped| &mapped.mapping);
                    mappings.any(|own| own.device == *device && own.inode == *inode && own.path == *path)
                };
                self.by_file.retain(|key, _| is_mapped(key));
            }
            let view = *self.view.get_or_init(|| FileView::of(process));
            self.by_file.entry(key).or_insert_with(|| Module::open(process, view, mapping)).clone()
        } else {
            None
        };
        let located = module.and_then(|module| {
            let bias = module.bias(mapping.start, mapping.offset)?;
            Some(Located { module, bias })
        });
        located.map_or(CodePlace::NotElf, CodePlace::Module)
    }
}

fn executable(maps: &Maps) -> impl Iterator<Item = &Mapping> {
    // `[vsyscall]` is only an entry point of the kernel: no user code ever runs there.
    maps.iter().filter(|mapping| mapping.exec && mapping.path != "[vsyscall]")
}
