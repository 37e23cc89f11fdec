//! Turns of event loops: the programs at waits for events, attached once for all processes that share them.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use anyhow::Context as _;
use aya::maps::Array;
use aya::programs::fentry::FEntryLink;
use aya::programs::fexit::FExitLink;
use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{BtfTracePoint, FEntry, FExit, TracePoint};
use aya::{Btf, Ebpf};
use aya_obj::btf::BtfKind;
use lj_trace_common::off_cpu::{OffCpuProcess, OffCpuThread};
use lj_trace_common::turn::{ENDS_AT_TRACEPOINT, EndedTurn, LOOP_WAITS, LoopWait, TURN_ENDED, TurnLengths};
use lj_trace_process::process::thread_state;
use lj_trace_process::{Process, namespace};

use super::arch::SYSTEM_CALL;
use super::error::ProbeError;
use super::off_cpu::{forget_process, forget_threads};
use super::off_cpu_threads;
use super::perf_event::{Attached, attach_to_tracepoint};
use super::programs::Programs;
use super::set::{Set, lock, map_mut};
use super::switching_processes;
use super::tracefs::Tracefs;
use super::turn_cost::{CallTimes, OWN, TurnCost, WaitPrograms};
use super::wanted::Wanted;

/// Which turns are recorded, and what is recorded of them. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// Only turns at least this long are recorded.
    pub over: u64,
    /// Samples and waits are recorded once a turn has lasted this long.
    pub after: u64,
    /// Waits shorter than this are sampled at random.
    pub wait: u64,
}

impl TurnLimits {
    /// The limits to record turns of at least `over` nanoseconds.
    pub fn over(over: u64) -> Self {
        const LEAST: u64 = 1_000_000;
        Self { over: over.max(1), after: (over / 4).max(LEAST), wait: LEAST }
    }
}

/// A program that is attached.
pub(super) enum LoopLink {
    /// At the entry of a system call.
    #[expect(dead_code, reason = "it is only held")]
    Begin(FEntryLink),
    /// At the return of a system call.
    #[expect(dead_code, reason = "it is only held")]
    End(FExitLink),
    /// At the tracepoint of a system call.
    #[expect(dead_code, reason = "it is only held")]
    Call(Attached),
    /// At the entry or the return of all system calls.
    #[expect(dead_code, reason = "it is only held")]
    All(BtfTracePointLink),
    /// At the exit of threads.
    #[expect(dead_code, reason = "it is only held")]
    Exit(BtfTracePointLink),
}

/// Everything that a set has attached.
#[derive(Default)]
pub(super) struct LoopLinks {
    held: Vec<LoopLink>,
    cost: TurnCost,
}

/// A process whose turns are recorded as long as this value lives.
pub struct Turns {
    set: Arc<Set>,
    pid: u32,
    number: u32,
    limits: TurnLimits,
    cost: TurnCost,
}

/// Checks that turns can be recorded from this PID namespace.
///
/// # Errors
/// They cannot, and why.
pub fn check() -> anyhow::Result<()> {
    anyhow::ensure!(
        namespace::is_initial(),
        "lj-trace is in a PID namespace of its own, where numbers of threads are not the kernel's: in a container, give it that \
         of the host (--pid host, hostPID)"
    );
    Ok(())
}

impl Turns {
    /// Prepares to record the turns of `process`: [`begin`](Self::begin) starts it. From now on, ticks count only
    /// within turns.
    ///
    /// # Errors
    /// [`ProbeError::NoTurns`] from within a PID namespace, [`ProbeError::Refused`] if the kernel refuses or has no
    /// BTF.
    pub fn attach(programs: &mut Programs, process: &Process, limits: TurnLimits) -> Result<Self, ProbeError> {
        check().map_err(ProbeError::NoTurns)?;
        let after = u32::try_from(limits.after / 1000).unwrap_or(u32::MAX).max(1);
        programs.change_config(|config| config.turn_after = after).map_err(ProbeError::sort)?;
        let (set, number) = programs.set();
        let cost = attach_once(&set, number).map_err(ProbeError::sort)?;
        let own = Self { set, pid: process.pid(), number, limits, cost };
        own.clear().map_err(ProbeError::sort)?;
        Ok(own)
    }

    /// Starts recording, at `now` in nanoseconds of `CLOCK_MONOTONIC`. A thread's first turn begins when a wait for
    /// events first returns.
    ///
    /// # Errors
    /// [`ProbeError::Refused`] if the kernel does not take it.
    pub fn begin(&self, now: u64) -> Result<(), ProbeError> {
        let TurnLimits { over, after, wait } = self.limits;
        let process =
            OffCpuProcess { began: now, threshold: wait, over, turn_after: after, number: self.number, pid: self.pid };
        let mut ebpf = self.set.ebpf();
        switching_processes::add(&mut ebpf, &process).map_err(ProbeError::sort)
    }

    /// What recording turns costs here: a thread for each turn, and the machine for each system call.
    pub fn cost(&self) -> TurnCost {
        self.cost
    }

    /// The lengths of the turns that have ended so far.
    pub fn lengths(&self) -> TurnLengths {
        let mut ebpf = self.set.ebpf();
        let read = |ebpf: &mut Ebpf| {
            let map = Array::<_, TurnLengths>::try_from(map_mut(ebpf, "TURN_LENGTHS")?)?;
            anyhow::Ok(map.get(&self.number, 0)?)
        };
        read(&mut ebpf).unwrap_or(TurnLengths::EMPTY)
    }

    /// Ends recording: no turn is recorded from here on.
    pub fn end(&self) {
        forget_process(&self.set, self.pid);
    }

    /// The turns that have not ended at `now` but are already too long.
    pub fn under_way(&self, now: u64) -> Vec<EndedTurn> {
        let mut ebpf = self.set.ebpf();
        let is_own = |of: &OffCpuThread| of.process == self.number && of.turn_began != 0;
        let before = off_cpu_threads::of_process(&mut ebpf, self.number).into_iter().filter(|(_, of)| is_own(of));
        let of = |(tid, before): (u32, OffCpuThread)| {
            let state = thread_state(self.pid, tid);
            let of = off_cpu_threads::get(&mut ebpf, tid).filter(is_own)?;
            let (waits, unseen) = off_now(&before, state, &of, now);
            Some(EndedTurn {
                mark: TURN_ENDED,
                number: of.turn,
                began: of.turn_began,
                ended: now,
                waited: of.turn_waited + waits,
                preempted: of.turn_preempted,
                unseen: of.turn_unseen + unseen,
                tid,
                process: self.number,
                exited: 0,
                reserved: 0,
            })
        };
        before.filter_map(of).filter(|turn| turn.length() >= self.limits.over).collect()
    }

    /// Clears what another process with this number may have left.
    fn clear(&self) -> anyhow::Result<()> {
        let mut ebpf = self.set.ebpf();
        let mut map = Array::<_, TurnLengths>::try_from(map_mut(&mut ebpf, "TURN_LENGTHS")?)?;
        Ok(map.set(self.number, &TurnLengths::EMPTY, 0)?)
    }
}

/// For a thread in the middle of a turn: how many nanoseconds of the turn it has been off the CPU at `now`, and for how
/// many nanoseconds this is unknown. `state` is the thread's state; `before` and `after` are what the BPF programs knew
/// before and after the state was read.
///
/// If the programs have the thread off the CPU and it sleeps, it has slept since then. If it runs or is runnable, it
/// may have been woken at any time, or have returned unseen.
fn off_now(before: &OffCpuThread, state: Option<char>, after: &OffCpuThread, now: u64) -> (u64, u64) {
    if after.since <= after.turn_began {
        return (0, 0);
    }
    let off = now.saturating_sub(after.since);
    let sleeps = !matches!(state, None | Some('R'));
    if sleeps && before.since == after.since { (off, 0) } else { (0, off) }
}

impl Drop for Turns {
    fn drop(&mut self) {
        forget_process(&self.set, self.pid);
        forget_threads(&self.set, self.number);
    }
}

/// Attaches the programs, unless they are attached, and measures the cost on waits of lj-trace's own, which count as waits
/// of the process with this number.
fn attach_once(set: &Set, number: u32) -> anyhow::Result<TurnCost> {
    let mut links = lock(&set.loops);
    if !links.held.is_empty() {
        return Ok(links.cost);
    }
    let before = CallTimes::measure();
    let (held, programs) = attach_all(&mut set.ebpf())?;
    links.held = held;
    let pid = std::process::id();
    switching_processes::add(&mut set.ebpf(), &OffCpuProcess { number, pid, ..OWN })?;
    let after = CallTimes::measure();
    forget_process(set, pid);
    forget_threads(set, number);
    links.cost = after.since(before, programs);
    Ok(links.cost)
}

/// Finds out where the programs can be on this machine.
///
/// # Errors
/// The kernel refuses them.
pub fn try_programs() -> anyhow::Result<WaitPrograms> {
    let set = Set::load(Wanted { turns: true, ..Wanted::nothing() }, 0)?;
    let (_, programs) = attach_all(&mut set.ebpf())?;
    Ok(programs)
}

/// Attaches the programs where other system calls lose the least: at the functions of waits; where the kernel does not
/// allow that, at their tracepoints; and where these cannot be found, at all system calls.
fn attach_all(ebpf: &mut Ebpf) -> anyhow::Result<(Vec<LoopLink>, WaitPrograms)> {
    let types = Btf::from_sys_fs().context("the kernel's types")?;
    let mut programs = WaitPrograms::Functions;
    let mut links = at_functions(ebpf, &types);
    if links.is_empty() {
        programs = WaitPrograms::Tracepoints;
        links = at_calls(ebpf).unwrap_or_default();
    }
    if links.is_empty() {
        programs = WaitPrograms::AllCalls;
        links.push(LoopLink::All(at_tracepoint(ebpf, "any_call_ends", "sys_exit", &types)?));
        links.push(LoopLink::All(at_tracepoint(ebpf, "any_call_begins", "sys_enter", &types)?));
    }
    links.push(LoopLink::Exit(at_tracepoint(ebpf, "thread_exits", "sched_process_exit", &types)?));
    Ok((links, programs))
}

/// The kernel's function for a system call; [`None`] if it has none. Without arguments, a call on x86-64 has only one function
/// with two names, of which the kernel's types have one.
fn function_of(call: &str, types: &Btf) -> Option<String> {
    let is_there = |name: &String| types.id_by_type_name_kind(name, BtfKind::Func).is_ok();
    [SYSTEM_CALL, "__do_sys_"].map(|prefix| format!("{prefix}{call}")).into_iter().find(is_there)
}

fn at_functions(ebpf: &mut Ebpf, types: &Btf) -> Vec<LoopLink> {
    let mut links = Vec::new();
    for LoopWait { call, begins, ends, .. } in LOOP_WAITS {
        let Some(function) = function_of(call, types) else { continue };
        // The end goes first: the programs ignore an end without a beginning.
        let both = attach_end(ebpf, ends, &function, types)
            .and_then(|end| Ok([end, attach_begin(ebpf, begins, &function, types)?]));
        // Older kernels lack the newer system calls.
        links.extend(both.into_iter().flatten());
    }
    links
}

/// Attaches the programs to the tracepoints of waits.
///
/// # Errors
/// The kernel has no such tracepoints, lj-trace cannot read their numbers, or the kernel refuses.
fn at_calls(ebpf: &mut Ebpf) -> anyhow::Result<Vec<LoopLink>> {
    let tracefs = Tracefs::open()?;
    let mut links = Vec::new();
    for LoopWait { call, begins_at_tracepoint, .. } in LOOP_WAITS {
        // As with functions, some kernels lack some of them, and the end goes first.
        let Ok(end) = tracefs.number(&format!("sys_exit_{call}")) else { continue };
        let begin = tracefs.number(&format!("sys_enter_{call}"))?;
        for (number, name) in [(end, ENDS_AT_TRACEPOINT), (begin, begins_at_tracepoint)] {
            let program: &mut TracePoint = ebpf.program_mut(name).with_context(|| format!("no {name}"))?.try_into()?;
            if program.fd().is_err() {
                program.load()?;
            }
            links.push(LoopLink::Call(attach_to_tracepoint(number, program.fd()?.as_fd())?));
        }
    }
    Ok(links)
}

fn at_tracepoint(ebpf: &mut Ebpf, name: &str, tracepoint: &str, types: &Btf) -> anyhow::Result<BtfTracePointLink> {
    let program: &mut BtfTracePoint = ebpf.program_mut(name).with_context(|| format!("no {name}"))?.try_into()?;
    program.load(tracepoint, types)?;
    let link = program.attach()?;
    Ok(program.take_link(link)?)
}

fn attach_begin(ebpf: &mut Ebpf, name: &str, function: &str, types: &Btf) -> anyhow::Result<LoopLink> {
    let program: &mut FEntry = ebpf.program_mut(name).with_context(|| format!("no {name}"))?.try_into()?;
    program.load(function, types)?;
    let link = program.attach()?;
    Ok(LoopLink::Begin(program.take_link(link)?))
}

fn attach_end(ebpf: &mut Ebpf, name: &str, function: &str, types: &Btf) -> anyhow::Result<LoopLink> {
    let program: &mut FExit = ebpf.program_mut(name).with_context(|| format!("no {name}"))?.try_into()?;
    program.load(function, types)?;
    let link = program.attach()?;
    Ok(LoopLink::End(program.take_link(link)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_sleeps_since_it_left_the_cpu_waits() {
        let left = |since| OffCpuThread { since, turn_began: 1000, ..OffCpuThread::EMPTY };
        let off = |before, state, after| off_now(&left(before), state, &left(after), 5000);
        assert_eq!(off(0, Some('R'), 0), (0, 0), "it runs");
        assert_eq!(off(900, Some('S'), 900), (0, 0), "before the turn");
        for state in ['S', 'D', 'T'] {
            assert_eq!(off(2000, Some(state), 2000), (3000, 0), "{state}");
            assert_eq!(off(1500, Some(state), 2000), (0, 3000), "{state}: it came back in between");
        }
        for state in [Some('R'), None] {
            assert_eq!(off(2000, state, 2000), (0, 3000), "{state:?}: it may run, unseen");
        }
    }
}
