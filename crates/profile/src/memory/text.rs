//! A memory profile as text: which lines allocate, which lines hold memory, and what became garbage.

use std::collections::HashMap;
use std::io::{self, Write};

use lj_trace_estimate::Figure;
use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{Room, bytes, percent, signed_bytes};

use super::{Garbage, MemoryProfile, stored};
use crate::Frame;
use crate::answer::{MemoryQuestion, memory_sentence};
use crate::model::{Profile as _, Row, StackTable};

const TOP: usize = 20;

/// What to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTextOptions {
    /// Only what is still held.
    pub leak_only: bool,
}

/// What a line of code does to the memory.
#[derive(Clone, Debug, Default)]
struct LineTotals {
    name: String,
    allocations: u64,
    allocated: u64,
    held_objects: u64,
    held: u64,
    garbage: Garbage,
}

/// Writes the profile as text.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &MemoryProfile, options: MemoryTextOptions, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let places = places(profile);
    let sum = |value: fn(&LineTotals) -> u64| places.iter().map(value).fold(0, u64::saturating_add);
    let (allocations, allocated, held) = (sum(|p| p.allocations), sum(|p| p.allocated), sum(|p| p.held));
    if !profile.title.is_empty() {
        writeln!(out, "{}", room.title(&profile.title))?;
    }
    said(profile, &places, options, room).iter().try_for_each(|sentence| writeln!(out, "{sentence}"))?;
    let events = profile.events();
    // An estimate does not know the number of events.
    let counted = if events == 0 { String::new() } else { format!("{events} events: ") };
    writeln!(out, "{counted}{} allocated by {allocations} allocations and reallocations", bytes(allocated))?;
    match profile.stored() {
        Some(stored) => stored::write(profile, stored, room, out)?,
        None => write_growth(profile, held, out)?,
    }
    if !options.leak_only && allocations > 0 {
        let by_bytes: (Key, Key) = (|place| place.allocated, |place| place.allocations);
        let title = "Top lines by the bytes that they allocate";
        write_table(&places, title, by_bytes, allocator, allocators(room), out)?;
        let by_count: (Key, Key) = (|place| place.allocations, |place| place.allocated);
        write_table(&places, "Top lines by how often they allocate", by_count, allocator, allocators(room), out)?;
    }
    if profile.follows_blocks() {
        let by_held: (Key, Key) = (|place| place.held, |place| place.held_objects);
        let title = "Still held: allocated during the recording, and not freed by its end";
        write_table(&places, title, by_held, |place| holder(place, held), holders(room), out)?;
    }
    // A profile that is merged from intervals does not know what was freed during them.
    if profile.follows_blocks() && !options.leak_only && profile.stored().is_none() {
        let by_garbage: (Key, Key) = (|place| place.garbage.bytes, |place| place.garbage.objects);
        let title = "Garbage: allocated and freed again; the shorter it lives, the easier it is done without";
        write_table(&places, title, by_garbage, garbage, garbage_table(room), out)?;
    }
    let mut lost = Table::new([Column::right("", 10)]).headless().end("", Fit::End, room);
    profile.losses().iter().for_each(|(reason, count)| lost.row([count.to_string()], reason));
    if lost.is_empty() { Ok(()) } else { write!(out, "\nEvents lost\n{lost}") }
}

/// The answer: which line holds most of what is there at the end, if known, and which line allocates most.
pub fn sentences(profile: &MemoryProfile, room: Room) -> Vec<String> {
    said(profile, &places(profile), MemoryTextOptions::default(), room)
}

fn said(profile: &MemoryProfile, places: &[LineTotals], options: MemoryTextOptions, room: Room) -> Vec<String> {
    let sentence = |question, value: Key| {
        let mut lines: Vec<_> =
            places.iter().map(|place| (place.name.clone(), Figure::measured(value(place) as f64))).collect();
        lines.sort_by(|(a_name, a), (b_name, b)| b.value.total_cmp(&a.value).then_with(|| a_name.cmp(b_name)));
        let all = lines.iter().map(|(_, bytes)| bytes.value).sum();
        memory_sentence(question, &lines, all, room)
    };
    let held = profile.follows_blocks().then(|| sentence(MemoryQuestion::Held, |place| place.held));
    let allocated = (!options.leak_only).then(|| sentence(MemoryQuestion::Allocated, |place| place.allocated));
    held.into_iter().chain(allocated).flatten().collect()
}

/// A place for each stack; stacks with the same name share one place.
fn places(profile: &MemoryProfile) -> Vec<LineTotals> {
    let stacks = profile.weighted();
    let mut places: Vec<LineTotals> = Vec::new();
    let mut indices: HashMap<String, usize> = HashMap::new();
    for (id, row) in stacks.numbered() {
        let name = name(stacks, &row);
        let index = *indices.entry(name.clone()).or_insert_with(|| {
            places.push(LineTotals { name, ..LineTotals::default() });
            places.len() - 1
        });
        let place = &mut places[index];
        let [allocations, allocated, held_objects, held, _] = *row.weights;
        place.allocations += allocations;
        place.allocated = place.allocated.saturating_add(allocated);
        place.held_objects += held_objects;
        place.held = place.held.saturating_add(held);
        let garbage = profile.garbage(id);
        place.garbage.objects += garbage.objects;
        place.garbage.bytes = place.garbage.bytes.saturating_add(garbage.bytes);
        place.garbage.age = place.garbage.age.saturating_add(garbage.age);
    }
    places
}

/// The name of a stack in a memory profile: `a.lua:4 in work@a.lua:3`; with the VM, if there are several.
pub fn name(stacks: &StackTable, row: &Row<'_>) -> String {
    let frames: Vec<&Frame> = row.frames.iter().filter_map(|&id| stacks.frame(id)).collect();
    let root = frames.first().filter(|frame| matches!(frame, Frame::Root { .. }));
    let mut name = root.map_or(String::new(), |root| format!("{root}: "));
    match frames.as_slice() {
        [.., function @ Frame::Lua { .. }, line @ Frame::Line { .. }] => {
            name.push_str(&format!("{line} in {}", plain(function)));
        }
        [.., function @ Frame::Lua { .. }, line @ Frame::Line { .. }, c @ Frame::C { .. }] => {
            name.push_str(&format!("{c} from {line} in {}", plain(function)));
        }
        [.., Frame::Lua { name: of, .. }, Frame::Trace { number: Some(number), start: Some(start) }] => {
            let of = of.as_deref().unwrap_or_default();
            name.push_str(&format!("{}{} (TRACE [{number}])", Untrusted(of), Untrusted(start)));
        }
        [.., leaf] => name.push_str(&plain(leaf)),
        [] => name.push_str("[unknown: no stack]"),
    }
    name
}

/// The name of a frame without the mark for compiled code: compiled or not, the same code allocates.
fn plain(frame: &Frame) -> String {
    match frame {
        Frame::Lua { compiled: true, .. } => {
            let mut frame = frame.clone();
            if let Frame::Lua { compiled, .. } = &mut frame {
                *compiled = false;
            }
            frame.to_string()
        }
        frame => frame.to_string(),
    }
}

/// How the heap grew, over tenths of the events.
fn write_growth(profile: &MemoryProfile, held: u64, out: &mut dyn Write) -> io::Result<()> {
    let total = profile.growth().total();
    let change = if total < 0 { "shrank" } else { "grew" };
    write!(out, "The heap {change} by {}", bytes(total.unsigned_abs()))?;
    if profile.follows_blocks() {
        write!(out, "; {} of what was allocated is still held", bytes(held))?;
    }
    writeln!(out)?;
    let parts = profile.growth().parts(10);
    if parts.len() < 2 {
        return Ok(());
    }
    writeln!(out, "\nSize of the heap against the beginning, after each tenth of the events")?;
    let largest = parts.iter().map(|size| size.unsigned_abs()).max().unwrap_or(1).max(1);
    let mut table = Table::new([Column::right("", 10), Column::right("", 14)]).headless();
    for (tenth, size) in (1..).zip(&parts) {
        let bar = (u128::from(size.unsigned_abs()) * 50 / u128::from(largest)) as usize;
        table.row([format!("{}%", tenth * 100 / parts.len()), signed_bytes(*size)], "#".repeat(bar));
    }
    write!(out, "{table}")
}

type Key = fn(&LineTotals) -> u64;

/// A table with three figures in each row.
fn table(columns: [(&'static str, usize); 3], title: &str, room: Room) -> Table {
    Table::new(columns.map(|(title, least)| Column::right(title, least))).end(title, Fit::Label(0), room)
}

fn allocators(room: Room) -> Table {
    table([("allocated", 11), ("times", 10), ("average", 10)], "line", room)
}

fn allocator(place: &LineTotals) -> [String; 3] {
    let average = place.allocated.checked_div(place.allocations).unwrap_or(0);
    [bytes(place.allocated), place.allocations.to_string(), bytes(average)]
}

fn holders(room: Room) -> Table {
    table([("held", 11), ("blocks", 10), ("%", 7)], "line", room)
}

fn holder(place: &LineTotals, held: u64) -> [String; 3] {
    [bytes(place.held), place.held_objects.to_string(), percent(place.held, held)]
}

fn garbage_table(room: Room) -> Table {
    let title = "line (lived for: what was allocated meanwhile)";
    table([("garbage", 11), ("blocks", 10), ("lived for", 10)], title, room)
}

fn garbage(place: &LineTotals) -> [String; 3] {
    let Garbage { objects, bytes: of_all, age } = place.garbage;
    let lived = age.checked_div(objects).unwrap_or(0).saturating_mul(1024);
    [bytes(of_all), objects.to_string(), bytes(lived)]
}

/// Puts the places with the largest keys that are not zero into the table, and writes the table.
fn write_table(
    places: &[LineTotals],
    title: &str,
    (first, second): (Key, Key),
    figures: impl Fn(&LineTotals) -> [String; 3],
    mut table: Table,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut shown: Vec<&LineTotals> = places.iter().filter(|place| first(place) > 0).collect();
    shown.sort_by(|a, b| (first(b), second(b)).cmp(&(first(a), second(a))).then_with(|| a.name.cmp(&b.name)));
    writeln!(out, "\n{title}")?;
    if shown.is_empty() {
        return writeln!(out, "    nothing");
    }
    shown.iter().take(TOP).for_each(|place| table.row(figures(place), &place.name));
    if shown.len() > TOP {
        table.more(format!("{} more", shown.len() - TOP));
    }
    write!(out, "{table}")
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::Symbol;
    use lj_trace_streams::memprof::{Event, Source};
    use lj_trace_text::COLUMNS;

    use super::*;
    use crate::Weight;

    fn text(options: MemoryTextOptions) -> String {
        let mut profile = MemoryProfile::new(Weight::Held, "test");
        profile.add(0, &Event::Symbol(Symbol::lua(0x1000, b"@a.lua", 3)));
        let source = |line| Source::Lua { proto: 0x1000, line };
        for index in 0..100_u64 {
            // Line 4 leaks, line 5 makes garbage.
            profile.add(0, &Event::Alloc { source: source(4), addr: 0x10_0000 + index * 64, size: 40 });
            let addr = 0x20_0000 + index * 4096;
            profile.add(0, &Event::Alloc { source: source(5), addr, size: 2048 });
            profile.add(0, &Event::Free { source: Source::Internal, addr, size: 2048 });
        }
        profile.lose("ring buffer full", 3);
        let mut out = Vec::new();
        write(&profile, options, Room::Columns(COLUMNS), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_says_who_allocates_who_holds_and_what_was_garbage() {
        let text = text(MemoryTextOptions::default());
        for expected in [
            "100% of what is held at the end (3.9 KiB) is allocated at `a.lua:4 in @a.lua:3`.",
            "98% of the bytes allocated (200.0 KiB) is allocated at `a.lua:5 in @a.lua:3`.",
            "300 events: 203.9 KiB allocated by 200 allocations and reallocations",
            "The heap grew by 3.9 KiB; 3.9 KiB of what was allocated is still held",
            "  200.0 KiB        100    2.0 KiB  a.lua:5 in @a.lua:3",
            "    3.9 KiB        100 100.00%  a.lua:4 in @a.lua:3",
            "  200.0 KiB        100    2.0 KiB  a.lua:5 in @a.lua:3",
            "         3  ring buffer full",
        ] {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    #[test]
    fn leaks_alone() {
        let text = text(MemoryTextOptions { leak_only: true });
        assert!(text.contains("a.lua:4 in @a.lua:3") && !text.contains("a.lua:5"), "{text}");
    }
}
