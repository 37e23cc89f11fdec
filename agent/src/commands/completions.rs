//! `lj-trace completions`: shell completion scripts.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;
use crate::exit::CommandError;

/// Options of `lj-trace completions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  lj-trace completions bash > /usr/share/bash-completion/completions/lj-trace
  lj-trace completions zsh > /usr/share/zsh/site-functions/_lj-trace
  lj-trace completions fish > /usr/share/fish/vendor_completions.d/lj-trace.fish";

/// Prints the script.
///
/// # Errors
/// Exit code 74 if standard output cannot take it.
pub fn run(args: &CompletionsArgs) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lj-trace", &mut script);
    super::print_text(&String::from_utf8_lossy(&script))
}
