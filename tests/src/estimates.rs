//! Memory profiles that are estimates, as the streams of `--overhead` have them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace_estimate::Figure;
use lj_trace_profile::estimated::{AboutEstimate, LineFigures};
use lj_trace_profile::{EstimatedProfile, Frame, memprof};
use lj_trace_streams::{Body, Stream};

/// Where a chunk allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// At this line.
    Line(u64),
    /// Somewhere in the function that begins at this line: on a trace, where more is not certain.
    Function(u64),
}

/// What an estimate says of a line.
#[derive(Clone, Copy, Debug)]
pub struct Estimated {
    /// Its share of all bytes, from 0 to 1.
    pub share: Figure,
    /// Bytes allocated.
    pub bytes: Figure,
    /// How often.
    pub count: Figure,
}

/// What an estimate says of a chunk's lines, and of all together.
#[derive(Clone, Debug)]
pub struct Estimates {
    /// Of all together.
    pub about: AboutEstimate,
    /// By place.
    pub places: BTreeMap<Place, Estimated>,
}

impl Estimates {
    /// Those of a stream for the places of the chunk with this file name.
    ///
    /// # Errors
    /// If the file is no such stream, or is cut off.
    pub fn read(stream: &Path, chunk: &str) -> Result<Self> {
        let file = File::open(stream).with_context(|| format!("no file {}", stream.display()))?;
        let Stream { symbols, body, .. } = Stream::open(file)?;
        let Body::Memprof(mut reader) = body else { bail!("{} is no memory profile", stream.display()) };
        let mut profile = EstimatedProfile::default();
        let cut = memprof::read(symbols, &mut reader, |event| _ = profile.add(0, &event))?;
        ensure!(cut.is_none(), "the stream is cut off: {cut:?}");
        profile.weigh();
        let mut places = BTreeMap::new();
        for figures in profile.figures() {
            let Some(place) = place_of(&figures, chunk) else { continue };
            let LineFigures { share, bytes, count, .. } = figures;
            // Interpreted and compiled, a line is told twice.
            let more = Estimated { share, bytes, count };
            places.entry(place).and_modify(|place: &mut Estimated| *place = place.plus(more)).or_insert(more);
        }
        Ok(Self { about: profile.about().clone(), places })
    }
}

impl Estimated {
    fn plus(self, more: Self) -> Self {
        Self {
            share: plus(self.share, more.share),
            bytes: plus(self.bytes, more.bytes),
            count: plus(self.count, more.count),
        }
    }
}

/// Nothing is known of how their errors depend on each other.
fn plus(one: Figure, other: Figure) -> Figure {
    let error = match (one.error, other.error) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    };
    Figure { value: one.value + other.value, error }
}

fn place_of(figures: &LineFigures<'_>, wanted: &str) -> Option<Place> {
    // Below a trace whose line is not certain there is the function that it started in.
    let own = figures.frames.iter().rev().find(|frame| !matches!(frame, Frame::Trace { .. }))?;
    let (chunk, place) = match own {
        Frame::Line { chunk, line } => (chunk, Place::Line(u64::from(*line))),
        Frame::Lua { chunk, first_line, .. } => (chunk, Place::Function(u64::from(*first_line))),
        _ => return None,
    };
    (chunk.trim_start_matches('@').rsplit('/').next() == Some(wanted)).then_some(place)
}

/// Lines of the part of a text report on what stays, in its order.
pub fn staying(text: &str) -> Vec<&str> {
    let rows = text.lines().skip_while(|line| !line.starts_with("Top lines by what stays")).skip(2);
    rows.take_while(|line| !line.is_empty()).collect()
}
