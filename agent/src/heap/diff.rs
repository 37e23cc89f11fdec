//! What has changed between two snapshots.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::object::Kind;
use super::paths::Sum;
use super::snapshot::{Heap, Snapshot};
use crate::dump::text::bytes;
use crate::report::text::{COLUMNS, fit};
use crate::untrusted::Untrusted;

/// Two snapshots, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The process of the newer one.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// Seconds between the two.
    pub seconds: i64,
    /// By how many bytes the resident memory has grown.
    pub rss: i64,
    /// What has changed in each VM.
    pub vms: Vec<HeapDiff>,
}

/// What has changed in a VM.
#[derive(Clone, Debug, Serialize)]
pub struct HeapDiff {
    /// Address of its `global_State`.
    pub address: String,
    /// By how many bytes `gc.total` has grown.
    pub total: i64,
    /// By type; types that have not changed are left out.
    pub types: Vec<TypeDiff>,
    /// Ways, what grew most first; those that have not changed are left out.
    pub paths: Vec<PathDiff>,
}

/// What has changed in the number and size of a type's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TypeDiff {
    /// The type.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// Objects.
    pub count: i64,
    /// Bytes.
    pub bytes: i64,
}

/// What has changed in what is held through a way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathDiff {
    /// The way.
    pub path: String,
    /// Objects, held through it and all further steps.
    pub count: i64,
    /// Their bytes.
    pub bytes: i64,
    /// Of these, objects that are held through it and no further step.
    pub own_count: i64,
    /// Their bytes.
    pub own_bytes: i64,
}

/// How many ways are shown.
const SHOWN: usize = 20;

impl Diff {
    /// What has changed from `old` to `new`. VMs belong together by their addresses, or else by their order.
    pub fn new(old: &Snapshot, new: &Snapshot) -> Self {
        let vms = new.vms.iter().enumerate().map(|(index, heap)| {
            let same = old.vms.iter().find(|other| other.address == heap.address);
            heap_diff(same.or_else(|| old.vms.get(index)), heap)
        });
        Self {
            pid: new.pid,
            command: new.command.clone(),
            seconds: difference(old.time, new.time),
            rss: difference(old.rss, new.rss),
            vms: vms.collect(),
        }
    }
}

fn difference(old: u64, new: u64) -> i64 {
    new.cast_signed().wrapping_sub(old.cast_signed())
}

fn heap_diff(old: Option<&Heap>, new: &Heap) -> HeapDiff {
    let of_type = |heap: Option<&Heap>, kind: Kind| {
        let row = heap.and_then(|heap| heap.types.iter().find(|row| row.kind == kind));
        row.map_or((0, 0), |row| (row.count, row.bytes))
    };
    let types = Kind::ALL.into_iter().map(|kind| {
        let (before, after) = (of_type(old, kind), of_type(Some(new), kind));
        TypeDiff { kind, count: difference(before.0, after.0), bytes: difference(before.1, after.1) }
    });
    HeapDiff {
        address: new.address.clone(),
        total: difference(old.map_or(0, |old| old.total_after), new.total_after),
        types: types.filter(|row| row.count != 0 || row.bytes != 0).collect(),
        paths: path_diffs(old, new),
    }
}

fn path_diffs(old: Option<&Heap>, new: &Heap) -> Vec<PathDiff> {
    let mut ways: BTreeMap<String, [(Sum, Sum); 2]> = BTreeMap::new();
    for (which, heap) in [old, Some(new)].into_iter().enumerate() {
        let Some(heap) = heap else { continue };
        let sums = heap.inclusive();
        for ((row, all), text) in heap.paths.iter().zip(sums).zip(heap.path_texts()) {
            let own = row.held.iter().fold(Sum::default(), |sum, &(_, count, bytes)| sum.and(count, bytes));
            ways.entry(text).or_default()[which] = (all, own);
        }
    }
    let mut diffs: Vec<PathDiff> = ways
        .into_iter()
        .map(|(path, [before, after])| PathDiff {
            path,
            count: difference(before.0.count, after.0.count),
            bytes: difference(before.0.bytes, after.0.bytes),
            own_count: difference(before.1.count, after.1.count),
            own_bytes: difference(before.1.bytes, after.1.bytes),
        })
        .filter(|diff| [diff.count, diff.bytes, diff.own_count, diff.own_bytes] != [0; 4])
        .collect();
    diffs.sort_by_key(|diff| std::cmp::Reverse((diff.own_bytes.unsigned_abs(), diff.bytes.unsigned_abs())));
    diffs
}

/// A number of bytes with its sign.
fn signed(count: i64) -> String {
    let sign = if count < 0 { '-' } else { '+' };
    format!("{sign}{}", bytes(count.unsigned_abs()))
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, command) = (self.pid, Untrusted(&self.command));
        writeln!(f, "process {pid} ({command}): RSS {} in {} s", signed(self.rss), self.seconds)?;
        for vm in &self.vms {
            writeln!(f, "\nVM {}: gc.total {}", vm.address, signed(vm.total))?;
            writeln!(f, "{:20} {:>12} {:>15}", "type", "objects", "bytes")?;
            let mut types = vm.types.clone();
            types.sort_by_key(|row| std::cmp::Reverse(row.bytes.abs()));
            for row in types {
                writeln!(f, "{:20} {:>+12} {:>+15}", row.kind.name(), row.count, row.bytes)?;
            }
            if vm.paths.is_empty() {
                continue;
            }
            writeln!(f, "\nWhat keeps it alive: the ways whose own objects have changed most")?;
            writeln!(f, "{:>10} {:>11}  {:>10}  way", "own", "objects", "with all")?;
            for diff in vm.paths.iter().filter(|diff| diff.own_bytes != 0 || diff.own_count != 0).take(SHOWN) {
                let way = fit(&Untrusted(&diff.path).text(), COLUMNS - 37);
                let (own, all) = (signed(diff.own_bytes), signed(diff.bytes));
                writeln!(f, "{own:>10} {:>+11}  {all:>10}  {way}", diff.own_count)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::tree::tests::heap;

    fn snapshot(sessions: u64, time: u64) -> Snapshot {
        let steps = [
            (None, "globals", 1, 100),
            (Some(0), ".sessions", 1, 64 + 16 * sessions),
            (Some(1), "[*]", sessions, 80 * sessions),
            (Some(0), ".config", 3, 300),
        ];
        let mut heap = heap(&steps);
        heap.total_after = 1000 + 96 * sessions;
        Snapshot {
            pid: 7,
            command: "luajit".into(),
            time,
            rss: 4096 * sessions,
            milliseconds: 1.0,
            paused: None,
            went_on: false,
            bytes_read: 0,
            outside: Vec::new(),
            vms: vec![heap],
        }
    }

    #[test]
    fn the_way_that_grew_comes_first() {
        let diff = Diff::new(&snapshot(10, 100), &snapshot(110, 160));
        assert_eq!((diff.seconds, diff.rss, diff.vms[0].total), (60, 409_600, 9600));
        let first = &diff.vms[0].paths[0];
        assert_eq!((first.path.as_str(), first.own_count, first.own_bytes), ("globals.sessions[*]", 100, 8000));
        assert_eq!(diff.vms[0].paths[1].path, "globals.sessions");
        assert!(diff.vms[0].paths.iter().all(|diff| !diff.path.contains("config")));
        let text = diff.to_string();
        assert!(text.contains("+7.8 KB") && text.contains("globals.sessions[*]"), "{text}");
    }

    #[test]
    fn nothing_has_changed_between_equal_ones() {
        let diff = Diff::new(&snapshot(10, 100), &snapshot(10, 100));
        assert!(diff.vms[0].paths.is_empty() && diff.vms[0].types.is_empty());
        let shrunk = Diff::new(&snapshot(10, 100), &snapshot(5, 99));
        assert_eq!((shrunk.vms[0].paths[0].own_count, shrunk.seconds), (-5, -1));
    }
}
