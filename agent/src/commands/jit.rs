//! `lj-trace jit`: why the JIT compiler gave up.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lj_trace_engine::cpu::about_process;
use lj_trace_engine::output::{OutputFile, allow_replacing};
use lj_trace_engine::{RecordTarget, Recording};
use lj_trace_luajit::{Vm, find_vms};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_process::{Process, sandbox};
use lj_trace_profile::source_code::SourceCode;
use lj_trace_text::amount::parse_duration;
use lj_trace_text::untrusted::{Form, PlainWriter, Untrusted};

use super::jit_output::{JitFormat, JitOutput};
use super::parse_pid;
use super::record::interrupts::Interrupts;
use super::record::{LimitArgs, LiveOptions, Mode, RecordArgs, give_up_privileges};
use crate::exit::{CommandError, ExitCode};
use crate::jit::{AnnotatedSource, JitDump, WatchedProcess, WatchedSamples, page, take, watch};

/// Options of `lj-trace jit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct JitArgs {
    /// The process to look at
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: u32,

    /// Watch the process for this long first: where its CPU time goes, and what is aborted. Ctrl-C ends this early
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Samples per second of CPU time of each thread
    #[arg(short, long, value_name = "HZ", default_value_t = 199, requires = "duration")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,

    /// Take no samples: only memory is read, no BPF program loaded
    #[arg(long, requires = "duration", conflicts_with = "rate")]
    pub no_samples: bool,

    /// Show the lines of this Lua file instead of the report. Give its name as in the report, or the end of its path
    #[arg(short, long, value_name = "FILE")]
    pub annotate: Option<String>,

    /// Read source code below this folder [default: where the process has it, if the process itself may read it]
    #[arg(long, value_name = "FOLDER", requires = "annotate")]
    pub source: Option<PathBuf>,

    /// Write to this file, or to standard output for `-`; may be repeated
    ///
    /// The ending picks the format: `.html` a page of the annotated file, `.json` JSON, anything else text. `FORMAT:FILE`
    /// forces one.
    #[arg(short, long, value_name = "[FORMAT:]FILE")]
    pub output: Vec<JitOutput>,

    /// Replace existing files
    #[arg(long, requires = "output")]
    pub force: bool,

    /// Write JSON, for programs
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace jit --pid 1234                 what is blacklisted, was aborted, and was compiled
  sudo lj-trace jit --pid 1234 --duration 10s  and what that costs, and what is aborted within ten seconds
  sudo lj-trace jit --pid 1234 -d 10s --annotate points.lua -o points.html
                                               the lines of a file: compiled, interpreted or blacklisted
  sudo lj-trace jit --pid 1234 --json | jq -r '.vms[].blacklisted[].place | \"\\(.source):\\(.line)\"'

The process is neither stopped nor changed. docs/jit.md tells what each reason means, and what helps.";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &JitArgs) -> Result<(), CommandError> {
    if args.annotate.is_none() && args.output.iter().any(|output| output.format == JitFormat::Html) {
        return Err(CommandError::usage("HTML is for annotated files: add --annotate FILE, or write .txt or .json"));
    }
    if args.force {
        allow_replacing();
    }
    let process = Process::open(args.pid)?;
    // Open the files first: watching is pointless if they cannot be written.
    let files = open(&args.output)?;
    let code = source_code(&process, args)?;
    let dumped = dump(&process, args).map_err(|error| error.unless_gone(&process))?;
    let annotate = |file| AnnotatedSource::new(&dumped, file, &code);
    let annotation = args.annotate.as_deref().map(annotate).transpose();
    let annotation = annotation.map_err(|error| CommandError::new(ExitCode::DATA, error.to_string()))?;
    if files.is_empty() {
        return match &annotation {
            Some(annotation) if !args.json => super::print_plain(&annotation.to_string()),
            _ => super::print(&dumped, args.json),
        };
    }
    files.into_iter().try_for_each(|(output, file)| write(output, file, &dumped, annotation.as_ref()))
}

fn open(outputs: &[JitOutput]) -> Result<Vec<(&JitOutput, Option<OutputFile>)>, CommandError> {
    let open = |output: &'_ JitOutput| {
        let opened = output.file.as_ref().map(|path| {
            OutputFile::open(path).map_err(|error| CommandError::io(&format!("write {}", path.display()), &error))
        });
        opened.transpose()
    };
    outputs.iter().map(|output| Ok((output, open(output)?))).collect()
}

fn source_code(process: &Process, args: &JitArgs) -> Result<SourceCode, CommandError> {
    let mut code = about_process::source_code(process);
    if let Some(folder) = &args.source {
        let failed = |error| CommandError::io(&format!("open {}", folder.display()), &error);
        code.read_beneath(folder).map_err(failed)?;
    }
    Ok(code)
}

fn write(
    output: &JitOutput,
    file: Option<OutputFile>,
    dumped: &JitDump,
    annotation: Option<&AnnotatedSource>,
) -> Result<(), CommandError> {
    let Some(file) = file else {
        return match (output.format, annotation) {
            (JitFormat::Json, _) => super::print(dumped, true),
            (JitFormat::Html, Some(annotation)) => super::print_text(&page(annotation)),
            (_, Some(annotation)) => super::print_plain(&annotation.to_string()),
            (_, None) => super::print(dumped, false),
        };
    };
    let mut out = BufWriter::new(file);
    let written = match (output.format, annotation) {
        (JitFormat::Json, _) => {
            let mut plain = PlainWriter::new(&mut out, Form::Json);
            serde_json::to_writer_pretty(&mut plain, dumped).map_err(std::io::Error::from).and_then(|()| plain.flush())
        }
        (JitFormat::Html, Some(annotation)) => out.write_all(page(annotation).as_bytes()),
        (_, annotation) => {
            let text = annotation.map_or_else(|| dumped.to_string(), ToString::to_string);
            PlainWriter::new(&mut out, Form::Text).write_all(text.as_bytes())
        }
    };
    let name = output.file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    written.and_then(|()| out.flush()).map_err(|error| CommandError::io(&format!("write {name}"), &error))?;
    say(Priority::Info, &format!("wrote {name}"));
    Ok(())
}

fn dump(process: &Process, args: &JitArgs) -> Result<JitDump, CommandError> {
    let vms = find_vms(process, &process.maps()?)?;
    let (vms, watched) = match args.duration {
        None => (vms, None),
        Some(duration) => {
            let (vms, watched) = watch_for(process, vms, args, duration)?;
            (vms, Some(watched))
        }
    };
    Ok(take(process, vms, watched, args.annotate.as_deref())?)
}

/// Watches the process until the time is over, the process ends, or the user stops it. Returns the VMs of that moment.
fn watch_for(
    process: &Process,
    vms: Vec<Vm>,
    args: &JitArgs,
    duration: Duration,
) -> Result<(Vec<Vm>, WatchedProcess), CommandError> {
    // From here on, the first Ctrl-C ends the watching, but not the report.
    let interrupts = Interrupts::listen()?;
    let interrupted = |time| interrupts.heard_within(time);
    let ready = || {
        let (name, seconds) = (Untrusted(&process.command()).to_string(), duration.as_secs_f64());
        let text = format!(
            "attached to {name} (pid {}): watching for {seconds:.1} s; Ctrl-C ends that and shows what there is",
            args.pid
        );
        say(Priority::Info, &text);
    };
    let no_samples = |why: String, vms: Vec<Vm>| {
        let (_, watched) = watch(process, &vms, duration, None, ready, interrupted)?;
        Ok((vms, WatchedProcess { no_samples: Some(why), ..watched }))
    };
    if args.no_samples {
        return no_samples("--no-samples".to_owned(), vms);
    }
    let limit = LimitArgs { max_overhead: None, no_limit: false };
    let whom = format!("--pid={}", args.pid);
    let LiveOptions { options, .. } = RecordArgs::live(&[&whom], None, Mode::Sysprof, args.rate, limit)?;
    let maps = process.maps()?;
    let target = RecordTarget {
        options: options.clone(),
        process: process.clone(),
        maps,
        vms: vms.clone(),
        may_have_more: false,
        only: None,
        live: None,
    };
    let mut recording = match Recording::start(&target, 1) {
        Ok(recording) => recording,
        Err(error) => {
            let text = format!("lj-trace: goes on without samples: {}", error.message);
            say(Priority::Warning, &text);
            return no_samples(format!("no samples were taken: {}", error.message), vms);
        }
    };
    give_up_privileges(&options, &[], || recording.is_in_reach());
    let (samples, watched) = watch(process, &vms, duration, Some(&mut recording), ready, interrupted)?;
    let lost = recording.lost();
    let now = recording.vms().unwrap_or(vms);
    let samples = Some(WatchedSamples { rate: args.rate, samples, lost });
    for file in sandbox::unread() {
        say(Priority::Warning, &format!("lj-trace: {file}"));
    }
    Ok((now, WatchedProcess { samples, ..watched }))
}
