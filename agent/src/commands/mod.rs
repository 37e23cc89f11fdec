//! The command line, with one file for each subcommand.

pub mod agent;
pub mod blockers;
pub mod completions;
pub mod doctor;
#[cfg(test)]
mod documented;
pub mod dump;
pub mod heap;
mod heap_progress;
pub mod jit;
mod jit_output;
pub mod list;
pub mod man;
mod outputs;
mod reader;
pub mod record;
pub mod report;
mod terminal;
pub mod top;
pub mod unit;
mod wrong;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::exit::{self, CommandError};
use crate::logging;

use lj_trace_probes::journal::{Priority, say};
use lj_trace_process::sandbox;
use lj_trace_text::untrusted::{Form, PlainWriter};

/// Profile a running LuaJIT program from outside, without rebuild or restart
///
/// `lj-trace --pid N` is short for `lj-trace record --pid N`; `lj-trace record --help` has its options.
#[derive(Debug, Parser)]
#[command(name = "lj-trace", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace --pid 1234                            where its CPU time goes, until Ctrl-C
  sudo lj-trace --pid 1234 --duration 30s -o cpu.svg  30 seconds of it, as a flame graph
  sudo lj-trace -- luajit x.lua                       a program that it starts, from its first instruction on
  lj-trace report cpu.bin                             what a recording says
  sudo lj-trace top --pid 1234                        the same live, in the terminal
  sudo lj-trace agent                                 all LuaJIT processes of this host, all the time
  sudo lj-trace list                                  which processes have LuaJIT in them
  sudo lj-trace blockers --pid 1234                   what has blocked its event loop
  sudo lj-trace dump --pid 1234                       what one of them executes right now
  sudo lj-trace heap --pid 1234                       what fills its Lua heap, and what keeps that alive
  sudo lj-trace jit --pid 1234                        why its JIT compiler gave up
  sudo lj-trace doctor --pid 1234                     what can be seen of it, and what is missing for more";

#[derive(Debug, Subcommand)]
enum Command {
    /// Record a profile of a running process
    Record(Box<record::RecordArgs>),
    /// Show what a recorded stream says
    Report(report::ReportArgs),
    /// Watch a running process in the terminal
    Top(top::TopArgs),
    /// Show what has blocked the event loop of a running process
    Blockers(blockers::BlockersArgs),
    /// Show what every coroutine and thread of a process executes right now
    Dump(dump::DumpArgs),
    /// Show what is in the Lua heap of a process, and what keeps it alive
    Heap(heap::HeapArgs),
    /// Show why the JIT compiler gave up: blacklisted code, aborts with their reasons, traces
    Jit(jit::JitArgs),
    /// Record all LuaJIT processes of this host, all the time
    Agent(Box<agent::AgentArgs>),
    /// List the LuaJIT processes of this host
    List(list::ListArgs),
    /// Check what works on this host and with a process, and how to fix what does not
    Doctor(doctor::DoctorArgs),
    /// Print the command that runs a recording as a systemd job
    Unit(unit::UnitArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual pages, one for each command
    Man(man::ManArgs),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // A file that reaches a size limit (`ulimit -f`) should be an error like a full disk, and not kill lj-trace.
    // SAFETY: it is a valid disposition, and there is no other thread yet.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if std::env::args_os().nth(1).is_some_and(|argument| argument == sandbox::ARGUMENT) {
        return reader::serve();
    }
    sandbox::enable();
    let words = with_default_command(std::env::args_os());
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &words),
    };
    logging::start(match &cli.command {
        Command::Record(args) => args.verbose,
        _ => 0,
    });
    let outcome = match cli.command {
        Command::Record(args) => record::run(&args),
        Command::Report(args) => report::run(&args).map(|()| exit::ExitCode::OK),
        Command::Top(args) => top::run(&args).map(|()| exit::ExitCode::OK),
        Command::Blockers(args) => blockers::run(&args).map(|()| exit::ExitCode::OK),
        Command::Dump(args) => dump::run(&args).map(|()| exit::ExitCode::OK),
        Command::Heap(args) => heap::run(&args).map(|()| exit::ExitCode::OK),
        Command::Jit(args) => jit::run(&args).map(|()| exit::ExitCode::OK),
        Command::Agent(args) => agent::run(&args),
        Command::List(args) => list::run(&args).map(|()| exit::ExitCode::OK),
        Command::Doctor(args) => doctor::run(&args),
        Command::Unit(args) => unit::run(&args).map(|()| exit::ExitCode::OK),
        Command::Completions(args) => completions::run(&args).map(|()| exit::ExitCode::OK),
        Command::Man(args) => man::run(&args).map(|()| exit::ExitCode::OK),
    };
    match outcome {
        Ok(code) => code.into(),
        Err(CommandError { code, message }) => {
            say(Priority::Error, &format!("lj-trace: {message}"));
            code.into()
        }
    }
}

/// Prints the help if it was requested, or else what is wrong with the command line.
fn refuse(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let is_help = !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help {
        // Nothing can be done about a closed terminal.
        let _ = error.print();
    } else {
        let command = words.get(1).and_then(|word| word.to_str()).filter(|word| is_command(word));
        say(Priority::Error, &format!("lj-trace: {}", wrong::one_line(error, command)));
    }
    if error.use_stderr() { exit::ExitCode::USAGE.into() } else { ExitCode::SUCCESS }
}

/// Whether there is a command with this name.
fn is_command(name: &str) -> bool {
    name == "help" || Cli::command().find_subcommand(name).is_some()
}

/// Reads a process id.
fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("not a process id; {}", wrong::WHERE_PIDS_ARE))
}

/// Prints a result on standard output, for people or as JSON.
///
/// # Errors
/// Exit code 74 if that is impossible. A closed pipe, whose reader has seen enough, is no error.
fn print<T: std::fmt::Display + serde::Serialize>(result: &T, json: bool) -> Result<(), CommandError> {
    let kind = if json { Form::Json } else { Form::Text };
    let mut out = PlainWriter::new(std::io::BufWriter::new(std::io::stdout().lock()), kind);
    let written = if json {
        serde_json::to_writer_pretty(&mut out, result).map_err(std::io::Error::from).and_then(|()| writeln!(out))
    } else {
        write!(out, "{result}")
    };
    unless_nobody_reads(written.and_then(|()| out.flush()))
}

/// Prints a text on standard output that may contain text of the target.
///
/// # Errors
/// As [`print`].
fn print_plain(text: &str) -> Result<(), CommandError> {
    let mut out = PlainWriter::new(std::io::BufWriter::new(std::io::stdout().lock()), Form::Text);
    unless_nobody_reads(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints a text of lj-trace's own on standard output.
///
/// # Errors
/// As [`print`].
fn print_text(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    unless_nobody_reads(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn unless_nobody_reads(written: std::io::Result<()>) -> Result<(), CommandError> {
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CommandError::io("write standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Inserts `record` if the first argument is one of its options, or is not a command: `lj-trace --pid 7`, `lj-trace
/// nginx`.
fn with_default_command(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let own = ["-h", "--help", "-V", "--version"];
    // A word beside a process ID, or before another word, is not a process name, but an unknown command.
    let is_alone = args.get(2).is_none_or(|next| next.to_str().is_some_and(|next| next.starts_with('-')));
    let is_pid = |arg: &OsString| arg.to_str().is_some_and(|arg| arg == "-p" || arg.starts_with("--pid"));
    let is_name = |arg: &str| !arg.starts_with('-') && !is_command(arg) && is_alone && !args.iter().any(is_pid);
    let is_option = |arg: &str| arg.starts_with('-') && !own.contains(&arg);
    if args.get(1).and_then(|arg| arg.to_str()).is_some_and(|arg| is_option(arg) || is_name(arg)) {
        args.insert(1, "record".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(args: &[&str]) -> Vec<OsString> {
        with_default_command(args.iter().map(OsString::from))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_alone_mean_record() {
        assert_eq!(expanded(&["lj-trace", "--pid", "7"]), ["lj-trace", "record", "--pid", "7"]);
        assert_eq!(expanded(&["lj-trace", "-p7"]), ["lj-trace", "record", "-p7"]);
        assert_eq!(expanded(&["lj-trace", "--help"]), ["lj-trace", "--help"]);
        assert_eq!(expanded(&["lj-trace", "report", "x"]), ["lj-trace", "report", "x"]);
        assert_eq!(expanded(&["lj-trace"]), ["lj-trace"]);
        assert_eq!(expanded(&["lj-trace", "nginx", "-q"]), ["lj-trace", "record", "nginx", "-q"]);
        assert_eq!(expanded(&["lj-trace", "--", "luajit", "x"]), ["lj-trace", "record", "--", "luajit", "x"]);
        assert_eq!(expanded(&["lj-trace", "help"]), ["lj-trace", "help"]);
        assert_eq!(expanded(&["lj-trace", "reprot", "cpu.bin"]), ["lj-trace", "reprot", "cpu.bin"]);
        assert_eq!(expanded(&["lj-trace", "reckord", "--pid", "7"]), ["lj-trace", "reckord", "--pid", "7"]);
    }
}
