//! What the machine code of real interpreters tells: it has room in what the probes know, and at each of its
//! instructions the Lua stack is found.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use lj_trace_common::arch::{STACK_AT_FRAME, STATE_NAMES_TRACE};
use lj_trace_common::vm::VmEdges;
use lj_trace_luajit::find_vms;
use lj_trace_process::Process;
use lj_trace_tests::chance::of_variance;
use lj_trace_tests::programs::{ALL, Program};
use lj_trace_tests::stepping::{Count, step_through};
use lj_trace_tests::workload::{SERVICE, STEPPING, Workload};

#[test]
fn all_places_where_base_is_elsewhere_have_room() -> Result<()> {
    for name in ALL {
        let Some(program) = Program::find(name) else { continue };
        let workload = Workload::start(&program, SERVICE, &[])?;
        let process = Process::open(workload.pid())?;
        let vms = find_vms(&process, &process.maps()?)?;
        let text = &vms.first().context("no VM")?.text;
        let (edges, none) = (&text.edges, VmEdges::NONE);
        // Where C functions preserve BASE's register, they need no ranges. Where BASE moves at once, PC does as well.
        let (least, moves) = if STACK_AT_FRAME { (1, 1) } else { (3, 0) };
        // Where the state names the trace, it is set by the trace itself.
        let beside = usize::from(!STATE_NAMES_TRACE);
        let places = [
            (&edges.base_in_state, none.base_in_state.len(), least),
            (&edges.base_kept, none.base_kept.len(), least),
            (&edges.results_stored, none.results_stored.len(), 1),
            (&edges.frame_left, none.frame_left.len(), moves),
            (&edges.pc_elsewhere, none.pc_elsewhere.len(), moves),
            (&edges.beside_traces, none.beside_traces.len(), beside),
            (&edges.before_fetch, none.before_fetch.len(), beside),
        ];
        for (ranges, room, least) in places {
            println!("{name}: {} ranges", ranges.len());
            ensure!((least..=room).contains(&ranges.len()), "{name}: {} ranges, and room for {room}", ranges.len());
            for range in ranges {
                ensure!(range.start < range.end && range.end - range.start < 128, "{name}: {range:x?}");
                ensure!(text.range.contains(&range.start) && text.range.contains(&range.end), "{name}: {range:x?}");
            }
        }
    }
    Ok(())
}

/// The kinds of work of `stepping.lua` without traces.
const WORKS: [&str; 10] = [
    "arithmetic",
    "calls",
    "coroutines",
    "foreign",
    "functions",
    "garbage",
    "library",
    "metamethods",
    "protected",
    "tables",
];

/// The kind of work that enters and leaves traces. Where the state names the trace, nothing more is to be seen there.
const TRACES: Option<&str> = if STATE_NAMES_TRACE { None } else { Some("traces") };

/// Of the instructions of C functions, one in how many is looked at.
const EVERY: u64 = 64;

/// How often each kind of work is met at most, until enough was seen.
const ROUNDS: u32 = 4;

/// Whether so many certain places, and so many places in the interpreter, are enough to judge by.
fn is_enough(certain: u64, places: usize) -> bool {
    certain > 60 && places > 300
}

/// Steps through each kind of work, from wherever it is, until the stack was certain at so many places, or it has run so
/// many instructions.
///
/// One in 200 stops may be marked, and what `chance` makes of so many.
fn step_through_works(most: (u64, u64), chance: impl Fn(f64) -> f64) -> Result<()> {
    for name in ALL {
        let Some(program) = Program::find(name) else { continue };
        let (mut sum, mut certain) = (Count::default(), 0);
        let mut seen = BTreeSet::new();
        // Where each is met is chance: it may be in a long C function.
        let rounds = (0..ROUNDS).flat_map(|round| WORKS.into_iter().chain(TRACES).map(move |work| (round, work)));
        for (round, work) in rounds {
            if round > 0 && is_enough(certain, seen.len()) {
                break;
            }
            let mut workload = Workload::start(&program, STEPPING, &[work])?;
            workload.go()?;
            let outcome = step_through(workload.pid(), most, EVERY)?;
            outcome.notes.iter().for_each(|note| println!("{work} {note}"));
            certain += outcome.certain;
            sum += outcome.sum();
            seen.extend(outcome.places.into_keys());
            workload.kill()?;
        }
        println!("{name}: {} places, {sum:?}", seen.len());
        ensure!(is_enough(certain, seen.len()), "{name}: too little was seen: {certain} certain");
        ensure!(sum.native == 0 && sum.wrong == 0, "{name}: {sum:?}");
        let expected = (sum.right + sum.marked) as f64 / 200.0;
        ensure!(sum.marked as f64 <= expected + chance(expected), "{name}: {sum:?}");
    }
    Ok(())
}

#[test]
fn the_lua_stack_is_found_at_each_instruction() -> Result<()> {
    /// Metamethods of C data are tail calls: some 25 stops each are marked, without GC64. `stepping.lua` has five in a row.
    const IN_A_ROW: f64 = 125.0;
    // Each program is met somewhere in its work. So these stops are one event, which counts that often.
    step_through_works((20, 8_000), |expected| of_variance(IN_A_ROW * expected))
}

#[test]
#[ignore = "takes minutes: every instruction of whole rounds"]
fn the_lua_stack_is_found_at_each_instruction_of_whole_rounds() -> Result<()> {
    step_through_works((500, 1_000_000), |_| 0.0)
}
