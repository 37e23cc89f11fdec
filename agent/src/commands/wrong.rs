//! Errors on the command line, each in one line: what is wrong, and what to write instead.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Where to find a process id.
pub const WHERE_PIDS_ARE: &str = "`lj-trace list` shows the processes with LuaJIT";

/// The mistake and how to correct it, without a final full stop. `command` is the subcommand, if there is one.
pub fn one_line(error: &clap::Error, command: Option<&str>) -> String {
    let help = command.map_or("`lj-trace --help`".to_owned(), |command| format!("`lj-trace {command} --help`"));
    let arg = bare(&text(error, ContextKind::InvalidArg));
    let value = text(error, ContextKind::InvalidValue);
    let suggestion = |kind| Some(names(error, kind).join(" or ")).filter(|it| !it.is_empty());
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let wrong = text(error, ContextKind::InvalidSubcommand);
            let fix = suggestion(ContextKind::SuggestedSubcommand)
                .map_or(format!("{help} lists them"), |names| format!("did you mean {names}?"));
            format!("there is no command `{wrong}`: {fix}")
        }
        ErrorKind::UnknownArgument => {
            let is_number = arg.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            let what = if arg.starts_with('-') && !is_number { "unknown option" } else { "unexpected argument" };
            let fix = match suggestion(ContextKind::SuggestedArg) {
                _ if is_number => "no option takes a negative number".to_owned(),
                Some(names) => format!("did you mean {names}?"),
                None => format!("{help} lists what it takes"),
            };
            format!("{what} `{arg}`: {fix}")
        }
        ErrorKind::InvalidValue | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues | ErrorKind::NoEquals
            if value.is_empty() =>
        {
            let possible = text(error, ContextKind::ValidValue);
            let fix = if possible.is_empty() { format!("{help} has examples") } else { format!("one of {possible}") };
            format!("{arg} needs a value: {fix}")
        }
        ErrorKind::InvalidValue => {
            let possible = text(error, ContextKind::ValidValue);
            format!("invalid value `{value}` for {arg}: use one of {possible}")
        }
        ErrorKind::ValueValidation => {
            let reason = error.source().map_or_else(String::new, ToString::to_string);
            format!("invalid value `{value}` for {arg}: {}", reworded(&reason, &arg))
        }
        ErrorKind::ArgumentConflict => {
            let other = bare(&text(error, ContextKind::PriorArg));
            if other == arg || other.is_empty() {
                format!("{arg} is given more than once: leave one out")
            } else {
                format!("{arg} and {other} cannot be used together: leave one out")
            }
        }
        ErrorKind::MissingRequiredArgument => missing(&arg, command, &help),
        ErrorKind::InvalidUtf8 => format!("an argument is not UTF-8: {help} lists what it takes"),
        _ => {
            // The first line has the cause; the rest repeats the usage.
            let all = error.to_string();
            let first = all.lines().next().unwrap_or_default();
            format!("{}: {help} lists what it takes", first.strip_prefix("error: ").unwrap_or(first))
        }
    }
}

/// What is missing, and where to get it.
fn missing(arg: &str, command: Option<&str>, help: &str) -> String {
    match (command, arg.contains("--pid")) {
        (Some("record"), true) => format!(
            "which process? Give --pid PID, a name (`lj-trace nginx`), --unit UNIT or --container ID: {WHERE_PIDS_ARE}"
        ),
        (_, true) => format!("{arg} is missing: {WHERE_PIDS_ARE}"),
        _ => format!("{arg} is missing: {help} has examples"),
    }
}

/// Messages of clap and the standard library about numbers and process IDs, in more helpful words.
fn reworded(reason: &str, arg: &str) -> String {
    let range = reason.split_once(" is not in ").and_then(|(_, range)| range.split_once("..="));
    if arg.starts_with("--pid") && !reason.contains("process id") {
        return format!("not a process id; {WHERE_PIDS_ARE}");
    }
    match (range, reason) {
        (Some((from, to)), _) => format!("give a number from {from} to {to}"),
        (None, "invalid digit found in string" | "cannot parse integer from empty string") => {
            "give a whole number".to_owned()
        }
        (None, _) if reason.contains("too large") && reason.contains("target type") => {
            "the number is too large".to_owned()
        }
        _ => reason.to_owned(),
    }
}

/// The context of an error as text; lists have commas.
fn text(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        Some(ContextValue::StyledStrs(texts)) => {
            texts.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ")
        }
        Some(ContextValue::StyledStr(text)) => text.to_string(),
        _ => String::new(),
    }
}

/// The names in the context of an error, formatted as code.
fn names(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    let texts = match error.get(kind) {
        Some(ContextValue::String(text)) => std::slice::from_ref(text),
        Some(ContextValue::Strings(texts)) => texts,
        _ => &[],
    };
    texts.iter().map(|text| format!("`{}`", bare(text))).collect()
}

/// `--pid` of clap's `--pid <PID>`, `--pause` of its `--pause[=<TIME>]`, and `FILE` of its `<FILE>`.
fn bare(arg: &str) -> String {
    let name = if arg.starts_with("--") { arg.split([' ', '[']).next().unwrap_or_default() } else { arg };
    name.replace(['<', '>', '[', ']'], "")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::Cli;
    use super::*;

    fn said(words: &str) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        let error = Cli::try_parse_from(["lj-trace"].iter().chain(&words)).expect_err("it is wrong");
        one_line(&error, words.first().copied())
    }

    #[test]
    fn each_kind_of_error_is_one_line_with_the_fix() {
        for (words, expected) in [
            ("reprot x", "there is no command `reprot`: did you mean `report`"),
            ("list --jason", "unknown option `--jason`: did you mean `--json`?"),
            ("list 7", "unexpected argument `7`: `lj-trace list --help` lists what it takes"),
            ("record --pid 7 --rate 0", "invalid value `0` for --rate: give a number from 1 to 20000"),
            ("record --pid 7 --rate x", "invalid value `x` for --rate: give a whole number"),
            ("record --pid x", "invalid value `x` for --pid: not a process id; `lj-trace list` shows"),
            ("jit --pid x", "invalid value `x` for --pid: not a process id; `lj-trace list` shows"),
            ("dump", "--pid is missing: `lj-trace list` shows the processes with LuaJIT"),
            ("record", "which process? Give --pid PID, a name"),
            ("man", "FOLDER is missing: `lj-trace man --help` has examples"),
            ("record --pid", "--pid needs a value: `lj-trace record --help` has examples"),
            ("record --pid 7 --mode", "--mode needs a value: one of sysprof, memprof, all"),
            ("record --pid 7 --mode x", "invalid value `x` for --mode: use one of sysprof, memprof, all"),
            ("record --pid 7 --unit x", "--pid and --unit cannot be used together: leave one out"),
            ("record --pid 7 --pid 8", "--pid is given more than once: leave one out"),
            ("record --pid -1", "unexpected argument `-1`: no option takes a negative number"),
            ("record --pid 7 -d 1x", "invalid value `1x` for --duration: unknown unit `x`: use ms, s, m, h or d"),
        ] {
            let said = said(words);
            assert!(said.starts_with(expected), "{words}: {said}");
            assert!(!said.contains('\n'), "{words}: {said}");
        }
    }
}
