//! Waits as text.

use std::collections::HashMap;
use std::io::{self, Write};

use lj_trace_estimate::variance::Variance;
use lj_trace_text::table::{Column, Fit, Table};
use lj_trace_text::{Room, percent};

use super::callers::{WaitCaller, callers};
use super::{AboutLooks, CERTAIN, Length, Pairs, WAIT, WaitProfile};
use crate::Frame;
use crate::model::{Profile as _, Row};

/// How many places to show.
const TOP: usize = 30;
/// How many lines that lead to waits to show.
const TOP_CALLERS: usize = 15;
/// The shortest length to cut a name to.
const LEAST_NAME: usize = 40;

/// A line of Lua code where coroutines wait, with the function that it has called.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitPlace {
    /// `receive@redis.lua:88`: the function, and the line that it executes.
    pub name: String,
    /// The called function: `coroutine.yield`. Empty if it is unknown.
    pub called: String,
    /// Nanoseconds of waiting.
    pub time: u64,
    /// How many coroutines wait here at a time, on average, and by how much that may be off in 19 of 20 cases.
    pub coroutines: (f64, f64),
    /// The mean length of a wait.
    pub length: Option<Length>,
}

/// The places, longest time first.
pub fn places(profile: &WaitProfile) -> Vec<WaitPlace> {
    let seconds = profile.about.time.as_secs_f64().max(1e-9);
    let mut places: HashMap<(String, String), (u64, Variance, Pairs)> = HashMap::new();
    for (stack, row) in profile.stacks.numbered().filter(|(_, row)| row.weights[WAIT.index] > 0) {
        let (time, variance, pairs) = places.entry(place_of(profile, &row)).or_default();
        *time = time.saturating_add(row.weights[WAIT.index]);
        if let Some(figures) = profile.figures.get(stack.index()) {
            figures.add_to(variance, profile.about.looks);
            pairs.merge(&figures.pairs);
        }
    }
    let place = |((name, called), (time, variance, pairs)): (_, (u64, Variance, Pairs))| WaitPlace {
        name,
        called,
        time,
        coroutines: (time as f64 / 1e9 / seconds, variance.error(CERTAIN) / 1e9 / seconds),
        length: pairs.length(),
    };
    let mut places: Vec<WaitPlace> = places.into_iter().map(place).collect();
    places.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)).then_with(|| a.called.cmp(&b.called)));
    places
}

/// The innermost Lua function with its current line, and the function that it has called.
fn place_of(profile: &WaitProfile, row: &Row<'_>) -> (String, String) {
    let frames = || row.frames.iter().rev().filter_map(|id| profile.stacks.frame(*id));
    let called = frames().take_while(|frame| !matches!(frame, Frame::Lua { .. })).last();
    let called = called.filter(|frame| !matches!(frame, Frame::Root { .. })).map(Frame::to_string).unwrap_or_default();
    match frames().find(|frame| matches!(frame, Frame::Lua { .. })) {
        Some(frame) => (line_of(frame), called),
        None => (called, String::new()),
    }
}

/// A function with the line that it executes, if that is known: `receive@redis.lua:88`.
pub fn line_of(frame: &Frame) -> String {
    match frame {
        Frame::Lua { name, chunk, line: Some(line), .. } => {
            format!("{}@{chunk}:{line}", name.as_deref().unwrap_or_default())
        }
        other => other.to_string(),
    }
}

/// The answer in one sentence.
pub fn sentence(profile: &WaitProfile) -> Option<String> {
    let seconds = profile.about.time.as_secs_f64();
    let first = profile.places().into_iter().next().filter(|_| seconds > 0.0)?;
    let there = profile.about.there / seconds;
    let each = first.length.map_or_else(String::new, |length| format!(", {} each", time_of(length)));
    let verb = if first.coroutines.0 < 1.05 && there >= 1.05 { "waits" } else { "wait" };
    Some(format!("{} of {} coroutines {verb} in `{}`{each}", number(first.coroutines.0), number(there), first.name))
}

/// A number of coroutines, without decimals if it is large.
fn number(coroutines: f64) -> String {
    if coroutines >= 99.95 || (coroutines - coroutines.round()).abs() < 0.05 {
        format!("{coroutines:.0}")
    } else {
        format!("{coroutines:.1}")
    }
}

/// The length of a wait: `1.9 s`; `~0.2 s` if chance has a large part in it.
pub fn time_of(length: Length) -> String {
    /// An error above this share gets a mark.
    const UNSURE: f64 = 0.2;
    let mark = match length {
        Length { is_least: true, .. } => "over ",
        Length { is_most: true, .. } => "under ",
        Length { error, .. } if error > UNSURE => "~",
        _ => "",
    };
    format!("{mark}{}", seconds_of(length.seconds))
}

fn seconds_of(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 100.0 => format!("{seconds:.0} s"),
        seconds if seconds >= 0.95 => format!("{seconds:.1} s"),
        seconds if seconds >= 0.001 => format!("{:.0} ms", seconds * 1e3),
        _ => "1 ms".to_owned(),
    }
}

/// Writes the lines that led to waits, if any did.
fn write_callers(profile: &WaitProfile, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let callers = callers(profile);
    if callers.is_empty() {
        return Ok(());
    }
    let mean = |time: u64| time as f64 / 1e9 / profile.about.time.as_secs_f64().max(1e-9);
    let columns = ["at a time", "%"].map(|title| Column::right(title, 0));
    let mut table = Table::new(columns).indent(2).gap(2).end("line", Fit::Label(LEAST_NAME), room);
    for WaitCaller { name, time } in callers.iter().take(TOP_CALLERS) {
        table.row([format!("{:.1}", mean(*time)), percent(*time, profile.total())], name);
    }
    if callers.len() > TOP_CALLERS {
        table.more(format!("{} more", callers.len() - TOP_CALLERS));
    }
    write!(out, "\nLines that lead to waits: how many coroutines wait in what they call\n{table}")
}

/// Writes the profile as text.
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(profile: &WaitProfile, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let AboutLooks { looks, time, there } = profile.about;
    let seconds = time.as_secs_f64();
    if !profile.title.is_empty() {
        writeln!(out, "{}", room.title(&profile.title))?;
    }
    let waiting = profile.total() as f64 / 1e9 / seconds.max(1e-9);
    let there = there / seconds.max(1e-9);
    writeln!(
        out,
        "{looks} looks in {seconds:.1} s: of {} coroutines {} wait at a time, {:.1} s altogether",
        number(there),
        number(waiting),
        profile.total() as f64 / 1e9
    )?;
    if let Some(sentence) = profile.sentence() {
        writeln!(out, "{sentence}")?;
    }
    let places = profile.places();
    if !places.is_empty() {
        writeln!(out, "\nWhere coroutines wait: how many at a time, and how long each wait is (estimated from looks)")?;
        let columns = ["at a time", "+-", "%", "each", "waits"].map(|title| Column::right(title, 0));
        let mut table =
            Table::new(columns).indent(2).gap(2).end("place, and what it called", Fit::Label(LEAST_NAME), room);
        for place in places.iter().take(TOP) {
            let (mean, error) = place.coroutines;
            let each = place.length.map_or_else(|| "?".to_owned(), time_of);
            let waits = place.length.map_or_else(
                || "?".to_owned(),
                |length| {
                    let count = place.time as f64 / 1e9 / length.seconds;
                    if length.is_least { format!("{:.0}", mean.max(1.0)) } else { format!("{count:.0}") }
                },
            );
            let share = percent(place.time, profile.total());
            let called = if place.called.is_empty() { String::new() } else { format!("  {}", place.called) };
            let cells = [format!("{mean:.1}"), format!("{error:.1}"), share, each, waits];
            table.row(cells, format!("{}{called}", place.name));
        }
        if places.len() > TOP {
            table.more(format!("{} more", places.len() - TOP));
        }
        write!(out, "{table}")?;
    }
    write_callers(profile, room, out)?;
    if !profile.losses.is_empty() {
        let mut lost = Table::new([Column::right("", 10)]).headless();
        profile.losses.iter().for_each(|(reason, count)| lost.row([count.to_string()], reason));
        write!(out, "\nWhat was not told\n{lost}")?;
    }
    Ok(())
}
