//! Why lj-trace cannot record something.

use std::io;

use lj_trace_luajit::FindError;
use lj_trace_probes::allocator::AllocatorError;
use lj_trace_probes::programs::ProbeError;
use lj_trace_process::privileges::limits;
use lj_trace_process::{Process, TargetError};
use lj_trace_streams::WriteError;

/// The kind of a failure, for callers that react to it: each kind has an exit code of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The options contradict each other.
    Usage,
    /// There is no such process.
    NoProcess,
    /// The process has no LuaJIT, or none that is supported.
    NoLuajit,
    /// The machine lacks something that is needed.
    Unavailable,
    /// A bug of lj-trace.
    Bug,
    /// A file cannot be read or written, or is not what it should be.
    Io,
    /// Privileges are missing.
    Privileges,
    /// The reader of the output has closed it. The recording ends, and that is no error.
    ReaderGone,
}

/// Why something could not be recorded: the kind of failure, and the message to the user.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// The kind of failure.
    pub failure: Failure,
    /// Cause and fix, without a final full stop.
    pub message: String,
}

impl EngineError {
    /// An error of this kind, with this message.
    pub fn new(failure: Failure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into() }
    }

    /// Options that contradict each other.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Failure::Usage, message)
    }

    /// The system refuses a call that it never should refuse.
    pub fn internal(error: &io::Error) -> Self {
        let failure = limits::reached(error).map_or(Failure::Bug, |_| Failure::Unavailable);
        Self::new(failure, format!("cannot start: {}", limits::with_limit(error)))
    }

    /// An error about a file. `action` completes "cannot ...", as in `write x.svg`.
    pub fn io(action: &str, error: &io::Error) -> Self {
        Self::new(Failure::Io, format!("cannot {action}: {}", limits::with_limit(error)))
    }

    /// This error, unless the process has exited meanwhile and that explains the error: then the error says so.
    pub fn unless_gone(self, process: &Process) -> Self {
        let says_enough = matches!(self.failure, Failure::ReaderGone | Failure::Usage | Failure::NoProcess);
        if says_enough { self } else { Self::gone(process, &self.message).unwrap_or(self) }
    }

    /// The error to report instead of `message` if the process has exited or executed another program; [`None`] otherwise.
    pub fn gone(process: &Process, message: &str) -> Option<Self> {
        let pid = process.pid();
        let text = if process.runs_same_program() {
            return None;
        } else if process.has_become_another_program() {
            format!("process {pid} has executed another program while lj-trace looked at it ({message})")
        } else {
            format!("process {pid} has exited while lj-trace looked at it ({message})")
        };
        Some(Self::new(Failure::NoProcess, text))
    }
}

impl From<WriteError> for EngineError {
    fn from(error: WriteError) -> Self {
        Self::new(Failure::Io, error.to_string())
    }
}

impl From<TargetError> for EngineError {
    fn from(error: TargetError) -> Self {
        let failure = match error {
            TargetError::NoSuchProcess(_) | TargetError::Zombie(_) | TargetError::OtherProc(_) => Failure::NoProcess,
            TargetError::NotPermitted { .. } => Failure::Privileges,
            TargetError::KernelThread(_) => Failure::NoLuajit,
            TargetError::Io { .. } => Failure::Io,
        };
        Self::new(failure, error.to_string())
    }
}

impl From<FindError> for EngineError {
    fn from(error: FindError) -> Self {
        match error {
            FindError::Target(error) => error.into(),
            error => Self::new(Failure::NoLuajit, error.to_string()),
        }
    }
}

impl From<ProbeError> for EngineError {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Target(error) => error.into(),
            ProbeError::NotPermitted { .. } => Self::new(Failure::Privileges, error.to_string()),
            ProbeError::NoWindows(_) | ProbeError::NoOffCpu(_) | ProbeError::NoTurns(_) | ProbeError::Limit { .. } => {
                Self::new(Failure::Unavailable, error.to_string())
            }
            error => Self::new(Failure::Bug, error.to_string()),
        }
    }
}

impl From<AllocatorError> for EngineError {
    fn from(error: AllocatorError) -> Self {
        match error {
            AllocatorError::Probe(error) => error.into(),
            error => Self::new(Failure::NoLuajit, error.to_string()),
        }
    }
}
