//! `lj-trace report --diff`.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use lj_trace_profile::diff::{DiffLook, ProfileDiff};
use lj_trace_profile::{Format, Output};
use lj_trace_text::untrusted::{Form, PlainWriter};

use super::rendering::{Rendering, room_of, to};
use super::{ReportArgs, open, warn_of};
use crate::exit::{CommandError, ExitCode};

/// Compares the stream with the `old` one, in all outputs.
///
/// # Errors
/// As for a report of one of them; exit code 64 if they are of different kinds, or an output has no such format.
pub fn write(old: &Path, outputs: &[Output], args: &ReportArgs) -> Result<(), CommandError> {
    if args.leak_only || args.human_readable {
        let message = "--diff has no --leak-only and no --human-readable: use --weight held for what is still held";
        return Err(CommandError::usage(message));
    }
    let format = |output: &Output| output.format.or(args.format).unwrap_or(Format::Text);
    if outputs.iter().any(|output| !ProfileDiff::has_format(format(output))) {
        let message = "differences can be shown as text, folded stacks (.folded) and flame graphs (.svg)";
        return Err(CommandError::usage(message));
    }
    let (old, new) = (read(old, args)?, read(&args.file, args)?);
    if old.is_memory() != new.is_memory() {
        return Err(CommandError::usage("a CPU profile cannot be compared with a memory profile"));
    }
    if let (Some(old), Some(new)) = (old.profile(), new.profile()) {
        let diff = ProfileDiff::new(old, new);
        if let Some(message) = diff.nothing() {
            return Err(CommandError::new(ExitCode::DATA, message));
        }
        for output in outputs {
            let colored = output.file.is_none() && format(output) == Format::Text && has_colors();
            let look = DiffLook { room: room_of(output), colored };
            to(output, |out| match colored {
                // Names have no escape sequences: frames and titles are written as untrusted text.
                true => diff.write(format(output), look, out),
                false => diff.write(format(output), look, PlainWriter::new(out, Form::Text)),
            })?;
        }
    }
    Ok(())
}

/// Whether standard output is a terminal whose user has not said that there should be no colours
/// (<https://no-color.org>).
fn has_colors() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn read(file: &Path, args: &ReportArgs) -> Result<Rendering, CommandError> {
    let (stream, name) = open(file, args.quiet)?;
    let stacks = Output { format: Some(Format::Folded), file: None };
    let (rendering, cut) = Rendering::read(stream, &[stacks], args, &name)?;
    warn_of(cut, &name);
    Ok(rendering)
}
