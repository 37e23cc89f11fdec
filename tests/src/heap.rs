//! What `lj-trace heap` says of a workload, and what the workload `heap.lua` says of itself.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::tracer::run;
use crate::workload::Workload;

/// What the workload says of a phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phase {
    /// Size of its heap, in bytes.
    pub total: u64,
    /// Objects that it has made, by type.
    pub made: BTreeMap<String, u64>,
    /// Addresses of some objects.
    pub addresses: BTreeMap<String, String>,
}

impl Phase {
    /// Reads a report.
    ///
    /// # Errors
    /// If it is not understood.
    pub fn parse(lines: &[String]) -> Result<Self> {
        let mut phase = Self::default();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["made", kind, count] => {
                    phase.made.insert(kind.to_owned(), count.parse()?);
                }
                ["at", name, address] => {
                    phase.addresses.insert(name.to_owned(), address.to_owned());
                }
                _ => phase.total = line.parse().with_context(|| format!("the workload reported {line:?}"))?,
            }
        }
        Ok(phase)
    }
}

/// A snapshot of a process with one VM.
#[derive(Clone, Debug)]
pub struct HeapView {
    json: Value,
    /// `gc.total` at the beginning.
    pub total: u64,
    /// `gc.total` at the end.
    pub total_after: u64,
    /// All bytes of objects and overhead.
    pub accounted: u64,
    /// What did not add up: references, unlisted objects, links.
    pub torn: [u64; 3],
    /// For how many milliseconds the process was stopped.
    pub paused: Option<f64>,
    /// Whether it went on before everything was read.
    pub went_on: bool,
    /// How long it took in all, in milliseconds.
    pub milliseconds: f64,
    /// How many bytes were read.
    pub bytes_read: u64,
    /// The resident memory of the process, in bytes.
    pub rss: u64,
}

/// Takes a snapshot of a workload.
///
/// # Errors
/// If lj-trace cannot, or what it prints is not understood.
pub fn snapshot(workload: &Workload, more: &[&str]) -> Result<HeapView> {
    let pid = workload.pid().to_string();
    let outcome = run(["heap", "--pid", &pid, "--json"].iter().chain(more))?;
    outcome.expect(0, &[]);
    HeapView::parse(&outcome.stdout)
}

impl HeapView {
    /// Reads a snapshot as JSON.
    ///
    /// # Errors
    /// If it is not understood.
    pub fn parse(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text)?;
        let heap = json["vms"][0].clone();
        let number = |value: &Value| value.as_u64().context("a number is missing");
        let sum =
            |list: &Value| list.as_array().into_iter().flatten().filter_map(|row| row["bytes"].as_u64()).sum::<u64>();
        Ok(HeapView {
            total: number(&heap["total"])?,
            total_after: number(&heap["total_after"])?,
            accounted: sum(&heap["types"]) + sum(&heap["overhead"]),
            torn: [
                number(&heap["torn"]["references"])?,
                number(&heap["torn"]["unlisted"])?,
                number(&heap["torn"]["links"])?,
            ],
            paused: json["paused"].as_f64(),
            went_on: json["went_on"] == true,
            milliseconds: json["milliseconds"].as_f64().unwrap_or_default(),
            bytes_read: number(&json["bytes_read"])?,
            rss: number(&json["rss"])?,
            json: heap,
        })
    }

    fn types(&self) -> impl Iterator<Item = &Value> {
        self.json["types"].as_array().into_iter().flatten()
    }

    /// How many objects of a type there are.
    pub fn count(&self, kind: &str) -> u64 {
        self.types().find(|row| row["type"] == kind).and_then(|row| row["count"].as_u64()).unwrap_or(0)
    }

    /// How many objects of each type there are.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let row = |row: &Value| Some((row["type"].as_str()?.to_owned(), row["count"].as_u64()?));
        self.types().filter_map(row).collect()
    }

    /// How many objects are garbage.
    pub fn garbage(&self) -> u64 {
        self.types().filter_map(|row| row["garbage_count"].as_u64()).sum()
    }

    /// What keeps the object at `address` alive, which was asked for.
    pub fn path_of(&self, address: &str) -> Option<&str> {
        let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let is_it = |asked: &&Value| asked["address"].as_str().and_then(number) == number(address);
        self.json["asked"].as_array()?.iter().find(is_it)?["path"].as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_workload_says() {
        let lines = ["made table 7", "at hidden 0x12", "4711"].map(str::to_owned);
        let phase = Phase::parse(&lines).unwrap();
        assert_eq!((phase.total, phase.made["table"], phase.addresses["hidden"].as_str()), (4711, 7, "0x12"));
        assert!(Phase::parse(&["lost".to_owned()]).is_err());
    }
}
