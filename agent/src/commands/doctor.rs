//! `lj-trace doctor`: what works here, and how to get what does not.

use clap::Args;

use super::parse_pid;
use crate::doctor::diagnose;
use crate::exit::{CommandError, ExitCode};

/// Options of `lj-trace doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Check this process as well
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,

    /// Write JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace doctor                what this kernel and these privileges allow
  sudo lj-trace doctor --pid 1234     and what can be seen of this process
  sudo lj-trace doctor --json | jq '.checks[] | select(.verdict == \"problem\")'

Exit code: 0 if all is well, 77 if only privileges are missing, 69 for any other problem. Nothing is recorded, and the
process is only read.";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, CommandError> {
    let diagnosis = diagnose(args.pid)?;
    super::print(&diagnosis, args.json)?;
    Ok(if diagnosis.well {
        ExitCode::OK
    } else if diagnosis.lacks_privileges_only() {
        ExitCode::PRIVILEGES
    } else {
        ExitCode::UNAVAILABLE
    })
}
