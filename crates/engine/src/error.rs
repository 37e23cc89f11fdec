//! Why something cannot be recorded.

use std::io;

use lj_trace_luajit::FindError;
use lj_trace_probes::allocator::AllocatorError;
use lj_trace_probes::programs::ProbeError;
use lj_trace_process::privileges::limits;
use lj_trace_process::{Process, TargetError};
use lj_trace_streams::WriteError;

/// What kind of thing kept something from being recorded, for whoever reacts to it: a command has an exit code for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The options contradict each other.
    Usage,
    /// There is no such process.
    NoProcess,
    /// There is no LuaJIT in the process, or none that is supported.
    NoLuajit,
    /// The machine does not have what is needed.
    Unavailable,
    /// A bug of lj-trace.
    Bug,
    /// A file cannot be read or written, or is not what it should be.
    Io,
    /// Privileges are missing.
    Privileges,
    /// Nobody reads the output any more: it ends, and that is no error.
    ReaderGone,
}

/// Why something could not be recorded: what to tell the user, and what kind of failure it is.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// What kind of failure it is.
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

    /// The system refuses something that it never should.
    pub fn internal(error: &io::Error) -> Self {
        let failure = limits::reached(error).map_or(Failure::Bug, |_| Failure::Unavailable);
        Self::new(failure, format!("cannot start: {}", limits::with_limit(error)))
    }

    /// Something about a file. `action` reads like `write x.svg`.
    pub fn io(action: &str, error: &io::Error) -> Self {
        Self::new(Failure::Io, format!("cannot {action}: {}", limits::with_limit(error)))
    }

    /// The same, unless it happened since the process went away meanwhile: that is what is to be said.
    pub fn unless_gone(self, process: &Process) -> Self {
        let says_enough = matches!(self.failure, Failure::ReaderGone | Failure::Usage | Failure::NoProcess);
        if says_enough { self } else { Self::gone(process, &self.message).unwrap_or(self) }
    }

    /// What is to be said in place of `message` if the process has gone away; [`None`] if it has not.
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
