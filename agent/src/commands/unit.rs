//! `lj-trace unit`: a systemd unit for a recording.

use clap::Args;
use lj_trace_probes::mechanism::Mechanism;
use lj_trace_process::privileges::Refusal;

use super::record::RecordArgs;
use super::wrong;
use crate::exit::CommandError;
use crate::service::unit;

/// How many seconds a recording may take to start and to write its files before systemd ends it.
const SLACK: u64 = 120;

/// Options of `lj-trace unit`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UnitArgs {
    /// Print the template of units that packages install, in place of a `systemd-run` line
    #[arg(long)]
    template: bool,

    /// The options of `lj-trace record`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "RECORD OPTIONS")]
    #[arg(required_unless_present = "template", conflicts_with = "template")]
    record: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  lj-trace unit --pid 1234 --duration 5m              prints the command that starts this recording
  lj-trace unit --pid 1234 --duration 5m | sudo sh    starts it; its files are in /var/lib/lj-trace
  lj-trace unit --template | sudo tee /etc/systemd/system/lj-trace@.service
  sudo systemctl start lj-trace@1234                  with that template";

/// Prints the unit.
///
/// # Errors
/// A usage error for options that `record` does not have.
pub fn run(args: &UnitArgs) -> Result<(), CommandError> {
    let program = std::env::current_exe().map_err(|error| CommandError::io("find lj-trace's own file", &error))?;
    let program = program.to_string_lossy();
    if args.template {
        return super::print_text(&unit::template(&program));
    }
    let record = parse(&args.record)?;
    record.options()?;
    let of = record.pid.map(|pid| pid.to_string()).or_else(|| record.whom().map(str::to_owned));
    let name = format!("lj-trace-{}", of.unwrap_or_default());
    let limit = record.duration.map(|duration| duration.as_secs().saturating_add(SLACK));
    super::print_text(&unit::command(&program, &name, &args.record, limit, more(&record)))
}

/// Why this kernel requires `CAP_SYS_ADMIN` for a recording, if it does.
fn more(record: &RecordArgs) -> Option<&'static str> {
    // Windows come with samples.
    if (record.mode.kinds().cpu || record.overhead.is_some()) && Refusal::now().wants_admin_for_perf_events() {
        return Some(
            "kernel.perf_event_paranoid is above 2, where this distribution's kernel wants it for sampling; with \
             `sudo sysctl kernel.perf_event_paranoid=2` it is not needed",
        );
    }
    (record.mode.has_memory() && Mechanism::detect() == Mechanism::Classic)
        .then_some("this kernel has no uprobe_multi links (Linux 6.6), so probes are perf events, which want it")
}

/// Parses the options of `record`.
fn parse(arguments: &[String]) -> Result<RecordArgs, CommandError> {
    RecordArgs::parse(arguments).map_err(|error| CommandError::usage(wrong::one_line(&error, Some("record"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;

    #[test]
    fn options_are_those_of_a_recording() {
        let parse = |words: &str| parse(&words.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("--pid 7 -d 5s").unwrap().pid, Some(7));
        for wrong in ["--duration 5s", "--pid 7 --nonsense"] {
            assert_eq!(parse(wrong).unwrap_err().code, ExitCode::USAGE, "{wrong}");
        }
    }
}
