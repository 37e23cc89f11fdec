//! A difference as text: the functions that changed most.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::{bytes, percent};

use super::{DiffLook, ProfileDiff};
use crate::chance::{self, Sampled};
use crate::model::Unit;

/// How many rows a table has.
const TOP: usize = 20;

/// The change of a function or stack.
struct Change<'a> {
    name: &'a str,
    old: u64,
    new: u64,
    change: f64,
    /// Its standard error, if it is a change in samples.
    error: Option<f64>,
    by_chance: bool,
}

impl ProfileDiff {
    /// Writes both tables.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    pub(super) fn write_text(&self, look: DiffLook, out: &mut impl Write) -> io::Result<()> {
        for (name, side) in [("old", &self.old), ("new", &self.new)] {
            let total = if self.unit == Unit::Bytes { bytes(side.total) } else { side.total.to_string() };
            let unit = if self.unit == Unit::Bytes { "" } else { self.unit.name() };
            writeln!(out, "{name}  {}: {total} {unit}", look.room.beside(40).title(&side.title))?;
        }
        let what = if self.is_by_share() { "time" } else { self.unit.name() };
        self.table(false, &format!("What changed most by its own {what}"), look, out)?;
        self.table(true, &format!("What changed most with all that it calls or contains, by {what}"), look, out)?;
        if self.is_by_share() {
            writeln!(
                out,
                "\n± is the standard error of a change, if samples are independent (in programs that change what they do every\n\
                 few seconds it is larger). ~ could be chance: of as many functions, one changes by as much in one of 20 cases."
            )?;
        }
        Ok(())
    }

    fn table(&self, with_callees: bool, title: &str, look: DiffLook, out: &mut impl Write) -> io::Result<()> {
        let (old, new) = (self.old.functions(with_callees), self.new.functions(with_callees));
        let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
        let weight = |functions: &BTreeMap<&str, u64>, name: &str| functions.get(name).copied().unwrap_or(0);
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let limit = chance::limit(names.len());
        let changes = names.into_iter().map(|name| {
            let (old, new) = (weight(&old, name), weight(&new, name));
            let change = match self.is_by_share() {
                true => share(new, self.new.total) - share(old, self.old.total),
                false => new as f64 - old as f64,
            };
            let sampled = |hits, all| Sampled { hits, all };
            let error = sampled(old, self.old.total).error_of_change(sampled(new, self.new.total));
            let error = self.is_by_share().then_some(error);
            let by_chance = error.is_some_and(|error| change.abs() <= limit * error);
            Change { name, old, new, change, error, by_chance }
        });
        let mut changes: Vec<Change<'_>> = changes.filter(|change| change.change != 0.0).collect();
        // Certain changes come first.
        changes.sort_by(|a, b| {
            let by_size = b.change.abs().total_cmp(&a.change.abs());
            a.by_chance.cmp(&b.by_chance).then(by_size).then_with(|| a.name.cmp(b.name))
        });
        writeln!(out, "\n{title}")?;
        if changes.is_empty() {
            return writeln!(out, "    nothing");
        }
        let mut columns = ["old", "new", "change"].map(|title| Column::right(title, 11)).to_vec();
        if self.is_by_share() {
            columns.extend([Column::right("±", 8), Column::left("", 1)]);
        }
        let what = if self.unit == Unit::Bytes { "place" } else { "function" };
        let mut table = Table::new(columns).end(what, Fit::Label(0), look.room);
        for change in changes.iter().take(TOP) {
            let Change { name, error, by_chance, .. } = *change;
            let (old, new, figure) = self.columns(change.old, change.new, change.change);
            let mark = if by_chance { "~" } else { "" };
            let mut cells = vec![old, new, figure];
            cells.extend(error.into_iter().flat_map(|error| [format!("±{:.2}%", error * 100.0), mark.to_owned()]));
            if by_chance && look.colored { table.grey_row(cells, name) } else { table.row(cells, name) }
        }
        if changes.len() > TOP {
            table.more(format!("{} more", changes.len() - TOP));
        }
        write!(out, "{table}")
    }

    fn columns(&self, old: u64, new: u64, change: f64) -> (String, String, String) {
        let sign = if change < 0.0 { "-" } else { "+" };
        match self.unit {
            Unit::Samples => {
                let points = format!("{sign}{:.2}%", change.abs() * 100.0);
                (percent(old, self.old.total), percent(new, self.new.total), points)
            }
            Unit::Bytes => (bytes(old), bytes(new), format!("{sign}{}", bytes(old.abs_diff(new)))),
            _ => (old.to_string(), new.to_string(), format!("{sign}{}", old.abs_diff(new))),
        }
    }
}
