//! The stacks that are in a written profile, whatever its format.

use std::collections::BTreeMap;
use std::fs::{File, read_to_string};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::folded::Folded;

/// Each stack, outermost frame first, and what it weighs.
pub type Stacks = BTreeMap<Vec<String>, u64>;

/// What all of them weigh.
pub fn total(stacks: &Stacks) -> u64 {
    stacks.values().sum()
}

/// What each function weighs: at the leaf, and anywhere.
pub fn functions(stacks: &Stacks) -> BTreeMap<String, (u64, u64)> {
    let mut functions: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (stack, weight) in stacks {
        let mut names: Vec<&String> = stack.iter().collect();
        names.sort();
        names.dedup();
        names.into_iter().for_each(|name| functions.entry(name.clone()).or_default().1 += weight);
        if let Some(leaf) = stack.last() {
            functions.entry(leaf.clone()).or_default().0 += weight;
        }
    }
    functions
}

/// Folded stacks.
///
/// # Errors
/// If the file is none.
pub fn folded(path: &Path) -> Result<Stacks> {
    let text = read_to_string(path).with_context(|| format!("no file {}", path.display()))?;
    Ok(of_folded(&Folded::parse(&text)?))
}

/// The same, parsed already.
pub fn of_folded(folded: &Folded) -> Stacks {
    folded.sorted().into_iter().map(|(stack, weight)| (stack.to_vec(), weight)).collect()
}

/// The total that a flame graph says it has.
///
/// # Errors
/// If it says none.
pub fn svg_total(path: &Path) -> Result<u64> {
    let text = read_to_string(path)?;
    let (_, rest) = text.split_once("total_samples=\"").context("no total in the picture")?;
    Ok(rest.split('"').next().unwrap_or_default().parse()?)
}

/// The profile of that name in a file of speedscope's; the first one without a name.
///
/// # Errors
/// If there is none.
pub fn speedscope(path: &Path, name: Option<&str>) -> Result<Stacks> {
    let file: Value = serde_json::from_reader(File::open(path)?)?;
    let profiles = list(&file["profiles"])?;
    let wanted = |profile: &&Value| name.is_none_or(|name| profile["name"] == name);
    let profile = profiles.iter().find(wanted).with_context(|| format!("no profile {name:?}"))?;
    let frames = list(&file["shared"]["frames"])?;
    let mut stacks = Stacks::new();
    for (stack, weight) in list(&profile["samples"])?.iter().zip(list(&profile["weights"])?) {
        let name = |frame: &Value| Ok(text(&frames[number(frame)? as usize]["name"])?.to_owned());
        let stack = list(stack)?.iter().map(name).collect::<Result<Vec<_>>>()?;
        *stacks.entry(stack).or_default() += number(weight)?;
    }
    Ok(stacks)
}

/// All threads of a profile of the Firefox profiler.
///
/// # Errors
/// If it is none.
pub fn firefox(path: &Path) -> Result<Stacks> {
    let file: Value = serde_json::from_reader(flate2::read::GzDecoder::new(File::open(path)?))?;
    let mut stacks = Stacks::new();
    for thread in list(&file["threads"])? {
        let samples = &thread["samples"];
        let weights = list(&samples["weight"])?;
        for (stack, weight) in list(&samples["stack"])?.iter().zip(weights) {
            *stacks.entry(firefox_stack(thread, stack)?).or_default() += number(weight)?;
        }
    }
    Ok(stacks)
}

fn firefox_stack(thread: &Value, leaf: &Value) -> Result<Vec<String>> {
    let mut stack = Vec::new();
    let mut at = leaf;
    while !at.is_null() {
        let index = number(at)? as usize;
        let frame = number(&thread["stackTable"]["frame"][index])? as usize;
        let function = number(&thread["frameTable"]["func"][frame])? as usize;
        let name = number(&thread["funcTable"]["name"][function])? as usize;
        stack.push(text(&thread["stringArray"][name])?.to_owned());
        at = &thread["stackTable"]["prefix"][index];
    }
    stack.reverse();
    Ok(stack)
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().with_context(|| format!("no list: {value}"))
}

fn number(value: &Value) -> Result<u64> {
    match value.as_u64() {
        Some(number) => Ok(number),
        None => bail!("no number: {value}"),
    }
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("no text: {value}"))
}
