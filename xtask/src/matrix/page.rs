//! The page with the table: each run replaces what it has tested, and keeps the rest.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::cell::{Cells, MODES};

/// The text above the table.
const HEAD: &str = "# Which LuaJITs are tested

`cargo xtask matrix` and `cargo xtask matrix --arch aarch64` write this page from the results of the tests in \
`tests/tests/matrix.rs`; do not edit it by hand. Each cell is one test of one mode of lj-trace on a real process. The \
results of lj-trace are compared with what the workload in the process measured about itself:

- *CPU profile*: the share of each of the functions of `tests/lua/truth.lua`, in 2 seconds of CPU time at 999 Hz. A \
share may be off by 0.3 percentage points plus four standard deviations of a share estimated from that number of \
samples. At least 99.5 % of the Lua stacks and 99 % of the native stacks must be complete.
- *Memory profile*: every event of every line and C function of `tests/lua/memory.lua`, with its sizes; the heap must \
balance to the byte.
- *At 5 %*: `--overhead 5%` for 2 seconds of `tests/lua/bounded.lua`: the share of each line, within three percentage \
points plus twice the stated error; and the total, within 15 %. `cargo xtask bench bounded` measures more exactly.
- *A VM for each of 4 threads*: the samples of every thread match its own CPU time (within four standard deviations). \
All its tables are recorded, both below the root and in the stream of its own VM, and nowhere else.
- *On arm64*: the same tests in an emulated machine ([arm64](aarch64.md)), whose clock counts instructions: a share is \
one of instructions, and what lj-trace costs is not measured.

`cargo xtask test` runs only the cells with an asterisk.

";

/// The head of the table.
const COLUMNS: [&str; 6] =
    ["program", "LuaJIT, as lj-trace proves it", "CPU profile", "memory profile", "at 5 %", "on arm64, emulated"];

/// What is shown where nothing was tested.
const NOTHING: &str = "-";

/// A row: the program, its LuaJITs, a text for each mode, and one for arm64.
type Row = [String; COLUMNS.len()];

/// The place of the builds in a row.
const BUILDS: usize = 1;
/// The place of the first mode in a row.
const FIRST_MODE: usize = 2;
/// The place of arm64 in a row.
const ARM64: usize = FIRST_MODE + MODES.len();

/// The table.
#[derive(Debug, Default, PartialEq)]
pub struct Page {
    /// The rows, by program.
    rows: BTreeMap<String, Row>,
}

impl Page {
    /// Reads a page that was written before.
    pub fn read(text: &str) -> Self {
        let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
        let rows = rows.map(|row| row.split(" | ").map(str::to_owned).collect::<Vec<_>>());
        let rows = rows.filter(|row| row[0] != COLUMNS[0]).map(|mut row| {
            // Older pages have fewer columns.
            row.resize(COLUMNS.len(), NOTHING.to_owned());
            Row::try_from(row).expect("it has as many as there are columns")
        });
        Self { rows: rows.map(|row| (row[0].clone(), row)).collect() }
    }

    /// Replaces what was tested on this machine. `ignored` are the tests that `cargo xtask test` leaves out.
    pub fn replace(&mut self, cells: &Cells, ignored: &[String]) {
        self.rows.values_mut().for_each(|row| row[BUILDS..ARM64].fill(NOTHING.to_owned()));
        for (name, cell) in cells {
            let Some((_, mode)) = name.split_once("::") else { continue };
            let Some(column) = MODES.iter().position(|known| *known == mode) else { continue };
            let row = self.row(&cell.title);
            if !cell.builds.is_empty() {
                row[BUILDS] = cell.builds.join("<br>");
            }
            row[FIRST_MODE + column] = cell.text(name, if ignored.contains(name) { "" } else { " *" });
        }
    }

    /// Replaces what was tested on arm64.
    pub fn replace_arm64(&mut self, cells: &Cells) {
        self.rows.values_mut().for_each(|row| NOTHING.clone_into(&mut row[ARM64]));
        for (name, cell) in cells.iter().filter(|(_, cell)| !cell.title.is_empty()) {
            let row = self.row(&cell.title);
            let text = cell.text(name, "");
            row[ARM64] = if row[ARM64] == NOTHING { text } else { format!("{}<br>{text}", row[ARM64]) };
        }
    }

    fn row(&mut self, title: &str) -> &mut Row {
        self.rows.entry(title.to_owned()).or_insert_with(|| {
            let mut row = COLUMNS.map(|_| NOTHING.to_owned());
            title.clone_into(&mut row[0]);
            row
        })
    }

    /// The page as Markdown.
    pub fn text(&self) -> String {
        let mut page = HEAD.to_owned();
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| {} |\n|{}", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
        for row in self.rows.values() {
            let _ = writeln!(page, "| {} |", row.join(" | "));
        }
        let count = |columns: std::ops::Range<usize>| {
            let texts = || self.rows.values().flat_map(|row| &row[columns.clone()]);
            let of = |what: &str| texts().map(|text| text.matches(what).count()).sum::<usize>();
            let (passed, failed) = (of(": passed"), of(": **failed**"));
            format!("{passed} of {} cells passed", passed + failed)
        };
        let _ = writeln!(page, "\n{}; on arm64, {}.", count(FIRST_MODE..ARM64), count(ARM64..COLUMNS.len()));
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::cell::{OfMachine, of_output};

    const OUTPUT: &str = "\
test a::memprof ... FAILED
test a::sysprof ... ok

successes:

---- a::sysprof stdout ----
cell: title: Some `a`
cell: build: LuaJIT like 2.1: new
cell: figures: 12 samples


successes:
    a::sysprof

failures:

---- a::memprof stdout ----
cell: title: Some `a`

failures:
    a::memprof

test result: FAILED. 1 passed; 1 failed
";

    #[test]
    fn each_run_replaces_its_own_columns() {
        let cells = of_output(OUTPUT);
        assert!(cells["a::sysprof"].passed && !cells["a::memprof"].passed);
        assert_eq!(cells["a::sysprof"].builds, ["LuaJIT like 2.1: new"]);
        let mut page = Page::default();
        page.replace(&cells, &["a::memprof".to_owned()]);
        let mut machine = OfMachine::default();
        let lines = ["begin matrix a::sysprof", "| cell: title: Some `a`", "| cell: figures: 9 samples"];
        lines.into_iter().for_each(|line| machine.take(&format!("@@ {line}")));
        machine.take("@@ end matrix a::sysprof 0 2");
        page.replace_arm64(&machine.end());
        let own = [
            "Some `a`",
            "LuaJIT like 2.1: new",
            "`a::sysprof` *: passed<br>12 samples",
            "`a::memprof`: **failed**",
            "-",
        ];
        let with = |arm64: &str| own.iter().copied().chain([arm64]).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(page.rows["Some `a`"].to_vec(), with("`a::sysprof`: passed<br>9 samples"));
        let text = page.text();
        assert!(text.ends_with("\n1 of 2 cells passed; on arm64, 1 of 1 cells passed.\n"), "{text}");
        assert_eq!(Page::read(&text), page);
        let older = Page::read("| program | a | b | c |\n|---|---|---|---|\n| Some `b` | LuaJIT | passed | failed |\n");
        assert_eq!(older.rows["Some `b`"], ["Some `b`", "LuaJIT", "passed", "failed", "-", "-"].map(str::to_owned));
        page.replace_arm64(&Cells::new());
        assert_eq!(page.rows["Some `a`"].to_vec(), with("-"));
    }
}
