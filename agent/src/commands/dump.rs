//! `lj-trace dump`: what a process is executing right now.

use std::time::Duration;

use clap::Args;
use lj_trace_engine::resolve::LayoutDecision;
use lj_trace_heap::watchdog::Watchdog;
use lj_trace_luajit::{Vm, find_vms};
use lj_trace_process::Process;
use lj_trace_text::amount::parse_duration;

use super::parse_pid;
use super::record::{LimitArgs, Mode, RecordArgs};
use crate::dump::{Dump, DumpOptions, OsThread, Precision, StoppedProcess, sampled, take};
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

    /// Stop the process while it is read, for this long at most, so that everything is from one moment
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "10s", value_parser = parse_duration)]
    pub pause: Option<Duration>,

    /// Write JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace dump --pid 1234            what every coroutine and thread executes
  sudo lj-trace dump --pid 1234 --locals   and with which variables
  sudo lj-trace dump --pid 1234 --pause    everything as it was at one moment: it is stopped meanwhile
  sudo lj-trace dump --pid 1234 --json | jq '.vms[].coroutines[] | select(.status == \"suspended\").frames[0].function'

A waiting thread is shown where it waits, a running one where a sample found it. The sample takes some milliseconds, and
needs the privileges of a recording (root, or CAP_BPF and CAP_PERFMON). Stacks that changed while they were read are
marked. With --pause, ptrace stops all threads until everything is read, the time (10s) is over, or lj-trace ends for any
reason. The variables (--locals) of a running function need --pause.";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &DumpArgs) -> Result<(), CommandError> {
    let process = Process::open(args.pid)?;
    let dumped = dump(&process, args).map_err(|error| error.unless_gone(&process))?;
    super::print(&dumped, args.json)
}

/// Settles the parts of the VMs' layouts that remain open until there are traces, as far as there are any.
fn decide(process: &Process, vms: &mut [Vm]) {
    /// The VMs of a process mostly come from one build: what one VM settles holds for the others.
    const TRIES: usize = 8;
    for _ in 0..TRIES {
        let open = vms.iter().filter(|vm| vm.leaves_traces_open());
        let Some(decided) = open.take(TRIES).find_map(|vm| LayoutDecision::default().decide(process, vm)) else {
            return;
        };
        vms.iter_mut().for_each(|vm| _ = vm.learn_from(&decided));
    }
}

fn dump(process: &Process, args: &DumpArgs) -> Result<Dump, CommandError> {
    let maps = process.maps()?;
    let mut vms = find_vms(process, &maps)?;
    decide(process, &mut vms);
    let options = DumpOptions { locals: args.locals };
    let Some(limit) = args.pause else {
        let limit = LimitArgs { max_overhead: None, no_limit: true };
        let samples =
            RecordArgs::live(&["--pid", &args.pid.to_string()], None, Mode::Sysprof, sampled::RATE, limit)?.options;
        return Ok(take(process, &vms, options, &Precision::Samples(Box::new(samples)))?);
    };
    std::thread::scope(|scope| {
        let before = OsThread::all(process);
        let watchdog = Watchdog::stop(scope, process, limit)?;
        let stopped = StoppedProcess::new(before, watchdog.threads());
        let dump = take(process, &vms, options, &Precision::Stopped(&stopped));
        let stood = watchdog.release();
        let paused = Some((stood.time.as_secs_f64() * 1e4).round() / 10.0);
        Ok(Dump { paused, went_on: !stood.to_the_end, ..dump? })
    })
}
