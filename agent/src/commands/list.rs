//! `lj-trace list`: every LuaJIT process of this host.

use clap::Args;

use crate::exit::CommandError;
use crate::host;

/// Options of `lj-trace list`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    /// Write JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace list                                       every process with a LuaJIT VM, and what it does
  sudo lj-trace list --json | jq '.processes[].pid'        their process ids

HEAP is the size of a VM's own objects, as collectgarbage(\"count\") returns it. RSS is all memory of the process:
it includes free memory that LuaJIT's allocator keeps, memory of C code, and other VMs.";

/// Runs the command.
///
/// # Errors
/// A [`CommandError`] with the exit code that belongs to its cause.
pub fn run(args: &ListArgs) -> Result<(), CommandError> {
    super::print(&host::list(), args.json)
}
