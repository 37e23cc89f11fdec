//! A snapshot as text.

use std::fmt;

use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{COLUMNS, Room, bytes, fit, percent};

use super::object::Kind;
use super::snapshot::{AskedObject, BigObject, Heap, Snapshot};
use super::tree;

/// Paths that hold less than this part of the heap (1 / `SMALLEST_PART`) are not shown.
const SMALLEST_PART: u64 = 100;
/// The most lines of the tree of paths.
const MOST_LINES: usize = 30;

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary())?;
        self.write_outside(f)?;
        self.vms.iter().try_for_each(|heap| write_heap(f, heap, self))
    }
}

impl Snapshot {
    /// The process, and how the snapshot was taken: whether it is exact, how long the process was stopped, and how much of
    /// it was read.
    pub fn summary(&self) -> String {
        format!("process {} ({}): RSS {}, {}", self.pid, Untrusted(&self.command), bytes(self.rss), self.how())
    }

    /// How the snapshot was taken.
    pub fn how(&self) -> String {
        let share = percent(self.bytes_read, self.rss);
        let read = format!("{} read ({share} of it), {} in all", bytes(self.bytes_read), time(self.milliseconds));
        match self.paused {
            None => format!("{read}, not stopped"),
            Some(paused) if self.went_on => {
                format!("{read}; not exact: it went on after {}, before everything was read", time(paused))
            }
            Some(paused) if self.is_exact() => format!("{read}; exact: stopped for {}", time(paused)),
            Some(paused) => format!("{read}; not exact, stopped for {}", time(paused)),
        }
    }
}

impl Snapshot {
    /// The memory that was read later than the rest.
    fn write_outside(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.outside.is_empty() {
            return Ok(());
        }
        let all = self.outside.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let names: Vec<_> = self.outside.iter().take(4).map(|(name, _)| Untrusted(name).text()).collect();
        let more = if self.outside.len() > names.len() { ", ..." } else { "" };
        let place = fit(&format!("{}{more}", names.join(", ")), COLUMNS / 2);
        writeln!(f, "{} of it lie outside of what was copied, and were read later: {place}", bytes(all))
    }
}

fn time(milliseconds: f64) -> String {
    if milliseconds < 1000.0 { format!("{milliseconds:.1} ms") } else { format!("{:.2} s", milliseconds / 1000.0) }
}

fn write_heap(f: &mut fmt::Formatter<'_>, heap: &Heap, snapshot: &Snapshot) -> fmt::Result {
    writeln!(f, "\nVM {}: {}", heap.address, heap.description)?;
    write_types(f, heap)?;
    write_motion(f, heap, snapshot.paused.is_some() && !snapshot.went_on)?;
    // If the object is in another VM, this VM has nothing to say about it.
    let elsewhere = |asked: &AskedObject| {
        let others = snapshot.vms.iter().flat_map(|heap| &heap.asked);
        asked.kind.is_none() && others.filter(|other| other.address == asked.address).any(|other| other.kind.is_some())
    };
    heap.asked.iter().filter(|asked| !elsewhere(asked)).try_for_each(|asked| write_asked(f, asked))?;
    write_paths(f, heap)?;
    write_big(f, "Biggest tables", &heap.tables, heap.total_after)?;
    write_big(f, "Biggest strings", &heap.strings, heap.total_after)
}

/// The parts of `gc.total`.
fn write_types(f: &mut fmt::Formatter<'_>, heap: &Heap) -> fmt::Result {
    let total = heap.total_after;
    let columns =
        [Column::left("type", 20), Column::right("objects", 12), Column::right("bytes", 15), Column::right("%", 8)];
    let mut table = Table::new(columns).end("garbage in it", Fit::Whole, Room::Unlimited);
    let mut row = |name: &str, count: &str, size: u64, share: &str, garbage: &str| {
        table.row([name.to_owned(), count.to_owned(), size.to_string(), share.to_owned()], garbage);
    };
    let mut types = heap.types.clone();
    types.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    for it in &types {
        let garbage = match it.garbage_count {
            0 => String::new(),
            count => format!("{count}, {}", bytes(it.garbage_bytes)),
        };
        row(it.kind.name(), &it.count.to_string(), it.bytes, &percent(it.bytes, total), &garbage);
    }
    let (objects, garbage) = (heap.objects(), heap.garbage());
    let garbage = format!("{}, {}", garbage.count, bytes(garbage.bytes));
    row("all objects", &objects.count.to_string(), objects.bytes, &percent(objects.bytes, total), &garbage);
    for part in &heap.overhead {
        row(&part.name, "", part.bytes, &percent(part.bytes, total), "");
    }
    match heap.unaccounted() {
        0 => {}
        more if more > 0 => {
            let more = more.unsigned_abs();
            row("not accounted for", "", more, &percent(more, total), "what parsers, recorders use at work");
        }
        less => table.row(["", "", &less.to_string(), ""].map(str::to_owned), "freed while it was read"),
    }
    table.row(["gc.total", "", &total.to_string(), ""].map(str::to_owned), "");
    write!(f, "{table}")
}

/// What has changed during reading.
fn write_motion(f: &mut fmt::Formatter<'_>, heap: &Heap, was_paused: bool) -> fmt::Result {
    let torn = heap.torn;
    if heap.incomplete {
        writeln!(f, "The heap is larger than can be looked through: what lies beyond 32 GiB is not in here.")?;
    }
    if heap.stood_still() {
        return Ok(());
    }
    let grown = heap.total_after.cast_signed().wrapping_sub(heap.total.cast_signed());
    let how = if was_paused { "was stopped in the middle of a change" } else { "moved while it was read" };
    write!(f, "The heap {how}: gc.total by {grown:+} bytes; ")?;
    write!(f, "{} references and {} links led to no object (any more), ", torn.references, torn.links)?;
    writeln!(f, "{} objects were on no list (yet).", torn.unlisted)?;
    if was_paused { Ok(()) } else { writeln!(f, "With --pause it stands still.") }
}

fn write_asked(f: &mut fmt::Formatter<'_>, asked: &AskedObject) -> fmt::Result {
    let kind = asked.kind.map_or("object", Kind::name);
    writeln!(f, "\n{kind} {} ({}) {}", asked.address, bytes(asked.bytes), Untrusted(&asked.preview))?;
    writeln!(f, "  {}", Untrusted(&asked.path))
}

/// A table of paths and the objects that they hold.
fn paths(title: &'static str) -> Table {
    let columns = [Column::right(title, 10), Column::right("%", 8), Column::right("objects", 12)];
    Table::new(columns).end("path", Fit::Middle, Room::Columns(COLUMNS))
}

fn write_paths(f: &mut fmt::Formatter<'_>, heap: &Heap) -> fmt::Result {
    let sums = heap.inclusive();
    let lines = tree::lines(heap, &sums, heap.objects().bytes / SMALLEST_PART);
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nWhat keeps it alive: each retention path with all that is held through it")?;
    let mut table = paths("held");
    for line in lines.iter().take(MOST_LINES) {
        let indent = "  ".repeat(line.depth.min(12));
        let cells = [bytes(line.held.bytes), percent(line.held.bytes, heap.total_after), line.held.count.to_string()];
        table.row(cells, format!("{indent}{}", line.text.trim_start()));
    }
    if lines.len() > MOST_LINES {
        table.more(format!("... {} more (--json shows them)", lines.len() - MOST_LINES));
    }
    write!(f, "{table}")
}

fn write_big(f: &mut fmt::Formatter<'_>, title: &str, big: &[BigObject], total: u64) -> fmt::Result {
    if big.is_empty() {
        return Ok(());
    }
    let columns = [Column::right("", 10), Column::right("", 8), Column::left("", 0), Column::left("", 14)];
    let mut table = Table::new(columns).headless().end("", Fit::Whole, Room::Columns(COLUMNS));
    for object in big {
        let preview = fit(&Untrusted(&object.preview).text(), 36);
        let cells = [bytes(object.bytes), percent(object.bytes, total), String::new(), object.address.clone()];
        table.row(cells, preview);
        table.below(3, Untrusted(&object.path).text(), Fit::Middle);
    }
    write!(f, "\n{title}\n{table}")
}

/// The paths that hold objects of one type, as text for the user.
pub struct HeldOfType<'a> {
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// The type.
    pub kind: Kind,
    /// The most paths to show.
    pub limit: usize,
}

impl fmt::Display for HeldOfType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.kind.name();
        for heap in &self.snapshot.vms {
            let texts = heap.path_texts();
            let mut held: Vec<(u64, u64, &str)> = Vec::new();
            for (row, text) in heap.paths.iter().zip(&texts) {
                let of_type = row.held.iter().find(|(kind, ..)| *kind == self.kind);
                held.extend(of_type.map(|&(_, count, bytes)| (bytes, count, text.as_str())));
            }
            held.sort_by_key(|&(bytes, count, _)| std::cmp::Reverse((bytes, count)));
            let all: u64 = held.iter().map(|(bytes, ..)| *bytes).fold(0, u64::saturating_add);
            writeln!(f, "\nWhat keeps alive each {name} of VM {}", heap.address)?;
            let mut table = paths("bytes");
            for (size, count, path) in held.iter().take(self.limit) {
                table.row([bytes(*size), percent(*size, all), count.to_string()], Untrusted(path).text());
            }
            if held.len() > self.limit {
                table.more(format!("... {} more paths (--top N shows more)", held.len() - self.limit));
            }
            write!(f, "{table}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overhead::Overhead;
    use crate::snapshot::TypeRow;
    use crate::walk::Torn;

    fn snapshot(total: u64) -> Snapshot {
        let row = |kind, count, bytes, garbage_count, garbage_bytes| TypeRow {
            kind,
            count,
            bytes,
            garbage_count,
            garbage_bytes,
        };
        let mut heap = tree::tests::heap(&[(None, "globals", 1, 64), (Some(0), ".cache", 9, 836)]);
        heap.types = vec![row(Kind::String, 2, 50, 1, 25), row(Kind::Table, 10, 900, 0, 0)];
        heap.overhead = vec![Overhead { name: "string table".into(), bytes: 50 }];
        (heap.total, heap.total_after) = (total, total);
        Snapshot {
            pid: 7,
            command: "luajit".into(),
            time: 0,
            rss: 1 << 20,
            milliseconds: 1.5,
            paused: None,
            went_on: false,
            bytes_read: 4096,
            outside: Vec::new(),
            vms: vec![heap],
        }
    }

    #[test]
    fn what_adds_up_and_what_does_not_is_said() {
        let text = snapshot(1000).to_string();
        assert!(!text.contains("not accounted") && !text.contains("moved"), "{text}");
        assert!(text.contains("not stopped"), "{text}");
        let table = text.find("table  ").unwrap();
        assert!(table < text.find("string  ").unwrap(), "{text}");
        assert!(text.contains("  globals\n") && text.contains("    .cache\n"), "{text}");
        let text = snapshot(1200).to_string();
        let missing = text.lines().find(|line| line.starts_with("not accounted for")).unwrap();
        assert_eq!(missing.split_whitespace().nth(3), Some("200"), "{text}");
        let mut moved = snapshot(1000);
        moved.vms[0].torn = Torn { references: 3, ..Torn::default() };
        assert!(moved.to_string().contains("3 references and 0 links"), "{moved}");
    }

    #[test]
    fn lines_are_not_too_long() {
        let mut long = snapshot(1000);
        long.vms[0].paths[1].step = ".x".repeat(200);
        long.vms[0].strings = vec![BigObject {
            address: "0x7f0012345678".into(),
            bytes: 9,
            preview: "y".repeat(99),
            path: "z".repeat(300),
        }];
        for line in long.to_string().lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
    }
}
