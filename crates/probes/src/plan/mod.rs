//! Plans where the probes on a VM's allocator go, so that they are cheap and see every event exactly once.
//!
//! The kernel single-steps most probed instructions, which makes such a probe some ten times as expensive as a probe on
//! one of the few instructions that the kernel emulates ([`is_emulated`]). [`plan()`] disassembles the allocator,
//! follows all paths through it (`flow`), tracks where its arguments are (`arguments`), and chooses emulated
//! instructions such that every call passes exactly one of them (`choose`). It uses only what it can prove; otherwise
//! the probe goes to the function's first instruction. [`function`] finds the allocator's code in a process.

mod arguments;
mod choose;
mod flow;
pub mod function;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
#[cfg(all(test, target_arch = "aarch64"))]
mod tests_aarch64;

use std::fmt;

pub use crate::arch::is_emulated;
pub use arguments::{Argument, ArgumentLocation};
pub use flow::Unclear;

use arguments::ArgumentState;
use flow::Flow;
use lj_trace_common::arch::Register;

use crate::arch::MachineInstruction;

/// Which arguments every probe must be able to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// All four: `ud` tells which VM an event belongs to.
    All,
    /// All but `ud`. This is right where `ud` cannot tell VMs apart anyway, as with `LUAJIT_USE_SYSMALLOC` and with
    /// most allocators of hosts, whose `ud` is NULL. In those, compilers overwrite its register early.
    AllButUserData,
}

impl Need {
    /// Whether `argument` must be readable.
    pub fn has(self, argument: Argument) -> bool {
        self == Self::All || argument != Argument::UserData
    }
}

/// Which calls of the allocator pass a probe point, as `lua_Alloc` defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// All calls.
    Any,
    /// Calls that ask for memory: `nsize` is not 0.
    AllocOrRealloc,
    /// New blocks: `nsize` is not 0, `ptr` is NULL.
    Alloc,
    /// Blocks that change their size: `nsize` is not 0, `ptr` is not NULL.
    Realloc,
    /// Blocks that are freed: `nsize` is 0.
    Free,
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "all calls",
            Self::AllocOrRealloc => "allocations and reallocations",
            Self::Alloc => "allocations",
            Self::Realloc => "reallocations",
            Self::Free => "frees",
        })
    }
}

/// One instruction to put a probe on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePoint {
    /// Its offset from the function's first byte.
    pub offset: u64,
    /// The instruction's bytes, as the file has them.
    pub bytes: Vec<u8>,
    /// Whether the kernel emulates the instruction. Otherwise it single-steps it.
    pub emulated: bool,
    /// Where each argument is right before the instruction, indexed by [`Argument`].
    pub arguments: [ArgumentLocation; Argument::COUNT],
    /// Which calls pass the instruction.
    pub kind: EventKind,
    /// Whether this point also needs a return probe, for the result. The return address is then where it was at the
    /// entry.
    pub return_probe: bool,
}

impl ProbePoint {
    fn new(code: &[u8], offset: usize, state: &ArgumentState) -> Self {
        let rest = code.get(offset..).unwrap_or_default();
        // An undecodable instruction is shown as its first byte.
        let length = MachineInstruction::decode(rest, 0).map_or(1, |instruction| instruction.size()).min(rest.len());
        let bytes = rest.get(..length).unwrap_or_default().to_vec();
        let kind = choose::kind(state);
        Self {
            offset: offset as u64,
            emulated: is_emulated(&bytes),
            bytes,
            arguments: Argument::ALL.map(|argument| state.location(argument)),
            kind,
            return_probe: kind != EventKind::Free,
        }
    }
}

impl fmt::Display for ProbePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mnemonic =
            MachineInstruction::decode(&self.bytes, 0).map_or_else(|| "invalid".to_owned(), |found| found.name());
        let executed = if self.emulated { "emulated" } else { "single-stepped" };
        write!(f, "+{:#x} {mnemonic} ({executed}): {}", self.offset, self.kind)?;
        for argument in Argument::ALL {
            match self.arguments[argument as usize] {
                ArgumentLocation::Register(register) => {
                    write!(f, ", {} in {}", argument.name(), format!("{register:?}").to_lowercase())?;
                }
                ArgumentLocation::Zero => write!(f, ", {} is 0", argument.name())?,
                ArgumentLocation::Lost => write!(f, ", {} not readable", argument.name())?,
            }
        }
        f.write_str(if self.return_probe { ", with a return probe" } else { ", no return probe" })
    }
}

/// Why a plan has the points that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every call passes exactly one of the points, all of them on emulated instructions.
    Proven,
    /// The paths through the function are not clear.
    Unclear(Unclear),
    /// There are no emulated instructions that every call passes exactly once while all needed arguments can still be
    /// read.
    NoPoints {
        /// Whether there are such instructions if `ud` need not be readable ([`Need::AllButUserData`]).
        for_want_of_user_data: bool,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proven => {
                f.write_str("every call passes exactly one of these instructions, which the kernel emulates")
            }
            Self::Unclear(unclear) => write!(f, "at its entry, since {unclear}"),
            Self::NoPoints { for_want_of_user_data: true } => f.write_str(
                "at its entry, since ud is overwritten before the first instruction that the kernel emulates",
            ),
            Self::NoPoints { for_want_of_user_data: false } => f.write_str(
                "at its entry, since no instructions that the kernel emulates are passed exactly once in every call \
                 while the arguments and the return address are in place",
            ),
        }
    }
}

/// Where the probes of one allocator go. Every call passes exactly one of the points, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePlan {
    /// The address of the allocator's first byte.
    pub start: u64,
    /// The points, by offset.
    pub points: Vec<ProbePoint>,
    /// Why the plan has these points.
    pub reason: Reason,
}

impl fmt::Display for ProbePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "probes on the allocator at {:#x}: {}", self.start, self.reason)?;
        self.points.iter().try_for_each(|point| write!(f, "\n  {point}"))
    }
}

/// Plans the probes for an allocator (`lua_Alloc`) that has the bytes `code` at `start`.
///
/// `code` must be the whole function and nothing else: a point in another function would also see the other callers of
/// that function. If `code` is cut short, the plan is the function's entry. Where both are possible, a plan with
/// [`Need::All`] is as cheap as one without `ud`, so try that first.
pub fn plan(code: &[u8], start: u64, need: Need) -> ProbePlan {
    let (points, reason) = match Flow::of(code) {
        Ok(flow) => match choose::choose(code, &flow, need) {
            Some(offsets) => {
                let states = offsets.iter().filter_map(|&offset| Some((offset, flow.node(offset)?.state.as_ref()?)));
                (states.map(|(offset, state)| ProbePoint::new(code, offset, state)).collect(), Reason::Proven)
            }
            None => {
                let for_want_of_user_data =
                    need == Need::All && choose::choose(code, &flow, Need::AllButUserData).is_some();
                (Vec::new(), Reason::NoPoints { for_want_of_user_data })
            }
        },
        Err(unclear) => (Vec::new(), Reason::Unclear(unclear)),
    };
    let points = if points.is_empty() { vec![ProbePoint::new(code, 0, &ArgumentState::entry())] } else { points };
    ProbePlan { start, points, reason }
}

impl ProbePlan {
    /// Whether every point is on an instruction that the kernel emulates.
    pub fn is_cheap(&self) -> bool {
        self.points.iter().all(|point| point.emulated)
    }
}

impl ArgumentLocation {
    /// The register, if the argument is in one.
    pub fn register(self) -> Option<Register> {
        match self {
            Self::Register(register) => Some(register),
            Self::Zero | Self::Lost => None,
        }
    }
}
