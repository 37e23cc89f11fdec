//! The `lj-trace` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    lj_trace::commands::main()
}
