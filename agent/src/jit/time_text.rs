//! Where the CPU time goes, as text.

use std::fmt;

use lj_trace_luajit::jit::{InterpretedPart, JitParameters, LeftTrace, Place, Unrecordable, Why};
use lj_trace_text::counted;
use lj_trace_text::untrusted::Untrusted;

use super::samples::TimeKind;
use super::shares::{TimeReport, TimeRow};

/// How many rows to show.
const MOST: usize = 40;
/// With more samples than this, a standard error is smaller than the rounding.
const MANY: u64 = 250_000;

/// Writes the rows. `parameters` are those of the VM, if there is only one.
pub fn write_time(f: &mut fmt::Formatter<'_>, report: &TimeReport, parameters: Option<&JitParameters>) -> fmt::Result {
    write!(f, "\nWhere the CPU time went: {} at {} Hz", counted(report.samples, "sample"), report.rate)?;
    let lost: u64 = report.lost.iter().map(|(_, count)| count).sum();
    match lost {
        0 => writeln!(f, ", none lost")?,
        lost => writeln!(f, "; {lost} more were LOST")?,
    }
    if let Some(withheld) = &report.withheld {
        return writeln!(f, "  [withheld: {withheld}]");
    }
    if report.samples == 0 {
        return writeln!(f, "  the process used no CPU time, or less than one sample takes");
    }
    for row in report.rows.iter().take(MOST) {
        write_row(f, row, report.samples, parameters)?;
    }
    if let Some(rest) = report.rows.get(MOST..).filter(|rest| !rest.is_empty()) {
        let percent: f64 = rest.iter().map(|row| row.percent).sum();
        writeln!(f, "  {percent:5.1}%       {} more (--json shows them)", rest.len())?;
    }
    writeln!(f, "  100.0%       in all")
}

fn write_row(
    f: &mut fmt::Formatter<'_>,
    row: &TimeRow,
    samples: u64,
    parameters: Option<&JitParameters>,
) -> fmt::Result {
    write!(f, "  {:5.1}%", row.percent)?;
    match samples < MANY {
        true => write!(f, " ±{:<4.1} ", row.standard_error)?,
        false => write!(f, "       ")?,
    }
    let Some(part) = &row.interpreted else {
        let unknown = if row.kind == TimeKind::Interpreted {
            ": the place is not certain, or its function is not there any more"
        } else {
            ""
        };
        return writeln!(f, "{}{unknown}", row.kind.describe());
    };
    writeln!(f, "{}", headline(part))?;
    for line in details(part, parameters) {
        writeln!(f, "               {line}")?;
    }
    if part.library != 0 {
        let percent = 100.0 * part.library as f64 / samples as f64;
        writeln!(f, "               library functions that it calls take {percent:.1}% more, counted below")?;
    }
    if part.lines.len() > 1 {
        let line = |line: &lj_trace_luajit::jit::LineSamples| {
            format!("{} ({:.1}%)", line.line, 100.0 * line.samples as f64 / samples as f64)
        };
        let lines: Vec<String> = part.lines.iter().take(4).map(line).collect();
        writeln!(f, "               hottest lines: {}", lines.join(", "))?;
    }
    Ok(())
}

/// Names the interpreted code and the reason, in one sentence.
pub fn headline(part: &InterpretedPart) -> String {
    let Place { function, .. } = &part.place;
    let (kind, place) = (part.kind.describe(), &part.place);
    let part_of = match part.place.line {
        _ if part.kind == lj_trace_luajit::jit::BlacklistKind::Function => "it".to_owned(),
        Some(line) => format!("its {kind} at line {line}"),
        None => format!("one of its loops, a {kind},"),
    };
    match part.why {
        Why::Blacklisted => format!("{function} is interpreted: {part_of} is blacklisted after 11 aborts"),
        Why::Aborted => {
            let aborts = part.abort.as_ref().map_or(0, |abort| abort.aborts);
            format!("{function} is interpreted: compiling {part_of} was aborted {}", times(aborts))
        }
        Why::LeavesTrace => format!("{function} is interpreted after its trace is left: {part_of} is compiled"),
        Why::TurnedOff => format!("{function} is interpreted: compiling is turned off for it (jit.off)"),
        Why::CompilerOff => format!("{function} is interpreted: the JIT compiler is off"),
        Why::Vararg => format!("{function} is interpreted: it takes variable arguments (...)"),
        Why::MainChunk => format!("{function} is interpreted: it is a main chunk, outside of loops"),
        Why::Unknown => format!("{function} is interpreted: no abort is known ({place})"),
    }
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// Further facts, and advice.
pub fn details(part: &InterpretedPart, parameters: Option<&JitParameters>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(cause) = cause(part, parameters) {
        lines.push(cause);
    }
    if let Some(left) = &part.left {
        lines.extend(write_left(left, parameters));
    }
    let explanation = part.abort.as_ref().and_then(|abort| abort.reason.explanation());
    match (explanation, part.why) {
        (Some(explanation), Why::Blacklisted | Why::Aborted) => {
            lines.push(explanation.meaning.to_owned());
            lines.push(format!("-> {}", explanation.remedy));
        }
        (_, why) => {
            let explanation = why.explanation();
            lines.push(explanation.meaning.to_owned());
            lines.push(format!("-> {}", explanation.remedy));
        }
    }
    lines
}

/// The reason of the last known abort, and the part of the code that it probably refers to.
fn cause(part: &InterpretedPart, parameters: Option<&JitParameters>) -> Option<String> {
    if !matches!(part.why, Why::Blacklisted | Why::Aborted) {
        return None;
    }
    let Some(abort) = &part.abort else {
        return Some(format!("the reason is not kept any more{}", contents(&part.unrecordable, "; ")));
    };
    let about = abort.about.as_ref().map_or(String::new(), |about| format!(" {}", Untrusted(about)));
    let name = abort.reason.name;
    let bound = parameters.and_then(|parameters| parameters.about(name?));
    let bound = bound.map_or(String::new(), |bound| format!(" ({bound})"));
    let contents = if name == Some("NYIBC") { contents(&part.unrecordable, ": ") } else { String::new() };
    Some(format!("last reason kept: {}{about}{bound}{contents}", abort.reason.text()))
}

/// `: it makes a closure (FNEW) at line 19`.
fn contents(unrecordable: &[Unrecordable], before: &str) -> String {
    let one = |one: &Unrecordable| match one.line {
        Some(line) => format!("{} ({}) at line {line}", one.describe(), one.bytecode),
        None => format!("{} ({})", one.describe(), one.bytecode),
    };
    // A closure in a block produces both bytecodes.
    let makes_closures = unrecordable.iter().any(|one| one.bytecode == "FNEW");
    let told = unrecordable.iter().filter(|one| !(makes_closures && one.bytecode == "UCLO"));
    let all: Vec<String> = told.map(one).collect();
    if all.is_empty() { String::new() } else { format!("{before}it {}", all.join(", ")) }
}

fn write_left(left: &LeftTrace, parameters: Option<&JitParameters>) -> Vec<String> {
    let mut lines = Vec::new();
    let shown = |places: &[Place]| places.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let most = parameters.map(|parameters| parameters.maxside);
    match most {
        Some(most) if i64::try_from(left.sides).is_ok_and(|sides| sides >= i64::from(most)) => {
            lines.push(format!("too many side traces: trace {} has {}, maxside={most}", left.trace, left.sides));
        }
        _ => {}
    }
    if !left.given_up.is_empty() {
        lines.push(format!("compiling what follows its exits was given up at {}", shown(&left.given_up)));
    }
    let exits = left.exits.iter().take(3).map(|exit| {
        let place = exit.place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
        format!("exit {} of trace {} (taken {}{place})", exit.exit, exit.trace, times(u32::from(exit.taken)))
    });
    let exits: Vec<String> = exits.collect();
    if !exits.is_empty() {
        lines.push(format!("not continued: {}", exits.join("; ")));
    }
    lines
}
