//! The lines of a Lua file: the cost of each, and what the JIT compiler made of it.

use std::collections::BTreeMap;
use std::fmt;

use lj_trace_luajit::jit::{CodeCounts, CodeFile, LineState, Place};
use lj_trace_profile::source_code::SourceCode;
use lj_trace_text::counted;
use lj_trace_text::untrusted::Untrusted;

use super::JitDump;
use super::time_text::details;

/// A file, line by line.
#[derive(Clone, Debug)]
pub struct AnnotatedSource {
    /// The process: `luajit (pid 4242)`.
    pub process: String,
    /// The chunk, as LuaJIT shows it.
    pub source: String,
    /// All samples of the process, which shares refer to; [`None`] if samples are impossible.
    pub samples: Option<u64>,
    /// Samples in this file.
    pub own: u64,
    /// Samples in this file whose line is unknown.
    pub without_line: u64,
    /// The lines. If the source could not be read, only lines with code.
    pub lines: Vec<AnnotatedLine>,
    /// Why the source could not be read.
    pub unread: Option<String>,
    /// Whether all functions of the file were found.
    pub complete: bool,
}

/// A line of it.
#[derive(Clone, Debug)]
pub struct AnnotatedLine {
    /// Its number.
    pub number: u32,
    /// Its text, with everything escaped that is not plain text.
    pub text: String,
    /// Its state; [`None`] if there is no code.
    pub state: Option<LineState>,
    /// Samples in it.
    pub samples: CodeCounts,
    /// Notes about loops or functions that begin there.
    pub notes: Vec<String>,
}

/// Why there is no listing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// The process has no function of that file.
    #[error(
        "the process has no Lua function of {0} now: name the file as it is in the report (`lj-trace jit`), or the end of its path"
    )]
    Missing(String),
    /// The name is the end of several files' names.
    #[error("{0} can be one of several files: {1}")]
    Ambiguous(String, String),
}

/// The longest listing, in lines, however large the line numbers in memory are.
const MOST_LINES: usize = 200_000;

impl AnnotatedSource {
    /// A listing of `file`, from a report that was made for this file.
    ///
    /// # Errors
    /// There is no such file, or the name is ambiguous.
    pub fn new(dump: &JitDump, file: &str, code: &SourceCode) -> Result<Self, AnnotationError> {
        let merged = merged(dump.vms.iter().flat_map(|vm| &vm.jit_compiler.files));
        let found = match merged.len() {
            0 => return Err(AnnotationError::Missing(file.to_owned())),
            1 => merged.into_values().next(),
            // One file's whole name is the end of another file's name.
            _ => {
                let names = merged.keys().cloned().collect::<Vec<_>>().join(", ");
                let exact = merged.into_values().find(|found| found.source == file);
                Some(exact.ok_or_else(|| AnnotationError::Ambiguous(file.to_owned(), names))?)
            }
        };
        let Some(found) = found else { return Err(AnnotationError::Missing(file.to_owned())) };
        let samples = dump.time.as_ref().map(|time| time.samples);
        let mut notes = notes(dump, &found.source);
        for (defined, counts) in &found.functions {
            let note = format!("function defined here: {} in lines that are not known", shares(counts, samples));
            notes.entry((*defined).max(1)).or_default().push(note);
        }
        let (texts, unread) = match code.lines(&found.source) {
            Ok(texts) => (texts, None),
            Err(reason) => (Vec::new(), Some(reason.to_string())),
        };
        let last = found.lines.keys().next_back().copied().filter(|_| unread.is_none());
        let numbers: Vec<u32> = match last {
            // The file may have become shorter since it was loaded.
            Some(last) => (1..=last.max(u32::try_from(texts.len()).unwrap_or(u32::MAX))).take(MOST_LINES).collect(),
            None => found.lines.keys().copied().take(MOST_LINES).collect(),
        };
        let line = |number: u32| {
            let text = texts.get(number.saturating_sub(1) as usize).map_or("", String::as_str);
            let line = found.lines.get(&number);
            AnnotatedLine {
                number,
                text: Untrusted(&text.replace('\t', "    ")).to_string(),
                state: line.map(|line| line.state),
                samples: line.map_or(CodeCounts::default(), |line| line.samples),
                notes: notes.get(&number).cloned().unwrap_or_default(),
            }
        };
        let own = found.lines.values().map(|line| line.samples.all()).sum::<u64>();
        let without_line = found.functions.values().map(CodeCounts::all).sum::<u64>();
        Ok(Self {
            process: format!("{} (pid {})", Untrusted(&dump.command), dump.pid),
            samples,
            own: own + without_line,
            without_line,
            lines: numbers.into_iter().map(line).collect(),
            complete: found.complete,
            source: found.source,
            unread,
        })
    }

    /// The title above the listing.
    pub fn title(&self) -> String {
        let Self { source, process, own, .. } = self;
        let mut title = format!("{source} in {process}");
        match self.samples {
            Some(samples) => {
                let of = counted(samples, "sample");
                title.push_str(&format!(": {own} of {of} ({}) are in this file", share(*own, samples)));
            }
            None => title.push_str(": no samples (--duration takes some)"),
        }
        if !self.complete {
            title.push_str("; [not all of its functions were looked at: they are too many]");
        }
        if self.without_line != 0 {
            title.push_str(&format!(", {} of them in no line that is known", self.without_line));
        }
        title
    }

    /// A share of all samples of the process; empty if there are no samples, or none in the line.
    pub fn share(&self, samples: u64) -> String {
        self.samples.filter(|_| samples != 0).map_or_else(String::new, |all| share(samples, all))
    }
}

/// `12.0% compiled, 1.0% interpreted, 0.5% other`; parts without samples are omitted.
fn shares(counts: &CodeCounts, all: Option<u64>) -> String {
    let CodeCounts { interpreted, library, compiled, other } = *counts;
    let kinds = [(compiled, "compiled"), (interpreted, "interpreted"), (library + other, "other")];
    let shown = kinds.iter().filter(|(samples, _)| *samples != 0);
    shown.map(|(samples, kind)| format!("{} {kind}", share(*samples, all.unwrap_or(0)))).collect::<Vec<_>>().join(", ")
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}%", 100.0 * part as f64 / whole as f64) }
}

/// Merges the data of a file that several VMs have loaded.
fn merged<'a>(files: impl Iterator<Item = &'a CodeFile>) -> BTreeMap<String, CodeFile> {
    let mut merged: BTreeMap<String, CodeFile> = BTreeMap::new();
    for file in files {
        match merged.get_mut(&file.source) {
            None => drop(merged.insert(file.source.clone(), file.clone())),
            Some(first) => {
                first.complete &= file.complete;
                for (defined, counts) in &file.functions {
                    *first.functions.entry(*defined).or_default() += *counts;
                }
                for (number, line) in &file.lines {
                    let own = first
                        .lines
                        .entry(*number)
                        .or_insert(lj_trace_luajit::jit::CodeLine { samples: CodeCounts::default(), ..*line });
                    own.state = own.state.max(line.state);
                    own.samples += line.samples;
                }
            }
        }
    }
    merged
}

/// The notes on the lines of a file: where there are samples, with the cost; elsewhere, what the VM records.
fn notes(dump: &JitDump, source: &str) -> BTreeMap<u32, Vec<String>> {
    let mut notes: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let line_of = |place: &Place| place.line.filter(|_| place.source == source);
    let mut add = |line: u32, note: String| {
        let all = notes.entry(line).or_default();
        if !all.contains(&note) {
            all.push(note);
        }
    };
    let mut told: Vec<&Place> = Vec::new();
    for row in dump.time.iter().flat_map(|time| &time.rows) {
        let Some(part) = &row.interpreted else { continue };
        let Some(line) = line_of(&part.place) else { continue };
        let text = format!("{:.1}% of the time: {}: {}", row.percent, part.kind.describe(), part.why.describe());
        add(line, text);
        details(part, None).into_iter().for_each(|detail| add(line, detail));
        told.push(&part.place);
    }
    for vm in &dump.vms {
        for one in vm.jit_compiler.blacklist.blacklisted.iter().filter(|one| !told.contains(&&one.place)) {
            if let Some(line) = line_of(&one.place) {
                add(line, format!("{} blacklisted ({})", one.kind.describe(), one.bytecode));
            }
        }
        for aborted in &vm.jit_compiler.penalties {
            let Some(place) = aborted.place.as_ref().filter(|place| !told.contains(place)) else { continue };
            if let Some(line) = line_of(place) {
                let aborts = counted(u64::from(aborted.aborts), "abort");
                add(line, format!("{aborts}, the last one kept: {}", aborted.reason.text()));
            }
        }
    }
    notes
}

impl AnnotatedLine {
    /// Its state, in one word.
    pub fn word(&self) -> &'static str {
        let CodeCounts { interpreted, library, compiled, .. } = self.samples;
        match self.state {
            None => "",
            Some(LineState::Blacklisted) => "blacklisted",
            Some(LineState::TurnedOff) => "turned off",
            Some(_) if compiled > 0 && interpreted + library > 0 => "both",
            Some(LineState::Compiled) => "compiled",
            Some(LineState::Counted) if compiled > 0 => "compiled",
            Some(LineState::Counted) if interpreted + library > 0 => "interpreted",
            Some(LineState::Counted) => "",
        }
    }
}

impl fmt::Display for AnnotatedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title())?;
        if let Some(unread) = &self.unread {
            writeln!(f, "The source is not shown: {unread}. --source FOLDER says where it is")?;
        }
        writeln!(f, "\n  time  compiled interp. state        line")?;
        for line in &self.lines {
            let CodeCounts { interpreted, compiled, .. } = line.samples;
            let row = format!(
                "{:>6} {:>8} {:>8} {:<11} {:>5}  {}",
                self.share(line.samples.all()),
                self.share(compiled),
                self.share(interpreted),
                line.word(),
                line.number,
                line.text
            );
            writeln!(f, "{}", row.trim_end())?;
            for note in &line.notes {
                writeln!(f, "{:36} ^ {note}", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use lj_trace_luajit::jit::CodeLine;
    use lj_trace_process::Refused;

    use super::*;

    fn file(source: &str) -> CodeFile {
        let samples = CodeCounts { interpreted: 3, library: 0, compiled: 1, other: 1 };
        let line = |state, samples| CodeLine { state, samples };
        let lines = [
            (2, line(LineState::Blacklisted, samples)),
            (3, line(LineState::Counted, CodeCounts::default())),
            (5, line(LineState::Counted, samples)),
        ];
        CodeFile { source: source.into(), lines: lines.into(), functions: BTreeMap::new(), complete: true }
    }

    pub fn annotation() -> AnnotatedSource {
        let lines = file("a.lua").lines.into_iter().map(|(number, line)| AnnotatedLine {
            number,
            text: "for k in <pairs> & \"x\"".into(),
            state: Some(line.state),
            samples: line.samples,
            notes: vec!["<b>note</b>".into()],
        });
        AnnotatedSource {
            process: "luajit (pid 7)".into(),
            source: "a.lua".into(),
            samples: Some(100),
            own: 10,
            without_line: 0,
            lines: lines.collect(),
            unread: Some(Refused::Missing.to_string()),
            complete: true,
        }
    }

    #[test]
    fn the_same_file_of_several_vms_is_one() {
        let files = [file("a.lua"), file("a.lua"), file("b/a.lua")];
        let merged = merged(files.iter());
        assert_eq!(merged.len(), 2);
        assert_eq!(merged["a.lua"].lines[&2].samples.all(), 10);
        assert_eq!(merged["b/a.lua"].lines[&2].state, LineState::Blacklisted);
    }

    #[test]
    fn a_line_says_what_it_costs_and_what_it_is() {
        let text = annotation().to_string();
        for line in [
            "a.lua in luajit (pid 7): 10 of 100 samples (10.0%) are in this file",
            "The source is not shown: not there. --source FOLDER says where it is",
            "  5.0%     1.0%     3.0% blacklisted     2  for k in <pairs> & \"x\"",
            "  5.0%     1.0%     3.0% both            5  for k in <pairs> & \"x\"",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
        }
    }
}
