//! Reads a stream once, for all outputs.

use std::io::{self, BufWriter, IsTerminal as _, Read, Write};
use std::path::Path;

use lj_trace_profile::estimated::is_sample;
use lj_trace_profile::{
    self, CpuProfile, EstimatedProfile, Format, MemoryProfile, Output, Profile, Weight, formats, memory, reference,
};
use lj_trace_streams::{Body, Stream, StreamError};
use lj_trace_text::Room;
use lj_trace_text::untrusted::{Form, PlainWriter};

use super::{ReportArgs, file_name};
use crate::commands::record::no_text_for_terminal;
use crate::exit::CommandError;
use lj_trace_engine::output::OutputFile;

/// The data of a stream that the outputs need.
pub enum Rendering {
    /// The output of parse-sysprof.
    Lines(reference::sysprof::Lines),
    /// A CPU profile.
    Cpu(Box<CpuProfile>),
    /// A memory profile, and the output of parse-memprof, as far as they are needed.
    Memory { summary: Option<Box<reference::memprof::ReferenceSummary>>, profile: Option<Box<MemoryProfile>> },
    /// A memory profile that was recorded in windows.
    Sample(Box<EstimatedProfile>),
}

/// What the formats of all outputs need of a memory profile.
#[derive(Clone, Copy)]
struct Needs {
    /// The events as Tarantool's parser counts them.
    summary: bool,
    profile: bool,
    blocks: bool,
}

impl Rendering {
    /// Reads the stream once for all outputs. Also returns where it is cut off, if it is.
    ///
    /// # Errors
    /// It is damaged, or the options do not fit it.
    pub fn read<R: Read>(
        stream: Stream<R>,
        outputs: &[Output],
        args: &ReportArgs,
        name: &str,
    ) -> Result<(Self, Option<StreamError>), CommandError> {
        let failed = |error: StreamError| CommandError::stream(name, &error);
        let file = Path::new(name);
        let is_memory = matches!(stream.body, Body::Memprof(_));
        let formats: Vec<Format> = outputs.iter().map(|output| format_of(output, args, is_memory)).collect();
        if formats.contains(&Format::Stream) {
            return Err(CommandError::usage(
                "a stream is what a report is made from, not a format of it: leave out --format, or name another output",
            ));
        }
        let Stream { symbols, body, .. } = stream;
        match body {
            Body::Memprof(mut reader) if is_sample(&symbols) => {
                check_sample_options(args, &formats, name)?;
                let mut profile = EstimatedProfile::new(format!("Memory profile {}", file_name(file)));
                let cut = lj_trace_profile::memprof::read(symbols, &mut reader, |event| {
                    profile.add(0, &event);
                });
                profile.weigh();
                Ok((Self::Sample(Box::new(profile)), cut.map_err(failed)?))
            }
            Body::Memprof(mut reader) => {
                check_memory_options(args, &formats)?;
                let needs = Needs {
                    summary: formats.contains(&Format::Tarantool),
                    profile: formats.iter().any(|format| format.is_of_profile()),
                    blocks: formats.iter().any(|format| format.shows_all_measures()),
                };
                let mut summary =
                    needs.summary.then(|| Box::new(reference::memprof::ReferenceSummary::new(reader.version())));
                let mut profile = needs.profile.then(|| {
                    let title = format!("Memory profile {}", file_name(file));
                    let mut profile = MemoryProfile::new(args.weight.unwrap_or_default(), title);
                    if needs.blocks {
                        profile.follow_blocks();
                    }
                    Box::new(profile)
                });
                let cut = lj_trace_profile::memprof::read(symbols, &mut reader, |event| {
                    if let Some(profile) = &mut profile {
                        profile.add(0, &event);
                    }
                    if let Some(summary) = &mut summary {
                        summary.add(event);
                    }
                });
                Ok((Self::Memory { summary, profile }, cut.map_err(failed)?))
            }
            Body::Sysprof(mut reader) => {
                check_cpu_options(args, name)?;
                if formats.iter().all(|&format| format == Format::Tarantool) {
                    let (lines, cut) = reference::sysprof::read(symbols, &mut reader).map_err(failed)?;
                    return Ok((Self::Lines(lines), cut));
                }
                if formats.contains(&Format::Tarantool) {
                    return Err(CommandError::usage("the format 'tarantool' cannot be mixed with others in one run"));
                }
                let title = format!("CPU profile {}", file_name(file));
                let (mut profile, cut) =
                    lj_trace_profile::sysprof::read(symbols, &mut reader, title).map_err(failed)?;
                if let Some(folder) = &args.source {
                    let opened = profile.sources.read_beneath(folder);
                    opened.map_err(|error| CommandError::io(&format!("open {}", folder.display()), &error))?;
                }
                Ok((Self::Cpu(Box::new(profile)), cut))
            }
        }
    }

    /// Writes an output.
    ///
    /// # Errors
    /// It cannot take the bytes.
    pub fn write(&self, output: &Output, args: &ReportArgs) -> Result<(), CommandError> {
        let format = match self {
            // The reference parser's output consists mostly of heap balances; it prints nothing for stored profiles.
            Self::Sample(_) | Self::Memory { summary: None, .. } => {
                output.format.or(args.format).unwrap_or(Format::Text)
            }
            _ => format_of(output, args, self.is_memory()),
        };
        if output.file.is_none() && format.is_binary() && io::stdout().is_terminal() {
            return Err(no_text_for_terminal(format));
        }
        to(output, |out| self.render(format, args, room_of(output), out))
    }

    /// The profile, if an output needs one.
    pub fn profile(&self) -> Option<&dyn Profile> {
        match self {
            Self::Cpu(profile) => Some(&**profile),
            Self::Memory { profile: Some(profile), .. } => Some(&**profile),
            Self::Sample(profile) => Some(&**profile),
            Self::Memory { .. } | Self::Lines(_) => None,
        }
    }

    /// Whether it is a memory profile.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::Sample(_))
    }

    fn render(&self, format: Format, args: &ReportArgs, room: Room, out: impl Write) -> io::Result<()> {
        match self {
            Self::Lines(lines) => reference::sysprof::write(lines, PlainWriter::new(out, Form::Text)),
            Self::Cpu(profile) => formats::write(format, &**profile, formats::About::room(room), out),
            Self::Sample(profile) => formats::write(format, &**profile, formats::About::room(room), out),
            Self::Memory { summary: Some(summary), .. } if format == Format::Tarantool => {
                let options = reference::memprof::ReferenceOptions {
                    leak_only: args.leak_only,
                    human_readable: args.human_readable,
                };
                summary.write(options, PlainWriter::new(out, Form::Text))
            }
            Self::Memory { profile: Some(profile), .. } if format == Format::Text => {
                let mut out = PlainWriter::new(out, Form::Text);
                memory::text::write(
                    profile,
                    memory::text::MemoryTextOptions { leak_only: args.leak_only },
                    room,
                    &mut out,
                )?;
                out.flush()
            }
            Self::Memory { profile: Some(profile), .. } => {
                formats::write(format, &**profile, formats::About::room(room), out)
            }
            // The data that an output needs has been read.
            Self::Memory { .. } => Ok(()),
        }
    }
}

/// The width of text in an output. Files are read by programs, too, so nothing is cut there.
pub fn room_of(output: &Output) -> Room {
    if output.file.is_none() { Room::of(&io::stdout()) } else { Room::Unlimited }
}

/// Opens an output and calls `write` with it.
///
/// # Errors
/// The output cannot take the bytes.
pub fn to(output: &Output, write: impl FnOnce(Box<dyn Write>) -> io::Result<()>) -> Result<(), CommandError> {
    match &output.file {
        None => match write(Box::new(BufWriter::new(io::stdout().lock()))) {
            // The reader has seen enough: `lj-trace report ... | head`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(|error| CommandError::io("write to standard output", &error)),
        },
        // The file can be made again from the stream.
        Some(path) => OutputFile::replace(path)
            .and_then(|file| write(Box::new(BufWriter::new(file))))
            .map_err(|error| CommandError::io(&format!("write {}", path.display()), &error)),
    }
}

/// By default, a memory profile looks as Tarantool's users know it.
fn format_of(output: &Output, args: &ReportArgs, is_memory: bool) -> Format {
    let default = if is_memory { Format::Tarantool } else { Format::Text };
    output.format.or(args.format).unwrap_or(default)
}

/// Refuses options of memory profiles.
pub fn check_cpu_options(args: &ReportArgs, name: &str) -> Result<(), CommandError> {
    let refuse = |message: &str| Err(CommandError::usage(format!("{message}, but {name} is a CPU profile")));
    if args.leak_only || args.human_readable {
        return refuse("--leak-only and --human-readable are for memory profiles");
    }
    if args.weight.is_some() {
        return refuse("--weight is for memory profiles");
    }
    Ok(())
}

/// Refuses options that need more than a sample of the events.
fn check_sample_options(args: &ReportArgs, formats: &[Format], name: &str) -> Result<(), CommandError> {
    let refuse = |what: &str| {
        let message = format!(
            "{name} is a sample (recorded with --overhead, in windows): it shows who allocates, but {what} cannot be told \
             from it, since most frees are not in it. Record in full (--mode memprof without --overhead), or look at the \
             heap itself (lj-trace heap)"
        );
        Err(CommandError::usage(message))
    };
    match args {
        ReportArgs { leak_only: true, .. } | ReportArgs { weight: Some(Weight::Held), .. } => refuse("what is held"),
        ReportArgs { weight: Some(Weight::Events), .. } => refuse("how many events there were"),
        ReportArgs { human_readable: true, .. } => refuse("Tarantool's heap summary"),
        _ if formats.contains(&Format::Tarantool) && asks_for_tarantool(args) => refuse("Tarantool's heap summary"),
        _ => Ok(()),
    }
}

/// Whether the user has named that format: the default for a sample is another one.
fn asks_for_tarantool(args: &ReportArgs) -> bool {
    let of_outputs = args.output.iter().any(|output| output.format == Some(Format::Tarantool));
    args.format == Some(Format::Tarantool) || of_outputs
}

/// Refuses options that would have no effect on any output.
pub fn check_memory_options(args: &ReportArgs, formats: &[Format]) -> Result<(), CommandError> {
    let refuse = |message: &str| Err(CommandError::usage(message));
    if args.source.is_some() {
        return refuse("--source is for CPU profiles: reports of memory show no code");
    }
    let is_text = |format| matches!(format, Format::Text | Format::Tarantool);
    match args {
        ReportArgs { weight: Some(_), .. } if formats.iter().all(|&format| is_text(format)) => {
            refuse("--weight is for pictures and stacks: add -o FILE.svg, -o FILE.folded or --format folded")
        }
        ReportArgs { leak_only: true, .. } if !formats.iter().any(|&format| is_text(format)) => {
            refuse("--leak-only is for text; for folded stacks and flame graphs use --weight held")
        }
        ReportArgs { human_readable: true, .. } if !formats.contains(&Format::Tarantool) => {
            refuse("--human-readable is for what Tarantool's parser prints (--format tarantool)")
        }
        _ => Ok(()),
    }
}
