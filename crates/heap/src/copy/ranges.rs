//! Sets of addresses: sorted ranges that do not touch each other.

use std::ops::Range;

/// The addresses that are in any of the ranges.
pub fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// The addresses of a set that are not in another one.
pub fn without(set: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in set {
        let mut start = range.start;
        let first = other.partition_point(|taken| taken.end <= start);
        for taken in other[first..].iter().take_while(|taken| taken.start < range.end) {
            if taken.start > start {
                left.push(start..taken.start);
            }
            start = start.max(taken.end);
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

/// The addresses that are in both sets.
pub fn common(set: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    without(set, &without(set, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_joined_and_parted() {
        let set = union(vec![10..20, 40..50, 15..25, 25..30, 60..60]);
        assert_eq!(set, [10..30, 40..50]);
        assert_eq!(without(&set, &[0..12, 14..16, 28..41]), [12..14, 16..28, 41..50]);
        assert_eq!(without(&set, &[]), set);
        assert_eq!(common(&set, &[0..12, 28..41, 49..90]), [10..12, 28..30, 40..41, 49..50]);
    }
}
