//! The formats of profiles: one writer for each, all from the same [model](super::model).

#[cfg(feature = "clap")]
mod arguments;
mod firefox;
pub mod folded;
mod functions;
pub mod output;
pub mod picture;
pub mod pprof;
mod speedscope;
pub mod svg;

use std::io::{self, Write};

use lj_trace_text::Room;
use lj_trace_text::untrusted::{Form, PlainWriter};
pub use output::{Output, OutputError, insert_before_ending};

use super::model::{Profile, Recorded};

/// A format of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A sysprof or memprof stream, as Tarantool writes them.
    Stream,
    /// Text for people: where the time or the memory goes.
    Text,
    /// Folded stacks, for flame graph tools.
    Folded,
    /// A flame graph for the browser.
    Svg,
    /// A profile for `go tool pprof`, Pyroscope, Parca.
    Pprof,
    /// A profile for <https://www.speedscope.app>.
    Speedscope,
    /// A processed profile for <https://profiler.firefox.com>.
    Firefox,
    /// What Tarantool's own parser prints, sorted.
    Tarantool,
}

impl Format {
    /// File name endings. A longer ending comes before an ending that it contains.
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

    /// All formats.
    pub const ALL: [Self; 8] = [
        Self::Stream,
        Self::Text,
        Self::Folded,
        Self::Svg,
        Self::Pprof,
        Self::Speedscope,
        Self::Firefox,
        Self::Tarantool,
    ];

    /// Its name, followed by its aliases.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Stream => &["bin", "stream"],
            Self::Text => &["text", "txt", "summary"],
            Self::Folded => &["folded", "collapsed"],
            Self::Svg => &["svg"],
            Self::Pprof => &["pprof", "pb.gz", "pb"],
            Self::Speedscope => &["speedscope"],
            Self::Firefox => &["firefox", "gecko"],
            Self::Tarantool => &["tarantool"],
        }
    }

    /// A short description.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Stream => "A sysprof or memprof stream, as Tarantool writes them",
            Self::Text => "Text for people: where the time or the memory goes",
            Self::Folded => "Folded stacks, for flame graph tools",
            Self::Svg => "A flame graph for the browser",
            Self::Pprof => "A profile for `go tool pprof`, Pyroscope, Parca",
            Self::Speedscope => "A profile for <https://www.speedscope.app>",
            Self::Firefox => "A processed profile for <https://profiler.firefox.com>",
            Self::Tarantool => "What Tarantool's own parser prints, sorted",
        }
    }

    /// Whether it is binary: useless on a terminal.
    pub const fn is_binary(self) -> bool {
        matches!(self, Self::Stream | Self::Pprof | Self::Firefox)
    }

    /// The format with this name, in upper or lower case.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.names().iter().any(|known| known.eq_ignore_ascii_case(name)))
    }

    /// The format for the ending of a file name.
    pub fn of_ending(name: &str) -> Option<Self> {
        Self::ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| *format)
    }

    /// The endings that select a format, for messages.
    pub fn endings() -> String {
        Self::ENDINGS.map(|(ending, _)| ending).join(", ")
    }

    /// Whether it is written from a whole profile. A stream, and the output of Tarantool's parser, are written from
    /// samples and events instead.
    pub const fn is_of_profile(self) -> bool {
        !matches!(self, Self::Stream | Self::Tarantool)
    }

    /// Whether it shows the order in time.
    pub const fn shows_time(self) -> bool {
        matches!(self, Self::Firefox | Self::Speedscope)
    }

    /// Whether it shows all measures of a memory profile, also what is held.
    pub const fn shows_all_measures(self) -> bool {
        matches!(self, Self::Text | Self::Pprof | Self::Speedscope)
    }
}

/// What a writer needs apart from the profile.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The width of text.
    pub room: Room,
    /// When the profile was recorded, if the profile does not say so.
    pub recorded: Option<Recorded>,
}

impl About {
    /// For a profile whose time of recording is unknown.
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
        Format::Svg => svg::write(profile, about, PlainWriter::new(out, Form::Text)),
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
