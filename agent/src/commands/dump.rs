//! `lj-trace dump`: what a process executes right now.

use clap::Args;
use lj_trace_luajit::find_vms;
use lj_trace_process::Process;

use super::parse_pid;
use crate::dump::{Dump, DumpOptions, take};
use crate::exit::CommandError;

/// Options of `lj-trace dump`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DumpArgs {
    /// The process to look at
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: u32,

    /// Show the local variables of Lua functions, with their values
    #[arg(short, long)]
    pub locals: bool,

    /// Write JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace dump --pid 1234            what every coroutine and thread executes
  sudo lj-trace dump --pid 1234 --locals   and with which variables
  sudo lj-trace dump --pid 1234 --json | jq '.vms[].coroutines[] | select(.status == \"suspended\").frames[0].function'

The process is neither stopped nor changed. Where it moved on while it was read, that is said.";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &DumpArgs) -> Result<(), CommandError> {
    let process = Process::open(args.pid)?;
    let dumped = dump(&process, args).map_err(|error| error.unless_gone(&process))?;
    super::print(&dumped, args.json)
}

fn dump(process: &Process, args: &DumpArgs) -> Result<Dump, CommandError> {
    let maps = process.maps()?;
    let vms = find_vms(process, &maps)?;
    Ok(take(process, &vms, DumpOptions { locals: args.locals })?)
}
