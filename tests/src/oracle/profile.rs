//! Reads profiles in pprof's format, the one that has the line of every frame.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use prost::Message as _;

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// What lj-trace calls it.
    pub name: String,
    /// The chunk or the library.
    pub file: String,
    /// Where the function begins.
    pub first: u32,
    /// The line that is executed; that where it begins, if it is not known.
    pub line: u32,
}

/// A stack, outermost first, and how many samples had it.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// The frames.
    pub frames: Vec<Frame>,
    /// The number of samples.
    pub samples: u64,
}

/// Reads a file.
///
/// # Errors
/// It is no such profile.
pub fn read(path: &Path) -> Result<Vec<Sampled>> {
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes)?;
    let profile = Profile::decode(bytes.as_slice())?;
    let text = |index: i64| usize::try_from(index).ok().and_then(|index| profile.strings.get(index)).cloned();
    let frame = |id: &u64| {
        let location = profile.locations.iter().find(|location| location.id == *id)?;
        let line = location.lines.first()?;
        let function = profile.functions.iter().find(|function| function.id == line.function)?;
        Some(Frame {
            name: text(function.name)?,
            file: text(function.file)?,
            first: u32::try_from(function.first).ok()?,
            line: u32::try_from(line.line).ok()?,
        })
    };
    let sampled = |sample: &Sample| {
        let frames = sample.locations.iter().rev().map(frame).collect::<Option<_>>()?;
        Some(Sampled { frames, samples: u64::try_from(*sample.values.first()?).ok()? })
    };
    profile.samples.iter().map(sampled).collect::<Option<_>>().context("the profile refers to what it does not have")
}

#[derive(Clone, PartialEq, prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    locations: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    functions: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    lines: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    file: i64,
    #[prost(int64, tag = "5")]
    first: i64,
}
