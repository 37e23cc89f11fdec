//! Programs on instructions of one process, and taking them away again.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope};
use aya::programs::{ProbeKind, UProbe};

use super::classic;
use super::mechanism::Mechanism;
use super::programs::{ProbeError, Programs};
use super::session::{SessionLink, SessionProgram};
use super::uprobe_multi::Kind;
use crate::privileges::Operation;

/// What attaches programs: as long as it is there, they are.
#[derive(Default)]
pub struct Links {
    /// By the program that they run.
    multi: Vec<(&'static str, UProbeLinkId)>,
    /// Of perf events.
    classic: Vec<OwnedFd>,
    sessions: Vec<SessionLink>,
}

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
        let program = program(programs, name).map_err(ProbeError::sort)?;
        match mechanism {
            Mechanism::Multi => {
                let scope = NonZeroU32::new(pid).map_or(UProbeScope::CallingProcess, UProbeScope::OneProcess);
                let points = points.iter().map(|&(offset, cookie)| UProbeAttachPoint {
                    location: UProbeAttachLocation::AbsoluteOffset(offset),
                    cookie: Some(cookie),
                });
                self.multi.push((name, program.attach(points, path, scope).map_err(ProbeError::sort)?));
            }
            Mechanism::Classic => {
                let kind = if matches!(program.kind(), ProbeKind::Return) { Kind::Return } else { Kind::Call };
                let program = program.fd().map_err(ProbeError::sort)?.as_fd();
                for &point in points {
                    self.classic.push(classic::attach(program, path, point, pid, kind).map_err(refused)?);
                }
            }
        }
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
        self.sessions.push(program.attach(path, points, pid)?);
        Ok(())
    }

    /// Whether nothing is attached.
    pub fn is_empty(&self) -> bool {
        self.multi.is_empty() && self.classic.is_empty() && self.sessions.is_empty()
    }

    /// Takes all of them away, those that came last first.
    pub fn detach(&mut self, programs: &mut Programs) {
        self.sessions.clear();
        while self.classic.pop().is_some() {}
        for (name, link) in self.multi.drain(..).rev() {
            // A link that is gone already is what we want.
            let _ = program(programs, name).map(|program| program.detach(link));
        }
    }
}

/// The program of this name.
pub fn program<'a>(programs: &'a mut Programs, name: &str) -> anyhow::Result<&'a mut UProbe> {
    let program = programs.ebpf.program_mut(name);
    Ok(program.ok_or_else(|| anyhow::anyhow!("no program {name}"))?.try_into()?)
}

fn refused(error: io::Error) -> ProbeError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ProbeError::not_permitted(Operation::ClassicProbes),
        _ => ProbeError::sort(error),
    }
}
