//! Makes a failing program small: lines are taken out as long as what is left fails in the same way.

use std::path::Path;

use anyhow::Result;

use super::judge::{Verdict, Wrong};
use super::run::{Settings, record};
use super::truth::adopt;
use crate::programs::Program as Host;

/// What share of its samples must be wrong for a program to count as failing: far more than chance makes of one that fails
/// seldom.
const SHARE: f64 = 0.02;

/// From this line on, all programs are the same.
const PROTOCOL: &str = "print(\"ready\")";

/// The shortest text found that fails as `text` does; [`None`] if that does not fail, or not often enough.
///
/// # Errors
/// lj-trace fails.
pub fn shrink(host: &Host, text: &str, settings: Settings, folder: &Path) -> Result<Option<String>> {
    let Some(wrong) = failure(host, text, settings, folder)? else { return Ok(None) };
    let mut lines: Vec<&str> = text.lines().collect();
    without_blocks(&mut lines, |text| fails(host, text, settings, folder, wrong));
    let mut size = lines.len() / 8;
    while size > 0 {
        let before = lines.len();
        // The end is what every program has.
        let mut start = lines.iter().position(|line| *line == PROTOCOL).unwrap_or(lines.len());
        while start > 1 {
            let end = start;
            start = start.saturating_sub(size).max(1);
            let less = [&lines[..start], &lines[end..]].concat();
            if fails(host, &less.join("\n"), settings, folder, wrong) {
                println!("{} lines", less.len());
                lines = less;
            }
        }
        if lines.len() == before || size > 1 {
            size /= 2;
        }
    }
    Ok(Some(lines.join("\n") + "\n"))
}

/// Takes out whatever is indented in the same way from its first line to its `end`; or the two lines alone.
fn without_blocks(lines: &mut Vec<&str>, mut fails: impl FnMut(&str) -> bool) {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut start = 1;
    while start < lines.len() && lines[start] != PROTOCOL {
        let is_end = |line: &&str| indent(line) == indent(lines[start]) && line.trim_start().starts_with("end");
        let end = lines[start + 1..].iter().position(is_end).map(|end| start + 1 + end);
        let is_within = |end: &usize| lines[start + 1..*end].iter().all(|line| indent(line) > indent(lines[start]));
        if let Some(end) = end.filter(is_within) {
            let none = [&lines[..start], &lines[end + 1..]].concat();
            if fails(&none.join("\n")) {
                *lines = none;
                continue;
            }
            let inside = [&lines[..start], &lines[start + 1..end], &lines[end + 1..]].concat();
            if fails(&inside.join("\n")) {
                *lines = inside;
                continue;
            }
        }
        start += 1;
    }
}

fn fails(host: &Host, text: &str, settings: Settings, folder: &Path, wrong: Wrong) -> bool {
    // Most texts are no programs any more.
    matches!(failure(host, text, settings, folder), Ok(Some(found)) if found == wrong)
}

/// What is most often wrong with a program's samples.
fn failure(host: &Host, text: &str, settings: Settings, folder: &Path) -> Result<Option<Wrong>> {
    let Ok(program) = adopt(host, text, folder) else { return Ok(None) };
    let figures = record(host, &program, settings, folder)?;
    let kinds = [Wrong::Function, Wrong::Native, Wrong::Name, Wrong::Line];
    let often = |wrong: &Wrong| figures.of(Verdict::Wrong(*wrong)) as f64 > SHARE * figures.samples() as f64;
    Ok(kinds.into_iter().find(often))
}
