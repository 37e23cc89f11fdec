//! The histogram of turns by length.

use std::fmt;

use lj_trace_common::turn::{STEPS, TurnLengths, step_begins};

/// The width of the longest bar.
const WIDEST: u64 = 40;

/// A range of lengths in nanoseconds, and the number of turns in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The lower bound, inclusive.
    pub from: u64,
    /// The upper bound, exclusive.
    pub to: u64,
    /// The number of turns.
    pub count: u64,
}

/// The histogram by powers of two, from the first to the last power that occurs.
pub fn by_powers(lengths: &TurnLengths) -> Vec<Lengths> {
    let row = |(power, steps): (usize, &[u64])| {
        let first = power * STEPS as usize;
        Lengths { from: step_begins(first), to: step_begins(first + STEPS as usize), count: steps.iter().sum() }
    };
    let rows: Vec<Lengths> = lengths.turns.chunks(STEPS as usize).enumerate().map(row).collect();
    let is_some = |row: &Lengths| row.count != 0;
    let (Some(first), Some(last)) = (rows.iter().position(is_some), rows.iter().rposition(is_some)) else {
        return Vec::new();
    };
    rows[first..=last].to_vec()
}

/// Writes them as bars.
pub fn write_bars(f: &mut fmt::Formatter<'_>, lengths: &TurnLengths) -> fmt::Result {
    let rows = by_powers(lengths);
    let most = rows.iter().map(|row| row.count).max().unwrap_or(0).max(1);
    for Lengths { from, to, count } in rows {
        let bar = (count * WIDEST).div_ceil(most) as usize;
        writeln!(f, "  {:>7} to {:>7} {count:>9}  {}", short(from), short(to), "#".repeat(bar))?;
    }
    Ok(())
}

/// A time with few digits.
fn short(nanoseconds: u64) -> String {
    let (size, unit) = match nanoseconds {
        0..1_000 => (1.0, "ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let figure = nanoseconds as f64 / size;
    format!("{figure:.0$} {unit}", digits(figure))
}

/// Numbers below ten have one decimal.
fn digits(figure: f64) -> usize {
    usize::from(figure < 9.95)
}
