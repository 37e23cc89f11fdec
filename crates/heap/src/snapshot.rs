//! A snapshot of a process' Lua heaps: what is kept of it, shown, saved and compared.

use serde::{Deserialize, Serialize};

use super::object::Kind;
use super::objects::Objects;
use super::overhead::Overhead;
use super::paths::HeldSum;
use super::walk::Torn;

/// A process and its heaps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The process.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// When it was taken, in seconds since 1970.
    pub time: u64,
    /// Its resident memory in bytes.
    pub rss: u64,
    /// How long it took to read, in milliseconds.
    pub milliseconds: f64,
    /// For how long the process was stopped for it, in milliseconds; none if it was not.
    pub paused: Option<f64>,
    /// Whether it went on before everything was read, since the time for which it may be stopped was over.
    pub went_on: bool,
    /// How many bytes were read.
    pub bytes_read: u64,
    /// What was not copied with the rest, but read when the process may have gone on: names of mappings, with how many
    /// bytes that were.
    #[serde(default)]
    pub outside: Vec<(String, u64)>,
    /// Its VMs.
    pub vms: Vec<Heap>,
}

/// The heap of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heap {
    /// Address of its `global_State`.
    pub address: String,
    /// What the VM is: `Tarantool's LuaJIT 2.1.0-beta3, no GC64`.
    pub description: String,
    /// `gc.total` when the reading began.
    pub total: u64,
    /// `gc.total` when it was over.
    pub total_after: u64,
    /// Objects that are kept alive, and garbage, by type.
    pub types: Vec<TypeRow>,
    /// The VM's own blocks.
    pub overhead: Vec<Overhead>,
    /// What did not add up.
    pub torn: Torn,
    /// Whether there were more objects than can be told apart.
    pub incomplete: bool,
    /// The largest strings, the largest first.
    pub strings: Vec<BigObject>,
    /// The largest tables, the largest first.
    pub tables: Vec<BigObject>,
    /// The objects that were asked about.
    pub asked: Vec<AskedObject>,
    /// Each object, if that was asked for and there are not too many.
    #[serde(skip)]
    pub objects: Option<Objects>,
    /// The paths through which objects are held: a tree in which each step comes after the one before it.
    pub paths: Vec<PathRow>,
}

/// All objects of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeRow {
    /// The type.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// How many there are.
    pub count: u64,
    /// The bytes that they account for.
    pub bytes: u64,
    /// How many of them nothing refers to: garbage that is not collected yet.
    pub garbage_count: u64,
    /// The bytes that those account for.
    pub garbage_bytes: u64,
}

/// A large object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BigObject {
    /// Where it is.
    pub address: String,
    /// The bytes that it accounts for.
    pub bytes: u64,
    /// What it is: the beginning of a string, the sizes of a table's parts.
    pub preview: String,
    /// The path by which it is kept alive.
    pub path: String,
}

/// An object that was asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedObject {
    /// Where it is.
    pub address: String,
    /// Its type, if there is an object.
    #[serde(rename = "type")]
    pub kind: Option<Kind>,
    /// The bytes that it accounts for.
    pub bytes: u64,
    /// What it is.
    pub preview: String,
    /// The path by which it is kept alive, or why there is none.
    pub path: String,
}

/// A step of a path, and what is held through it and through no further step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRow {
    /// The step before it: its index in the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// The step: `.sessions`, `[*]`; of the first one the root: `globals`.
    pub step: String,
    /// What it holds, by type; types of which there is none are left out.
    pub held: Vec<(Kind, u64, u64)>,
}

impl Snapshot {
    /// Whether this is what there was at one moment: the process stood still until all of it was read.
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

    /// Objects that nothing refers to.
    pub fn garbage(&self) -> HeldSum {
        let sum = |sum: HeldSum, row: &TypeRow| sum.and(row.garbage_count, row.garbage_bytes);
        self.types.iter().fold(HeldSum::default(), sum)
    }

    /// The VM's own blocks together.
    pub fn overhead_bytes(&self) -> u64 {
        self.overhead.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }

    /// What `gc.total` has beyond what was found; less than nothing if more was found.
    pub fn unaccounted(&self) -> i64 {
        let found = self.objects().bytes.saturating_add(self.overhead_bytes());
        self.total_after.cast_signed().wrapping_sub(found.cast_signed())
    }

    /// Whether the heap stood still while it was read, as far as that shows.
    pub fn stood_still(&self) -> bool {
        self.total == self.total_after && self.torn == Torn::default()
    }

    /// What is held through each step and all further ones, by the index of the step.
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

    /// The paths in words, by the index of their last step.
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
