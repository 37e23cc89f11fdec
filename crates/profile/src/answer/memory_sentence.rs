//! The sentence that names the line that allocates or holds the most.

use lj_trace_estimate::Figure;
use lj_trace_text::{Room, bytes};

use super::share_of;

/// A line with less than this share does not dominate the memory.
const DOMINANT: f64 = 0.25;

/// What the sentence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryQuestion {
    /// Which line allocates.
    Allocated,
    /// Which line allocated what is there at the end, including garbage that is not collected yet.
    Held,
    /// Which line allocated what will stay.
    Stays,
}

/// Names the line that has most of the bytes, in one sentence. `lines` are the bytes of each line, largest first,
/// measured or estimated. `all` is the sum of all bytes. [`None`] if there are no lines.
pub fn memory_sentence(question: MemoryQuestion, lines: &[(String, Figure)], all: f64, room: Room) -> Option<String> {
    let (name, first) = lines.first().filter(|(_, first)| first.value > 0.0 && all > 0.0)?;
    let what = match question {
        MemoryQuestion::Allocated => "of the bytes allocated",
        MemoryQuestion::Held => "of what is held at the end",
        MemoryQuestion::Stays => "of what stays",
    };
    let error = |figure: Figure| figure.error.unwrap_or(0.0);
    let name = match room {
        Room::Columns(columns) => Room::Columns(columns / 2).label(name),
        Room::Unlimited => room.label(name),
    };
    let share = |value: f64| share_of((value / all).min(1.0));
    let told = match first.error {
        Some(error) => format!("{} ±{:.0} points", share(first.value), error / all * 100.0),
        None => share(first.value),
    };
    let size = bytes(first.value.round() as u64);
    let second = lines.get(1).map(|(_, second)| *second);
    let leads = second.is_none_or(|second| first.value - second.value > error(*first).hypot(error(second)));
    Some(match leads {
        true if first.value - error(*first) >= DOMINANT * all => {
            format!("{told} {what} ({size}) is allocated at `{name}`.")
        }
        true => format!("No line has more than {told} {what}: `{name}` has that."),
        false => format!("Which line has most {what} is too close to call: one of them is `{name}`, with {told}."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(figures: &[(f64, f64)]) -> String {
        let figure = |(value, error): &(f64, f64)| match *error {
            0.0 => Figure::measured(*value),
            error => Figure::estimated(*value, error),
        };
        let lines: Vec<_> = (1..)
            .zip(figures)
            .map(|(line, bytes)| (format!("app.lua:{line} in failures@app.lua:7"), figure(bytes)))
            .collect();
        let all = figures.iter().map(|(value, _)| value).sum();
        memory_sentence(MemoryQuestion::Held, &lines, all, Room::Unlimited).unwrap_or_default()
    }

    #[test]
    fn the_line_that_has_most_is_named() {
        let name = "`app.lua:1 in failures@app.lua:7`";
        let of = "of what is held at the end";
        for (figures, expected) in [
            (
                &[(4096.0, 0.0), (5904.0 / 2.0, 0.0), (5904.0 / 2.0, 0.0)][..],
                format!("41% {of} (4.0 KiB) is allocated at {name}."),
            ),
            (
                &[(10.0, 0.0); 10],
                format!("Which line has most {of} is too close to call: one of them is {name}, with 10%."),
            ),
            (
                &[(11.0, 0.0), (9.0, 0.0), (40.0, 0.0), (40.0, 0.0)],
                format!("No line has more than 11% {of}: {name} has that."),
            ),
            (&[(60.0, 5.0), (40.0, 5.0)], format!("60% ±5 points {of} (60 bytes) is allocated at {name}.")),
            (
                &[(60.0, 20.0), (40.0, 20.0)],
                format!("Which line has most {of} is too close to call: one of them is {name}, with 60% ±20 points."),
            ),
            (&[], String::new()),
            (&[(0.0, 0.0)], String::new()),
        ] {
            assert_eq!(said(figures), expected);
        }
    }
}
