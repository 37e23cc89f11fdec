//! `cargo xtask bench heap`: for how long a process stands still while its heap is copied, and what that takes: a table
//! whose keys are objects of the FFI, a list, and a gigabyte of tables and strings.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::table::{Table, verdict};
use crate::heap::HeapView;
use crate::programs::Program;
use crate::standstill::{MORE, watch};
use crate::tracer::binary;
use crate::usage::used_by;
use crate::workload::Workload;

/// The workloads: their names, the scripts, and the arguments.
const WORKLOADS: [(&str, &str, &[&str]); 3] = [
    ("2 M cdata keys", "heap_keys.lua", &["2000000"]),
    ("list of 5 M nodes", "heap_keys.lua", &["0", "5000000"]),
    ("1 GB", "heap_big.lua", &["1000"]),
];

/// How much may be read, in parts of the resident memory.
const MOST_READ: f64 = 1.2;

const MB: f64 = 1e6;

/// Takes snapshots of each workload on each program, which may be stopped for each of these times, and prints what came
/// out.
///
/// # Errors
/// If a workload or lj-trace fails.
pub fn heap(deadlines: &[Duration], programs: &[Program]) -> Result<()> {
    let head = ["", "may stop", "stopped", "seen", "late", "exact", "RSS MB", "read/RSS", "in all", "CPU", "peak MB"];
    let mut table = Table::new(head);
    let (mut longest, mut most_read) = (0.0_f64, 0.0_f64);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("heap.json");
    for program in programs {
        for (name, script, arguments) in WORKLOADS {
            let workload = Workload::start(program, script, arguments)?;
            for &deadline in deadlines {
                let mut command = Command::new(binary());
                let pause = format!("--pause={}ms", deadline.as_millis());
                command.args(["heap", "--json", &pause, "--pid", &workload.pid().to_string()]);
                let (used, seen) = watch(workload.pid(), || used_by(&mut command, &file));
                let used = used?;
                let heap = HeapView::parse(&std::fs::read_to_string(&file)?)?;
                let stopped = Duration::from_secs_f64(heap.paused.context("it was not stopped")? / 1e3);
                let share = heap.bytes_read as f64 / heap.rss as f64;
                let over = stopped.max(seen.stood).as_secs_f64() - deadline.as_secs_f64();
                (longest, most_read) = (longest.max(over), most_read.max(share));
                table.row([
                    format!("{}: {name}", program.name),
                    format!("{deadline:?}"),
                    format!("{stopped:.1?}"),
                    format!("{:.1?}", seen.stood),
                    format!("{:.1?}", seen.late),
                    if heap.went_on { "no" } else { "yes" }.to_owned(),
                    format!("{:.0}", heap.rss as f64 / MB),
                    format!("{share:.3}"),
                    format!("{:.1} s", heap.milliseconds / 1e3),
                    format!("{:.1} s", used.cpu),
                    format!("{:.0}", used.memory as f64 / MB),
                ]);
            }
        }
    }
    table.print();
    println!();
    let (asked, over) = (format!("<= {MORE:?}"), format!("{:.1} ms", longest.max(0.0) * 1e3));
    verdict("stopped for longer than it may", &asked, &over, longest <= MORE.as_secs_f64());
    let asked = format!("<= {MOST_READ}");
    verdict("bytes read / RSS", &asked, &format!("{most_read:.3}"), most_read <= MOST_READ);
    Ok(())
}
