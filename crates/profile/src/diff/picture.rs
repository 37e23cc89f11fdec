//! A difference as a picture: a flame graph of the new profile, and beside it a flame graph of what is only in the old
//! profile.
//!
//! Both have the same scale. Boxes of the new profile are as wide as their weights there, so stacks that have vanished
//! would have no width at all. The second flame graph shows them with their old width, on top of the stacks that they
//! were on.

use std::collections::HashMap;
use std::io::{self, Write};

use inferno::flamegraph::Options;
use inferno::flamegraph::color::Color;
use lj_trace_text::{COLUMNS, bytes, fit, percent};

use super::{ProfileDiff, Side};
use crate::chance::{self, Sampled};
use crate::formats::picture;
use crate::formats::picture::boxes::{self, BoxPlace, BoxStyle};
use crate::model::Unit;

/// The box below everything that has vanished.
const ONLY_OLD: &str = "[only in the old profile]";

/// The colour of stacks that have vanished.
const VANISHED: Color = Color { r: 176, g: 130, b: 214 };
/// The same, if the difference may be chance.
const VANISHED_BY_CHANCE: Color = Color { r: 228, g: 216, b: 240 };
/// The colour of stacks that still exist, below stacks that have vanished.
const STILL_THERE: Color = Color { r: 230, g: 230, b: 225 };

/// The largest sum of weights, as a power of two, that [`picture::draw`] need not halve.
const MAX_BITS: f64 = 51.0;

/// A box of the picture: the stack that ends in it, and which of the two flame graphs it is in.
#[derive(Clone, Copy)]
struct Drawn<'a> {
    stack: &'a str,
    only_old: bool,
}

/// A stack, and the widths of its box in the old profile and in the new one.
type Line = (String, [u64; 2]);

/// The weights of a stack, including all stacks on top of it.
#[derive(Clone, Copy, Default)]
struct Weights {
    old: u64,
    new: u64,
    /// The part of `old` that has vanished.
    vanished: u64,
}

/// By how much to multiply and halve weights, so that a share of one profile is as wide as the same share of the other.
struct Scale {
    old: u64,
    new: u64,
    halvings: u32,
}

impl Scale {
    fn new(old: &Side, new: &Side, by_share: bool) -> Self {
        let common = if by_share { greatest_common_divisor(old.total, new.total) } else { 0 };
        let [for_old, for_new] = match common {
            0 => [1, 1],
            common => [(new.total / common).max(1), (old.total / common).max(1)],
        };
        let sum = |side: &Side| side.stacks.values().map(|&weight| weight as f64).sum::<f64>();
        let width = sum(old) * for_old as f64 + sum(new) * for_new as f64;
        Self { old: for_old, new: for_new, halvings: (width.max(1.0).log2() - MAX_BITS).ceil().max(0.0) as u32 }
    }

    /// The width of a weight: at least 1 if the weight is not 0.
    fn width(&self, weight: u64, factor: u64) -> u64 {
        let width = (u128::from(weight) * u128::from(factor)) >> self.halvings;
        u64::try_from(width).unwrap_or(u64::MAX).max(u64::from(weight > 0))
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The stack and all stacks below it, lowest first.
fn prefixes(stack: &str) -> impl Iterator<Item = &str> {
    stack.match_indices(';').map(|(end, _)| end).chain([stack.len()]).map(|end| &stack[..end])
}

impl ProfileDiff {
    /// Draws it.
    ///
    /// # Errors
    /// The output cannot take the bytes.
    pub(super) fn write_svg(&self, out: &mut impl Write) -> io::Result<()> {
        let weights = self.weights();
        let limit = chance::limit(self.lines().count());
        let (lines, drawn) = self.lines_to_draw(&weights, limit);
        let mut options = Options::default();
        options.title = fit(&self.new.title, COLUMNS);
        let shares = if self.is_by_share() { " by share" } else { "" };
        let vanished = if drawn.values().any(|drawn| drawn.only_old) { ", purple is only there" } else { "" };
        let subtitle = format!(
            "compared{shares} with {}: red is more than there, blue is less{vanished}; what may be chance is pale",
            self.old.title
        );
        options.subtitle = Some(fit(&subtitle, 160));
        options.count_name = self.unit.name().to_owned();
        options.notes = "lj-trace".to_owned();
        // Keeps the order of the lines (they are read from the last to the first).
        options.flame_chart = true;
        let mut svg = Vec::new();
        picture::draw(&mut options, &lines, &format!("no {}", self.unit.name()), &mut svg)?;
        let svg = String::from_utf8(svg).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let look = |place: BoxPlace| match drawn.get(&place) {
            Some(&drawn) => Some(self.look(drawn, weights.get(drawn.stack).copied().unwrap_or_default(), limit)),
            None if place.depth == 0 && !drawn.is_empty() => Some(self.look_of_all(&weights)),
            None => None,
        };
        out.write_all(boxes::change(&svg, options.frame_height, look).as_bytes())
    }

    /// The weights of each stack, and of each stack below it, including all stacks on top.
    fn weights(&self) -> HashMap<&str, Weights> {
        let mut weights: HashMap<&str, Weights> = HashMap::new();
        for (stack, &weight) in &self.new.stacks {
            for prefix in prefixes(stack) {
                let sum = &mut weights.entry(prefix).or_default().new;
                *sum = sum.saturating_add(weight);
            }
        }
        for (stack, &weight) in &self.old.stacks {
            // If a new stack continues it, it has not vanished.
            let has_vanished = weights.get(stack.as_str()).is_none_or(|weights| weights.new == 0);
            for prefix in prefixes(stack) {
                let sums = weights.entry(prefix).or_default();
                sums.old = sums.old.saturating_add(weight);
                if has_vanished {
                    sums.vanished = sums.vanished.saturating_add(weight);
                }
            }
        }
        weights
    }

    /// The stacks of both flame graphs, and their boxes. Stacks whose change may be chance are drawn unchanged, so that
    /// they get no colour.
    fn lines_to_draw<'a>(
        &'a self,
        weights: &HashMap<&str, Weights>,
        limit: f64,
    ) -> (Vec<Line>, HashMap<BoxPlace, Drawn<'a>>) {
        let mut stacks: Vec<&String> = self.old.stacks.keys().chain(self.new.stacks.keys()).collect();
        // Sort by frames, so that all stacks on top of a frame are neighbours.
        stacks.sort_unstable_by(|a, b| a.split(';').cmp(b.split(';')));
        stacks.dedup();
        let has_vanished = |stack: &str| weights.get(stack).is_none_or(|weights| weights.new == 0);
        let (vanished, still_there): (Vec<_>, Vec<_>) = stacks.into_iter().partition(|stack| has_vanished(stack));
        let scale = Scale::new(&self.old, &self.new, self.is_by_share());
        let (mut lines, mut drawn, mut start) = (Vec::new(), HashMap::new(), 0_u64);
        for stack in still_there {
            let [old, new] = [&self.old, &self.new].map(|side| side.stacks.get(stack).copied().unwrap_or(0));
            let width = scale.width(new, scale.new);
            let by_chance = self.is_chance(old, new, limit);
            lines.push((stack.clone(), [if by_chance { width } else { scale.width(old, scale.old) }, width]));
            for (row, stack) in prefixes(stack).enumerate() {
                drawn.entry(BoxPlace { depth: row + 1, start }).or_insert(Drawn { stack, only_old: false });
            }
            start = start.saturating_add(width);
        }
        for stack in vanished {
            let width = scale.width(self.old.stacks.get(stack).copied().unwrap_or(0), scale.old);
            if width == 0 {
                continue;
            }
            lines.push((format!("{ONLY_OLD};{stack}"), [width, width]));
            for (row, stack) in [""].into_iter().chain(prefixes(stack)).enumerate() {
                drawn.entry(BoxPlace { depth: row + 1, start }).or_insert(Drawn { stack, only_old: true });
            }
            start = start.saturating_add(width);
        }
        lines.reverse();
        (lines, drawn)
    }

    /// Whether a change in samples may be chance, at `limit` standard errors.
    fn is_chance(&self, old: u64, new: u64, limit: f64) -> bool {
        if !self.is_by_share() {
            return false;
        }
        let (old, new) = (Sampled { hits: old, all: self.old.total }, Sampled { hits: new, all: self.new.total });
        let share = |sampled: Sampled| if sampled.all == 0 { 0.0 } else { sampled.hits as f64 / sampled.all as f64 };
        (share(new) - share(old)).abs() <= limit * old.error_of_change(new)
    }

    /// The text of a box, and its colour if it has vanished.
    fn look(&self, drawn: Drawn<'_>, weights: Weights, limit: f64) -> BoxStyle {
        let Weights { old, new, vanished } = weights;
        if !drawn.only_old {
            let says = match self.is_by_share() {
                true => format!("{}, was {}", self.figure(new, &self.new), percent(old, self.old.total)),
                false => format!("{}, was {}", self.figure(new, &self.new), self.amount(old)),
            };
            return BoxStyle { says, color: None };
        }
        let figure = self.figure(vanished, &self.old);
        if new > 0 || drawn.stack.is_empty() {
            return BoxStyle { says: format!("with what has vanished: {figure}"), color: Some(STILL_THERE) };
        }
        match self.is_chance(vanished, 0, limit) {
            true => BoxStyle { says: format!("vanished, may be chance: {figure}"), color: Some(VANISHED_BY_CHANCE) },
            false => BoxStyle { says: format!("vanished: {figure}"), color: Some(VANISHED) },
        }
    }

    /// The text of the lowest box, which is below both flame graphs.
    fn look_of_all(&self, weights: &HashMap<&str, Weights>) -> BoxStyle {
        let roots = weights.iter().filter(|(stack, _)| !stack.contains(';'));
        let vanished = roots.fold(0, |sum: u64, (_, weights)| sum.saturating_add(weights.vanished));
        let all = self.figure(self.new.total, &self.new);
        let says = match vanished {
            0 => all,
            _ => format!("{all}, and what has vanished: {}", self.figure(vanished, &self.old)),
        };
        BoxStyle { says, color: None }
    }

    /// A weight, and its share of that side's profile: `12 samples, 3.40%`.
    fn figure(&self, weight: u64, side: &Side) -> String {
        format!("{}, {}", self.amount(weight), percent(weight, side.total))
    }

    fn amount(&self, weight: u64) -> String {
        if self.unit == Unit::Bytes { bytes(weight) } else { format!("{weight} {}", self.unit.name()) }
    }
}
