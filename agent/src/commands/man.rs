//! `lj-trace man`: the manual, with a page for each subcommand.

use std::path::PathBuf;

use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;

use super::Cli;
use crate::exit::{CommandError, ExitCode};

/// Options of `lj-trace man`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// The folder to write the pages to: lj-trace.1, lj-trace-record.1, ...
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  sudo lj-trace man /usr/local/share/man/man1         then: man lj-trace-record";

/// Writes the pages.
///
/// # Errors
/// Exit code 74 if a page cannot be written.
pub fn run(args: &ManArgs) -> Result<(), CommandError> {
    if !args.folder.is_dir() {
        let message = format!("{} is no folder: make it first (`mkdir -p`)", args.folder.display());
        return Err(CommandError::new(ExitCode::IO, message));
    }
    for (name, page) in pages()? {
        let path = args.folder.join(name);
        std::fs::write(&path, page).map_err(|error| CommandError::io(&format!("write {}", path.display()), &error))?;
    }
    Ok(())
}

/// The pages with their file names.
fn pages() -> Result<Vec<(String, String)>, CommandError> {
    let mut program = Cli::command();
    // Gives each subcommand its full name, with that of the program.
    program.build();
    let subcommands = program.get_subcommands().filter(|subcommand| subcommand.get_name() != "help");
    let commands: Vec<Command> = std::iter::once(&program).chain(subcommands).cloned().collect();
    commands.into_iter().map(page).collect()
}

fn page(command: Command) -> Result<(String, String), CommandError> {
    let man = Man::new(command).section("1").source(concat!("lj-trace ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page).map_err(|error| CommandError::io("write a page of the manual", &error))?;
    // The text after the options consists of examples, one per line.
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n.nf\n");
    Ok((man.get_filename(), page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_a_page_with_examples() {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["lj-trace.1", "lj-trace-record.1", "lj-trace-top.1", "lj-trace-report.1", "lj-trace-dump.1"] {
            assert!(names.contains(&name), "no {name} in {names:?}");
        }
        for (name, page) in &pages {
            assert!(page.contains(".TH "), "{name}: {page}");
            let (_, examples) = page.split_once(".SH EXAMPLES\n.nf\n").unwrap_or_else(|| panic!("{name}: {page}"));
            assert!(examples.contains("lj\\-trace"), "{name}: {examples}");
        }
    }
}
