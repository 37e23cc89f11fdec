//! `lj-trace heap`: what is in a process' Lua heap, and what keeps it alive.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use lj_trace_luajit::find_vms;
use lj_trace_probes::journal::{Priority, say};
use lj_trace_process::Process;
use lj_trace_text::amount::parse_duration;
use lj_trace_text::untrusted::{Form, PlainWriter};

use super::heap_progress::HeapProgress;
use super::outputs::{check_distinct, check_writable};
use super::parse_pid;
use crate::exit::{CommandError, ExitCode};
use lj_trace_engine::output::{OutputFile, allow_replacing, cannot_write};
use lj_trace_heap::diff::Diff;
use lj_trace_heap::object::Kind;
use lj_trace_heap::text::HeldOfType;
use lj_trace_heap::{HeapError, HeapOptions, PathTarget, PauseError, Snapshot, copy, file, picture, take};

/// Options of `lj-trace heap`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct HeapArgs {
    /// The process to look at
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, required_unless_present = "file", conflicts_with = "file")]
    pub pid: Option<u32>,

    /// A saved snapshot to show instead (NAME.heap.gz)
    pub file: Option<PathBuf>,

    /// Stop the process while its heap is read, for this long at most
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, requires = "pid")]
    #[arg(default_missing_value = "10s", value_parser = parse_duration)]
    pub pause: Option<Duration>,

    /// How many of the biggest strings and tables to show
    #[arg(short, long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub top: usize,

    /// Show what keeps alive the object at this address, or all objects of this type
    #[arg(long, value_name = "0xADDRESS|TYPE")]
    pub path_to: Vec<PathTarget>,

    /// Show what has grown since this saved snapshot
    #[arg(long, value_name = "FILE")]
    pub diff: Option<PathBuf>,

    /// Write it to a file: NAME.heap.gz saves the snapshot, NAME.svg a flame graph, NAME.folded its stacks, NAME.json,
    /// NAME.txt
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,

    /// Replace existing files
    #[arg(long)]
    pub force: bool,

    /// Write JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace heap --pid 1234                           what there is, and what keeps it alive
  sudo lj-trace heap --pid 1234 --pause                   the same, exact to the byte: it is stopped meanwhile
  sudo lj-trace heap --pid 1234 --path-to coroutine       who holds all these coroutines
  sudo lj-trace heap --pid 1234 --path-to 0x7f00c0de1230  how exactly one object is held
  sudo lj-trace heap --pid 1234 -o before.heap.gz         save it, and some time later:
  sudo lj-trace heap --pid 1234 --diff before.heap.gz     what has grown since
  sudo lj-trace heap --pid 1234 -o heap.svg               a flame graph of what holds how much

Without --pause the process runs on while its heap is copied, and lj-trace reports how much changed meanwhile. With it,
ptrace stops all threads until the heap is copied, the time (10s) is over, or lj-trace ends for any reason; the copy is
analyzed after that. A copy of more than 32 MB is in an unnamed file in $TMPDIR, beside the output, or in /var/tmp. Sizes
are what the collector counts: they add up to gc.total, collectgarbage(\"count\").";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &HeapArgs) -> Result<(), CommandError> {
    if let Some(output) = args.output.iter().find(|output| format(output).is_none()) {
        let message = format!(
            "cannot tell the format of the output {}: end its name in .heap.gz, .svg, .folded, .json or .txt",
            output.display()
        );
        return Err(CommandError::usage(message));
    }
    check_distinct(args.output.iter().map(|output| Some(output.as_path())))?;
    if args.force {
        allow_replacing();
    }
    // Checked before the process is read, and perhaps stopped.
    check_writable(args.output.iter().map(PathBuf::as_path))?;
    let old = args.diff.as_deref().map(open).transpose()?;
    let snapshot = match (&args.file, args.pid) {
        (Some(file), _) => open(file)?,
        (None, Some(pid)) => snapshot(pid, args)?,
        (None, None) => return Err(CommandError::usage("give --pid or a saved snapshot")),
    };
    check_asked(&snapshot, &args.path_to)?;
    for output in &args.output {
        write(&snapshot, output).map_err(|error| cannot_write(output, &error))?;
    }
    let shows_it = args.diff.is_none() && !args.json && (args.output.is_empty() || !args.path_to.is_empty());
    if args.pid.is_some() && !shows_it {
        say(Priority::Info, &snapshot.summary());
    }
    if let Some(old) = old {
        return super::print(&Diff::new(&old, &snapshot), args.json);
    }
    let shown = Shown { snapshot: &snapshot, kinds: kinds(&args.path_to), limit: args.top };
    if args.json || args.output.is_empty() || !shown.kinds.is_empty() {
        super::print(&shown, args.json)?;
    }
    Ok(())
}

/// Refuses addresses without an object.
///
/// # Errors
/// Exit code 65.
fn check_asked(snapshot: &Snapshot, targets: &[PathTarget]) -> Result<(), CommandError> {
    let asked = || snapshot.vms.iter().flat_map(|heap| &heap.asked);
    for target in targets {
        let PathTarget::Address(address) = target else { continue };
        let address = format!("{address:#x}");
        if !asked().any(|object| object.address == address && object.kind.is_some()) {
            let message = format!(
                "there is no object at {address}: `lj-trace heap` shows addresses, which are those of other objects once the \
                 program has freed them"
            );
            return Err(CommandError::new(ExitCode::DATA, message));
        }
    }
    Ok(())
}

fn kinds(targets: &[PathTarget]) -> Vec<Kind> {
    let kind = |target: &PathTarget| match target {
        PathTarget::Kind(kind) => Some(*kind),
        PathTarget::Address(_) => None,
    };
    targets.iter().filter_map(kind).collect()
}

/// A snapshot, followed by the paths to the objects of the requested types.
struct Shown<'a> {
    snapshot: &'a Snapshot,
    kinds: Vec<Kind>,
    limit: usize,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot.fmt(f)?;
        let held = |&kind| HeldOfType { snapshot: self.snapshot, kind, limit: self.limit };
        self.kinds.iter().map(held).try_for_each(|held| held.fmt(f))
    }
}

impl serde::Serialize for Shown<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.snapshot.serialize(serializer)
    }
}

fn snapshot(pid: u32, args: &HeapArgs) -> Result<Snapshot, CommandError> {
    let process = Process::open(pid)?;
    snapshot_of(&process, args).map_err(|error| error.unless_gone(&process))
}

fn snapshot_of(process: &Process, args: &HeapArgs) -> Result<Snapshot, CommandError> {
    let maps = process.maps()?;
    let vms = find_vms(process, &maps)?;
    let addresses = args.path_to.iter().filter_map(|target| match target {
        PathTarget::Address(address) => Some(*address),
        PathTarget::Kind(_) => None,
    });
    let folders = copy::folders(args.output.first().map(PathBuf::as_path));
    let is_kept = args.output.iter().any(|output| format(output) == Some(Format::Snapshot));
    let objects = is_kept || args.diff.is_some();
    let options = HeapOptions { pause: args.pause, top: args.top, addresses: addresses.collect(), objects, folders };
    let mut progress = HeapProgress::new();
    Ok(take(process, &vms, &options, &mut |stage| progress.update(stage))?)
}

fn open(path: &Path) -> Result<Snapshot, CommandError> {
    file::open(path).map_err(|error| CommandError::new(ExitCode::IO, format!("{}: {error}", path.display())))
}

/// The format in which to write a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Snapshot,
    Svg,
    Folded,
    Json,
    Text,
}

fn format(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?;
    let endings = [
        (file::ENDING, Format::Snapshot),
        (".svg", Format::Svg),
        (".folded", Format::Folded),
        (".json", Format::Json),
        (".txt", Format::Text),
    ];
    endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
}

fn write(snapshot: &Snapshot, path: &Path) -> std::io::Result<()> {
    use std::io::Write as _;
    let out = std::io::BufWriter::new(OutputFile::open(path)?);
    let kind = match format(path) {
        None | Some(Format::Snapshot) => return file::write(snapshot, out),
        Some(Format::Json) => Form::Json,
        Some(_) => Form::Text,
    };
    let mut out = PlainWriter::new(out, kind);
    match format(path) {
        Some(Format::Svg) => picture::write_svg(snapshot, &mut out),
        Some(Format::Folded) => picture::write_folded(snapshot, &mut out),
        Some(Format::Json) => serde_json::to_writer_pretty(&mut out, snapshot).map_err(Into::into),
        Some(Format::Text) => write!(out, "{snapshot}"),
        Some(Format::Snapshot) | None => Ok(()),
    }?;
    out.flush()
}

impl From<HeapError> for CommandError {
    fn from(error: HeapError) -> Self {
        match error {
            HeapError::Pause(error) => error.into(),
            HeapError::Target(error) => error.into(),
            HeapError::Store(error) => Self::new(ExitCode::IO, error.to_string()),
        }
    }
}

impl From<PauseError> for CommandError {
    fn from(error: PauseError) -> Self {
        match error {
            PauseError::Target(error) => error.into(),
            PauseError::Refused { .. } | PauseError::Traced { .. } => {
                Self::new(ExitCode::PRIVILEGES, error.to_string())
            }
            PauseError::DoesNotStop { .. } => Self::new(ExitCode::UNAVAILABLE, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_say_the_format() {
        let of = |name: &str| format(Path::new(name));
        assert_eq!(of("a/b.heap.gz"), Some(Format::Snapshot));
        assert_eq!(of("b.svg"), Some(Format::Svg));
        assert_eq!(of("b.bin"), None);
    }
}
