//! `lj-trace report`: renders a stream.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::exit::CommandError;
use crate::report::{self, CpuProfile, MemoryProfile, Weight, folded, reference, svg, text};
use crate::stream::{Body, Stream, StreamError};

const EXAMPLES: &str = "\
Examples:
  lj-trace report lj-trace-42.sysprof.bin                 where the CPU time went, as text
  lj-trace report lj-trace-42.sysprof.bin -o cpu.svg      a flame graph
  lj-trace report cpu.bin -o cpu.folded -o cpu.svg        both from one reading
  lj-trace report cpu.bin --format folded | grep work     folded stacks to standard output
  lj-trace report memprof.bin --leak-only                 what is still held, and by which line
  lj-trace report memprof.bin -o mem.svg                  a flame graph of the bytes allocated
  lj-trace report memprof.bin --weight held -o leak.svg   a flame graph of the bytes still held";

/// Render a sysprof or memprof stream, written by lj-trace or by Tarantool.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// The stream; `-` is standard input.
    pub file: PathBuf,

    /// Write to this file, or to standard output for `-`; may be repeated. The ending picks the format (.folded,
    /// .svg, .txt); `FORMAT:FILE` forces one.
    #[arg(short, long, value_name = "[FORMAT:]FILE")]
    pub output: Vec<Output>,

    /// The format for standard output and for files whose ending says nothing.
    #[arg(short, long, value_enum)]
    pub format: Option<Format>,

    /// Memory profiles: only what is still held.
    #[arg(long)]
    pub leak_only: bool,

    /// Memory profiles: KiB, MiB and GiB in place of bytes.
    #[arg(long)]
    pub human_readable: bool,

    /// Memory profiles: what .folded and .svg weigh by [default: allocated]
    #[arg(long, value_enum)]
    pub weight: Option<Weight>,
}

/// How a stream is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A summary; of a memory profile, what Tarantool's own parser prints.
    Text,
    /// Folded stacks, for flame graph tools.
    Folded,
    /// A flame graph for the browser.
    Svg,
    /// What Tarantool's own parser prints, sorted.
    Tarantool,
}

/// Where a rendering goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The format that the user forced, or that the ending means.
    pub format: Option<Format>,
    /// The file; `None` is standard output.
    pub file: Option<PathBuf>,
}

impl FromStr for Output {
    type Err = String;

    fn from_str(argument: &str) -> Result<Self, String> {
        let (format, file) = match argument.split_once(':') {
            // What stands before the colon of a path such as ./a:b is no format.
            Some((format, file)) if format.chars().all(|c| c.is_ascii_alphanumeric()) && !format.is_empty() => {
                let format = Format::from_str(format, true)
                    .map_err(|_| format!("there is no format '{format}' (for a file of that name: './{argument}')"))?;
                (Some(format), file)
            }
            _ => (None, argument),
        };
        match file {
            "" => Err("the file name is empty".to_owned()),
            "-" => Ok(Self { format, file: None }),
            file => Ok(Self { format: format.or_else(|| format_of_ending(file)), file: Some(file.into()) }),
        }
    }
}

fn format_of_ending(file: &str) -> Option<Format> {
    match Path::new(file).extension().and_then(OsStr::to_str)? {
        "folded" | "collapsed" => Some(Format::Folded),
        "svg" => Some(Format::Svg),
        "txt" | "text" => Some(Format::Text),
        _ => None,
    }
}

/// Renders the stream as `args` say.
///
/// # Errors
/// Exit code 74 for a file that cannot be read or written or is no stream, 64 for options that do not fit it.
pub fn run(args: &ReportArgs) -> Result<(), CommandError> {
    let name = args.file.display().to_string();
    let input: Box<dyn Read> = if args.file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(&args.file).map_err(|error| CommandError::io(&format!("open {name}"), &error))?)
    };
    let stream = Stream::open(input).map_err(|error| CommandError::stream(&name, &error))?;
    let mut rendering = Rendering::new(stream, args, &name)?;

    let standard_output = [Output { format: None, file: None }];
    let outputs = if args.output.is_empty() { &standard_output[..] } else { &args.output };
    let cut = rendering.read(outputs, args, &name)?;
    for output in outputs {
        rendering.write(output, args)?;
    }
    if let Some(cut) = cut {
        eprintln!("lj-trace: warning: {name}: {cut}; the report is of what was before");
    }
    Ok(())
}

/// What is read of a stream to render it.
enum Rendering<R> {
    Unread(Box<Stream<R>>),
    Cpu { profile: Option<Box<CpuProfile>>, tarantool: Option<reference::sysprof::Lines> },
    Memory { summary: Option<Box<reference::memprof::Summary>>, profile: Option<Box<MemoryProfile>> },
}

impl<R: Read> Rendering<R> {
    fn new(stream: Stream<R>, args: &ReportArgs, name: &str) -> Result<Self, CommandError> {
        match stream.body {
            Body::Sysprof(_) if args.leak_only || args.human_readable => Err(CommandError::usage(format!(
                "--leak-only and --human-readable are for memory profiles, but {name} is a CPU profile"
            ))),
            Body::Sysprof(_) if args.weight.is_some() => {
                Err(CommandError::usage(format!("--weight is for memory profiles, but {name} is a CPU profile")))
            }
            _ => Ok(Self::Unread(Box::new(stream))),
        }
    }

    /// Reads the stream once for all outputs; gives the place where it is cut off, if it is.
    fn read(&mut self, outputs: &[Output], args: &ReportArgs, name: &str) -> Result<Option<StreamError>, CommandError> {
        let formats: Vec<Format> = outputs.iter().map(|output| format_of(output, args)).collect();
        let failed = |error: StreamError| CommandError::stream(name, &error);
        let unread = std::mem::replace(self, Self::Cpu { profile: None, tarantool: None });
        let Self::Unread(stream) = unread else { return Ok(None) };
        let Stream { symbols, body, .. } = *stream;
        match body {
            Body::Memprof(mut reader) => {
                let is_picture = |format: &Format| matches!(format, Format::Folded | Format::Svg);
                let (has_picture, has_text) = (formats.iter().any(is_picture), !formats.iter().all(is_picture));
                check_memory_options(args, has_picture, has_text)?;
                let mut summary = has_text.then(|| Box::new(reference::memprof::Summary::new(reader.version())));
                let profile = || {
                    MemoryProfile::new(args.weight.unwrap_or_default(), format!("Memory profile {}", file_name(args)))
                };
                let mut profile = has_picture.then(|| Box::new(profile()));
                let cut = report::memprof::read(symbols, &mut reader, |event| {
                    if let Some(profile) = &mut profile {
                        profile.add(0, &event);
                    }
                    if let Some(summary) = &mut summary {
                        summary.add(event);
                    }
                });
                let cut = cut.map_err(failed)?;
                *self = Self::Memory { summary, profile };
                Ok(cut)
            }
            Body::Sysprof(mut reader) => {
                let title = format!("CPU profile {}", file_name(args));
                let tarantool = formats.contains(&Format::Tarantool);
                if tarantool && formats.iter().any(|&format| format != Format::Tarantool) {
                    return Err(CommandError::usage("the format 'tarantool' cannot be mixed with others in one run"));
                }
                if tarantool {
                    let (lines, cut) = reference::sysprof::read(symbols, &mut reader).map_err(failed)?;
                    *self = Self::Cpu { profile: None, tarantool: Some(lines) };
                    return Ok(cut);
                }
                let (profile, cut) = report::sysprof::read(symbols, &mut reader, title).map_err(failed)?;
                *self = Self::Cpu { profile: Some(Box::new(profile)), tarantool: None };
                Ok(cut)
            }
        }
    }

    fn write(&self, output: &Output, args: &ReportArgs) -> Result<(), CommandError> {
        let format = format_of(output, args);
        match &output.file {
            None => match self.render(format, args, BufWriter::new(io::stdout().lock())) {
                // Who reads has seen enough: `lj-trace report ... | head`.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                result => result.map_err(|error| CommandError::io("write to standard output", &error)),
            },
            Some(path) => File::create(path)
                .and_then(|file| self.render(format, args, BufWriter::new(file)))
                .map_err(|error| CommandError::io(&format!("write {}", path.display()), &error)),
        }
    }

    fn render(&self, format: Format, args: &ReportArgs, out: impl Write) -> io::Result<()> {
        match self {
            Self::Memory { summary, profile } => match (format, profile, summary) {
                (Format::Folded, Some(profile), _) => folded::write(&**profile, out),
                (Format::Svg, Some(profile), _) => svg::write(&**profile, out),
                (Format::Text | Format::Tarantool, _, Some(summary)) => {
                    let options =
                        reference::memprof::Options { leak_only: args.leak_only, human_readable: args.human_readable };
                    summary.write(options, out)
                }
                // What an output asks for has been read.
                _ => Ok(()),
            },
            Self::Cpu { tarantool: Some(lines), .. } => reference::sysprof::write(lines, out),
            Self::Cpu { profile: Some(profile), .. } => match format {
                Format::Folded => folded::write(&**profile, out),
                Format::Svg => svg::write(&**profile, out),
                Format::Text | Format::Tarantool => text::write(profile, out),
            },
            Self::Cpu { .. } | Self::Unread(_) => Ok(()),
        }
    }
}

/// The name of the stream, for titles, without its folders.
fn file_name(args: &ReportArgs) -> String {
    args.file.file_name().unwrap_or(args.file.as_os_str()).to_string_lossy().into_owned()
}

/// Refuses options that no output would heed.
fn check_memory_options(args: &ReportArgs, has_picture: bool, has_text: bool) -> Result<(), CommandError> {
    let refuse = |message: &str| Err(CommandError::usage(message));
    match args {
        ReportArgs { weight: Some(_), .. } if !has_picture => {
            refuse("--weight is for folded stacks and flame graphs: add -o FILE.svg, -o FILE.folded or --format folded")
        }
        ReportArgs { leak_only: true, .. } if !has_text => {
            refuse("--leak-only is for the text; for folded stacks and flame graphs use --weight held")
        }
        ReportArgs { human_readable: true, .. } if !has_text => refuse("--human-readable is for the text"),
        _ => Ok(()),
    }
}

fn format_of(output: &Output, args: &ReportArgs) -> Format {
    output.format.or(args.format).unwrap_or(Format::Text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::exit::ExitCode;

    fn output(argument: &str) -> (Option<Format>, Option<PathBuf>) {
        let Output { format, file } = argument.parse().unwrap();
        (format, file)
    }

    fn golden(name: &str) -> ReportArgs {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        ReportArgs { file, output: Vec::new(), format: None, leak_only: false, human_readable: false, weight: None }
    }

    #[test]
    fn the_ending_or_the_prefix_picks_the_format() {
        assert_eq!(output("a.svg"), (Some(Format::Svg), Some("a.svg".into())));
        assert_eq!(output("folded:a.svg"), (Some(Format::Folded), Some("a.svg".into())));
        assert_eq!(output("a.out"), (None, Some("a.out".into())));
        assert_eq!(output("./a:b.folded"), (Some(Format::Folded), Some("./a:b.folded".into())));
        assert_eq!(output("-"), (None, None));
        assert_eq!(output("svg:-"), (Some(Format::Svg), None));
        assert!("png:a".parse::<Output>().is_err());
        assert!("svg:".parse::<Output>().is_err());
    }

    #[test]
    fn one_reading_makes_all_outputs() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut args = golden("sysprof-C-jit.bin");
        args.output = ["a.svg", "a.folded", "a.txt"].map(|name| path(name).parse().unwrap()).to_vec();
        run(&args).unwrap();
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        let folded = read("a.folded");
        let samples: u64 = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
        assert!(read("a.txt").contains(&format!("{samples} samples")));
        assert!(read("a.svg").contains(&format!("{samples} samples")));
    }

    #[test]
    fn a_memory_profile_is_text_and_pictures_from_one_reading() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut args = golden("memprof-jit.bin");
        args.weight = Some(Weight::Held);
        args.leak_only = true;
        args.output = ["a.svg", "a.folded", "a.txt"].map(|name| path(name).parse().unwrap()).to_vec();
        run(&args).unwrap();
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        assert_eq!(read("a.txt"), include_str!("../../tests/golden/memprof-jit.leak.txt"));
        let bytes: u64 =
            read("a.folded").lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
        let svg = read("a.svg");
        assert!(
            svg.contains(&format!("total_samples=\"{bytes}\"")) && svg.contains("memprof-jit.bin: bytes still held")
        );
    }

    #[test]
    fn what_cannot_be_done_has_its_exit_code() {
        let code = |args: &ReportArgs| run(args).unwrap_err().code;
        assert_eq!(code(&golden("missing.bin")), ExitCode::IO);
        assert_eq!(code(&golden("memprof-jit.txt")), ExitCode::IO);
        let mut args = golden("sysprof-C-jit.bin");
        args.leak_only = true;
        assert_eq!(code(&args), ExitCode::USAGE);
        let mut args = golden("memprof-jit.bin");
        for format in [Format::Svg, Format::Folded] {
            args.format = Some(format);
            args.leak_only = true;
            assert_eq!(code(&args), ExitCode::USAGE);
            args.leak_only = false;
        }
        args.format = None;
        args.weight = Some(Weight::Held);
        assert_eq!(code(&args), ExitCode::USAGE);
        args.weight = None;
        args.output = vec!["/dev/full".parse().unwrap()];
        assert_eq!(code(&args), ExitCode::IO);
    }
}
