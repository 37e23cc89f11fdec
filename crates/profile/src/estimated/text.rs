//! An estimate as text.

use std::io::{self, Write};

use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::{Room, bytes};

use super::{EstimatedProfile, Figure, Line, Seen, lives};
use crate::answer::{MemoryQuestion, memory_sentence};
use crate::memory::text::name;
use crate::model::Profile as _;

const TOP: usize = 30;

/// A name is never cut to less than this, even if its row becomes longer than others.
const LEAST_NAME: usize = 40;

/// Writes the profile as text.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &EstimatedProfile, room: Room, out: &mut dyn Write) -> io::Result<()> {
    if !profile.title.is_empty() {
        writeln!(out, "{}", room.title(&profile.title))?;
    }
    let lines = profile.verdict().into_iter().chain(sentences(profile, room)).chain(profile.about().lines());
    for line in lines {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\nTop lines by the bytes that they allocate")?;
    table(profile, TOP, room, out)?;
    lives::table(profile, TOP, room, out)?;
    if !profile.losses.is_empty() {
        let mut lost = Table::new([Column::right("", 10)]).headless();
        profile.losses.iter().for_each(|(reason, count)| lost.row([count.to_string()], reason));
        write!(out, "\nEvents that were lost\n{lost}")?;
    }
    Ok(())
}

/// The answer: which line holds most of what stays, if objects were followed, and which line allocates most. Empty if
/// the figures are withheld.
pub fn sentences(profile: &EstimatedProfile, room: Room) -> Vec<String> {
    if !profile.about().is_known() || !profile.about().has_bytes() || profile.about().no_shares {
        return Vec::new();
    }
    let name = |seen: &Seen| {
        let stacks = profile.weighted();
        stacks.row(seen.stack).map_or_else(String::new, |row| name(stacks, &row))
    };
    let sentence = |question, mut lines: Vec<(String, Figure)>| {
        lines.sort_by(|(_, a), (_, b)| b.value.total_cmp(&a.value));
        let all = lines.iter().map(|(_, bytes)| bytes.value).sum();
        memory_sentence(question, &lines, all, room)
    };
    let allocated = profile.rows().iter().map(|(seen, line)| (name(seen), line.bytes)).collect();
    let staying = lives::staying(profile).into_iter().map(|(seen, bytes)| (name(seen), bytes)).collect();
    let held = sentence(MemoryQuestion::Stays, staying);
    held.into_iter().chain(sentence(MemoryQuestion::Allocated, allocated)).collect()
}

/// A table of the largest lines.
///
/// # Errors
/// As [`write`].
pub fn table(profile: &EstimatedProfile, top: usize, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let (rows, stacks) = (profile.rows(), profile.weighted());
    let shown = rows.iter().filter(|(_, line)| line.bytes.value > 0.0);
    let row = |(seen, line): &(&Seen, Line)| {
        let share = with_error(line.share, |share| format!("{:.2}%", share * 100.0));
        let told = |figure: Figure, show: fn(f64) -> String| {
            if profile.about().has_bytes() { with_error(figure, show) } else { "-".to_owned() }
        };
        let size = told(line.bytes, |size| bytes(size.round() as u64));
        let count = told(line.count, |count| format!("{count:.0}"));
        let name = stacks.row(seen.stack).map_or_else(String::new, |row| name(stacks, &row));
        ([share, size, count], name)
    };
    let mut table = figures(["share", "bytes", "times"], room);
    shown.clone().take(top).map(row).for_each(|(figures, name)| table.row(figures, name));
    let more = shown.count().saturating_sub(top);
    if more != 0 {
        table.more(format!("{more} more"));
    }
    write!(out, "{table}")
}

/// A table of lines. Its columns are as wide as their figures, so that names get the rest.
pub fn figures<const N: usize>(titles: [&'static str; N], room: Room) -> Table {
    let columns = titles.map(|title| Column::right(title, 0));
    Table::new(columns).indent(2).gap(2).end("line", Fit::Label(LEAST_NAME), room)
}

/// A figure with its error.
pub fn with_error(figure: Figure, show: impl Fn(f64) -> String) -> String {
    match figure.error {
        Some(error) => format!("{} ±{}", show(figure.value), show(error)),
        None => show(figure.value),
    }
}
