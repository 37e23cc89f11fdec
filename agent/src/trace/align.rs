//! Alignment of two sequences that run in the same order: each item of the first belongs to one place of the
//! second, never before the place of the item ahead of it.

/// How sure an alignment must be: places whose best alignment is worse than the best of all by no more than this
/// are possible as well.
pub const MARGIN: f32 = 1.5;

/// What it costs if a place gets twice what it can only get once: more than what leaves an alignment uncertain.
pub const TWICE: f32 = 2.0 * MARGIN;

/// The possible places of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The likeliest one.
    pub best: usize,
    /// All that are possible, in order, `best` among them.
    pub possible: Vec<usize>,
}

/// The largest table: what needs more is not aligned.
const MAX_CELLS: usize = 1 << 20;

/// Aligns `items` items with `places` places: `score` tells how well an item fits a place, `skip` what it costs if
/// a place gets no item, `stay` what it costs if an item gets the place of the one ahead of it. The result has the places of each item, and the
/// score of all together; it is empty if there is nothing to align with.
pub fn align(
    items: usize,
    places: usize,
    score: impl Fn(usize, usize) -> f32,
    skip: impl Fn(usize) -> f32,
    stay: impl Fn(usize, usize) -> f32,
) -> (Vec<Fit>, f32) {
    if items == 0 || places == 0 || items.saturating_mul(places) > MAX_CELLS {
        return (Vec::new(), 0.0);
    }
    // Cost of skipping all places before one.
    let mut before = vec![0.0_f32; places + 1];
    for place in 0..places {
        before[place + 1] = before[place] + skip(place);
    }
    let scores: Vec<f32> = (0..items * places).map(|cell| score(cell / places, cell % places)).collect();
    let mut forward = vec![f32::NEG_INFINITY; items * places];
    for item in 0..items {
        let mut best_before = f32::NEG_INFINITY;
        for place in 0..places {
            let reached = if item == 0 {
                -before[place]
            } else {
                let row = (item - 1) * places;
                if place > 0 {
                    best_before = best_before.max(forward[row + place - 1] + before[place]);
                }
                (forward[row + place] - stay(item, place)).max(best_before - before[place])
            };
            forward[item * places + place] = reached + scores[item * places + place];
        }
    }
    let mut backward = vec![f32::NEG_INFINITY; items * places];
    for item in (0..items).rev() {
        let mut best_after = f32::NEG_INFINITY;
        for place in (0..places).rev() {
            let rest = if item + 1 == items {
                before[place + 1] - before[places]
            } else {
                let row = (item + 1) * places;
                if place + 1 < places {
                    best_after = best_after.max(backward[row + place + 1] - before[place + 1]);
                }
                (backward[row + place] - stay(item + 1, place)).max(best_after + before[place + 1])
            };
            backward[item * places + place] = rest + scores[item * places + place];
        }
    }
    let through = |item: usize, place: usize| {
        let cell = item * places + place;
        forward[cell] + backward[cell] - scores[cell]
    };
    let total = (0..places).map(|place| through(0, place)).fold(f32::NEG_INFINITY, f32::max);
    let fit = |item: usize| {
        let mut fit = Fit { best: 0, possible: Vec::new() };
        let mut best = f32::NEG_INFINITY;
        for place in 0..places {
            let value = through(item, place);
            if value > best + 1e-3 {
                (best, fit.best) = (value, place);
            }
            if value >= total - MARGIN {
                fit.possible.push(place);
            }
        }
        fit
    };
    ((0..items).map(fit).collect(), total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(items: &str, places: &str) -> Vec<Fit> {
        let (items, places) = (items.as_bytes(), places.as_bytes());
        let score = |item: usize, place: usize| if items[item] == places[place] { 3.0 } else { -3.0 };
        align(items.len(), places.len(), score, |_| 0.5, |_, _| 0.0).0
    }

    #[test]
    fn equal_sequences_align_one_to_one() {
        let ranges = aligned("abcd", "abcd");
        assert_eq!(ranges.iter().map(|range| range.best).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(ranges.iter().all(|fit| fit.possible == [fit.best]), "{ranges:?}");
    }

    #[test]
    fn what_is_missing_is_skipped_and_what_repeats_stays() {
        let best = |items, places| aligned(items, places).iter().map(|range| range.best).collect::<Vec<_>>();
        assert_eq!(best("ad", "abcd"), [0, 3]);
        assert_eq!(best("aabbb", "ab"), [0, 0, 1, 1, 1]);
    }

    #[test]
    fn what_may_be_either_is_a_range() {
        // The `b` of the items may be any of two.
        let ranges = aligned("abc", "abbc");
        let possible: Vec<_> = ranges.iter().map(|fit| &fit.possible[..]).collect();
        assert_eq!(possible, [&[0][..], &[1, 2], &[3]]);
    }

    #[test]
    fn what_may_not_stay_takes_the_places_one_by_one() {
        let score = |_, _| 3.0;
        let possible = |stay| {
            let fits = align(2, 2, score, |_| 0.5, move |_, _| stay).0;
            fits.into_iter().map(|fit| fit.possible).collect::<Vec<_>>()
        };
        assert_eq!(possible(0.0), [[0, 1], [0, 1]]);
        assert_eq!(possible(2.0), [[0], [1]]);
    }

    #[test]
    fn nothing_aligns_with_nothing() {
        assert!(aligned("", "abc").is_empty());
        assert!(aligned("abc", "").is_empty());
    }
}
