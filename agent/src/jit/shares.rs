//! Where CPU time goes: rows that add up to all samples of the process, which are the denominator of every share.

use std::collections::HashMap;

use lj_trace_luajit::jit::{AbortReason, BlacklistKind, InterpretedCode, InterpretedPart, Place, Why};
use serde::Serialize;

use super::samples::{TimeKind, TimeSamples};

/// Where the CPU time of a process goes.
#[derive(Clone, Debug, Serialize)]
pub struct TimeReport {
    /// Samples a second of each thread's CPU time.
    pub rate: u32,
    /// All samples, which shares refer to.
    pub samples: u64,
    /// Samples that were lost, by reason. No row contains them.
    pub lost: Vec<(&'static str, u64)>,
    /// The rows, most expensive first. Their samples add up to `samples`, and their percentages to 100.
    pub rows: Vec<TimeRow>,
    /// Why the rows are withheld.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
}

/// A part of the time.
#[derive(Clone, Debug, Serialize)]
pub struct TimeRow {
    /// What ran.
    pub kind: TimeKind,
    /// Samples.
    pub samples: u64,
    /// Their share in percent, rounded to a tenth such that all rows add up to 100.
    pub percent: f64,
    /// The standard error of that share, in percentage points.
    pub standard_error: f64,
    /// For code in the interpreter: which code it is, and why it is interpreted. [`None`] if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpreted: Option<InterpretedPart>,
}

impl TimeReport {
    /// Builds the report from samples, and from what each VM explained of them.
    pub fn new(rate: u32, samples: &TimeSamples, lost: Vec<(&'static str, u64)>, found: Vec<InterpretedCode>) -> Self {
        let total = samples.total();
        let of = |kind| samples.kinds.get(&kind).copied().unwrap_or(0);
        let parts = merged(found.into_iter().flat_map(|found| found.parts));
        let explained = |of: fn(&InterpretedPart) -> u64| parts.iter().map(of).sum::<u64>();
        let report = Self { rate, samples: total, lost, rows: Vec::new(), withheld: None };
        // Two VMs cannot have the same function, so if one is found twice, something else is wrong.
        let (Some(unexplained), true) = (
            of(TimeKind::Interpreted).checked_sub(explained(|part| part.samples)),
            explained(|part| part.library) <= of(TimeKind::Library),
        ) else {
            let withheld = Some("samples were found in more than one place, so that shares do not add up".to_owned());
            return Self { withheld, ..report };
        };
        let row =
            |kind, samples, interpreted| TimeRow { kind, samples, percent: 0.0, standard_error: 0.0, interpreted };
        let others = samples.kinds.iter().filter(|(kind, _)| **kind != TimeKind::Interpreted);
        let mut rows: Vec<TimeRow> = others.map(|(kind, samples)| row(*kind, *samples, None)).collect();
        rows.push(row(TimeKind::Interpreted, unexplained, None));
        rows.extend(parts.into_iter().map(|part| row(TimeKind::Interpreted, part.samples, Some(part))));
        rows.retain(|row| row.samples != 0);
        rows.sort_by_key(|row| (std::cmp::Reverse(row.samples), row.kind));
        let all: Vec<u64> = rows.iter().map(|row| row.samples).collect();
        if all.iter().sum::<u64>() != total {
            return Self { withheld: Some("the rows do not add up to all samples".to_owned()), ..report };
        }
        for (row, tenths) in rows.iter_mut().zip(tenths(&all)) {
            row.percent = tenths as f64 / 10.0;
            let share = row.samples as f64 / total as f64;
            row.standard_error = 100.0 * (share * (1.0 - share) / total as f64).sqrt();
        }
        Self { rows, ..report }
    }
}

/// What identifies a loop or function: many VMs, or many closures of a loaded text, may have the same.
type PartKey = (Why, BlacklistKind, Place, Option<AbortReason>);

/// Merges equal loops and functions with the same reason.
fn merged(parts: impl Iterator<Item = InterpretedPart>) -> Vec<InterpretedPart> {
    let mut places: HashMap<PartKey, usize> = HashMap::new();
    let mut merged: Vec<InterpretedPart> = Vec::new();
    for part in parts {
        let key = (part.why, part.kind, part.place.clone(), part.abort.as_ref().map(|abort| abort.reason));
        let at = *places.entry(key).or_insert(merged.len());
        let Some(first) = merged.get_mut(at) else {
            merged.push(part);
            continue;
        };
        first.samples += part.samples;
        first.library += part.library;
        for own in part.lines {
            match first.lines.iter_mut().find(|line| line.line == own.line) {
                Some(line) => line.samples += own.samples,
                None => first.lines.push(own),
            }
        }
        first.lines.sort_by_key(|line| (std::cmp::Reverse(line.samples), line.line));
    }
    merged
}

/// Shares in tenths of a percent that add up to 1000: after rounding down, those that lost most are rounded up.
pub fn tenths(parts: &[u64]) -> Vec<u64> {
    let total: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    if total == 0 {
        return vec![0; parts.len()];
    }
    let exact = |part: &u64| u128::from(*part) * 1000;
    let mut rounded: Vec<u64> = parts.iter().map(|part| (exact(part) / total) as u64).collect();
    let missing = 1000 - rounded.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(exact(&parts[index]) % total));
    order.into_iter().take(missing as usize).for_each(|index| rounded[index] += 1);
    rounded
}

#[cfg(test)]
mod tests {
    use lj_trace_luajit::jit::LineSamples;

    use super::*;

    fn part(line: u32, samples: u64) -> InterpretedPart {
        let place = Place { function: "f@a.lua:1".into(), source: "a.lua".into(), line: Some(line) };
        InterpretedPart {
            why: Why::Blacklisted,
            kind: BlacklistKind::NumericFor,
            place,
            samples,
            library: 1,
            lines: vec![LineSamples { line, samples }],
            abort: None,
            left: None,
            unrecordable: Vec::new(),
        }
    }

    fn samples() -> TimeSamples {
        let kinds = [(TimeKind::Interpreted, 50), (TimeKind::Compiled, 40), (TimeKind::Library, 7)];
        TimeSamples { kinds: kinds.into(), ..TimeSamples::default() }
    }

    fn of_one(parts: Vec<InterpretedPart>) -> Vec<InterpretedCode> {
        vec![InterpretedCode { parts, ..InterpretedCode::default() }]
    }

    #[test]
    fn rows_add_up() {
        let report = TimeReport::new(99, &samples(), Vec::new(), of_one(vec![part(3, 30), part(9, 5)]));
        let rows: Vec<_> = report.rows.iter().map(|row| (row.kind, row.samples, row.percent)).collect();
        let expected = [
            (TimeKind::Compiled, 40, 41.2),
            (TimeKind::Interpreted, 30, 30.9),
            (TimeKind::Interpreted, 15, 15.5),
            (TimeKind::Library, 7, 7.2),
            (TimeKind::Interpreted, 5, 5.2),
        ];
        assert_eq!(rows, expected);
        assert!(report.rows[2].interpreted.is_none() && report.withheld.is_none());
        assert!((report.rows[0].standard_error - 4.998).abs() < 0.001, "{}", report.rows[0].standard_error);
    }

    #[test]
    fn what_does_not_add_up_is_withheld() {
        for parts in [vec![part(3, 51)], (0..8).map(|line| part(line, 1)).collect()] {
            let report = TimeReport::new(99, &samples(), Vec::new(), of_one(parts));
            assert!(report.rows.is_empty() && report.withheld.is_some());
        }
        let none = TimeReport::new(99, &TimeSamples::default(), Vec::new(), Vec::new());
        assert!(none.rows.is_empty() && none.withheld.is_none());
    }

    #[test]
    fn one_place_of_many_vms_is_one_row() {
        let vms = (0..3).flat_map(|_| of_one(vec![part(3, 10)])).collect();
        let report = TimeReport::new(99, &samples(), Vec::new(), vms);
        let row = report.rows.iter().find_map(|row| row.interpreted.as_ref()).unwrap();
        assert_eq!((row.samples, row.library, row.lines[0].samples), (30, 3, 30));
    }

    #[test]
    fn shares_add_up_whatever_they_are() {
        let mut state = 7_u64;
        for _ in 0..2000 {
            let count = state % 40 + 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> (32 + state % 32)
            };
            let parts: Vec<u64> = (0..count).map(|_| next()).chain([1]).collect();
            let total: u64 = parts.iter().sum();
            let rounded = tenths(&parts);
            assert_eq!(rounded.iter().sum::<u64>(), 1000, "{parts:?}");
            for (part, tenths) in parts.iter().zip(rounded) {
                let exact = *part as f64 * 1000.0 / total as f64;
                assert!((tenths as f64 - exact).abs() < 1.0, "{part} of {total}: {tenths}");
            }
        }
        assert_eq!(tenths(&[0, 0]), [0, 0]);
        assert_eq!(tenths(&[u64::MAX, u64::MAX]), [500, 500]);
    }
}
