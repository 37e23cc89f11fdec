//! Why probing cannot begin.

use std::io;

use aya::programs::ProgramError;
use lj_trace_process::TargetError;
use lj_trace_process::privileges::{Operation, Refusal, limits};

use super::object;

/// The first kernel that has everything that the programs use: `bpf_loop` is the newest part.
const NEEDED_KERNEL: &str = "5.17";

/// Why probing cannot begin. Each message names the cause and the fix.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The binary contains no BPF programs, or none that work here.
    #[error(transparent)]
    Object(#[from] object::NoBpfPrograms),
    /// The kernel asks for more privileges.
    #[error("not permitted to use {what}: {why}")]
    NotPermitted {
        /// What was refused.
        what: &'static str,
        /// Which privilege is missing, and how to get it.
        why: String,
    },
    /// The kernel refused the BPF programs for another reason, which its message gives.
    #[error("the kernel refused the BPF programs (Linux {NEEDED_KERNEL} or later is needed): {}", last_lines(.0))]
    Refused(#[source] anyhow::Error),
    /// The kernel's verifier gave up (`BPF_COMPLEXITY_LIMIT_INSNS`).
    #[error(
        "the kernel's verifier gave up on the BPF programs, after a million instructions: lj-trace was not tried on a kernel like \
         this one. Please report it, with the output of `uname -r`; until that is mended, use an older kernel"
    )]
    GaveUp(#[source] anyhow::Error),
    /// A limit of the system or of lj-trace is reached.
    #[error("cannot attach: {cause}: {limit}")]
    Limit {
        /// What the kernel said.
        cause: String,
        /// Which limit, and how to raise it.
        limit: String,
    },
    /// The target is gone, or lj-trace may not read it.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Probes cannot be inserted and removed for short windows.
    #[error(
        "--overhead needs probes that are put in within milliseconds, which this kernel does not have (Linux 6.6 \
         has): {0}. Record in full, without --overhead: that costs the process what --max-overhead allows"
    )]
    NoWindows(#[source] io::Error),
    /// Time off the CPU cannot be recorded.
    #[error("--mode offcpu and wall are not possible here: {}", whole(.0))]
    NoOffCpu(#[source] anyhow::Error),
    /// Turns of event loops cannot be recorded.
    #[error("turns of event loops cannot be looked at here: {}", whole(.0))]
    NoTurns(#[source] anyhow::Error),
    /// A thread cannot be sampled.
    #[error("cannot sample thread {tid}: {source}")]
    Thread {
        /// The thread.
        tid: u32,
        /// Why not.
        source: io::Error,
    },
}

impl ProbeError {
    /// Separates missing privileges from all other causes.
    pub(super) fn sort(source: impl Into<anyhow::Error>) -> Self {
        let source = source.into();
        let errors = || source.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
        let refused = errors().any(|error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)));
        if let Some(limit) = errors().find_map(limits::reached) {
            return Self::Limit { cause: whole(&source), limit };
        }
        // The verifier, too, refuses with EACCES, but then there is a log.
        let verifier = source
            .chain()
            .any(|cause| matches!(cause.downcast_ref(), Some(ProgramError::LoadError { verifier_log, .. }) if !verifier_log.to_string().trim().is_empty()));
        if errors().any(|error| error.raw_os_error() == Some(libc::E2BIG)) {
            return Self::GaveUp(source);
        }
        if refused && !verifier { Self::not_permitted(Operation::Bpf) } else { Self::Refused(source) }
    }

    /// The kernel has refused to insert probes for a window.
    pub fn no_windows(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::not_permitted(Operation::Bpf),
            _ => Self::NoWindows(error),
        }
    }

    /// The error for an operation that lj-trace lacks the privileges for.
    pub(super) fn not_permitted(operation: Operation) -> Self {
        let what = match operation {
            Operation::PerfEvents => "perf events",
            Operation::ClassicProbes => "probes",
            Operation::Bpf | Operation::ReadProcess => "BPF",
        };
        Self::NotPermitted { what, why: Refusal::now().explain(operation) }
    }
}

/// An error's message with those of all its causes. Some messages contain their cause already.
pub(super) fn whole(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.trim().is_empty()) {
        if !text.contains(cause.trim()) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(cause.trim_end());
        }
    }
    text
}

/// The end of an error's text: the verifier prints a thousand lines before the point.
fn last_lines(error: &anyhow::Error) -> String {
    let text = whole(error);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.first().filter(|_| lines.len() > 6).copied();
    let tail = &lines[lines.len().saturating_sub(6)..];
    first.into_iter().chain(tail.iter().copied()).collect::<Vec<_>>().join("\n  ")
}
