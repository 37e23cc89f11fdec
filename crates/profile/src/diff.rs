//! Two profiles against each other: what has become more, and what less.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use inferno::flamegraph::Options;
use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::untrusted::Untrusted;
use lj_trace_text::{COLUMNS, Room, bytes, fit, percent};

use super::Profile;
use super::chance::{self, Sampled};
use super::formats::{Format, folded, picture};
use super::model::Unit;

const TOP: usize = 20;

/// An old and a new profile.
pub struct ProfileDiff {
    old: Side,
    new: Side,
    unit: Unit,
}

/// How a text may look.
#[derive(Clone, Copy, Debug)]
pub struct DiffLook {
    /// How much room there is.
    pub room: Room,
    /// Whether what could be chance is grey. It is marked in any case.
    pub colored: bool,
}

impl DiffLook {
    /// That of a file.
    pub const PLAIN: Self = Self { room: Room::Unlimited, colored: false };
}

/// What has changed of a function or stack.
struct Change<'a> {
    name: &'a str,
    old: u64,
    new: u64,
    change: f64,
    /// Its standard error, where it is of samples.
    error: Option<f64>,
    by_chance: bool,
}

/// One of them.
struct Side {
    title: String,
    total: u64,
    /// By stacks, as they read.
    stacks: BTreeMap<String, u64>,
}

impl Side {
    fn new(profile: &dyn Profile) -> Self {
        let stacks = folded::weights(profile);
        let total = stacks.values().fold(0, |sum: u64, weight| sum.saturating_add(*weight));
        Self { title: Untrusted(&profile.title()).to_string(), total, stacks }
    }

    /// What each function weighs by itself, or with all that it calls.
    fn functions(&self, with_callees: bool) -> BTreeMap<&str, u64> {
        let mut functions = BTreeMap::new();
        for (stack, weight) in &self.stacks {
            let mut names = stack.split(';');
            let names: BTreeSet<&str> =
                if with_callees { names.collect() } else { names.next_back().into_iter().collect() };
            for name in names {
                let sum: &mut u64 = functions.entry(name).or_default();
                *sum = sum.saturating_add(*weight);
            }
        }
        functions
    }
}

impl ProfileDiff {
    /// Compares two profiles of the same kind.
    pub fn new(old: &dyn Profile, new: &dyn Profile) -> Self {
        Self { old: Side::new(old), new: Side::new(new), unit: new.shown().unit }
    }

    /// Whether a format can show differences.
    pub const fn has_format(format: Format) -> bool {
        matches!(format, Format::Text | Format::Folded | Format::Svg)
    }

    /// Writes it: as text; as folded stacks with two numbers each, old and new; as a flame graph of the new profile, red
    /// where there is more of it than there was, blue where there is less.
    ///
    /// # Errors
    /// The output cannot take the bytes, or the format has no differences.
    pub fn write(&self, format: Format, look: DiffLook, mut out: impl Write) -> io::Result<()> {
        match format {
            Format::Text => self.write_text(look, &mut out)?,
            Format::Folded => {
                self.lines(false).iter().try_for_each(|(stack, [old, new])| writeln!(out, "{stack} {old} {new}"))?;
            }
            Format::Svg => self.write_svg(&mut out)?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "this format does not show differences")),
        }
        out.flush()
    }

    /// Why nothing can be said of the difference, if so: one of the profiles is empty. `None` if there is none.
    pub fn nothing(&self) -> Option<String> {
        let what = self.unit.name();
        let side = [("old", &self.old), ("new", &self.new)].into_iter().find(|(_, side)| side.total == 0);
        side.map(|(which, side)| {
            format!("there is nothing to compare: the {which} profile ({}) has 0 {what}", side.title)
        })
    }

    /// Time is compared by shares: recordings are of different lengths. Memory is what it is.
    fn is_by_share(&self) -> bool {
        self.unit == Unit::Samples
    }

    /// Each stack, its old weight and its new one; the old ones as they would be if there were as many as new ones, if
    /// `scaled`.
    fn lines(&self, scaled: bool) -> Vec<(String, [u64; 2])> {
        let stacks: BTreeSet<&String> = self.old.stacks.keys().chain(self.new.stacks.keys()).collect();
        let scale = |weight: u64| {
            if !scaled || self.old.total == 0 {
                return weight;
            }
            let product = u128::from(weight) * u128::from(self.new.total);
            u64::try_from((product + u128::from(self.old.total) / 2) / u128::from(self.old.total)).unwrap_or(u64::MAX)
        };
        let weight = |side: &Side, stack: &String| side.stacks.get(stack).copied().unwrap_or(0);
        let line = |stack: &String| (stack.clone(), [scale(weight(&self.old, stack)), weight(&self.new, stack)]);
        stacks.into_iter().map(line).collect()
    }

    /// The lines to draw: stacks whose change may be chance as if they had not changed, so that they have no colour.
    fn lines_beyond_chance(&self) -> Vec<(String, [u64; 2])> {
        let mut lines = self.lines(self.is_by_share());
        if self.is_by_share() {
            let limit = chance::limit(lines.len());
            for (stack, [old, new]) in &mut lines {
                let hits =
                    |side: &Side| Sampled { hits: side.stacks.get(stack).copied().unwrap_or(0), all: side.total };
                let error = hits(&self.old).error_of_change(hits(&self.new)) * self.new.total as f64;
                if (*new as f64 - *old as f64).abs() <= limit * error {
                    *old = *new;
                }
            }
            // What is only in the old one, and may be chance, has no width and no colour.
            lines.retain(|(_, [old, new])| *old + *new > 0);
        }
        lines
    }

    fn write_svg(&self, out: &mut impl Write) -> io::Result<()> {
        let mut options = Options::default();
        options.title = fit(&self.new.title, COLUMNS);
        let shares = if self.is_by_share() { " by share" } else { "" };
        let subtitle = format!(
            "compared{shares} with {}: red is more than before, blue is less, what may be chance has neither",
            self.old.title
        );
        options.subtitle = Some(fit(&subtitle, 160));
        options.count_name = self.unit.name().to_owned();
        options.notes = "lj-trace".to_owned();
        let lines = self.lines_beyond_chance();
        picture::draw(&mut options, &lines, &format!("no {}", self.unit.name()), out)
    }

    fn write_text(&self, look: DiffLook, out: &mut impl Write) -> io::Result<()> {
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
        // What is certain comes first.
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

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;
    use lj_trace_streams::memprof::{Event, Source};

    use super::*;
    use crate::{CpuProfile, Frame, MemoryProfile, Weight};

    fn cpu(samples: &[(u32, usize)]) -> CpuProfile {
        let mut profile = CpuProfile::new("test");
        for &(line, count) in samples {
            let frames = || [Frame::lua(None, b"@a.lua", 0, None), Frame::lua(None, b"@a.lua", line, None)];
            (0..count).for_each(|_| profile.add(VmState::Lfunc, frames()));
        }
        profile
    }

    fn written(diff: &ProfileDiff, format: Format) -> String {
        let mut out = Vec::new();
        diff.write(format, DiffLook::PLAIN, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn time_is_compared_by_shares() {
        // The new recording is twice as long.
        let diff = ProfileDiff::new(&cpu(&[(1, 6), (2, 4)]), &cpu(&[(1, 12), (3, 8)]));
        let folded =
            "main chunk@a.lua:0;@a.lua:1 6 12\nmain chunk@a.lua:0;@a.lua:2 4 0\nmain chunk@a.lua:0;@a.lua:3 0 8\n";
        assert_eq!(written(&diff, Format::Folded), folded);
        let text = written(&diff, Format::Text);
        assert!(text.contains("     40.00%       0.00%     -40.00%  ±14.91%    @a.lua:2\n"), "{text}");
        assert!(text.contains("      0.00%      40.00%     +40.00%  ±13.17%    @a.lua:3\n"), "{text}");
        assert!(!text.contains("@a.lua:1\n"), "{text}");
    }

    #[test]
    fn what_could_be_chance_is_marked_and_comes_last() {
        let diff = ProfileDiff::new(&cpu(&[(1, 50), (2, 30), (3, 24)]), &cpu(&[(1, 60), (2, 18)]));
        let text = written(&diff, Format::Text);
        let at = |row: &str| text.find(row).unwrap_or_else(|| panic!("no {row:?} in\n{text}"));
        // 48% to 77% is a change, and so is 23% to none; 29% to 23% may be none.
        let certain = at("     48.08%      76.92%     +28.85%   ±6.80%    @a.lua:1\n");
        let chance = at("     28.85%      23.08%      -5.77%   ±6.49% ~  @a.lua:2\n");
        assert!(certain < chance && at(" -23.08%   ±4.31%    @a.lua:3\n") < chance, "{text}");
        let mut out = Vec::new();
        diff.write(Format::Text, DiffLook { room: Room::Columns(COLUMNS), colored: true }, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let grey = out.lines().filter(|line| line.starts_with("\x1b[90m")).count();
        assert_eq!(grey, text.matches(" ~  ").count());
        assert!(diff.nothing().is_none() && ProfileDiff::new(&cpu(&[]), &cpu(&[(1, 1)])).nothing().is_some());
    }

    #[test]
    fn the_picture_is_red_where_there_is_more_and_blue_where_there_is_less() {
        let svg = written(&ProfileDiff::new(&cpu(&[(1, 5), (2, 15)]), &cpu(&[(1, 15), (2, 5)])), Format::Svg);
        let color = |name: &str| {
            let (_, rest) = svg.split_once(&format!("<title>{name} (")).unwrap();
            let numbers = rest.split_once("fill=\"rgb(").unwrap().1.split_once(')').unwrap().0;
            numbers.split(',').map(|number| number.parse::<u8>().unwrap()).collect::<Vec<_>>()
        };
        let (more, less) = (color("@a.lua:1"), color("@a.lua:2"));
        assert!(more[0] > more[2] && less[2] > less[0], "{more:?} {less:?}");
    }

    #[test]
    fn memory_is_compared_in_bytes() {
        let memory = |size| {
            let mut profile = MemoryProfile::new(Weight::Held, "");
            profile.add(0, &Event::Alloc { source: Source::Internal, addr: 0x10, size });
            profile
        };
        let text = written(&ProfileDiff::new(&memory(1024), &memory(4096)), Format::Text);
        assert!(text.contains("    1.0 KiB     4.0 KiB    +3.0 KiB  INTERNAL\n"), "{text}");
        let same = written(&ProfileDiff::new(&memory(7), &memory(7)), Format::Text);
        assert!(same.contains("    nothing\n"), "{same}");
    }

    #[test]
    fn nothing_can_be_compared_too() {
        for format in [Format::Text, Format::Folded, Format::Svg] {
            written(&ProfileDiff::new(&cpu(&[(1, 3)]), &cpu(&[])), format);
            written(&ProfileDiff::new(&cpu(&[]), &cpu(&[])), format);
        }
    }
}
