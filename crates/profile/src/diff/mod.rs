//! Compares two profiles: what has grown, and what has shrunk.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use lj_trace_text::Room;
use lj_trace_text::untrusted::Untrusted;

use super::Profile;
use super::formats::{Format, folded};
use super::model::Unit;

mod picture;
#[cfg(test)]
mod picture_tests;
mod text;

/// An old and a new profile.
pub struct ProfileDiff {
    old: Side,
    new: Side,
    unit: Unit,
}

/// How a text should look.
#[derive(Clone, Copy, Debug)]
pub struct DiffLook {
    /// The width of the text.
    pub room: Room,
    /// Whether changes that may be chance are grey. They are marked in any case.
    pub colored: bool,
}

impl DiffLook {
    /// The look of a file.
    pub const PLAIN: Self = Self { room: Room::Unlimited, colored: false };
}

/// One of the two profiles.
struct Side {
    title: String,
    total: u64,
    /// The weight of each folded stack.
    stacks: BTreeMap<String, u64>,
}

impl Side {
    fn new(profile: &dyn Profile) -> Self {
        let stacks = folded::weights(profile);
        let total = stacks.values().fold(0, |sum: u64, weight| sum.saturating_add(*weight));
        Self { title: Untrusted(&profile.title()).to_string(), total, stacks }
    }

    /// The weight of each function by itself, or including all that it calls.
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

    /// Whether a format can show a difference.
    pub const fn has_format(format: Format) -> bool {
        matches!(format, Format::Text | Format::Folded | Format::Svg)
    }

    /// Writes the difference: as text; as folded stacks with two numbers each, old and new; or as a flame graph of the
    /// new profile, red where it has grown and blue where it has shrunk, with a flame graph of what has vanished beside
    /// it.
    ///
    /// # Errors
    /// The output cannot take the bytes, or the format cannot show differences.
    pub fn write(&self, format: Format, look: DiffLook, mut out: impl Write) -> io::Result<()> {
        match format {
            Format::Text => self.write_text(look, &mut out)?,
            Format::Folded => {
                self.lines().try_for_each(|(stack, [old, new])| writeln!(out, "{stack} {old} {new}"))?;
            }
            Format::Svg => self.write_svg(&mut out)?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "this format does not show differences")),
        }
        out.flush()
    }

    /// Why there is nothing to compare, if one of the profiles is empty. `None` if there is something to compare.
    pub fn nothing(&self) -> Option<String> {
        let what = self.unit.name();
        let side = [("old", &self.old), ("new", &self.new)].into_iter().find(|(_, side)| side.total == 0);
        side.map(|(which, side)| {
            format!("there is nothing to compare: the {which} profile ({}) has 0 {what}", side.title)
        })
    }

    /// Time is compared by shares, because recordings differ in length. Memory is compared in bytes.
    fn is_by_share(&self) -> bool {
        self.unit == Unit::Samples
    }

    /// Each stack, with its old and its new weight.
    fn lines(&self) -> impl Iterator<Item = (&String, [u64; 2])> {
        let stacks: BTreeSet<&String> = self.old.stacks.keys().chain(self.new.stacks.keys()).collect();
        let weight = |side: &Side, stack: &String| side.stacks.get(stack).copied().unwrap_or(0);
        stacks.into_iter().map(move |stack| (stack, [weight(&self.old, stack), weight(&self.new, stack)]))
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;
    use lj_trace_streams::memprof::{Event, Source};

    use lj_trace_text::COLUMNS;

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
        // 48% to 77% is a change, and so is 23% to none; 29% to 23% may be chance.
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
