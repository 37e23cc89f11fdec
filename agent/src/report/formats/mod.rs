//! The formats that a profile can be written in: a writer for each, all from the same [model](super::model).

mod firefox;
pub mod folded;
mod functions;
pub mod output;
pub mod picture;
mod pprof;
mod speedscope;
pub mod svg;

use std::io::{self, Write};

use clap::ValueEnum;
pub use output::{Output, OutputError, insert_before_ending};

use super::model::{Profile, Recorded};
use super::text::Room;
use lj_trace_text::untrusted::{Form, PlainWriter};

/// A format of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A sysprof or memprof stream, as Tarantool writes them
    #[value(name = "bin", alias = "stream")]
    Stream,
    /// Text for people: where the time or the memory goes
    #[value(alias = "txt", alias = "summary")]
    Text,
    /// Folded stacks, for flame graph tools
    #[value(alias = "collapsed")]
    Folded,
    /// A flame graph for the browser
    Svg,
    /// A profile for `go tool pprof`, Pyroscope, Parca
    #[value(alias = "pb.gz", alias = "pb")]
    Pprof,
    /// A profile for <https://www.speedscope.app>
    Speedscope,
    /// A processed profile for <https://profiler.firefox.com>
    #[value(alias = "gecko")]
    Firefox,
    /// What Tarantool's own parser prints, sorted
    Tarantool,
}

impl Format {
    /// The endings of file names, longer ones before those that they end in.
    const ENDINGS: [(&str, Self); 9] = [
        (".bin", Self::Stream),
        (".pb.gz", Self::Pprof),
        (".speedscope.json", Self::Speedscope),
        (".json.gz", Self::Firefox),
        (".folded", Self::Folded),
        (".collapsed", Self::Folded),
        (".svg", Self::Svg),
        (".txt", Self::Text),
        (".text", Self::Text),
    ];

    /// The format of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::from_str(name, true).ok()
    }

    /// The format that the ending of a file's name means.
    pub fn of_ending(name: &str) -> Option<Self> {
        Self::ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| *format)
    }

    /// The endings that mean a format, for messages.
    pub fn endings() -> String {
        Self::ENDINGS.map(|(ending, _)| ending).join(", ")
    }

    /// Whether it is written from a whole profile; a stream and what Tarantool's parser prints are written from samples
    /// and events.
    pub const fn is_of_profile(self) -> bool {
        !matches!(self, Self::Stream | Self::Tarantool)
    }

    /// Whether it shows what was when.
    pub const fn shows_time(self) -> bool {
        matches!(self, Self::Firefox | Self::Speedscope)
    }

    /// Whether it shows all measures of a memory profile, also those of what is held.
    pub const fn shows_all_measures(self) -> bool {
        matches!(self, Self::Text | Self::Pprof | Self::Speedscope)
    }
}

/// What an output needs beside a profile.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// How much room there is for text.
    pub room: Room,
    /// When it was recorded, if the profile does not say.
    pub recorded: Option<Recorded>,
}

impl About {
    /// Of a profile whose time of recording is not known.
    pub const fn room(room: Room) -> Self {
        Self { room, recorded: None }
    }
}

/// Writes a profile in a format that [is of profiles](Format::is_of_profile).
///
/// # Errors
/// The output cannot take the bytes.
pub fn write(format: Format, profile: &dyn Profile, about: About, out: impl Write) -> io::Result<()> {
    match format {
        Format::Folded => folded::write(profile, PlainWriter::new(out, Form::Text)),
        Format::Svg => svg::write(profile, PlainWriter::new(out, Form::Text)),
        Format::Pprof => pprof::write(profile, about.recorded.or_else(|| profile.recorded()), out),
        Format::Speedscope => speedscope::write(profile, PlainWriter::new(out, Form::Json)),
        Format::Firefox => firefox::write(profile, out),
        Format::Text => {
            let mut out = PlainWriter::new(out, Form::Text);
            profile.write_text(about.room, &mut out)?;
            out.flush()
        }
        Format::Stream | Format::Tarantool => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not written from a profile"))
        }
    }
}
