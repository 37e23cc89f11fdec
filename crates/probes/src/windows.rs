//! Allocation probes for short windows. Inserting them takes some 10 ms, of which the target notices only the end.
//! Removing them frees the target within a millisecond, but the kernel blocks the remover for some 20 to 70 ms.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use lj_trace_common::config::{WINDOW_NUMBERS, WINDOW_SHIFT};

use super::gate::Gate;
use super::guardian::{self, Held, Means};
use super::plan::function::MachineFunction;
use super::session::SessionProgram;
use super::uprobe_multi::UprobeKind;

/// Opens windows.
pub struct WindowOpener {
    pub(super) programs: WindowPrograms,
    pub(super) places: ProbedPlaces,
    pub(super) pid: u32,
    pub(super) gate: Gate,
}

/// The allocators that windows probe. More may be added while there are windows.
pub(super) type ProbedPlaces = Arc<Mutex<Vec<ProbedFunction>>>;

/// The programs that see calls and returns.
pub(super) enum WindowPrograms {
    /// One program for both.
    Session(SessionProgram),
    /// One program for each.
    Two { on_call: OwnedFd, on_return: OwnedFd },
}

/// An allocator and where in its file the probes go: offsets with cookies.
pub(super) struct ProbedFunction {
    pub(super) function: MachineFunction,
    pub(super) calls: Vec<(u64, u64)>,
    pub(super) returns: Vec<(u64, u64)>,
}

/// The probes of a window. Dropping this removes them, which takes a while.
#[derive(Debug)]
#[must_use]
pub struct WindowProbes {
    links: Vec<Held>,
}

impl Drop for WindowProbes {
    fn drop(&mut self) {
        // Release all first, so that they are removed in parallel: each removal takes a while.
        self.links.iter_mut().for_each(Held::release);
    }
}

/// The number of the next window: never 0, which marks probes that are always there.
pub const fn next_number(number: u32) -> u32 {
    if number + 1 < WINDOW_NUMBERS { number + 1 } else { 1 }
}

impl WindowOpener {
    /// Inserts the probes of window `number`. What they see counts as events only once the gate is opened.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn put_in(&self, number: u32) -> io::Result<WindowProbes> {
        let marked = |points: &[(u64, u64)]| -> Vec<_> {
            points.iter().map(|&(offset, cookie)| (offset, cookie | u64::from(number) << WINDOW_SHIFT)).collect()
        };
        let mut links = Vec::new();
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        for ProbedFunction { function, calls, returns } in places.iter() {
            let path = &function.probe_path();
            match &self.programs {
                WindowPrograms::Session(program) => {
                    links.push(program.attach(path, &marked(calls), self.pid)?);
                }
                WindowPrograms::Two { on_call, on_return } => {
                    let mut put = |program: &OwnedFd, points: &[(u64, u64)], kind| {
                        let means = Means::Multi(kind);
                        links.push(guardian::attach(program.as_fd(), path, &marked(points), self.pid, means)?);
                        Ok::<_, io::Error>(())
                    };
                    if !returns.is_empty() {
                        put(on_return, returns, UprobeKind::Return)?;
                    }
                    put(on_call, calls, UprobeKind::Call)?;
                }
            }
        }
        Ok(WindowProbes { links })
    }

    /// How many allocators a window probes. A window that is already open does not probe later ones.
    pub fn allocators(&self) -> usize {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The gate, which decides which window's calls count as events.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_again_and_are_never_that_of_permanent_probes() {
        assert_eq!(next_number(0), 1);
        assert_eq!(next_number(WINDOW_NUMBERS - 1), 1);
        let cookie = u64::from(WINDOW_NUMBERS - 1) << WINDOW_SHIFT;
        assert_eq!(cookie >> WINDOW_SHIFT, u64::from(WINDOW_NUMBERS - 1));
    }
}
