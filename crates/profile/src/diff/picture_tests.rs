//! Random pairs of profiles: everything that has vanished is in the picture, with its share.

use std::collections::BTreeSet;

use lj_trace_streams::VmState;

use super::*;
use crate::{CpuProfile, Frame};

/// A box as a reader sees it.
struct Seen {
    /// The name, and the text in the parentheses after it.
    title: String,
    y: u64,
    start: u64,
    width: u64,
}

impl Seen {
    fn name(&self) -> &str {
        self.title.rsplit_once(" (").unwrap().0
    }

    fn end(&self) -> u64 {
        self.start + self.width
    }

    fn is_below(&self, other: &Self) -> bool {
        self.y > other.y && self.start <= other.start && other.end() <= self.end()
    }
}

fn picture(diff: &ProfileDiff) -> (String, Vec<Seen>) {
    let mut svg = Vec::new();
    diff.write(Format::Svg, DiffLook::PLAIN, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let seen = svg.split("<title>").skip(1).map(|part| {
        let number = |name: &str| {
            let (_, rest) = part.split_once(&format!(" {name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let title = part.split_once("</title>").unwrap().0.to_owned();
        Seen { title, y: number("y"), start: number("fg:x"), width: number("fg:w") }
    });
    let seen = seen.collect();
    (svg, seen)
}

/// A profile of functions out of `first..first + 8`, each of which calls any function, or itself.
fn profile(random: &mut fastrand::Rng, first: u32) -> CpuProfile {
    // Names that sort before and after the separator of frames.
    const FILES: [&[u8]; 4] = [b"@a.lua", b"@a!.lua", b"@a b.lua", b"=~"];
    let mut profile = CpuProfile::new("random");
    for _ in 0..random.usize(1..12) {
        let stack: Vec<(usize, u32)> =
            (0..random.usize(1..6)).map(|_| (random.usize(..FILES.len()), first + random.u32(..8))).collect();
        for _ in 0..random.usize(1..30) {
            profile.add(VmState::Lfunc, stack.iter().map(|&(file, line)| Frame::lua(None, FILES[file], line, None)));
        }
    }
    profile
}

#[test]
fn all_that_vanished_is_in_the_picture_with_its_share() {
    let mut random = fastrand::Rng::with_seed(23);
    let (mut vanished, mut still_there) = (0, 0);
    for _ in 0..200 {
        let shift = random.u32(..10);
        let (old, new) = (profile(&mut random, 1), profile(&mut random, 1 + shift));
        let diff = ProfileDiff::new(&old, &new);
        let (svg, boxes) = picture(&diff);
        let all = boxes.iter().max_by_key(|seen| seen.y).unwrap();
        let strip = boxes.iter().find(|seen| seen.name() == "[only in the old profile]");
        let in_strip = |seen: &Seen| strip.is_some_and(|strip| strip.is_below(seen));
        // The weight of a function: the boxes of it that are not on top of another box of it.
        let weight = |name: &str, only_old: bool| {
            let of_it = || boxes.iter().filter(|seen| seen.name() == name && in_strip(seen) == only_old);
            of_it().filter(|seen| !of_it().any(|other| other.is_below(seen))).map(|seen| seen.width).sum::<u64>()
        };
        // Widths are exact: a sample of one profile is as many units wide as the other profile has samples, divided by
        // the common divisor of both totals.
        let unit = |side: &Side| all_width(&diff) / side.total;
        let (old_functions, new_functions) = (diff.old.functions(true), diff.new.functions(true));
        for (&name, &samples) in &new_functions {
            assert_eq!(weight(name, false), samples * unit(&diff.new), "{name}: {svg}");
        }
        for (&name, &samples) in &old_functions {
            if new_functions.contains_key(name) {
                still_there += 1;
                assert!(weight(name, true) <= samples * unit(&diff.old), "{name}: {svg}");
                continue;
            }
            vanished += 1;
            assert_eq!(weight(name, true), samples * unit(&diff.old), "{name}: {svg}");
            let of_it = boxes.iter().filter(|seen| seen.name() == name);
            for seen in of_it {
                let samples = seen.width / unit(&diff.old);
                let share = format!("{samples} samples, {:.2}%)", samples as f64 * 100.0 / diff.old.total as f64);
                assert!(seen.title.contains(" (vanished") && seen.title.ends_with(&share), "{}, {share}", seen.title);
            }
        }
        // Both flame graphs together make up the whole, and what is on top of a box is no wider than the box.
        assert_eq!(all.width, all_width(&diff) + strip.map_or(0, |strip| strip.width));
        let rows: BTreeSet<u64> = boxes.iter().map(|seen| seen.y).collect();
        for below in boxes.iter().filter(|seen| rows.first() != Some(&seen.y)) {
            let above = rows.range(..below.y).next_back().unwrap();
            let on_it = boxes.iter().filter(|seen| seen.y == *above && below.is_below(seen));
            let width: u64 = on_it.map(|seen| seen.width).sum();
            assert!(width <= below.width, "{} is narrower than what lies on it: {svg}", below.title);
        }
    }
    assert!(vanished > 200 && still_there > 200, "{vanished} {still_there}");
}

/// The width of the flame graph of the new profile. A flame graph of the whole old profile would have the same width.
fn all_width(diff: &ProfileDiff) -> u64 {
    let mut common = [diff.old.total, diff.new.total];
    while common[1] > 0 {
        common = [common[1], common[0] % common[1]];
    }
    diff.old.total / common[0] * diff.new.total
}

#[test]
fn what_has_not_vanished_has_no_place_beside_the_picture() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20 {
        let profile = profile(&mut random, 1);
        let (svg, boxes) = picture(&ProfileDiff::new(&profile, &profile));
        assert!(!svg.contains("only in the old profile") && !svg.contains("purple"), "{svg}");
        assert!(boxes.iter().all(|seen| !seen.title.contains("vanished")), "{svg}");
    }
}

#[test]
fn no_weight_is_too_large_or_too_small() {
    let side = |stacks: &[(&str, u64)]| {
        let stacks: BTreeMap<String, u64> = stacks.iter().map(|&(stack, weight)| (stack.to_owned(), weight)).collect();
        let total = stacks.values().fold(0, |sum: u64, weight| sum.saturating_add(*weight));
        Side { title: String::new(), total, stacks }
    };
    for unit in [Unit::Samples, Unit::Bytes] {
        let old = side(&[("a;b", u64::MAX), ("a;c", u64::MAX - 1), ("d", 1)]);
        let new = side(&[("a", u64::MAX / 3), ("e", u64::MAX), ("f", 1)]);
        let (svg, boxes) = picture(&ProfileDiff { old, new, unit });
        let names: BTreeSet<&str> = boxes.iter().map(Seen::name).collect();
        assert!(["a", "b", "c", "e"].iter().all(|name| names.contains(name)), "{svg}");
    }
}
