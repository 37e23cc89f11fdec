//! The exit codes and errors of commands.

use std::io;

use lj_trace_engine::{EngineError, Failure};
use lj_trace_luajit::FindError;
use lj_trace_process::{Process, TargetError};
use lj_trace_streams::StreamError;

/// An exit code of `lj-trace`, in the numbering of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(pub u8);

impl ExitCode {
    /// Success.
    pub const OK: Self = Self(0);
    /// The command line is wrong.
    pub const USAGE: Self = Self(64);
    /// The input has no data to show (`EX_DATAERR`).
    pub const DATA: Self = Self(65);
    /// There is no such process.
    pub const NO_PROCESS: Self = Self(66);
    /// There is no LuaJIT in the process, or none that is supported.
    pub const NO_LUAJIT: Self = Self(69);
    /// Something that lj-trace needs is not available: `lj-trace doctor` has found a problem.
    pub const UNAVAILABLE: Self = Self(69);
    /// A bug of lj-trace.
    pub const BUG: Self = Self(70);
    /// A file cannot be read or written, or is not what it should be.
    pub const IO: Self = Self(74);
    /// Privileges are missing.
    pub const PRIVILEGES: Self = Self(77);
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.0)
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::ReaderGone => Self::OK,
            Failure::Usage => Self::USAGE,
            Failure::NoProcess => Self::NO_PROCESS,
            Failure::NoLuajit => Self::NO_LUAJIT,
            Failure::Unavailable => Self::UNAVAILABLE,
            Failure::Io => Self::IO,
            Failure::Privileges => Self::PRIVILEGES,
            _ => Self::BUG,
        }
    }
}

/// Why a command failed: what to tell the user and the exit code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// The exit code.
    pub code: ExitCode,
    /// Cause and fix, without a final full stop.
    pub message: String,
}

impl CommandError {
    /// An error with this code and message. System errors appear by name only, without their numbers.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: without_error_numbers(&message.into()) }
    }

    /// A wrong command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::USAGE, message)
    }

    /// The system refuses something that should always work.
    pub fn internal(error: &io::Error) -> Self {
        EngineError::internal(error).into()
    }

    /// An error about a file. `action` reads like `write x.svg`.
    pub fn io(action: &str, error: &io::Error) -> Self {
        EngineError::io(action, error).into()
    }

    /// The same, unless the process is gone: then that is the error to report.
    pub fn unless_gone(self, process: &Process) -> Self {
        let says_enough = matches!(self.code, ExitCode::OK | ExitCode::USAGE | ExitCode::NO_PROCESS);
        if says_enough { self } else { EngineError::gone(process, &self.message).map_or(self, Self::from) }
    }

    /// A stream that cannot be read.
    pub fn stream(name: &str, error: &StreamError) -> Self {
        Self::new(ExitCode::IO, format!("{name}: {error}"))
    }
}

/// Removes the ` (os error 2)` that [`io::Error`] adds to the name of an error.
fn without_error_numbers(message: &str) -> String {
    let mut parts = message.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |message, part| {
        let number = part.find(|c: char| !c.is_ascii_digit()).filter(|&end| end > 0 && part[end..].starts_with(')'));
        number.map_or_else(|| format!("{message} (os error {part}"), |end| message.clone() + &part[end + 1..])
    })
}

impl From<EngineError> for CommandError {
    fn from(EngineError { failure, message }: EngineError) -> Self {
        Self::new(failure.into(), message)
    }
}

impl From<TargetError> for CommandError {
    fn from(error: TargetError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<FindError> for CommandError {
    fn from(error: FindError) -> Self {
        EngineError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_left_out() {
        for (message, said) in [
            ("cannot open a: No such file (os error 2)", "cannot open a: No such file"),
            ("a (os error 2), b (os error 13): c", "a, b: c"),
            ("a (os error ), b (os error 2", "a (os error ), b (os error 2"),
            ("", ""),
        ] {
            assert_eq!(without_error_numbers(message), said);
        }
    }
}
