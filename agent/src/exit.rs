//! How commands end.

use std::io;

use lj_trace_luajit::FindError;
use lj_trace_probes::allocator::AllocatorError;
use lj_trace_probes::programs::ProbeError;
use lj_trace_process::privileges::limits;
use lj_trace_process::{Process, TargetError};
use lj_trace_streams::{StreamError, WriteError};

/// An exit code of `lj-trace`, in the numbering of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(pub u8);

impl ExitCode {
    /// All went well.
    pub const OK: Self = Self(0);
    /// The command line is wrong.
    pub const USAGE: Self = Self(64);
    /// The input has nothing in it that could be shown (`EX_DATAERR`).
    pub const DATA: Self = Self(65);
    /// There is no such process.
    pub const NO_PROCESS: Self = Self(66);
    /// There is no LuaJIT in the process, or none that is supported.
    pub const NO_LUAJIT: Self = Self(69);
    /// Something that lj-trace needs is not to be had: `lj-trace doctor` found a problem.
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

    /// The system refuses something that it never should.
    pub fn internal(error: &io::Error) -> Self {
        let code = limits::reached(error).map_or(ExitCode::BUG, |_| ExitCode::UNAVAILABLE);
        Self::new(code, format!("cannot start: {}", limits::with_limit(error)))
    }

    /// Something about a file. `action` reads like `write x.svg`.
    pub fn io(action: &str, error: &io::Error) -> Self {
        Self::new(ExitCode::IO, format!("cannot {action}: {}", limits::with_limit(error)))
    }

    /// The same, unless it happened since the process went away meanwhile: that is what is to be said.
    pub fn unless_gone(self, process: &Process) -> Self {
        let is_of_command = matches!(self.code, ExitCode::OK | ExitCode::USAGE | ExitCode::NO_PROCESS);
        let (pid, message) = (process.pid(), &self.message);
        if is_of_command || process.runs_same_program() {
            self
        } else if process.has_become_another_program() {
            let text = format!("process {pid} has executed another program while lj-trace looked at it ({message})");
            Self::new(ExitCode::NO_PROCESS, text)
        } else {
            let text = format!("process {pid} has exited while lj-trace looked at it ({message})");
            Self::new(ExitCode::NO_PROCESS, text)
        }
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

impl From<TargetError> for CommandError {
    fn from(error: TargetError) -> Self {
        let code = match error {
            TargetError::NoSuchProcess(_) | TargetError::Zombie(_) | TargetError::OtherProc(_) => ExitCode::NO_PROCESS,
            TargetError::NotPermitted { .. } => ExitCode::PRIVILEGES,
            TargetError::KernelThread(_) => ExitCode::NO_LUAJIT,
            TargetError::Io { .. } => ExitCode::IO,
        };
        Self::new(code, error.to_string())
    }
}

impl From<FindError> for CommandError {
    fn from(error: FindError) -> Self {
        match error {
            FindError::Target(error) => error.into(),
            error => Self::new(ExitCode::NO_LUAJIT, error.to_string()),
        }
    }
}

impl From<ProbeError> for CommandError {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Target(error) => error.into(),
            ProbeError::NotPermitted { .. } => Self::new(ExitCode::PRIVILEGES, error.to_string()),
            ProbeError::NoWindows(_) | ProbeError::Limit { .. } => Self::new(ExitCode::UNAVAILABLE, error.to_string()),
            error => Self::new(ExitCode::BUG, error.to_string()),
        }
    }
}

impl From<AllocatorError> for CommandError {
    fn from(error: AllocatorError) -> Self {
        match error {
            AllocatorError::Probe(error) => error.into(),
            error => Self::new(ExitCode::NO_LUAJIT, error.to_string()),
        }
    }
}
