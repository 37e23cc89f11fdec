//! Attaches programs to instructions of one process, and detaches them.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use aya::Ebpf;
use aya::programs::{ProbeKind, UProbe};
use lj_trace_process::privileges::Operation;

use super::guardian::{self, Held, Means};
use super::mechanism::Mechanism;
use super::programs::{ProbeError, Programs};
use super::session::SessionProgram;
use super::uprobe_multi::UprobeKind;

/// What holds the probes: the programs are attached as long as it exists.
#[derive(Default)]
pub struct Links(Vec<Held>);

impl Links {
    /// Attaches the program `name` to instructions of a file for the process `pid`. Each instruction is a file offset
    /// and a cookie.
    ///
    /// # Errors
    /// [`ProbeError::NotPermitted`], or [`ProbeError::Refused`] with the kernel's error.
    pub fn attach(
        &mut self,
        programs: &mut Programs,
        name: &'static str,
        points: &[(u64, u64)],
        path: &Path,
        pid: u32,
    ) -> Result<(), ProbeError> {
        if points.is_empty() {
            return Ok(());
        }
        let mechanism = programs.mechanism();
        let mut ebpf = programs.ebpf();
        let program = program(&mut ebpf, name).map_err(ProbeError::sort)?;
        let kind = if matches!(program.kind(), ProbeKind::Return) { UprobeKind::Return } else { UprobeKind::Call };
        let program = program.fd().map_err(ProbeError::sort)?.as_fd();
        let attached = Means::of(mechanism, kind).and_then(|means| guardian::attach(program, path, points, pid, means));
        self.0.push(attached.map_err(|error| refused(mechanism, error))?);
        Ok(())
    }

    /// Does the same with a program that sees calls and returns.
    ///
    /// # Errors
    /// What bpf(2) says.
    pub fn attach_session(
        &mut self,
        program: &SessionProgram,
        points: &[(u64, u64)],
        path: &Path,
        pid: u32,
    ) -> io::Result<()> {
        self.0.push(program.attach(path, points, pid)?);
        Ok(())
    }

    /// Whether nothing is attached.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether some programs are no longer attached although nobody here has detached them.
    pub fn are_lost(&self) -> bool {
        self.0.iter().any(Held::is_lost)
    }

    /// Detaches all programs.
    pub fn detach(&mut self) {
        // Release all first, so that they are removed in parallel: each removal takes a while.
        self.0.iter_mut().for_each(Held::release);
        self.0.clear();
    }
}

/// The program with this name.
pub fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut UProbe> {
    let program = ebpf.program_mut(name);
    Ok(program.ok_or_else(|| anyhow::anyhow!("no program {name}"))?.try_into()?)
}

/// The program with this name; loads it if it is not loaded yet.
pub fn loaded(programs: &mut Programs, name: &str) -> anyhow::Result<OwnedFd> {
    let mut ebpf = programs.ebpf();
    let program = program(&mut ebpf, name)?;
    if program.fd().is_err() {
        program.load()?;
    }
    Ok(program.fd()?.as_fd().try_clone_to_owned()?)
}

fn refused(mechanism: Mechanism, error: io::Error) -> ProbeError {
    match (mechanism, error.raw_os_error()) {
        (Mechanism::Classic, Some(libc::EPERM | libc::EACCES)) => ProbeError::not_permitted(Operation::ClassicProbes),
        _ => ProbeError::sort(error),
    }
}
