//! An estimate as text.

use std::io::{self, Write};

use super::{EstimatedProfile, Figure, lives};
use crate::report::memory::amount;
use crate::report::model::Profile as _;
use crate::report::text::memory::name;
use crate::report::text::{COLUMNS, fit};

const TOP: usize = 30;

/// Writes what a profile says.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &EstimatedProfile, out: &mut dyn Write) -> io::Result<()> {
    if !profile.title.is_empty() {
        writeln!(out, "{}", fit(&profile.title, COLUMNS))?;
    }
    for line in profile.about().lines() {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\nTop lines by the bytes that they allocate")?;
    table(profile, TOP, out)?;
    lives::table(profile, TOP, out)?;
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
pub fn table(profile: &EstimatedProfile, top: usize, out: &mut dyn Write) -> io::Result<()> {
    let (rows, stacks) = (profile.rows(), profile.weighted());
    let shown = rows.iter().filter(|(_, line)| line.bytes.value > 0.0);
    writeln!(out, "  {:>16} {:>22} {:>22}  line", "share", "bytes", "times")?;
    for (seen, line) in shown.clone().take(top) {
        let share = with_error(line.share, |share| format!("{:.2}%", share * 100.0));
        let bytes = with_error(line.bytes, |bytes| amount(bytes.round() as u64));
        let name = stacks.row(seen.stack).map_or_else(String::new, |row| name(stacks, &row));
        let count = with_error(line.count, |count| format!("{count:.0}"));
        writeln!(out, "  {share:>16} {bytes:>22} {count:>22}  {}", fit(&name, COLUMNS - 67))?;
    }
    match shown.count().saturating_sub(top) {
        0 => Ok(()),
        more => writeln!(out, "{:>64}  {more} more", ""),
    }
}

/// A figure, and by how much it may be off.
pub fn with_error(figure: Figure, show: impl Fn(f64) -> String) -> String {
    match figure.error {
        Some(error) => format!("{} ±{}", show(figure.value), show(error)),
        None => show(figure.value),
    }
}
