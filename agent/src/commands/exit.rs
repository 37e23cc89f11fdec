//! How commands end: exit codes, and errors that carry one.

/// An exit code, after `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(u8);

/// The command line is wrong.
pub const USAGE: Code = Code(64);
/// There is no such process.
pub const NO_PROCESS: Code = Code(66);
/// No LuaJIT is there, or none that is supported.
pub const NO_LUAJIT: Code = Code(69);
/// A bug of lj-trace's own.
pub const BUG: Code = Code(70);
/// A file cannot be read or written.
pub const IO: Code = Code(74);
/// Privileges are missing.
pub const PRIVILEGES: Code = Code(77);

impl From<Code> for std::process::ExitCode {
    fn from(Code(code): Code) -> Self {
        code.into()
    }
}

/// Why a command failed: its message names cause and fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// The exit code.
    pub code: Code,
    /// The message.
    pub message: String,
}
