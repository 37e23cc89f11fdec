//! The results of tests: what each prints in lines `cell: KEY: VALUE`.

use std::collections::BTreeMap;

use crate::kernel::guest::{MARK, NOT_RUN};

/// The modes of lj-trace that are tested: the names of the tests, in the order of their columns.
pub const MODES: [&str; 3] = ["sysprof", "memprof", "overhead"];

/// The result of one test.
#[derive(Debug, Default, PartialEq)]
pub struct Cell {
    pub passed: bool,
    pub title: String,
    pub builds: Vec<String>,
    pub figures: String,
    /// Differences from what other builds show.
    pub notes: Vec<String>,
}

/// The results by test name: `luajit::sysprof`.
pub type Cells = BTreeMap<String, Cell>;

impl Cell {
    /// Takes what a line of a test says, if it says anything for the matrix.
    fn take(&mut self, line: &str) {
        let Some((key, value)) = line.strip_prefix("cell: ").and_then(|line| line.split_once(": ")) else { return };
        match key {
            "title" => self.title = value.to_owned(),
            "build" => self.builds.push(value.to_owned()),
            "figures" => self.figures = value.to_owned(),
            "note" => self.notes.push(value.to_owned()),
            _ => {}
        }
    }

    /// What the matrix shows for it.
    pub fn text(&self, name: &str, mark: &str) -> String {
        let state = match (self.passed, self.figures.is_empty()) {
            (true, false) => "passed",
            (true, true) => "not available here",
            (false, _) => "**failed**",
        };
        let mut text = format!("`{name}`{mark}: {state}");
        for more in [&self.figures].into_iter().chain(&self.notes).filter(|more| !more.is_empty()) {
            text.push_str("<br>");
            text.push_str(more);
        }
        text
    }
}

/// The results in the output of libtest.
pub fn of_output(output: &str) -> Cells {
    let mut cells = Cells::new();
    let mut current = None;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            current = Some(name.to_owned());
        } else if let (true, Some(name)) = (line.starts_with("cell: "), &current) {
            cells.entry(name.clone()).or_default().take(line);
        }
    }
    // The list at the end: elsewhere, a program's standard error may separate a test's name from its verdict.
    let failed = output.rsplit_once("\nfailures:\n").map_or("", |(_, names)| names);
    let failed: Vec<&str> = failed.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    for (name, cell) in &mut cells {
        cell.passed = !cell.title.is_empty() && !failed.contains(&name.as_str());
    }
    cells
}

/// The results of tests in an emulated machine, from the lines of its console.
#[derive(Debug, Default)]
pub struct OfMachine {
    cells: Cells,
    /// The test that runs.
    running: String,
}

impl OfMachine {
    /// Takes a line of the console.
    pub fn take(&mut self, line: &str) {
        let Some((_, line)) = line.split_once(MARK) else { return };
        if let Some(said) = line.strip_prefix("| ") {
            self.cells.entry(self.running.clone()).or_default().take(said);
            return;
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["begin", _, name] => name.clone_into(&mut self.running),
            ["end", _, name, status, _] => {
                let cell = self.cells.entry(name.to_owned()).or_default();
                cell.passed = !cell.title.is_empty() && ["0", NOT_RUN].contains(&status);
            }
            _ => {}
        }
    }

    /// The results of the tests that have ended, or have said what they are about.
    pub fn end(self) -> Cells {
        self.cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_tells_the_same() {
        let mut told = OfMachine::default();
        for line in [
            "@@ kernel 6.12",
            "@@ begin matrix a::sysprof",
            "noise",
            "@@ | cell: title: Some `a`",
            "@@ | cell: figures: 12 samples",
            "@@ end matrix a::sysprof 0 3",
            "@@ begin matrix a::memprof",
            "@@ | cell: title: Some `a`",
            "@@ | thread panicked",
            "@@ end matrix a::memprof 101 3",
            "@@ begin matrix b::memprof",
            "@@ | cell: title: Some `b`",
            "@@ | not tested: b is missing",
            "@@ end matrix b::memprof not-run 0",
        ] {
            told.take(line);
        }
        let texts: Vec<_> = told.end().iter().map(|(name, cell)| cell.text(name, "")).collect();
        assert_eq!(
            texts,
            ["`a::memprof`: **failed**", "`a::sysprof`: passed<br>12 samples", "`b::memprof`: not available here"]
        );
    }
}
