//! Waits as lj-trace tells them, and as the workload has timed them itself.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

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

/// Compares what lj-trace tells of a script with the truth: places are lines that are marked `waits in NAME`. Shares are within
/// 2 points; numbers within 5%, or what chance is good for.
///
/// # Errors
/// If they differ by more.
pub fn compare(script: &str, text: &str, truth: &WaitTruth) -> Result<()> {
    let places = told(text)?;
    let all: f64 = truth.places.values().map(|(seconds, _)| seconds).sum();
    let own = |name: &str| {
        let end = format!("@{script}:{}", line_of(script, &format!("waits in {name}")));
        places.iter().filter(move |place| place.name.ends_with(&end))
    };
    let told_all: f64 = truth.places.keys().flat_map(|name| own(name)).map(|place| place.mean.0).sum();
    for (name, (seconds, count)) in &truth.places {
        let mean: f64 = own(name).map(|place| place.mean.0).sum();
        let error: f64 = own(name).map(|place| place.mean.1.powi(2)).sum::<f64>().sqrt();
        let expected = seconds / truth.whole;
        ensure!(
            (mean - expected).abs() <= 0.05 * expected + 1.5 * error + 0.1,
            "{name}: {mean} +- {error} coroutines at a time instead of {expected} ({count} waits) in\n{text}\n{truth:?}"
        );
        let (share, right) = (100.0 * mean / told_all, 100.0 * seconds / all);
        ensure!((share - right).abs() <= 2.0, "{name}: {share}% instead of {right}% in\n{text}\n{truth:?}");
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
