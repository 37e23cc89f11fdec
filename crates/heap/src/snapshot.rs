//! A snapshot of a process's Lua heaps, as it is shown, saved and compared.

use serde::{Deserialize, Serialize};

use super::object::Kind;
use super::objects::Objects;
use super::overhead::Overhead;
use super::paths::HeldSum;
use super::walk::Torn;

/// A process and its heaps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The process id.
    pub pid: u32,
    /// The command name of the process.
    pub command: String,
    /// The time of the snapshot, in seconds since 1970.
    pub time: u64,
    /// The resident memory of the process in bytes.
    pub rss: u64,
    /// How long it took to read the heaps, in milliseconds.
    pub milliseconds: f64,
    /// How long the process was stopped, in milliseconds; [`None`] if it was not.
    pub paused: Option<f64>,
    /// Whether the process went on before everything was read, because the time limit of the stop was over.
    pub went_on: bool,
    /// The number of bytes that were read.
    pub bytes_read: u64,
    /// Memory that was not copied with the rest, but read when the process may already have gone on: the names of mappings,
    /// and the bytes read from each.
    #[serde(default)]
    pub outside: Vec<(String, u64)>,
    /// The VMs of the process.
    pub vms: Vec<Heap>,
}

/// The heap of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heap {
    /// The address of the VM's `global_State`.
    pub address: String,
    /// The build of the VM: `Tarantool's LuaJIT 2.1.0-beta3, no GC64`.
    pub description: String,
    /// `gc.total` when reading began.
    pub total: u64,
    /// `gc.total` when reading ended.
    pub total_after: u64,
    /// Live objects and garbage, by type.
    pub types: Vec<TypeRow>,
    /// The VM's own blocks.
    pub overhead: Vec<Overhead>,
    /// Inconsistencies in the heap.
    pub torn: Torn,
    /// Whether there were more objects than the index has room for.
    pub incomplete: bool,
    /// The largest strings, the largest first.
    pub strings: Vec<BigObject>,
    /// The largest tables, the largest first.
    pub tables: Vec<BigObject>,
    /// The objects that the user asked about.
    pub asked: Vec<AskedObject>,
    /// All objects, if the caller asked for them and there are not too many.
    #[serde(skip)]
    pub objects: Option<Objects>,
    /// The paths through which objects are held: a tree in which each step comes after its parent.
    pub paths: Vec<PathRow>,
}

/// All objects of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeRow {
    /// The type.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The number of objects.
    pub count: u64,
    /// The bytes that the objects account for.
    pub bytes: u64,
    /// The number of objects without references to them: garbage that is not collected yet.
    pub garbage_count: u64,
    /// The bytes that the garbage accounts for.
    pub garbage_bytes: u64,
}

/// A large object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BigObject {
    /// The address of the object.
    pub address: String,
    /// The bytes that it accounts for.
    pub bytes: u64,
    /// A short description: the beginning of a string, or the sizes of a table's parts.
    pub preview: String,
    /// The path that keeps the object alive.
    pub path: String,
}

/// An object that the user asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedObject {
    /// The address.
    pub address: String,
    /// The type, if there is an object at the address.
    #[serde(rename = "type")]
    pub kind: Option<Kind>,
    /// The bytes that it accounts for.
    pub bytes: u64,
    /// A short description of the object.
    pub preview: String,
    /// The path that keeps the object alive, or why there is none.
    pub path: String,
}

/// A step of a path, and the objects that are held through this step and no further one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRow {
    /// The index of the previous step in the list; [`None`] for a root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// The name of the step: `.sessions`, `[*]`. For the first step, the name of the root: `globals`.
    pub step: String,
    /// The objects that it holds, by type: their number and their bytes. Types without objects are left out.
    pub held: Vec<(Kind, u64, u64)>,
}

impl Snapshot {
    /// Whether the snapshot shows a single moment: the process was stopped until everything was read.
    pub fn is_exact(&self) -> bool {
        self.paused.is_some() && !self.went_on && self.outside.is_empty()
    }
}

impl Heap {
    /// All objects, garbage included.
    pub fn objects(&self) -> HeldSum {
        let sum = |sum: HeldSum, row: &TypeRow| sum.and(row.count, row.bytes);
        self.types.iter().fold(HeldSum::default(), sum)
    }

    /// All garbage: objects without references to them.
    pub fn garbage(&self) -> HeldSum {
        let sum = |sum: HeldSum, row: &TypeRow| sum.and(row.garbage_count, row.garbage_bytes);
        self.types.iter().fold(HeldSum::default(), sum)
    }

    /// The bytes of all of the VM's own blocks.
    pub fn overhead_bytes(&self) -> u64 {
        self.overhead.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }

    /// The bytes of `gc.total` beyond what was found; negative if more was found.
    pub fn unaccounted(&self) -> i64 {
        let found = self.objects().bytes.saturating_add(self.overhead_bytes());
        self.total_after.cast_signed().wrapping_sub(found.cast_signed())
    }

    /// Whether the heap did not change while it was read, as far as the snapshot can tell.
    pub fn stood_still(&self) -> bool {
        self.total == self.total_after && self.torn == Torn::default()
    }

    /// The objects that are held through each step and all further ones, by the index of the step.
    pub fn inclusive(&self) -> Vec<HeldSum> {
        let own = |row: &PathRow| {
            let add = |sum: HeldSum, &(_, count, bytes): &(Kind, u64, u64)| sum.and(count, bytes);
            row.held.iter().fold(HeldSum::default(), add)
        };
        let mut sums: Vec<HeldSum> = self.paths.iter().map(own).collect();
        for index in (0..self.paths.len()).rev() {
            if let Some(parent) = self.paths[index].parent.filter(|&parent| parent < index) {
                let sum = sums[index];
                sums[parent] = sums[parent].and(sum.count, sum.bytes);
            }
        }
        sums
    }

    /// The paths as text, by the index of their last step.
    pub fn path_texts(&self) -> Vec<String> {
        let mut texts: Vec<String> = Vec::with_capacity(self.paths.len());
        for row in &self.paths {
            let before = row.parent.and_then(|parent| texts.get(parent)).map_or("", String::as_str);
            let text = format!("{before}{}", row.step);
            texts.push(text);
        }
        texts
    }
}
