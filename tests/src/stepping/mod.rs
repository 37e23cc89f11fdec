//! Stops a program after every instruction of its interpreter, and holds what lj-trace sees there against what the
//! interpreter itself relies on.
//!
//! Each bytecode and each fast function begins with BASE and PC in their registers ([`ins_callt`], `ins_NEXT`): there the
//! Lua stack is certain. Between two such places it is that of the first, that of the second, or one in which a function
//! of the first has returned already, or one that the second has left has not returned yet.
//!
//! [`ins_callt`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L257-L272

mod seen;
mod stops;

use std::collections::{BTreeMap, HashSet};
use std::ops::AddAssign;

use anyhow::{Context as _, Result};
use lj_trace_common::event::{SampledRegisters, reg};
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_luajit::{Vm, find_vms};
use lj_trace_process::Process;

use seen::Reader;
use stops::Stepper;

/// How many words of the dispatch table are looked at: it has some 250, and what follows points not into the
/// interpreter.
const DISPATCH: u64 = 400;

/// A Lua frame: its BASE and its function.
pub type Place = (u64, u64);

/// What lj-trace says of one stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The whole Lua stack, innermost frame first, and whether the native one is complete as well.
    Known(Vec<Place>, bool),
    /// Why it is not known.
    Marked(String),
}

/// A stop that waits for the next place where the stack is certain.
struct Stop {
    /// The offset in the interpreter: of the instruction, or of where the called function returns to.
    at: u64,
    is_return: bool,
    answer: Answer,
    about: String,
}

/// What came of the stops at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Where the stack is known, and right.
    pub right: u64,
    /// Where it says that something is missing.
    pub marked: u64,
    /// Where the native stack is not complete.
    pub native: u64,
    /// Where the stack is wrong.
    pub wrong: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, more: Self) {
        self.right += more.right;
        self.marked += more.marked;
        self.native += more.native;
        self.wrong += more.wrong;
    }
}

/// What came of all stops.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// By offset in the interpreter, and whether a C function will return there.
    pub places: BTreeMap<(u64, bool), Count>,
    /// Some of the stops that were wrong or marked.
    pub notes: Vec<String>,
    /// How many certain places were met.
    pub certain: u64,
}

/// Steps through a program's interpreter until it has been at so many places where the stack is certain, or has run so many
/// instructions. Of the instructions of C functions, one in `every` is looked at.
///
/// # Errors
/// The program has no VM, or ends.
pub fn step_through(pid: u32, (places, instructions): (u64, u64), every: u64) -> Result<Outcome> {
    let process = Process::open(pid)?;
    let maps = process.maps()?;
    let vm = find_vms(&process, &maps)?.into_iter().next().context("no VM")?;
    let handlers = handlers(&process, &vm)?;
    let mut stepper = Stepper::seize(pid)?;
    let mut reader = Reader::new(&process, &maps, &vm);
    let mut outcome = Outcome::default();
    let mut before: Option<Vec<Place>> = None;
    let mut waiting: Vec<Stop> = Vec::new();
    let (mut in_c, mut frame, mut was_left) = (0, u64::MAX, false);
    for _ in 0..instructions {
        if outcome.certain >= places {
            break;
        }
        let registers = stepper.registers()?;
        let pc = registers[reg::PC];
        let in_text = vm.text.range.contains(&pc);
        was_left |= registers[reg::SP] > frame;
        in_c = if in_text { 0 } else { in_c + 1 };
        let is_certain = handlers.contains(&pc);
        let certain = if is_certain { reader.certain(&registers) } else { None };
        if (in_text || in_c < 4 || in_c % every == 0)
            && let Some((answer, return_address)) = reader.look(&registers)
        {
            let place = if in_text { Some((pc, false)) } else { return_address.map(|address| (address, true)) };
            if let Some((address, is_return)) = place.filter(|(address, _)| vm.text.range.contains(address)) {
                let at = address - vm.text.range.start;
                let about = about(&registers, &reader);
                waiting.push(Stop { at, is_return, answer, about });
            }
        }
        if let Some(now) = certain {
            outcome.certain += 1;
            let last = waiting.len().saturating_sub(1);
            for (index, stop) in waiting.drain(..).enumerate() {
                // What is certain here was not so for the stops before.
                let is_right = |stack: &[Place]| {
                    if index == last {
                        stack == now
                    } else {
                        before.as_deref().is_none_or(|before| is_between(stack, before, &now, was_left))
                    }
                };
                outcome.add(&stop, before.as_deref(), &now, is_right);
            }
            before = Some(now);
            (frame, was_left) = (registers[reg::SP], false);
        }
        if !stepper.step()? {
            break;
        }
    }
    Ok(outcome)
}

impl Outcome {
    /// The sum over all places.
    pub fn sum(&self) -> Count {
        self.places.values().fold(Count::default(), |mut sum, count| {
            sum += *count;
            sum
        })
    }

    fn add(&mut self, stop: &Stop, before: Option<&[Place]>, now: &[Place], is_right: impl Fn(&[Place]) -> bool) {
        let count = self.places.entry((stop.at, stop.is_return)).or_default();
        let verdict = match &stop.answer {
            Answer::Marked(reason) => {
                count.marked += 1;
                Some(format!("marked: {reason}"))
            }
            Answer::Known(stack, native) => {
                count.native += u64::from(!native);
                if is_right(stack) {
                    count.right += 1;
                    None
                } else {
                    count.wrong += 1;
                    Some(format!("wrong: {stack:x?}"))
                }
            }
        };
        if let Some(verdict) = verdict
            && count.marked + count.wrong <= 2
        {
            let (at, kind) = (stop.at, if stop.is_return { "returns to" } else { "at" });
            self.notes.push(format!(
                "{kind} {at:#x}: {verdict}\n    before {:x?}\n    now    {now:x?}\n    {}",
                before.unwrap_or_default(),
                stop.about
            ));
        }
    }
}

/// Whether a stack may be there between two that are certain; `was_left` if the C frame of the first was left meanwhile.
fn is_between(stack: &[Place], before: &[Place], now: &[Place], was_left: bool) -> bool {
    // Frames are left from the innermost on; then new ones are made.
    let common = before.iter().rev().zip(now.iter().rev()).take_while(|(one, other)| one == other).count();
    // A vararg function that ends with a tail call has moved to the lower half of its frame.
    let functions = |stack: &[Place]| -> Vec<u64> { stack.iter().map(|(_, function)| *function).collect() };
    let [stack, before, now] = [stack, before, now].map(functions);
    // The same function may be called again, by a C function that it has returned to.
    let least = common.saturating_sub(usize::from(was_left));
    let is_end_of = |whole: &[u64]| whole.ends_with(&stack) && stack.len() >= least;
    // A coroutine is resumed in the function that has yielded, which then returns; `pcall` may have called it.
    let returns = stack.ends_with(&now) && stack.len() <= now.len() + 2 && before.len() < now.len();
    is_end_of(&before) || is_end_of(&now) || returns
}

/// Where bytecodes and fast functions begin.
fn handlers(process: &Process, vm: &Vm) -> Result<HashSet<u64>> {
    let table = vm.global + u64::from(vm.layout.g_to_dispatch);
    let memory = process.memory();
    let words = (0..DISPATCH).filter_map(|index| memory.read::<u64>(table + 8 * index).ok());
    let handlers: HashSet<u64> = words.filter(|word| vm.text.range.contains(word)).collect();
    (!handlers.is_empty()).then_some(handlers).context("no dispatch table")
}

fn about(registers: &SampledRegisters, reader: &Reader<'_>) -> String {
    let [pc, base, bytecode] = [reg::PC, reg::BASE, reg::BYTECODE_PC].map(|register| registers[register]);
    format!("pc {pc:#x}, BASE {base:#x}, PC {bytecode:#x}, {}", reader.state())
}
