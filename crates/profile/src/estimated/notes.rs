//! An estimate as notes in a stream: properties that only lj-trace reads. A note gives the frames of a line, not
//! addresses, which may mean something else at the stream's end.

use lj_trace_estimate::life::Life;
use lj_trace_estimate::observation::SourceId;
use lj_trace_estimate::{Figure, Line};
use lj_trace_streams::{Annotation, Symbol};

use crate::Frame;

/// The property at the start of a stream of windows.
pub const SAMPLE: &str = "sample";

/// The prefix of an estimate's property keys.
pub const ESTIMATE: &str = "estimate ";

/// The property that says that polling found out how long objects live.
const POLLED: &str = "estimate polled";

/// The property of a line.
const LINE: &str = "estimate line";

/// Separators: between the figures and the frames, between frames, and between the parts of a frame.
const FRAMES: char = '\x1d';
const FRAME: char = '\x1e';
const FIELD: char = '\x1f';

/// Whether the symbols at a stream's start say that it holds windows only.
pub fn is_sample(symbols: &[Symbol]) -> bool {
    let is_mark =
        |symbol| matches!(Annotation::from_symbol(symbol), Some(Annotation::Property { key, .. }) if key == SAMPLE);
    symbols.iter().any(is_mark)
}

/// The mark of such a stream, with an explanation as its value.
pub fn sample_mark() -> Symbol {
    let value = "windows in which all allocations were recorded: not all that there were".to_owned();
    Annotation::Property { key: SAMPLE.to_owned(), value }.to_symbol()
}

/// The mark that polling found out how long objects live.
pub fn polled_mark() -> Symbol {
    Annotation::Property { key: POLLED.to_owned(), value: String::new() }.to_symbol()
}

/// Whether a property is that mark.
pub fn is_polled(key: &str) -> bool {
    key == POLLED
}

/// The note for a line, frames root first.
pub fn line(line: &Line, life: Option<&Life>, frames: &[Frame]) -> Annotation {
    let mut figures = vec![line.share, line.bytes, line.count];
    figures.extend(life.into_iter().flat_map(write_life));
    let figures: Vec<String> = figures.into_iter().map(write_figure).collect();
    let figures = figures.join("/");
    let frames: Vec<String> = frames.iter().map(write_frame).collect();
    let value = format!("{figures}{FRAMES}{}", frames.join(&FRAME.to_string()));
    Annotation::Property { key: LINE.to_owned(), value }
}

/// Parses a line's figures and frames; [`None`] if the property is no line.
pub fn parse_line(key: &str, value: &str) -> Option<(Line, Option<Life>, Vec<Frame>)> {
    let (figures, frames) = value.split_once(FRAMES).filter(|_| key == LINE)?;
    let mut figures = figures.split('/').map(parse_figure);
    let mut next = || figures.next().flatten();
    let line = Line { source: SourceId(0), share: next()?, bytes: next()?, count: next()? };
    let life = parse_life(&figures.collect::<Option<Vec<Figure>>>()?);
    Some((line, life, frames.split(FRAME).map(parse_frame).collect()))
}

/// The figures of how long objects live. They follow the figures of their line.
fn write_life(life: &Life) -> Vec<Figure> {
    let Life { followed, alive, cycles, ref survival, parts, lost, .. } = *life;
    let none = Figure::measured(0.0);
    let mut figures = vec![Figure::measured(followed as f64), alive, cycles.unwrap_or(none)];
    figures.extend([parts, lost].map(Figure::measured));
    figures.extend(survival);
    figures
}

fn parse_life(figures: &[Figure]) -> Option<Life> {
    let &[followed, alive, cycles, parts, lost, ref survival @ ..] = figures else { return None };
    Some(Life {
        source: SourceId(0),
        followed: followed.value as u64,
        alive,
        cycles: Some(cycles).filter(|cycles| cycles.value > 0.0),
        survival: survival.to_vec(),
        parts: parts.value,
        lost: lost.value,
    })
}

/// A figure: `1234`, or `1234~56` if it is estimated.
pub fn write_figure(figure: Figure) -> String {
    match figure.error {
        Some(error) => format!("{}~{error}", figure.value),
        None => figure.value.to_string(),
    }
}

/// Parses a figure.
pub fn parse_figure(text: &str) -> Option<Figure> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    match text.split_once('~') {
        Some((value, error)) => Some(Figure::estimated(number(value)?, number(error)?)),
        None => number(text).map(Figure::measured),
    }
}

fn write_frame(frame: &Frame) -> String {
    match frame {
        Frame::Lua { name, chunk, first_line, compiled, .. } => {
            let name = name.as_deref().unwrap_or_default();
            format!("lua{FIELD}{name}{FIELD}{chunk}{FIELD}{first_line}{FIELD}{}", u8::from(*compiled))
        }
        Frame::Chunk { chunk } => format!("chunk{FIELD}{chunk}"),
        Frame::Line { chunk, line } => format!("line{FIELD}{chunk}{FIELD}{line}"),
        Frame::Trace { number, start } => {
            let number = number.map_or_else(String::new, |number| number.to_string());
            format!("trace{FIELD}{number}{FIELD}{}", start.as_deref().unwrap_or_default())
        }
        Frame::Internal => "internal".to_owned(),
        other => format!("symbol{FIELD}{other}"),
    }
}

fn parse_frame(text: &str) -> Frame {
    let fields: Vec<&str> = text.split(FIELD).collect();
    let some = |text: &str| (!text.is_empty()).then(|| text.into());
    match fields[..] {
        ["lua", name, chunk, first_line, compiled] => Frame::Lua {
            name: some(name),
            chunk: chunk.into(),
            first_line: first_line.parse().unwrap_or(0),
            line: None,
            compiled: compiled == "1",
        },
        ["chunk", chunk] => Frame::Chunk { chunk: chunk.into() },
        ["line", chunk, line] => Frame::Line { chunk: chunk.into(), line: line.parse().unwrap_or(0) },
        ["trace", number, start] => Frame::Trace { number: number.parse().ok(), start: some(start) },
        ["internal"] => Frame::Internal,
        ["symbol", symbol] => Frame::of_symbol(symbol),
        _ => Frame::Unresolved { reason: "not readable".into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_being_notes() {
        let figures = Line {
            source: SourceId(0),
            share: Figure::estimated(0.25, 0.01),
            bytes: Figure::estimated(1e9, 1e7),
            count: Figure::measured(17.0),
        };
        let life = Life {
            source: SourceId(0),
            followed: 40,
            alive: Figure::estimated(0.5, 0.1),
            cycles: Some(Figure::estimated(1.5, 0.25)),
            survival: vec![Figure::estimated(0.75, 0.125), Figure::estimated(0.5, 0.25)],
            parts: 0.125,
            lost: 0.0,
        };
        let chunk: std::sync::Arc<str> = "a/b.lua".into();
        let frames = [
            vec![
                Frame::Chunk { chunk: chunk.clone() },
                Frame::Lua { name: Some("f".into()), chunk: chunk.clone(), first_line: 3, line: None, compiled: true },
                Frame::Line { chunk, line: 4 },
            ],
            vec![Frame::Internal],
            vec![Frame::Trace { number: Some(7), start: Some("@a.lua:9".into()) }],
            vec![Frame::Trace { number: None, start: None }],
            vec![Frame::of_symbol("lj_tab_new")],
        ];
        for frames in frames {
            for life in [None, Some(Life { cycles: None, survival: vec![], ..life.clone() }), Some(life.clone())] {
                let note = line(&figures, life.as_ref(), &frames).to_symbol();
                let Some(Annotation::Property { key, value }) = Annotation::from_symbol(&note) else {
                    panic!("no note")
                };
                assert_eq!(parse_line(&key, &value), Some((figures, life, frames.clone())));
            }
        }
    }

    #[test]
    fn garbage_is_no_note() {
        assert_eq!(parse_line(LINE, "1/2"), None);
        assert_eq!(parse_line(LINE, "1/x/3\x1dinternal"), None);
        assert_eq!(parse_line("rate", "1/2/3\x1dinternal"), None);
        let (_, _, frames) = parse_line(LINE, "1/2/3\x1dlua\x1fx").unwrap();
        assert!(matches!(frames[..], [Frame::Unresolved { .. }]));
        assert_eq!(parse_figure("NaN"), None);
        assert_eq!(parse_figure("-1"), None);
    }

    #[test]
    fn a_sample_says_so() {
        assert!(is_sample(&[Symbol::c(0x1000, "main"), sample_mark()]));
        assert!(!is_sample(&[Symbol::c(0x1000, "main")]));
    }
}
