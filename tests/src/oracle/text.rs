//! The text of a program while it is written, and the line that it is at.

use std::fmt::Write as _;

/// A Lua text that grows.
#[derive(Debug)]
pub struct Text {
    text: String,
    line: u32,
    depth: usize,
    /// Everything goes on one line for now, as long as this is not 0.
    joined: u32,
}

impl Default for Text {
    fn default() -> Self {
        Self { text: String::new(), line: 1, depth: 0, joined: 0 }
    }
}

impl Text {
    /// The line that is being written.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Adds a piece that has no line breaks.
    pub fn push(&mut self, piece: &str) {
        debug_assert!(!piece.contains('\n'), "{piece:?}");
        let is_fresh = self.text.is_empty() || self.text.ends_with('\n');
        if is_fresh {
            let _ = write!(self.text, "{:1$}", "", 2 * self.depth);
        }
        self.text.push_str(piece);
    }

    /// What stands between two statements: a line break, or a blank where all goes on one line.
    pub fn next(&mut self) {
        if self.joined > 0 {
            self.blank();
        } else {
            self.text.push('\n');
            self.line += 1;
        }
    }

    /// A blank between two statements on one line.
    pub fn blank(&mut self) {
        if !self.text.ends_with(['\n', ' ']) {
            self.text.push(' ');
        }
    }

    /// From here on, statements are further to the right.
    pub fn indent(&mut self) {
        self.depth += 1;
    }

    /// The end of that.
    pub fn dedent(&mut self) {
        self.depth -= 1;
    }

    /// From here on, all goes on one line.
    pub fn join(&mut self) {
        self.joined += 1;
    }

    /// The end of that.
    pub fn part(&mut self) {
        self.joined -= 1;
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.text
    }
}
