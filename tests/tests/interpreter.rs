//! What the machine code of real interpreters tells: it has room in what the probes know, and at each of its
//! instructions the Lua stack is found.

use anyhow::{Context as _, Result, ensure};
use lj_trace_common::arch::STACK_AT_FRAME;
use lj_trace_common::vm::VmEdges;
use lj_trace_luajit::find_vms;
use lj_trace_process::Process;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::stepping::step_through;
use lj_trace_tests::workload::{SERVICE, STEPPING, Workload};

#[test]
fn all_places_where_base_is_elsewhere_have_room() -> Result<()> {
    for name in [LUAJIT, LUAJIT2, TARANTOOL] {
        let Some(program) = Program::find(name) else { continue };
        let workload = Workload::start(&program, SERVICE, &[])?;
        let process = Process::open(workload.pid())?;
        let vms = find_vms(&process, &process.maps()?)?;
        let text = &vms.first().context("no VM")?.text;
        let (edges, none) = (&text.edges, VmEdges::NONE);
        // Where C functions preserve BASE's register, they need no ranges, but making and dropping frames does.
        let (least, moves) = if STACK_AT_FRAME { (1, 1) } else { (3, 0) };
        let places = [
            (&edges.base_in_state, none.base_in_state.len(), least),
            (&edges.base_kept, none.base_kept.len(), least),
            (&edges.frame_left, none.frame_left.len(), moves),
            (&edges.pc_elsewhere, none.pc_elsewhere.len(), moves),
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

/// At how many places the stack must have been certain, and of the instructions of C functions one in how many is looked
/// at.
const PLACES: (u64, u64) = (200, 64);

#[test]
fn the_lua_stack_is_found_at_each_instruction() -> Result<()> {
    for name in [LUAJIT, LUAJIT2] {
        let Some(program) = Program::find(name) else { continue };
        let mut workload = Workload::start(&program, STEPPING, &[])?;
        workload.go()?;
        let outcome = step_through(workload.pid(), PLACES.0, PLACES.1)?;
        outcome.notes.iter().for_each(|note| println!("{note}"));
        let sum = outcome.sum();
        println!("{name}: {} places, {sum:?}", outcome.places.len());
        ensure!(outcome.certain >= PLACES.0 && outcome.places.len() > 300, "{name}: too little was seen");
        let all = sum.right + sum.marked + sum.wrong;
        ensure!(sum.native == 0, "{name}: {sum:?}");
        ensure!(sum.marked <= all / 200, "{name}: {sum:?}");
        // On x86-64, `pcall` is missing in some instructions of its own, before it calls its argument.
        ensure!(sum.wrong <= if STACK_AT_FRAME { 0 } else { all / 200 }, "{name}: {sum:?}");
        workload.kill()?;
    }
    Ok(())
}
