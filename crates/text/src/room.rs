//! Labels that fit into a column: names of functions, lines and traces.
//!
//! Two rows with the same text are worse than a long row. So what distinguishes rows is never cut: the function and the
//! line number. What is shortened are the folders of paths, then file names, and the template arguments and parameters
//! of C++ symbols. If the function alone is wider than its column, so is the label.

use std::io::IsTerminal;

use super::{COLUMNS, fit, fit_end};

/// Stands for what was cut.
const GAP: &str = "...";

/// How much width a text has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The lines of a terminal, with this many columns.
    Columns(usize),
    /// A file or a pipe: nothing is cut.
    Unlimited,
}

impl Room {
    /// The width for a text on standard output or standard error.
    pub fn of(stream: &impl IsTerminal) -> Self {
        if stream.is_terminal() { Self::Columns(COLUMNS) } else { Self::Unlimited }
    }

    /// The width that is left beside this many columns of figures.
    #[must_use]
    pub fn beside(self, taken: usize) -> Self {
        match self {
            Self::Columns(columns) => Self::Columns(columns.saturating_sub(taken)),
            Self::Unlimited => Self::Unlimited,
        }
    }

    /// At least this width.
    #[must_use]
    pub fn at_least(self, least: usize) -> Self {
        match self {
            Self::Columns(columns) => Self::Columns(columns.max(least)),
            Self::Unlimited => Self::Unlimited,
        }
    }

    /// A label, shortened to fit; see the module.
    pub fn label(self, label: &str) -> String {
        let label = one_line(label);
        match self {
            Self::Columns(columns) => fit_label(&label, columns),
            Self::Unlimited => label,
        }
    }

    /// A title, cut in its middle.
    pub fn title(self, title: &str) -> String {
        match self {
            Self::Columns(columns) => fit(title, columns),
            Self::Unlimited => one_line(title),
        }
    }

    /// A text, cut at its end.
    pub fn text(self, text: &str) -> String {
        match self {
            Self::Columns(columns) => fit_end(text, columns),
            Self::Unlimited => one_line(text),
        }
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A label, shortened to at most `width` columns if that is possible without cutting a function or a line number:
/// `work@...lib/a.lua:12`.
pub fn fit_label(label: &str, width: usize) -> String {
    let length = label.chars().count();
    if length <= width {
        return label.to_owned();
    }
    let paths = paths(label);
    if paths.is_empty() {
        return without_arguments(label, width);
    }
    let sizes: Vec<usize> = paths.iter().map(|&(from, to)| label[from..to].chars().count()).collect();
    let rest = length - sizes.iter().sum::<usize>();
    let rooms = shared(&sizes, width.saturating_sub(rest));
    let mut fitted = String::new();
    let mut done = 0;
    for (&(from, to), room) in paths.iter().zip(rooms) {
        fitted.push_str(&label[done..from]);
        fitted.push_str(&path_end(&label[from..to], room));
        done = to;
    }
    fitted.push_str(&label[done..]);
    fitted
}

/// The byte ranges of the paths in a label: from an `@`, or from the beginning of a part, to `:LINE`.
fn paths(label: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut from = 0;
    for (at, _) in label.match_indices(':') {
        let digits = label[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let end = at + 1 + digits;
        let next = label[end..].chars().next();
        let is_end = next.is_none_or(|c| matches!(c, ' ' | ',' | ')' | ';')) || label[end..].starts_with("_[");
        if digits == 0 || !is_end || at < from {
            continue;
        }
        // A function's name has no `@`, so the first `@` ends it. A line without a function is at the beginning, or
        // follows a word.
        let part = &label[from..at];
        let begin = match part.find('@') {
            Some(sign) => sign + 1,
            None => [": ", " in ", " from ", " at "]
                .iter()
                .filter_map(|word| Some(part.find(word)? + word.len()))
                .max()
                .unwrap_or(0),
        };
        found.push((from + begin, at));
        from = end;
    }
    found
}

/// Distributes `room`: short texts get all that they need, long ones equal parts.
fn shared(sizes: &[usize], room: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&index| sizes[index]);
    let mut rooms = vec![0; sizes.len()];
    let mut left = room;
    for (done, index) in order.into_iter().enumerate() {
        rooms[index] = sizes[index].min(left / (sizes.len() - done));
        left -= rooms[index];
    }
    rooms
}

/// The end of a path: the file is its most telling part.
fn path_end(path: &str, room: usize) -> String {
    let size = path.chars().count();
    if size <= room || size <= GAP.len() {
        return path.to_owned();
    }
    let skipped = size - room.saturating_sub(GAP.len());
    GAP.chars().chain(path.chars().skip(skipped)).collect()
}

/// A native symbol, whose largest brackets are emptied until it fits.
fn without_arguments(symbol: &str, width: usize) -> String {
    let mut fitted = symbol.to_owned();
    while fitted.chars().count() > width {
        let Some((from, to)) = largest_brackets(&fitted) else { break };
        fitted.replace_range(from..to, GAP);
    }
    fitted
}

/// The content of the largest pair of outermost brackets, if it is longer than the gap that would replace it.
fn largest_brackets(symbol: &str) -> Option<(usize, usize)> {
    let mut open = Vec::new();
    let mut pairs = Vec::new();
    for (at, c) in symbol.char_indices() {
        match c {
            '(' | '<' => open.push((at, c)),
            ')' | '>' => {
                // `operator->` and the like: their brackets are not brackets.
                let (from, begin) = open.pop()?;
                if (begin == '(') != (c == ')') {
                    return None;
                }
                if open.is_empty() {
                    pairs.push((from + 1, at));
                }
            }
            _ => {}
        }
    }
    pairs.into_iter().filter(|(from, to)| to - from > GAP.len()).max_by_key(|(from, to)| to - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_functions_nor_lines_are_cut() {
        let path = "/srv/app/releases/20261124/share/lua/5.1/app/models/user.lua";
        for line in [12, 19] {
            let whole = format!("load_user@{path}:{line}");
            for width in [10, 16, 24, 30, 50] {
                let label = fit_label(&whole, width);
                assert!(label.starts_with("load_user@...") && label.ends_with(&format!(":{line}")), "{label}");
                assert!(width < 16 || label.chars().count() <= width, "{label}");
            }
            assert_eq!(fit_label(&whole, 100), whole);
        }
        assert_eq!(fit_label(&format!("load_user@{path}:12"), 30), "load_user@...odels/user.lua:12");
        assert_eq!(fit_label(&format!("f@{path}:12_[j]"), 24), "f@...els/user.lua:12_[j]");
    }

    #[test]
    fn lines_and_their_functions_share_the_room() {
        let path = "/srv/app/models/user.lua";
        let label = fit_label(&format!("VM 2: {path}:22 in load_user@{path}:20"), 60);
        assert_eq!(label, "VM 2: ...odels/user.lua:22 in load_user@...odels/user.lua:20");
        let label = fit_label(&format!("lbox_replace from {path}:22 in load_user@{path}:20"), 60);
        assert!(label.starts_with("lbox_replace from ...") && label.contains(".lua:22 in load_user@..."), "{label}");
        assert!(label.ends_with(".lua:20") && label.chars().count() <= 60, "{label}");
    }

    #[test]
    fn symbols_lose_their_arguments_alone() {
        let symbol = "std::map<std::string, std::vector<int>>::find(std::string const&)";
        assert_eq!(fit_label(symbol, 48), "std::map<...>::find(std::string const&)");
        assert_eq!(fit_label(symbol, 20), "std::map<...>::find(...)");
        let long = "x".repeat(50);
        assert_eq!(fit_label(&long, 20), long);
        assert_eq!(fit_label("std::operator->(very long arguments)", 10), "std::operator->(very long arguments)");
    }

    #[test]
    fn files_have_room_for_all() {
        let label = format!("{}@a.lua:1", "x".repeat(300));
        assert_eq!(Room::Unlimited.beside(36).label(&label), label);
        assert_eq!(Room::Columns(100).beside(36), Room::Columns(64));
    }
}
