//! Tarantool's fibers: where they are, and what a sample says about the one that ran.

mod proof;
mod ring;
mod stacks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lj_trace_common::fiber::{FiberLayout, FiberMarks, FiberState, NAME_WORDS};
use lj_trace_common::memory::ReadMemory;
use lj_trace_text::untrusted;

use crate::arch::FiberSelf;
use crate::names::BoundedNames;
use crate::outcome::{RequestOutcome, Unlabelled};
use crate::{RunningFiber, ServedRequest};
use proof::{ProvenFibers, Unproven, prove};
use stacks::FiberStacks;

/// The function of Tarantool that returns the current fiber. Modules in C call it by this name.
const FIBER_SELF: &str = "fiber_self";

/// How often to try to prove the places at once, since the program may change its fibers meanwhile.
const ATTEMPTS: usize = 10;

/// The time from one unsuccessful proof to the next, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// See [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What a fiber without a name is called.
const UNNAMED: &str = "[no name]";

/// Conditions besides the fiber itself that decide whether its labels are right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiberCircumstances {
    /// Whether a Lua function is on the stack.
    pub runs_lua: bool,
    /// Whether the fiber's name is being changed.
    pub is_being_named: bool,
    /// Whether it is another thread than the main one, whose fibers are not looked for.
    pub is_other_thread: bool,
}

/// The fibers of the main thread of one process.
#[derive(Debug, Default)]
pub struct Fibers {
    /// Where a thread finds its fiber, if the program has fibers and the code says so.
    own: Option<FiberSelf>,
    proven: Option<ProvenFibers>,
    /// Why nothing is proven, if the program has fibers.
    why_not: Option<&'static str>,
    /// When to try again, and how long to wait then.
    again: Option<(Instant, Duration)>,
    stacks: FiberStacks,
    names: BoundedNames,
}

impl Fibers {
    /// Looks for fibers. `function` returns the address of a native function by its name.
    pub fn find(memory: &impl ReadMemory, function: impl FnOnce(&str) -> Option<u64>) -> Self {
        let Some(address) = function(FIBER_SELF) else { return Self::default() };
        // The code of one line of C is much shorter than this.
        let code = memory.read::<[u8; 64]>(address).ok();
        let own = code.and_then(|code| FiberSelf::read(memory, &code, address));
        let why_not = match own {
            Some(_) => "nobody has looked for them yet",
            None => "the code of the function that tells the current fiber is not understood",
        };
        Self { own, why_not: Some(why_not), ..Self::default() }
    }

    /// Whether the program has fibers.
    pub fn are_there(&self) -> bool {
        self.proven.is_some() || self.why_not.is_some()
    }

    /// Why it is not known where fibers have what, if the program has any; [`None`] if it is.
    pub fn why_not(&self) -> Option<&'static str> {
        self.why_not
    }

    /// Where the kernel half has to look, if that is proven.
    pub fn layout(&self) -> Option<FiberLayout> {
        self.proven.map(|proven| proven.layout)
    }

    /// How many samples have a name beyond the limit.
    pub fn others(&self) -> u64 {
        self.names.others()
    }

    /// Tries to prove where fibers have what, if that is not known and it is time to try. Whether it has become known.
    /// `thread_pointer` tells where the main thread has its variables.
    pub fn look(&mut self, memory: &impl ReadMemory, thread_pointer: impl FnOnce() -> Option<u64>) -> bool {
        let Some(own) = self.own.filter(|_| self.proven.is_none()) else { return false };
        if self.again.is_some_and(|(next, _)| Instant::now() < next) {
            return false;
        }
        let pause = self.again.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
        match Self::attempt(memory, own, thread_pointer()) {
            Ok(proven) => (self.proven, self.why_not) = (Some(proven), None),
            Err(Unproven(why)) => {
                (self.why_not, self.again) = (Some(why), Some((Instant::now() + pause, pause)));
            }
        }
        self.proven.is_some()
    }

    fn attempt(memory: &impl ReadMemory, own: FiberSelf, pointer: Option<u64>) -> Result<ProvenFibers, Unproven> {
        let pointer =
            pointer.ok_or(Unproven("its main thread's variables are not found: another C library than glibc"))?;
        let cord = memory.read::<u64>(pointer.wrapping_add(own.variable));
        let cord = cord.ok().filter(|cord| *cord != 0).ok_or(Unproven("its main thread has no fibers yet"))?;
        let mut outcome = Err(Unproven(""));
        for _ in 0..ATTEMPTS {
            outcome = prove(memory, cord, own.fiber);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// What the kernel half would have seen of the fiber with this address in its C stack.
    pub fn of_stack(&mut self, memory: &impl ReadMemory, address: u64) -> FiberMarks {
        let mut marks = FiberMarks::default();
        let Some(proven) = self.proven else { return marks };
        match self.stacks.fiber(memory, &proven, address) {
            Some(fiber) => marks.read_of(memory, &proven.layout, fiber, address),
            None => marks.state = FiberState::OtherStack as u32,
        }
        marks
    }

    /// What is known of the fiber of a sample.
    pub fn resolve(&mut self, marks: &FiberMarks, circumstances: FiberCircumstances) -> RequestOutcome {
        use RequestOutcome::{NoRequest, Not, NotLooked};
        let FiberCircumstances { runs_lua, is_being_named, is_other_thread } = circumstances;
        // A program that was executed before may have been laid out differently.
        let state = self.proven.and_then(|_| FiberState::from_u32(marks.state));
        match state {
            None | Some(FiberState::None) if !runs_lua => NotLooked,
            _ if is_other_thread => Not(Unlabelled::OtherThread),
            None | Some(FiberState::None) => Not(Unlabelled::UnprovenFibers),
            Some(FiberState::Unreadable) => Not(Unlabelled::UnreadableFiber),
            Some(FiberState::Scheduler) if !runs_lua => NoRequest,
            Some(FiberState::Scheduler | FiberState::OtherStack) => Not(Unlabelled::BetweenFibers),
            Some(FiberState::Found) if is_being_named => Not(Unlabelled::BeingNamed),
            Some(FiberState::Found) if marks.id == 0 => Not(Unlabelled::EndedFiber),
            Some(FiberState::Found) => {
                let name = self.names.bounded(&shown(&marks.name));
                let fiber = Some(RunningFiber { name, id: marks.id });
                RequestOutcome::Found(ServedRequest { fiber, ..ServedRequest::default() })
            }
        }
    }
}

/// A name as it is shown: up to the zero at its end. One that goes on is cut after whole characters.
fn shown(words: &[u64; NAME_WORDS]) -> Arc<str> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        return if end == 0 { UNNAMED.into() } else { untrusted::bytes(&bytes[..end]).into() };
    }
    let whole = match std::str::from_utf8(&bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    format!("{}…", untrusted::bytes(&bytes[..whole])).into()
}

#[cfg(test)]
mod tests;
