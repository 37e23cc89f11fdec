//! Waits as lj-trace tells them, and as the workload has timed them itself.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

use crate::chance::ERRORS;
use crate::source::line_of;

/// What a workload says of its waits: by the name of the place, seconds and how many waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitTruth {
    /// By name.
    pub places: BTreeMap<String, (f64, u64)>,
    /// How long it was, in seconds.
    pub whole: f64,
}

impl WaitTruth {
    /// Reads its report.
    ///
    /// # Errors
    /// If it is not one.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut truth = Self::default();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["wait", name, seconds, count] => {
                    truth.places.insert(name.to_owned(), (seconds.parse()?, count.parse()?));
                }
                ["whole", seconds, _] => truth.whole = seconds.parse()?,
                _ => anyhow::bail!("the workload reported {line:?}"),
            }
        }
        ensure!(truth.whole > 0.0 && !truth.places.is_empty(), "{truth:?}");
        Ok(truth)
    }
}

/// A place in a text of lj-trace.
#[derive(Clone, Debug, PartialEq)]
pub struct ToldPlace {
    /// Coroutines at a time, and by how much it may be more or less.
    pub mean: (f64, f64),
    /// Its share of all waiting, in percent.
    pub share: f64,
    /// How long a wait is, in seconds.
    pub each: Option<f64>,
    /// `receive@redis.lua:88`.
    pub name: String,
    /// What it called.
    pub called: String,
}

/// The places in a text.
///
/// # Errors
/// If a row is not understood.
pub fn told(text: &str) -> Result<Vec<ToldPlace>> {
    let mut places = Vec::new();
    let rows = text.lines().skip_while(|line| !line.contains("at a time  ")).skip(1);
    for row in rows.take_while(|line| !line.trim().is_empty() && !line.contains(" more")) {
        let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let [mean, error, share, each, _waits, name, called @ ..] = &cells[..] else {
            anyhow::bail!("{row:?} in {text}")
        };
        let number = |text: &str| text.trim_end_matches('%').parse::<f64>().with_context(|| format!("{row:?}"));
        let each = each.trim_start_matches(|c: char| !c.is_ascii_digit());
        let each = each
            .split_once(' ')
            .and_then(|(number, unit)| Some(number.parse::<f64>().ok()? * if unit == "ms" { 1e-3 } else { 1.0 }));
        places.push(ToldPlace {
            mean: (number(mean)?, number(error)?),
            share: number(share)?,
            each,
            name: (*name).to_owned(),
            called: called.join("  "),
        });
    }
    Ok(places)
}

/// Seconds between looks, where nothing else is asked for.
const LOOKS: f64 = 1.0;

/// The variance of what is told of so many waits, in seconds squared. Looks lie at random in stretches of time, one in each, and
/// count for a stretch: a wait that begins at random, and takes the share `r` of a stretch, is told with a variance of
/// `(1 - (1 - r)^3) / 3` stretches squared; one that is longer with that of its two ends, 1/3. So there are no more independent
/// samples than there are looks, nor than there are waits.
pub fn variance(waits: f64, seconds: f64, looks: f64) -> f64 {
    // Waits that differ in length have less than as many of their mean.
    let of_stretch = (seconds / waits.max(1.0) / looks).min(1.0);
    waits * looks.powi(2) * (1.0 - (1.0 - of_stretch).powi(3)) / 3.0
}

/// Lines that lead to waits in a text: what each is called, and how many coroutines wait in what it calls.
///
/// # Errors
/// If a row is not understood.
pub fn told_callers(text: &str) -> Result<Vec<(String, f64)>> {
    let rows = text.lines().skip_while(|line| !line.starts_with("Lines that lead to waits")).skip(2);
    let rows = rows.take_while(|line| !line.trim().is_empty() && !line.contains(" more"));
    rows.map(|row| {
        let mut words = row.split_whitespace();
        let (mean, _share, name) = (words.next(), words.next(), words.next());
        let mean = mean.and_then(|mean| mean.parse().ok()).with_context(|| format!("{row:?}"))?;
        Ok((name.with_context(|| format!("{row:?}"))?.to_owned(), mean))
    })
    .collect()
}

/// Compares what lj-trace tells of a script with the truth: places are lines that are marked `waits in NAME`. Numbers and shares
/// are off by no more than chance is good for, and by what a beginning and an end at other moments make of it: 5% of a number,
/// and a third of a point of a share.
///
/// # Errors
/// If they differ by more.
pub fn compare(script: &str, text: &str, truth: &WaitTruth) -> Result<()> {
    let places: Vec<_> = told(text)?.into_iter().map(|place| (place.name, place.mean.0)).collect();
    compare_lines(script, &places, text, truth)
}

/// The same of lines that have called a library, in which the coroutines wait.
///
/// # Errors
/// If they differ by more.
pub fn compare_callers(script: &str, text: &str, truth: &WaitTruth) -> Result<()> {
    compare_lines(script, &told_callers(text)?, text, truth)
}

/// Compares lines with how many coroutines wait there, as told in `text`.
fn compare_lines(script: &str, lines: &[(String, f64)], text: &str, truth: &WaitTruth) -> Result<()> {
    let all: f64 = truth.places.values().map(|(seconds, _)| seconds).sum();
    let own = |name: &str| -> f64 {
        let end = format!("@{script}:{}", line_of(script, &format!("waits in {name}")));
        lines.iter().filter(|(line, _)| line.ends_with(&end)).map(|(_, mean)| mean).sum()
    };
    let told_all: f64 = truth.places.keys().map(|name| own(name)).sum();
    let variance_of = |(seconds, count): &(f64, u64)| variance(*count as f64, *seconds, LOOKS);
    let variance_all: f64 = truth.places.values().map(variance_of).sum();
    for (name, place) in &truth.places {
        let (seconds, count) = place;
        let mean = own(name);
        let expected = seconds / truth.whole;
        let variance = variance_of(place);
        let chance = ERRORS * variance.sqrt() / truth.whole;
        ensure!(
            (mean - expected).abs() <= 0.05 * expected + chance + 0.1,
            "{name}: {mean} coroutines at a time instead of {expected} +- {chance} ({count} waits) in\n{text}\n{truth:?}"
        );
        let (share, right) = (mean / told_all, seconds / all);
        // Two places may have the same waits, as one coroutine within another: together these have up to twice the variance.
        let variance = (1.0 - right).powi(2) * variance + 2.0 * right.powi(2) * (variance_all - variance);
        let chance = ERRORS * variance.sqrt() / all;
        ensure!(
            (share - right).abs() <= 0.003 + chance,
            "{name}: a share of {share} instead of {right} +- {chance} ({count} waits) in\n{text}\n{truth:?}"
        );
    }
    Ok(())
}

/// Compares how long waits are told to be, for places with enough of them.
///
/// # Errors
/// If they differ by more than estimates may.
pub fn compare_lengths(script: &str, text: &str, truth: &WaitTruth, tolerance: f64) -> Result<()> {
    for (name, (seconds, count)) in truth.places.iter().filter(|(_, (_, count))| *count > 200) {
        let end = format!("@{script}:{}", line_of(script, &format!("waits in {name}")));
        let places = told(text)?;
        let place = places.iter().find(|place| place.name.ends_with(&end));
        let each = place.and_then(|place| place.each).with_context(|| format!("{name} in {text}"))?;
        let expected = seconds / *count as f64;
        let ratio = each / expected;
        ensure!(
            ratio > 1.0 / (1.0 + tolerance) && ratio < 1.0 + tolerance,
            "{name}: {each} s each instead of {expected} in\n{text}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at waits that follow upon each other, of lengths up to twice the mean: how far what they tell is off, squared.
    fn simulated(mean: f64, random: &mut fastrand::Rng) -> f64 {
        const SECONDS: usize = 100;
        let looks: Vec<f64> = (0..SECONDS).map(|second| second as f64 + random.f64()).collect();
        let (mut at, mut told, mut truth, mut waits) = (0.0, 0.0, 0.0, 0.0);
        while at < SECONDS as f64 - 10.0 * mean {
            // A look that finds one finds no other one of the same coroutine: so these are to be few.
            at += 8.0 * mean * random.f64();
            let length = 2.0 * mean * random.f64();
            told += looks.iter().filter(|look| (at..at + length).contains(*look)).count() as f64;
            (at, truth, waits) = (at + length, truth + length, waits + 1.0);
        }
        (told - truth).powi(2) / variance(waits, truth, 1.0)
    }

    #[test]
    fn the_variance_is_that_of_looks_at_random() {
        let mut random = fastrand::Rng::with_seed(3);
        for mean in [0.05, 0.3, 1.0, 4.0] {
            let squares: Vec<f64> = (0..400).map(|_| simulated(mean, &mut random)).collect();
            let ratio = squares.iter().sum::<f64>() / squares.len() as f64;
            println!("waits of {mean} stretches: {ratio:.2} of the variance");
            assert!((0.6..1.4).contains(&ratio), "waits of {mean} stretches: {ratio}");
        }
    }
}
