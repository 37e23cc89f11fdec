//! `lj-trace doctor`: shows what works here, and how to get the rest working.

use std::time::Duration;

use clap::Args;
use lj_trace_export::SinkConfig;
use lj_trace_export::check::check;

use super::agent::parse_sink;
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

    /// Check a server that profiles are to be sent to: otlp=URL, pyroscope=URL or parca=URL
    ///
    /// It is sent a profile with one sample, of the service `lj-trace-doctor`, and asked for it.
    #[arg(long, value_name = "KIND=URL", value_parser = parse_sink, conflicts_with_all = ["pid", "json"])]
    pub sink: Option<SinkConfig>,

    /// Write JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace doctor                what this kernel and these privileges allow
  sudo lj-trace doctor --pid 1234     and what can be seen of this process
  lj-trace doctor --sink otlp=http://127.0.0.1:4318
                                      whether a server takes profiles, and stores them
  sudo lj-trace doctor --json | jq '.checks[] | select(.verdict == \"problem\")'

Exit code: 0 if all is well, 77 if only privileges are missing, 69 for any other problem. Nothing is recorded, and the
process is only read.";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, CommandError> {
    if let Some(sink) = &args.sink {
        const PATIENCE: Duration = Duration::from_secs(15);
        let report = check(sink, PATIENCE).map_err(|error| CommandError::usage(error.to_string()))?;
        super::print_plain(&format!("{report}\n"))?;
        return Ok(if report.is_good() { ExitCode::OK } else { ExitCode::UNAVAILABLE });
    }
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
