//! Checks that lj-trace accepts every command that the documentation and the help show.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use super::{Cli, with_default_command, wrong};

/// The `lj-trace` command lines in a text: in code blocks, in code spans, and in the examples of the help.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let spans: Vec<&str> = if is_code { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        found.extend(spans.into_iter().filter_map(command));
    }
    found
}

/// The words after `lj-trace` in a line, without a prompt, a comment, or a pipe.
fn command(line: &str) -> Option<String> {
    let line = line.trim_start().trim_start_matches("$ ").trim_start_matches("sudo ");
    let words = line.strip_prefix("lj-trace ")?;
    let end = ["  ", " | ", " > ", " #", " &"].iter().filter_map(|mark| words.find(mark)).min().unwrap_or(words.len());
    let words = words[..end].replace("$(cat /run/nginx.pid)", "7").replace("[--pid N]", "--pid N");
    // Placeholders for any command, or for the rest of a command, are not complete commands.
    let is_whole =
        !words.contains("...") && !words.contains("COMMAND") && !words.contains("SHELL") && !words.is_empty();
    is_whole.then(|| words.split(' ').map(|word| if word == "N" { "7" } else { word }).collect::<Vec<_>>().join(" "))
}

/// What is wrong with a command.
fn refusal(words: &str) -> Option<String> {
    let all = ["lj-trace"].into_iter().chain(words.split(' ')).map(OsString::from);
    let error = Cli::try_parse_from(with_default_command(all)).err()?;
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // A name alone, such as `lj-trace report`, only refers to the command.
    let is_name = !words.contains(' ') && Cli::command().find_subcommand(words).is_some();
    (!is_help && !is_name).then(|| wrong::one_line(&error, words.split(' ').next()))
}

#[test]
fn commands_are_found_in_texts() {
    let text = "Use `lj-trace list` and `--pid`:\n```\n$ sudo lj-trace --pid N -q  quietly\nlj-trace x | less\n```\nlj-trace no\n";
    assert_eq!(commands(text), ["list", "--pid 7 -q", "x"]);
    assert!(refusal("report cpu.bin --nonsense").is_some() && refusal("report cpu.bin").is_none());
}

#[test]
fn every_documented_command_is_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let texts = pages.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let texts =
        texts.chain(["README.md", "SECURITY.md", "CONTRIBUTING.md", "agent/README.md"].map(|name| root.join(name)));
    let (mut count, mut wrong) = (0, Vec::new());
    for path in texts {
        for words in commands(&fs::read_to_string(&path).unwrap()) {
            count += 1;
            wrong.extend(refusal(&words).map(|why| format!("{}: lj-trace {words}: {why}", path.display())));
        }
    }
    let mut program = Cli::command();
    program.build();
    for command in std::iter::once(&program).chain(program.get_subcommands()) {
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for words in commands(&format!("```\n{examples}\n```")) {
            count += 1;
            wrong.extend(refusal(&words).map(|why| format!("lj-trace {} --help: {words}: {why}", command.get_name())));
        }
    }
    assert!(count > 150, "only {count} commands were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
