//! Programs on instructions of one process, and taking them away again.

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

/// What attaches programs: as long as it is there, they are.
#[derive(Default)]
pub struct Links(Vec<Held>);

impl Links {
    /// Attaches the program of this name to instructions of a file, each a file offset and a cookie, for the process `pid`.
    ///
    /// # Errors
    /// [`ProbeError::NotPermitted`], or [`ProbeError::Refused`] with what the kernel says.
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

    /// The same with a program that sees calls and returns.
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

    /// Whether some are not attached any more, though nobody here has taken them away.
    pub fn are_lost(&self) -> bool {
        self.0.iter().any(Held::is_lost)
    }

    /// Takes all of them away.
    pub fn detach(&mut self) {
        // All at once, since each takes its time.
        self.0.iter_mut().for_each(Held::release);
        self.0.clear();
    }
}

/// The program of this name.
pub fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut UProbe> {
    let program = ebpf.program_mut(name);
    Ok(program.ok_or_else(|| anyhow::anyhow!("no program {name}"))?.try_into()?)
}

/// The program of this name, which is loaded if it is not yet.
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
