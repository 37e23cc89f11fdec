//! An estimate as text.

use std::io::{self, Write};

use lj_trace_text::Room;

use super::{EstimatedProfile, Figure, Line, Seen, lives};
use crate::memory::amount;
use crate::memory::text::name;
use crate::model::Profile as _;

const TOP: usize = 30;

/// A name is not cut to less than this, even if its row is then longer than others.
const LEAST_NAME: usize = 40;

/// Writes what a profile says.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &EstimatedProfile, room: Room, out: &mut dyn Write) -> io::Result<()> {
    if !profile.title.is_empty() {
        writeln!(out, "{}", room.title(&profile.title))?;
    }
    for line in profile.summary() {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\nTop lines by the bytes that they allocate")?;
    table(profile, TOP, room, out)?;
    lives::table(profile, TOP, room, out)?;
    if !profile.losses.is_empty() {
        writeln!(out, "\nEvents that were lost")?;
        for (reason, count) in &profile.losses {
            writeln!(out, "{count:>10}  {reason}")?;
        }
    }
    Ok(())
}

/// The largest lines.
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
        let bytes = told(line.bytes, |bytes| amount(bytes.round() as u64));
        let count = told(line.count, |count| format!("{count:.0}"));
        let name = stacks.row(seen.stack).map_or_else(String::new, |row| name(stacks, &row));
        ([share, bytes, count], name)
    };
    let more = match shown.clone().count().saturating_sub(top) {
        0 => String::new(),
        more => format!("{more} more"),
    };
    aligned(["share", "bytes", "times"], shown.take(top).map(row).collect(), &more, room, out)
}

/// Writes figures and names in columns that are as wide as the figures need, so that names have the rest.
pub fn aligned<const N: usize>(
    head: [&str; N],
    rows: Vec<([String; N], String)>,
    more: &str,
    room: Room,
    out: &mut dyn Write,
) -> io::Result<()> {
    let widths = head.each_ref().map(|title| title.chars().count());
    let widths = rows.iter().fold(widths, |mut widths, (figures, _)| {
        widths.iter_mut().zip(figures).for_each(|(width, figure)| *width = (*width).max(figure.chars().count()));
        widths
    });
    let taken = widths.iter().map(|width| width + 2).sum::<usize>() + 2;
    let mut write = |figures: [&str; N], name: &str| {
        for (figure, width) in figures.iter().zip(widths) {
            write!(out, "  {figure:>width$}")?;
        }
        writeln!(out, "  {}", room.beside(taken).at_least(LEAST_NAME).label(name))
    };
    write(head, "line")?;
    for (figures, name) in &rows {
        write(figures.each_ref().map(String::as_str), name)?;
    }
    if more.is_empty() { Ok(()) } else { write([""; N], more) }
}

/// A figure, and by how much it may be off.
pub fn with_error(figure: Figure, show: impl Fn(f64) -> String) -> String {
    match figure.error {
        Some(error) => format!("{} ±{}", show(figure.value), show(error)),
        None => show(figure.value),
    }
}
