//! Compares two snapshots.
//!
//! Objects in both snapshots are the same ones ([`objects`](super::objects)). They count as unchanged even if another path
//! leads to them now; a table counts with the bytes by which it has grown. All other objects were freed, on their old path,
//! or are new. So the changes of all paths add up to the changes of all types; together with the VM's own blocks and the
//! unaccounted bytes, they add up to the change of `gc.total`.

use std::collections::BTreeMap;
use std::fmt;

use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{COLUMNS, Room, signed_bytes};
use serde::Serialize;

use super::object::Kind;
use super::objects::{Object, Objects};
use super::paths::HeldSum;
use super::snapshot::{Heap, Snapshot};

/// The changes between two snapshots.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The process id in the newer snapshot.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// The seconds between the two snapshots.
    pub seconds: i64,
    /// The bytes by which the resident memory has grown.
    pub rss: i64,
    /// The changes in each VM.
    pub vms: Vec<HeapDiff>,
}

/// The changes in a VM.
#[derive(Clone, Debug, Serialize)]
pub struct HeapDiff {
    /// The address of the VM's `global_State`.
    pub address: String,
    /// The bytes by which `gc.total` has grown.
    pub total: i64,
    /// The changes by type. Types without a change are left out.
    pub types: Vec<TypeDiff>,
    /// The changes by path, the largest growth first. Paths without a change are left out.
    pub paths: Vec<PathDiff>,
    /// The growth of garbage: objects without references are on no path.
    pub garbage: Change,
    /// The bytes by which the VM's own blocks have grown. Blocks without a change are left out.
    pub overhead: Vec<OverheadDiff>,
    /// The bytes by which `gc.total` has grown more than the types and the VM's own blocks.
    pub unaccounted: i64,
    /// The bytes by which `gc.total` has grown more than the paths, garbage, and the VM's own blocks.
    pub unaccounted_by_paths: i64,
    /// Whether the snapshots tell which objects are the same. If not, an object that is on another path now counts as
    /// growth there.
    pub by_identity: bool,
}

/// A growth; negative if more objects were freed than created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The number of objects.
    pub count: i64,
    /// The number of bytes.
    pub bytes: i64,
}

impl Change {
    fn add(&mut self, count: i64, bytes: i64) {
        self.count = self.count.saturating_add(count);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The growth of one of the VM's own blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverheadDiff {
    /// What the block is.
    pub name: String,
    /// The bytes by which it has grown.
    pub bytes: i64,
}

/// The growth in number and size of a type's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TypeDiff {
    /// The type.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The number of objects.
    pub count: i64,
    /// Their bytes.
    pub bytes: i64,
}

/// The growth of what a path holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathDiff {
    /// The path.
    pub path: String,
    /// The number of objects that are held through the path and all further steps.
    pub count: i64,
    /// Their bytes.
    pub bytes: i64,
    /// The number of objects that are held through the path and no further step.
    pub own_count: i64,
    /// Their bytes.
    pub own_bytes: i64,
}

/// The number of paths to show.
const SHOWN: usize = 20;

impl Diff {
    /// The changes from `old` to `new`. VMs with the same address are compared, or else VMs at the same position.
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
    let types: Vec<TypeDiff> = types.filter(|row| row.count != 0 || row.bytes != 0).collect();
    let total = difference(old.map_or(0, |old| old.total_after), new.total_after);
    let Changes { mut garbage, paths } = Changes::between(old, new);
    let is_known = both(old, new).is_some();
    if !is_known {
        let before = old.map_or_else(HeldSum::default, Heap::garbage);
        let after = new.garbage();
        garbage = Change { count: difference(before.count, after.count), bytes: difference(before.bytes, after.bytes) };
    }
    let overhead = overhead(old, new);
    let sum = |numbers: &mut dyn Iterator<Item = i64>| numbers.fold(0, i64::saturating_add);
    let own_blocks = sum(&mut overhead.iter().map(|row| row.bytes));
    let of_types = sum(&mut types.iter().map(|row| row.bytes)).saturating_add(own_blocks);
    let of_paths = sum(&mut paths.iter().map(|row| row.own_bytes)).saturating_add(garbage.bytes);
    HeapDiff {
        address: new.address.clone(),
        total,
        types,
        paths,
        garbage,
        overhead,
        unaccounted: total.saturating_sub(of_types),
        unaccounted_by_paths: total.saturating_sub(of_paths.saturating_add(own_blocks)),
        by_identity: is_known || old.is_none(),
    }
}

fn overhead(old: Option<&Heap>, new: &Heap) -> Vec<OverheadDiff> {
    let mut names: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for part in old.into_iter().flat_map(|old| &old.overhead) {
        names.entry(&part.name).or_default().0 = part.bytes;
    }
    for part in &new.overhead {
        names.entry(&part.name).or_default().1 = part.bytes;
    }
    let row = |(name, (before, after)): (&str, _)| OverheadDiff { name: name.into(), bytes: difference(before, after) };
    names.into_iter().map(row).filter(|row| row.bytes != 0).collect()
}

/// The objects of both snapshots, if both have them.
fn both<'a>(old: Option<&'a Heap>, new: &'a Heap) -> Option<(&'a Objects, &'a Objects)> {
    old.and_then(|old| old.objects.as_ref()).zip(new.objects.as_ref())
}

/// The changes on each path, and of garbage.
struct Changes {
    garbage: Change,
    paths: Vec<PathDiff>,
}

impl Changes {
    fn between(old: Option<&Heap>, new: &Heap) -> Self {
        let count = |heap: Option<&Heap>| heap.map_or(0, |heap| heap.paths.len());
        let mut garbage = Change::default();
        // Freed objects count on paths of the old snapshot, new objects on paths of the new one.
        let mut own = [vec![Change::default(); count(old)], vec![Change::default(); count(Some(new))]];
        if let Some((before, after)) = both(old, new) {
            compare(before, after, &mut |which, path, count, bytes| {
                let change = match path {
                    None => Some(&mut garbage),
                    Some(path) => own[which].get_mut(path as usize),
                };
                change.into_iter().for_each(|change| change.add(count, bytes));
            });
        } else {
            for (which, sign, heap) in [(0, -1, old), (1, 1, Some(new))] {
                for (index, row) in heap.into_iter().flat_map(|heap| &heap.paths).enumerate() {
                    let sum = row.held.iter().fold(HeldSum::default(), |sum, &(_, count, bytes)| sum.and(count, bytes));
                    let signed = |number: u64| number.cast_signed().saturating_mul(sign);
                    own[which][index].add(signed(sum.count), signed(sum.bytes));
                }
            }
        }
        let mut paths: BTreeMap<String, [Change; 2]> = BTreeMap::new();
        for (heap, own) in [old, Some(new)].into_iter().zip(own) {
            let Some(heap) = heap else { continue };
            let all = inclusive(heap, &own);
            for ((own, all), text) in own.into_iter().zip(all).zip(heap.path_texts()) {
                let path = paths.entry(text).or_default();
                path[0].add(own.count, own.bytes);
                path[1].add(all.count, all.bytes);
            }
        }
        let row = |(path, [own, all]): (String, [Change; 2])| PathDiff {
            path,
            count: all.count,
            bytes: all.bytes,
            own_count: own.count,
            own_bytes: own.bytes,
        };
        let changed = |diff: &PathDiff| [diff.count, diff.bytes, diff.own_count, diff.own_bytes] != [0; 4];
        let mut paths: Vec<PathDiff> = paths.into_iter().map(row).filter(changed).collect();
        paths.sort_by_key(|diff| std::cmp::Reverse((diff.own_bytes.unsigned_abs(), diff.bytes.unsigned_abs())));
        Self { garbage, paths }
    }
}

/// The changes on each path, including its further steps.
fn inclusive(heap: &Heap, own: &[Change]) -> Vec<Change> {
    let mut sums = own.to_vec();
    for index in (0..heap.paths.len()).rev() {
        if let Some(parent) = heap.paths[index].parent.filter(|&parent| parent < index) {
            let sum = sums[index];
            sums[parent].add(sum.count, sum.bytes);
        }
    }
    sums
}

/// Reports freed and new objects to `found`: the index of the snapshot, the path, the number of objects, and the bytes.
fn compare(before: &Objects, after: &Objects, found: &mut dyn FnMut(usize, Option<u32>, i64, i64)) {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let (old, new) = (before.peek().copied(), after.peek().copied());
        let is_first = |one: &Object, other: Option<Object>| other.is_none_or(|other| one.address < other.address);
        match (old, new) {
            (None, None) => return,
            (Some(old), Some(new)) if old.is(&new) && old.path.is_some() == new.path.is_some() => {
                let grown = difference(old.bytes, new.bytes);
                found(1, new.path, 0, grown);
                before.next();
                after.next();
            }
            (Some(old), new) if is_first(&old, new) || new.is_some_and(|new| new.address == old.address) => {
                found(0, old.path, -1, -old.bytes.cast_signed());
                before.next();
            }
            (_, Some(new)) => {
                found(1, new.path, 1, new.bytes.cast_signed());
                after.next();
            }
            (Some(_), None) => return,
        }
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, command) = (self.pid, Untrusted(&self.command));
        writeln!(f, "process {pid} ({command}): RSS {} in {} s", signed_bytes(self.rss), self.seconds)?;
        for vm in &self.vms {
            vm.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for HeapDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nVM {}: gc.total {}", self.address, signed_bytes(self.total))?;
        let columns = [Column::left("type", 20), Column::right("objects", 12), Column::right("bytes", 15)];
        let mut table = Table::new(columns);
        let mut row = |name: &str, count: &str, bytes: i64| {
            table.row([name.to_owned(), count.to_owned(), format!("{bytes:+}")], "");
        };
        let mut types = self.types.clone();
        types.sort_by_key(|row| std::cmp::Reverse(row.bytes.abs()));
        types.iter().for_each(|of| row(of.kind.name(), &format!("{:+}", of.count), of.bytes));
        self.overhead.iter().for_each(|of| row(&of.name, "", of.bytes));
        if self.unaccounted != 0 {
            row("not accounted for", "", self.unaccounted);
        }
        row("gc.total", "", self.total);
        write!(f, "{table}")?;
        self.write_paths(f)
    }
}

impl HeapDiff {
    /// The parts of the growth of `gc.total`, by paths.
    fn write_paths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.paths.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nWhat keeps it alive: the paths whose own objects have changed most")?;
        if !self.by_identity {
            write!(
                f,
                "Which objects are the same ones is not known: an earlier version has saved the old snapshot, or "
            )?;
            writeln!(
                f,
                "there are more\nthan eight million. What is reached on another path has grown there, and shrunk here."
            )?;
        }
        let columns = [Column::right("own", 10), Column::right("objects", 11), Column::right("with all", 11)];
        let mut table = Table::new(columns).end("path", Fit::Middle, Room::Columns(COLUMNS));
        let own: Vec<&PathDiff> = self.paths.iter().filter(|diff| diff.own_bytes != 0 || diff.own_count != 0).collect();
        for diff in own.iter().take(SHOWN) {
            let cells = [signed_bytes(diff.own_bytes), format!("{:+}", diff.own_count), signed_bytes(diff.bytes)];
            table.row(cells, Untrusted(&diff.path).text());
        }
        let rest = own.iter().skip(SHOWN);
        let mut others = Change::default();
        rest.clone().for_each(|diff| others.add(diff.own_count, diff.own_bytes));
        let mut blocks = Change::default();
        self.overhead.iter().for_each(|row| blocks.add(0, row.bytes));
        let more = format!("({} more paths)", rest.len());
        let rows = [
            (others, more.as_str()),
            (self.garbage, "(garbage: nothing refers to it)"),
            (blocks, "(the VM's own blocks)"),
            (Change { count: 0, bytes: self.unaccounted_by_paths }, "(not accounted for)"),
        ];
        for (change, name) in rows.into_iter().filter(|(change, _)| *change != Change::default()) {
            table.row([signed_bytes(change.bytes), format!("{:+}", change.count), String::new()], name);
        }
        table.row([signed_bytes(self.total), String::new(), String::new()], "gc.total");
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::heap;

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
        assert!(text.contains("+7.8 KiB") && text.contains("globals.sessions[*]"), "{text}");
    }

    #[test]
    fn nothing_has_changed_between_equal_ones() {
        let diff = Diff::new(&snapshot(10, 100), &snapshot(10, 100));
        assert!(diff.vms[0].paths.is_empty() && diff.vms[0].types.is_empty());
        let shrunk = Diff::new(&snapshot(10, 100), &snapshot(5, 99));
        assert_eq!((shrunk.vms[0].paths[0].own_count, shrunk.seconds), (-5, -1));
    }

    /// The objects of a snapshot, as address, bytes and path.
    fn objects(list: &[(u64, u64, Option<u32>)]) -> Option<Objects> {
        let mut objects = Objects::default();
        for &(address, bytes, path) in list {
            assert!(objects.add(Object { address, kind: Kind::Table, bytes, path, mark: 0 }));
        }
        Some(objects)
    }

    #[test]
    fn what_is_reached_on_another_path_has_only_grown() {
        let steps = [(None, "globals", 1, 40), (Some(0), ".a", 1, 100), (Some(0), ".b", 0, 0)];
        let mut old = heap(&steps);
        old.objects = objects(&[(8, 40, Some(0)), (16, 100, Some(1)), (24, 64, Some(1)), (32, 8, None)]);
        let mut new = heap(&[(None, "globals", 1, 40), (Some(0), ".b", 1, 130), (Some(0), ".a", 0, 0)]);
        // The changes: one table is larger and on `.b` now, one was freed, one is new, one piece of garbage stayed, and one
        // is new.
        new.objects =
            objects(&[(8, 40, Some(0)), (16, 130, Some(1)), (32, 8, None), (40, 72, Some(1)), (48, 16, None)]);
        (old.total_after, new.total_after) = (1000, 1000 + 30 - 64 + 72 + 16 + 5);
        let diff = heap_diff(Some(&old), &new);
        let paths: Vec<_> = diff.paths.iter().map(|row| (row.path.as_str(), row.own_count, row.own_bytes)).collect();
        assert_eq!(paths, [("globals.b", 1, 102), ("globals.a", -1, -64), ("globals", 0, 0)]);
        assert_eq!((diff.paths[2].count, diff.paths[2].bytes), (0, 38));
        assert_eq!((diff.garbage, diff.unaccounted_by_paths), (Change { count: 1, bytes: 16 }, 5));
        assert!(diff.by_identity);
        let text = diff.to_string();
        assert!(text.contains("(garbage: nothing refers to it)") && text.contains("(not accounted for)"), "{text}");
        // Without the objects, only the paths are compared, and the text says so.
        old.objects = None;
        let text = heap_diff(Some(&old), &new).to_string();
        assert!(text.contains("not known"), "{text}");
    }

    #[test]
    fn an_address_that_is_used_again_is_another_object() {
        let with = |bytes, mark| {
            let mut list = Objects::default();
            list.add(Object { address: 64, kind: Kind::String, bytes, path: Some(0), mark });
            list
        };
        let changes = |old: &Objects, new: &Objects| {
            let mut found = Vec::new();
            compare(old, new, &mut |which, path, count, bytes| found.push((which, path, count, bytes)));
            found
        };
        let gone_and_come = [(0, Some(0), -1, -30), (1, Some(0), 1, 30)];
        assert_eq!(changes(&with(30, 1), &with(30, 2)), gone_and_come);
        assert_eq!(changes(&with(30, 1), &with(30, 1)), [(1, Some(0), 0, 0)]);
        assert_eq!(changes(&with(30, 1), &Objects::default()), gone_and_come[..1]);
        assert_eq!(changes(&Objects::default(), &with(30, 1)), gone_and_come[1..]);
    }
}
