//! `lj-trace jit`: why the JIT compiler gave up.

use std::time::Duration;

use clap::Args;
use lj_trace_luajit::find_vms;
use lj_trace_process::Process;

use super::record::parse_duration;
use crate::exit::CommandError;
use crate::jit::{JitDump, take};

/// Options of `lj-trace jit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct JitArgs {
    /// The process to look at
    #[arg(short, long, value_name = "PID")]
    pub pid: u32,

    /// Watch it for so long before, to see what is aborted meanwhile
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Write JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace jit --pid 1234                 what is blacklisted, was aborted, and was compiled
  sudo lj-trace jit --pid 1234 --duration 10s  and what is aborted within ten seconds
  sudo lj-trace jit --pid 1234 --json | jq -r '.vms[].blacklisted[].place | \"\\(.source):\\(.line)\"'

The process is neither stopped nor changed. docs/jit.md tells what each reason means, and what helps.";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &JitArgs) -> Result<(), CommandError> {
    let process = Process::open(args.pid)?;
    let dumped = dump(&process, args).map_err(|error| error.unless_gone(&process))?;
    super::print(&dumped, args.json)
}

fn dump(process: &Process, args: &JitArgs) -> Result<JitDump, CommandError> {
    let vms = find_vms(process, &process.maps()?)?;
    Ok(take(process, vms, args.duration)?)
}
