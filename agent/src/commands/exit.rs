//! How commands end.

use std::io;

use crate::stream::{StreamError, WriteError};

/// An exit code of `lj-trace`, in the numbering of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(pub u8);

impl ExitCode {
    /// All went well.
    pub const OK: Self = Self(0);
    /// The command line is wrong.
    pub const USAGE: Self = Self(64);
    /// There is no such process.
    pub const NO_PROCESS: Self = Self(66);
    /// There is no LuaJIT in the process, or none that is supported.
    pub const NO_LUAJIT: Self = Self(69);
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
    /// An error with this code and message.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A wrong command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::USAGE, message)
    }

    /// Something about a file. `action` reads like `write x.svg`.
    pub fn io(action: &str, error: &io::Error) -> Self {
        Self::new(ExitCode::IO, format!("cannot {action}: {error}"))
    }

    /// A stream that cannot be read.
    pub fn stream(name: &str, error: &StreamError) -> Self {
        Self::new(ExitCode::IO, format!("{name}: {error}"))
    }
}

impl From<WriteError> for CommandError {
    fn from(error: WriteError) -> Self {
        Self::new(ExitCode::IO, error.to_string())
    }
}
