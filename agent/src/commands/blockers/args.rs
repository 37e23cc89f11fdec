//! What `lj-trace blockers` is asked for.

use std::time::Duration;

use clap::Args;
use lj_trace_text::amount::parse_duration;

use crate::commands::parse_pid;
use crate::commands::record::{LimitArgs, LiveOptions, Mode, RecordArgs};
use crate::exit::CommandError;

/// What else chooses processes.
const WHOM: [&str; 4] = ["command", "name", "unit", "container"];

/// Options of `lj-trace blockers`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BlockersArgs {
    /// The process to look at, by its id
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, required_unless_present_any = WHOM, conflicts_with_all = WHOM)]
    pub(super) pid: Option<u32>,

    /// The processes to look at, by the name of their command or file: `lj-trace blockers nginx`
    #[arg(value_name = "NAME")]
    pub(super) command: Option<String>,

    /// The same as NAME
    #[arg(long, conflicts_with_all = ["command", "unit", "container"])]
    pub(super) name: Option<String>,

    /// The processes of a systemd unit
    #[arg(long, conflicts_with_all = ["command", "container"])]
    pub(super) unit: Option<String>,

    /// The processes of a container, by its id, or the first digits of it
    #[arg(long, value_name = "ID", conflicts_with = "command")]
    pub(super) container: Option<String>,

    /// Look at the processes with a VM that this one has started instead: the workers of nginx's master
    #[arg(long, conflicts_with_all = ["command", "name", "unit", "container"])]
    pub(super) children: bool,

    /// A turn of the event loop that lasts for this long, or longer, has blocked it
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = parse_duration)]
    pub(super) over: Duration,

    /// Stop after this time, such as 30s or 5m [default: at Ctrl-C, SIGTERM, or the exit of the process]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) duration: Option<Duration>,

    /// Print each long turn as it ends, as one line of JSON, and no report at the end
    #[arg(long, conflicts_with = "json")]
    pub(super) follow: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(super) json: bool,

    /// Samples a second, in turns that have lasted for a quarter of --over
    #[arg(short, long, value_name = "HZ", default_value_t = 999)]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=5_000))]
    pub(super) rate: u32,

    /// Do without what Linux 6.18 has: tests do
    #[arg(long, hide = true)]
    pub(super) no_waits: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace blockers --pid 1234                   until Ctrl-C: the longest turns of its event loop, and why
  sudo lj-trace blockers nginx --over 50ms -d 1m      all processes of that name
  sudo lj-trace blockers --pid 1234 --over 20ms --follow
                                                      a line of JSON for each turn of 20 ms or longer
  sudo lj-trace blockers --unit shop.service --json -d 30s";

/// The options for live recording.
pub(super) fn live(args: &BlockersArgs, has_waits: bool) -> Result<LiveOptions, CommandError> {
    let whom = RecordArgs::words_of(args.pid, &args.command, &args.name, &args.unit, &args.container, args.children);
    let whom: Vec<&str> = whom.iter().map(String::as_str).collect();
    let mode = if has_waits { Mode::Wall } else { Mode::Sysprof };
    let limit = LimitArgs { max_overhead: None, no_limit: true };
    RecordArgs::live(&whom, None, mode, args.rate, limit)
}
