//! Places in the Lua workloads, by marks in their text.

use std::path::Path;

/// The line of `script` that has the mark `--@ mark`.
///
/// # Panics
/// If no line has it, or several do.
pub fn line_of(script: &str, mark: &str) -> u64 {
    line_where(script, |line| line.split_once("--@ ").is_some_and(|(_, found)| found.trim() == mark), mark)
}

/// The line of `script` where the function `name` is defined.
///
/// # Panics
/// If there is no such function, or several.
pub fn definition_of(script: &str, name: &str) -> u64 {
    line_where(script, |line| line.trim_start().starts_with(&format!("local function {name}(")), name)
}

fn line_where(script: &str, is_it: impl Fn(&str) -> bool, what: &str) -> u64 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua").join(script);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| is_it(line)).map(|(number, _)| number);
    match (lines.next(), lines.next()) {
        (Some(line), None) => line,
        (None, _) => panic!("no {what} in {script}"),
        (Some(_), Some(_)) => panic!("several {what} in {script}"),
    }
}
