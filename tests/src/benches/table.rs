//! Tables as text, and what was asked for beside what was measured.

/// Lines of cells, of which each column is as wide as its widest.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One with a head.
    pub fn new<const COLUMNS: usize>(head: [&str; COLUMNS]) -> Self {
        Self { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    /// Adds a line.
    pub fn row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells.to_vec());
    }

    /// Prints it.
    pub fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

/// Prints what was asked for, what was measured, and whether that is it.
pub fn verdict(what: &str, asked: &str, measured: &str, holds: bool) {
    println!("{what:44} asked {asked:14} measured {measured:34} {}", if holds { "reached" } else { "NOT REACHED" });
}
