//! Folded stacks, which flame graph tools read: one line for each stack, `root;...;leaf WEIGHT`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::model::Profile;

/// The lines of a profile, in bytewise order, without line ends. Stacks with the same text share a line.
pub fn lines(profile: &dyn Profile) -> Vec<String> {
    weights(profile).into_iter().map(|(stack, weight)| format!("{stack} {weight}")).collect()
}

/// The weight of each stack, keyed by its text: `root;...;leaf`.
pub fn weights(profile: &dyn Profile) -> BTreeMap<String, u64> {
    let stacks = profile.weighted();
    let names: Vec<String> = stacks.frames().iter().map(|frame| escape(&frame.to_string())).collect();
    let measure = profile.shown();
    let mut weights: BTreeMap<String, u64> = BTreeMap::new();
    for row in stacks.rows() {
        let weight = measure.value(row.weights);
        if weight == 0 {
            continue;
        }
        let names: Vec<&str> = row.frames.iter().map(|id| names[id.index()].as_str()).collect();
        let sum = weights.entry(names.join(";")).or_insert(0);
        *sum = sum.saturating_add(weight);
    }
    weights
}

/// Writes a profile as folded stacks.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &dyn Profile, mut out: impl Write) -> io::Result<()> {
    for line in lines(profile) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// Escapes a name for a folded line: a `;` would end the name; a line end or other control character would end the line
/// or be invisible.
pub fn escape(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            ';' => ',',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use lj_trace_streams::VmState;

    use super::*;
    use crate::{CpuProfile, Frame};

    #[test]
    fn lines_are_merged_sorted_and_free_of_separators() {
        let mut profile = CpuProfile::new("test");
        let lua = |chunk: &[u8], line| Frame::lua(None, chunk, 1, Some(line));
        profile.add(VmState::Lfunc, [lua(b"@b;\n.lua", 3)]);
        profile.add(VmState::Lfunc, [lua(b"@a.lua", 1), lua(b"@a.lua", 2)]);
        profile.add(VmState::Lfunc, [lua(b"@a.lua", 7), lua(b"@a.lua", 8)]);
        assert_eq!(lines(&profile), ["@a.lua:1;@a.lua:1 2", "@b,\\n.lua:1 1"]);
    }
    #[test]
    fn flame_graph_tools_find_all_of_it() {
        let mut profile = CpuProfile::new("test");
        let c = Frame::C { symbol: "operator new(unsigned long)".into(), module: None };
        let main = Frame::lua(None, b"@a b;c.lua", 0, Some(9));
        for _ in 0..3 {
            profile.add(VmState::Cfunc, [main.clone(), c.clone()]);
        }
        profile.add(VmState::Trace, [main, Frame::lua(Some("f".into()), b"@a b;c.lua", 2, Some(3)).compiled()]);
        let mut folded = Vec::new();
        write(&profile, &mut folded).unwrap();
        let mut svg = Vec::new();
        let mut options = inferno::flamegraph::Options::default();
        inferno::flamegraph::from_reader(&mut options, folded.as_slice(), &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        for shown in [
            "all (4 samples, 100%)",
            "main chunk@a b,c.lua:0 (4 samples, 100.00%)",
            "operator new(unsigned long) (3 samples, 75.00%)",
            // Viewers read the mark of compiled code as theirs, and strip it from the name.
            "f@a b,c.lua:2 (1 samples, 25.00%)",
        ] {
            assert!(svg.contains(shown), "no {shown:?} in {svg}");
        }
    }
}
