//! The lines of a Lua file: the result of the JIT compiler for each line, and the samples that hit it.

use std::collections::BTreeMap;

use lj_trace_common::memory::ReadMemory;
use lj_trace_text::chunk_name;
use serde::Serialize;

use super::blacklist::is_turned_off;
use super::loops::PartState;
use super::places::CodePlaces;
use super::samples::{CodeCounts, CodeSamples};
use super::why::WhyInterpreted;
use crate::PrototypeKey;

/// The state of a line, from its bytecode. If a line has code in several states, the one that comes last in this list counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LineState {
    /// None of the following: in the interpreter, or in a trace that begins elsewhere.
    Counted,
    /// In a loop or function at which a trace begins.
    Compiled,
    /// In a function for which compiling is turned off.
    TurnedOff,
    /// In a loop or function that is blacklisted.
    Blacklisted,
}

/// A line with code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CodeLine {
    /// The state of its code.
    pub state: LineState,
    /// Samples whose innermost line of Lua code is this one.
    pub samples: CodeCounts,
}

/// A file, as the VM knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CodeFile {
    /// The chunkname as LuaJIT shows it.
    pub source: String,
    /// Its lines that have code.
    pub lines: BTreeMap<u32, CodeLine>,
    /// Samples with a known function but no known line, by the line where the function is defined: traces do not show
    /// every line.
    pub functions: BTreeMap<u32, CodeCounts>,
    /// Whether all of the VM's functions were read.
    pub complete: bool,
}

/// The most comparisons of instructions with loops in all: some seconds' work. No file that people write needs as many.
const MOST_WORK: u64 = 1 << 30;

/// Whether a user who writes `file` can mean the chunk `source`: its whole name, or the end of its path.
fn is_meant(file: &str, source: &str) -> bool {
    source.strip_suffix(file).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// The files of a VM that `file` can mean.
pub fn read_files<M: ReadMemory>(
    places: &CodePlaces<'_, M>,
    why: &WhyInterpreted,
    samples: Option<&CodeSamples>,
    file: &str,
) -> Vec<CodeFile> {
    let file = file.strip_prefix("./").unwrap_or(file);
    let mut files: BTreeMap<String, CodeFile> = BTreeMap::new();
    let mut work = 0_u64;
    let mut owners: BTreeMap<u64, (PrototypeKey, String)> = BTreeMap::new();
    for key in places.keys() {
        let Some((prototype, _)) = places.instruction(places.address(key, 0)) else { continue };
        let source = chunk_name(prototype.chunkname.as_bytes());
        if prototype.is_builtin() || !is_meant(file, source.strip_prefix("./").unwrap_or(&source)) {
            continue;
        }
        let new =
            || CodeFile { source: source.clone(), lines: BTreeMap::new(), functions: BTreeMap::new(), complete: true };
        let file = files.entry(source.clone()).or_insert_with(new);
        owners.insert(key.address, (*key, source));
        let parts = why.parts(&prototype);
        work += (u64::from(key.sizebc) + 1) * (parts.len() as u64 + 1);
        if work > MOST_WORK {
            file.complete = false;
            continue;
        }
        let lines = &mut file.lines;
        let turned_off = is_turned_off(&prototype);
        // The innermost part comes first: its state takes precedence over the parts around it.
        let state = |position: u32| {
            let states = parts.iter().filter(|part| part.within.contains(&position)).map(|part| part.state);
            match states.into_iter().find(|state| *state != PartState::Counted) {
                _ if turned_off => LineState::TurnedOff,
                Some(PartState::Blacklisted) => LineState::Blacklisted,
                Some(PartState::Compiled) => LineState::Compiled,
                Some(PartState::Counted) | None => LineState::Counted,
            }
        };
        // The header has the line of the definition, but no other code of the function has.
        for position in 1..key.sizebc {
            let Some(line) = prototype.line_at(position) else { continue };
            let state = state(position);
            let line = lines.entry(line).or_insert(CodeLine { state, samples: CodeCounts::default() });
            line.state = line.state.max(state);
        }
    }
    for (place, counts) in samples.into_iter().flat_map(CodeSamples::places) {
        let Some((_, source)) = owners.get(&place.prototype.address).filter(|(key, _)| *key == place.prototype) else {
            continue;
        };
        let Some((prototype, _)) = places.instruction(places.address(&place.prototype, 0)) else { continue };
        let Some(file) = files.get_mut(source) else { continue };
        match place.position.and_then(|position| prototype.line_at(position)) {
            Some(line) => {
                let new = CodeLine { state: LineState::Counted, samples: CodeCounts::default() };
                file.lines.entry(line).or_insert(new).samples += *counts;
            }
            None => *file.functions.entry(place.prototype.firstline).or_default() += *counts,
        }
    }
    files.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_by_the_end_of_its_path() {
        for (file, source, is_it) in [
            ("points.lua", "points.lua", true),
            ("points.lua", "/srv/app/points.lua", true),
            ("app/points.lua", "/srv/app/points.lua", true),
            ("points.lua", "/srv/waypoints.lua", false),
            ("points.lua", "points.lua.bak", false),
            ("/srv/app/points.lua", "app/points.lua", false),
        ] {
            assert_eq!(is_meant(file, source), is_it, "{file} {source}");
        }
    }
}
