//! The histogram of turns: how many there were of which length.

use std::fmt;

use lj_trace_common::turn::{STEPS, TurnLengths, step_begins};

/// The longest bar.
const WIDEST: u64 = 40;

/// Lengths from here to there, in nanoseconds, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The shortest.
    pub from: u64,
    /// The first that is longer.
    pub to: u64,
    /// How many.
    pub count: u64,
}

/// By powers of two, from the first to the last that there are.
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

/// A time in few figures.
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

/// Of a figure below ten one digit after the point is shown.
fn digits(figure: f64) -> usize {
    usize::from(figure < 9.95)
}
