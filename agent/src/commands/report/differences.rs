//! `lj-trace report --diff`.

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::time::SystemTime;

use lj_trace_profile::diff::{DiffLook, ProfileDiff};
use lj_trace_profile::{Format, Output};
use lj_trace_store::Query;
use lj_trace_text::untrusted::{Form, PlainWriter};

use super::rendering::{Rendering, room_of, to};
use super::{ReportArgs, open, stored, warn_of};
use crate::exit::{CommandError, ExitCode};

/// Compares the stream with an older one, or stored profiles with stored profiles of another time, in all outputs.
///
/// # Errors
/// As for a report on one of them; exit code 64 if they are of different kinds, or a format cannot show differences.
pub fn write(outputs: &[Output], args: &ReportArgs) -> Result<(), CommandError> {
    if args.leak_only || args.human_readable {
        let message = "--diff has no --leak-only and no --human-readable: use --weight held for what is still held";
        return Err(CommandError::usage(message));
    }
    let format = |output: &Output| output.format.or(args.format).unwrap_or(Format::Text);
    if outputs.iter().any(|output| !ProfileDiff::has_format(format(output))) {
        let message = "differences can be shown as text, folded stacks (.folded) and flame graphs (.svg)";
        return Err(CommandError::usage(message));
    }
    let (now, weight) = (SystemTime::now(), args.weight.unwrap_or_default());
    let new_query = args.stored.query(now, weight);
    let (old, new) = match &args.diff {
        Some(old) => (read(old, &new_query, args)?, read(&args.file, &new_query, args)?),
        None => (read(&args.file, &args.stored.old_query(now, weight), args)?, read(&args.file, &new_query, args)?),
    };
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
                // Names contain no escape sequences: frames and titles are written as untrusted text.
                true => diff.write(format(output), look, out),
                false => diff.write(format(output), look, PlainWriter::new(out, Form::Text)),
            })?;
        }
    }
    Ok(())
}

/// Whether standard output is a terminal whose user has not disabled colours (<https://no-color.org>).
fn has_colors() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn read(file: &Path, query: &Query, args: &ReportArgs) -> Result<Rendering, CommandError> {
    let stacks = Output { format: Some(Format::Folded), file: None };
    if file.is_dir() {
        return stored::open(file, query, &[stacks], args);
    }
    let (stream, name) = open(file, args.quiet)?;
    let (rendering, cut) = Rendering::read(stream, &[stacks], args, &name)?;
    warn_of(cut, &name);
    Ok(rendering)
}
