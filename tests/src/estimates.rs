//! Memory profiles that are estimates, as the streams of `--overhead` have them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use lj_trace::bounded::estimate::Figure;
use lj_trace::report::estimated::{About, LineFigures};
use lj_trace::report::{EstimatedProfile, Frame, memprof};
use lj_trace::stream::{Body, Stream};

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
    pub about: About,
    /// By line.
    pub lines: BTreeMap<u64, Estimated>,
}

impl Estimates {
    /// Those of a stream for the lines of the chunk with this file name.
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
        let mut lines = BTreeMap::new();
        for figures in profile.figures() {
            let Some(line) = line_of(&figures, chunk) else { continue };
            let LineFigures { share, bytes, count, .. } = figures;
            // Interpreted and compiled, a line is told twice.
            let more = Estimated { share, bytes, count };
            lines.entry(line).and_modify(|line: &mut Estimated| *line = line.plus(more)).or_insert(more);
        }
        Ok(Self { about: profile.about().clone(), lines })
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

fn line_of(figures: &LineFigures<'_>, wanted: &str) -> Option<u64> {
    match figures.frames.last()? {
        Frame::Line { chunk, line } if chunk.rsplit('/').next() == Some(wanted) => Some(u64::from(*line)),
        _ => None,
    }
}

/// Lines of the part of a text report on what stays, in its order.
pub fn staying(text: &str) -> Vec<&str> {
    let rows = text.lines().skip_while(|line| !line.starts_with("Top lines by what stays")).skip(2);
    rows.take_while(|line| !line.is_empty()).collect()
}
