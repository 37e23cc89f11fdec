//! `lj-trace report`: renders a stream, or profiles that the agent has stored.

mod differences;
mod progress;
mod rendering;
mod stored;
mod times;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_profile::{Format, Output, Weight};
use lj_trace_streams::{Stream, StreamError};
use progress::WithProgress;
use rendering::Rendering;
use stored::StoredArgs;

use super::outputs::check_distinct;
use crate::exit::CommandError;

const EXAMPLES: &str = "\
Examples:
  lj-trace report cpu.bin                                 where the CPU time went, as text
  lj-trace report cpu.bin -o cpu.svg                      a flame graph
  lj-trace report cpu.bin --source .                      the same with the code of the hottest lines
  lj-trace report cpu.bin -o cpu.folded -o cpu.svg        both from one reading
  lj-trace report cpu.bin --format folded | grep work     folded stacks to standard output
  lj-trace report cpu.bin -o cpu.pb.gz -o cpu.json.gz     for `go tool pprof`, and for the Firefox profiler
  lj-trace report --diff old.bin new.bin                  what takes more time than it did
  lj-trace report --diff old.bin new.bin -o diff.svg      a flame graph of that: red is more, blue is less
  lj-trace report memprof.bin --leak-only                 what is still held, and by which line
  lj-trace report memprof.bin --format text               who allocates, who holds, what is garbage, how the heap grows
  lj-trace report memprof.bin -o mem.svg                  a flame graph of the bytes allocated
  lj-trace report memprof.bin --weight held -o leak.svg   a flame graph of the bytes still held
  lj-trace report /var/lib/lj-trace/profiles --from -1h --service shop -o shop.svg
                                                          the last hour of a service, as the agent has stored it
  lj-trace report /var/lib/lj-trace/profiles --service shop --from -1h --diff-from -2h
                                                          what takes more time than in the hour before
  lj-trace report /var/lib/lj-trace/profiles --service shop --attribute service.version=2 --diff-attribute service.version=1
                                                          what takes more time than in the old version
  lj-trace report /var/lib/lj-trace/profiles --service shop --from -1d --kind memory --leak-only
                                                          what is held, by which line, and how that grew over the day";

/// Render a sysprof or memprof stream, written by lj-trace or by Tarantool, or a folder of stored profiles.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// The stream, or a folder that `lj-trace agent` has stored profiles in; `-` is standard input
    pub file: PathBuf,

    /// Compare with this older stream of the same kind, or with another folder of stored profiles
    ///
    /// As text, as folded stacks with two numbers each (.folded), or as a flame graph (.svg), red where there is more
    /// than before, blue where there is less. Time is compared by shares, memory in bytes.
    #[arg(long, value_name = "OLD")]
    pub diff: Option<PathBuf>,

    /// Write to this file, or to standard output for `-`; may be repeated
    ///
    /// The ending picks the format: `.svg` a flame graph, `.folded` folded stacks, `.txt` text, `.pb.gz` for pprof, `.speedscope.json`
    /// for speedscope, `.json.gz` for the Firefox profiler. `FORMAT:FILE` forces one.
    #[arg(short, long, value_name = "[FORMAT:]FILE")]
    pub output: Vec<Output>,

    /// The format for standard output and for files without a known ending [default: text for a CPU profile, tarantool
    /// for a memory profile]
    #[arg(short, long, value_enum)]
    pub format: Option<Format>,

    /// Memory profiles, as text: only what is still held
    #[arg(long)]
    pub leak_only: bool,

    /// Memory profiles, as Tarantool's parser prints them: KiB, MiB and GiB in place of bytes
    #[arg(long)]
    pub human_readable: bool,

    /// CPU profiles, as text: show the code of the hottest lines, from files beneath this folder [default: none]
    ///
    /// File names come from the stream, which anyone may have written, so no file outside of this folder is opened. Give
    /// the folder that the program ran in, or one that holds its files; `/` if they have not moved.
    #[arg(long, value_name = "FOLDER")]
    pub source: Option<PathBuf>,

    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,

    /// Memory profiles: what the widths in pictures and stacks mean [default: allocated]
    #[arg(long, value_enum)]
    pub weight: Option<Weight>,

    /// What of a folder.
    #[command(flatten)]
    pub stored: StoredArgs,
}

/// Renders the stream as `args` say.
///
/// # Errors
/// Exit code 74 for a file that cannot be read or written or is no stream, 64 for options that do not fit it.
pub fn run(args: &ReportArgs) -> Result<(), CommandError> {
    let standard_output = [Output { format: None, file: None }];
    let outputs = if args.output.is_empty() { &standard_output[..] } else { &args.output };
    check_distinct(outputs.iter().map(|output| output.file.as_deref()))?;
    let is_folder = args.file.is_dir();
    if !is_folder {
        args.stored.check_none(&args.file)?;
    }
    if args.diff.is_some() || args.stored.compares() {
        return differences::write(outputs, args);
    }
    if is_folder {
        let query = args.stored.query(SystemTime::now(), args.weight.unwrap_or_default());
        let rendering = stored::open(&args.file, &query, outputs, args)?;
        return outputs.iter().try_for_each(|output| rendering.write(output, args));
    }
    let (stream, name) = open(&args.file, args.quiet)?;
    let (rendering, cut) = Rendering::read(stream, outputs, args, &name)?;
    for output in outputs {
        rendering.write(output, args)?;
    }
    warn_of(cut, &name);
    Ok(())
}

/// Opens a stream. Also returns its name for messages.
fn open(file: &Path, quiet: bool) -> Result<(Stream<Box<dyn Read>>, String), CommandError> {
    let name = file.display().to_string();
    let input: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(file).map_err(|error| CommandError::io(&format!("open {name}"), &error))?;
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
        Box::new(WithProgress::new(file, length, quiet))
    };
    let stream = Stream::open(input).map_err(|error| CommandError::stream(&name, &error))?;
    Ok((stream, name))
}

/// Warns that a stream is incomplete.
fn warn_of(cut: Option<StreamError>, name: &str) {
    if let Some(cut) = cut {
        let text = format!("lj-trace: warning: {name}: {cut}; the report shows what came before");
        say(Priority::Warning, &text);
    }
}

/// The name of the stream for titles, without directories.
fn file_name(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;

    fn golden(name: &str) -> ReportArgs {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/streams/tests/golden").join(name);
        ReportArgs {
            file,
            output: Vec::new(),
            format: None,
            leak_only: false,
            human_readable: false,
            weight: None,
            diff: None,
            source: None,
            quiet: true,
            stored: StoredArgs::default(),
        }
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
        args.output = ["a.svg", "a.folded", "a.out"].map(|name| path(name).parse().unwrap()).to_vec();
        run(&args).unwrap();
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        assert_eq!(read("a.out"), include_str!("../../../../crates/streams/tests/golden/memprof-jit.leak.txt"));
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
