//! What the machine code of real interpreters tells: all of it has room in what the probes know.

use anyhow::{Context as _, Result, ensure};
use lj_trace_common::vm::VmEdges;
use lj_trace_luajit::find_vms;
use lj_trace_process::Process;
use lj_trace_tests::programs::{LUAJIT, LUAJIT2, Program, TARANTOOL};
use lj_trace_tests::workload::{SERVICE, Workload};

#[test]
fn all_places_where_base_is_elsewhere_have_room() -> Result<()> {
    for name in [LUAJIT, LUAJIT2, TARANTOOL] {
        let Some(program) = Program::find(name) else { continue };
        let workload = Workload::start(&program, SERVICE, &[])?;
        let process = Process::open(workload.pid())?;
        let vms = find_vms(&process, &process.maps()?)?;
        let text = &vms.first().context("no VM")?.text;
        let places = [&text.edges.base_in_state, &text.edges.base_kept];
        let room = [VmEdges::NONE.base_in_state.len(), VmEdges::NONE.base_kept.len()];
        println!("{name}: {} and {} ranges", places[0].len(), places[1].len());
        for (ranges, room) in places.into_iter().zip(room) {
            ensure!((3..=room).contains(&ranges.len()), "{name}: {} ranges, and room for {room}", ranges.len());
            for range in ranges {
                ensure!(range.start < range.end && range.end - range.start < 128, "{name}: {range:x?}");
                ensure!(text.range.contains(&range.start) && text.range.contains(&range.end), "{name}: {range:x?}");
            }
        }
    }
    Ok(())
}
