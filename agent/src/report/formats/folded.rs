//! Folded stacks: a line for each stack, `root;...;leaf WEIGHT`, what flame graph tools read.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::report::model::Profile;

/// The lines of a profile, in bytewise order, without line ends. Stacks that read the same are one line.
pub fn lines(profile: &dyn Profile) -> Vec<String> {
    weights(profile).into_iter().map(|(stack, weight)| format!("{stack} {weight}")).collect()
}

/// What each stack weighs, as it reads: `root;...;leaf`.
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

/// A name as it can stand in a folded line: a `;` would end it, a line end or other control character would end the
/// line or hide in it.
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
    use super::*;
    use crate::report::{CpuProfile, Frame};
    use crate::stream::VmState;

    #[test]
    fn lines_are_merged_sorted_and_free_of_separators() {
        let mut profile = CpuProfile::new("test");
        let lua = |chunk: &[u8], line| Frame::lua(None, chunk, 1, Some(line));
        profile.add(VmState::Lfunc, [lua(b"@b;\n.lua", 3)]);
        profile.add(VmState::Lfunc, [lua(b"@a.lua", 1), lua(b"@a.lua", 2)]);
        profile.add(VmState::Lfunc, [lua(b"@a.lua", 7), lua(b"@a.lua", 8)]);
        assert_eq!(lines(&profile), ["@a.lua:1;@a.lua:1 2", "@b, .lua:1 1"]);
    }
}
