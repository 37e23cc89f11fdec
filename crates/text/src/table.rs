//! Tables of text: figures in columns, and a text at the end of each row.

use std::fmt;

use super::Room;

/// How the cells of a column are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// A column whose cells are never cut: it is as wide as its widest cell, or as its title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    title: &'static str,
    side: Side,
    least: usize,
}

impl Column {
    /// A column of words, at least `least` wide.
    pub const fn left(title: &'static str, least: usize) -> Self {
        Self { title, side: Side::Left, least }
    }

    /// A column of numbers, at least `least` wide.
    pub const fn right(title: &'static str, least: usize) -> Self {
        Self { title, side: Side::Right, least }
    }
}

/// How to shorten the text at the end of a row if there is too little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Not at all.
    Whole,
    /// Cut it at its end.
    End,
    /// Cut it in its middle.
    Middle,
    /// Shorten it as a [label](Room::label), which keeps at least this many columns.
    Label(usize),
}

impl Fit {
    fn apply(self, text: &str, room: Room) -> String {
        match self {
            Self::Whole => text.to_owned(),
            Self::End => room.text(text),
            Self::Middle => room.title(text),
            Self::Label(least) => room.at_least(least).label(text),
        }
    }
}

/// One line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Row {
        cells: Vec<String>,
        end: String,
        is_grey: bool,
    },
    /// A text under a column, or under the ends of rows.
    Below {
        column: usize,
        text: String,
        fit: Fit,
    },
}

/// A table. Its lines are written once all of it is known.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    has_head: bool,
    indent: usize,
    gap: usize,
    end: (String, Fit),
    room: Room,
    lines: Vec<Line>,
}

impl Table {
    /// A table with these columns, one space between columns, and two spaces before the end of rows.
    pub fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self {
            columns: columns.into(),
            has_head: true,
            indent: 0,
            gap: 1,
            end: (String::new(), Fit::Whole),
            room: Room::Unlimited,
            lines: Vec::new(),
        }
    }

    /// Removes the line of titles.
    #[must_use]
    pub fn headless(self) -> Self {
        Self { has_head: false, ..self }
    }

    /// Sets the number of spaces between columns.
    #[must_use]
    pub fn gap(self, gap: usize) -> Self {
        Self { gap, ..self }
    }

    /// Sets the number of spaces before the first column.
    #[must_use]
    pub fn indent(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Adds a text at the end of each row, under this title. `room` is the width of the whole row.
    #[must_use]
    pub fn end(self, title: impl Into<String>, fit: Fit, room: Room) -> Self {
        Self { end: (title.into(), fit), room, ..self }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl Into<Vec<String>>, end: impl Into<String>) {
        self.lines.push(Line::Row { cells: cells.into(), end: end.into(), is_grey: false });
    }

    /// Adds a row in a terminal's grey.
    pub fn grey_row(&mut self, cells: impl Into<Vec<String>>, end: impl Into<String>) {
        self.lines.push(Line::Row { cells: cells.into(), end: end.into(), is_grey: true });
    }

    /// Adds a text under the ends of rows.
    pub fn more(&mut self, text: impl Into<String>) {
        self.below(self.columns.len(), text, Fit::Whole);
    }

    /// Adds a text under the column with this index.
    pub fn below(&mut self, column: usize, text: impl Into<String>, fit: Fit) {
        self.lines.push(Line::Below { column, text: text.into(), fit });
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// How wide each column is.
    fn widths(&self) -> Vec<usize> {
        let count = |text: &str| text.chars().count();
        let title = |column: &Column| if self.has_head { count(column.title) } else { 0 };
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.least.max(title(column))).collect();
        for line in &self.lines {
            if let Line::Row { cells, .. } = line {
                widths.iter_mut().zip(cells).for_each(|(width, cell)| *width = (*width).max(count(cell)));
            }
        }
        widths
    }

    /// The width before the column with this index, or before the end of rows.
    fn before(&self, column: usize, widths: &[usize]) -> usize {
        let gap = if column == self.columns.len() { 2 } else { self.gap };
        match column {
            0 => self.indent,
            column => self.indent + widths[..column].iter().sum::<usize>() + self.gap * (column - 1) + gap,
        }
    }

    /// A row, without trailing spaces.
    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>, end: &str, widths: &[usize]) -> String {
        let mut line = " ".repeat(self.indent);
        for (index, ((cell, column), width)) in cells.zip(&self.columns).zip(widths).enumerate() {
            let gap = if index == 0 { 0 } else { self.gap };
            line.push_str(&" ".repeat(gap));
            line.push_str(&match column.side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            });
        }
        if !end.is_empty() {
            line.push_str("  ");
            line.push_str(end);
        }
        line.truncate(line.trim_end().len());
        line
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let room = self.room.beside(self.before(self.columns.len(), &widths));
        if self.has_head {
            let titles = self.columns.iter().map(|column| column.title);
            writeln!(f, "{}", self.line(titles, &self.end.0, &widths))?;
        }
        for line in &self.lines {
            match line {
                Line::Row { cells, end, is_grey } => {
                    let end = self.end.1.apply(end, room);
                    let row = self.line(cells.iter().map(String::as_str), &end, &widths);
                    if *is_grey { writeln!(f, "\x1b[90m{row}\x1b[0m")? } else { writeln!(f, "{row}")? }
                }
                Line::Below { column, text, fit } => {
                    let before = self.before(*column, &widths);
                    writeln!(f, "{:before$}{}", "", fit.apply(text, self.room.beside(before)))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut table =
            Table::new([Column::left("name", 6), Column::right("n", 3)]).end("what", Fit::Whole, Room::Unlimited);
        assert!(table.is_empty());
        table.row(["a".into(), "1".into()], "x");
        table.row(["ä".into(), "12345".into()], "");
        table.more("2 more");
        table.below(1, "under it", Fit::Whole);
        let expected =
            ["name       n  what", "a          1  x", "ä      12345", "              2 more", "       under it"];
        assert_eq!(table.to_string().lines().collect::<Vec<_>>(), expected);
        let spread = table.headless().gap(2).indent(2).to_string();
        assert_eq!(spread.lines().next(), Some("  a           1  x"));
    }

    #[test]
    fn what_is_at_the_end_gives_way() {
        let cut = |fit: Fit| {
            let mut table = Table::new([Column::right("n", 4)]).headless().end("", fit, Room::Columns(16));
            table.row(["1".to_owned()], "work@some/long/path.lua:12");
            table.to_string()
        };
        assert_eq!(cut(Fit::Whole), "   1  work@some/long/path.lua:12\n");
        assert_eq!(cut(Fit::End), "   1  work@so...\n");
        assert_eq!(cut(Fit::Middle), "   1  wor...a:12\n");
        assert_eq!(cut(Fit::Label(0)), "   1  work@...:12\n");
        assert_eq!(cut(Fit::Label(19)), "   1  work@...path.lua:12\n");
    }

    #[test]
    fn grey_rows_are_grey_to_their_end() {
        let mut table = Table::new([Column::right("n", 2)]).headless();
        table.grey_row(["1".to_owned()], "");
        assert_eq!(table.to_string(), "\x1b[90m 1\x1b[0m\n");
    }
}
