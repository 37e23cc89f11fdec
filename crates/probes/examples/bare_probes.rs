//! Inserts probes on a process's allocators that do less than lj-trace's own. `cargo xtask bench memprof` compares with
//! them, and builds this example with programs that only a benchmark has.
//!
//! `bare_probes PID empty|recording|attributing` prints `attached in` on standard error, reads the probes' records, and
//! continues until the process ends.

use std::error::Error;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use lj_trace_luajit::find_vms;
use lj_trace_probes::allocator::{AllocationProbes, Handlers};
use lj_trace_probes::guardian;
use lj_trace_probes::programs::{Programs, Wanted};
use lj_trace_process::Process;

/// As often as lj-trace reads them.
const INTERVAL: Duration = Duration::from_millis(10);

/// The probes with this name.
fn handlers(name: &str) -> Option<Handlers> {
    match name {
        // They do nothing: what remains is the least cost of probes at these instructions.
        "empty" => Some(Handlers { session: None, separate: Some(["empty_called", "empty_returned"]) }),
        // They record only what every event needs, without finding the caller.
        "recording" => Some(Handlers { session: Some("recording_session"), separate: None }),
        // The same, and they read what is needed to find the caller.
        "attributing" => Some(Handlers { session: Some("attributing_session"), separate: None }),
        _ => None,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, name] = &arguments[..] else {
        return Err("which probes, in which process? `bare_probes PID PROBES`".into());
    };
    let handlers = handlers(name).ok_or("there are empty, recording and attributing probes")?;
    let began = Instant::now();
    guardian::start()?;
    let process = Process::open(pid.parse()?)?;
    let maps = process.maps()?;
    let vms = find_vms(&process, &maps)?;
    let configs: Vec<_> = vms.iter().map(|vm| vm.config()).collect();
    let mut programs = Programs::load(Wanted { memory: true, ..Wanted::nothing() }, &configs)?;
    let mut probes = AllocationProbes::attach(&mut programs, &process, &maps, &vms, handlers)?;
    eprintln!("attached in {:?}", began.elapsed());
    let mut records = 0;
    while process.is_alive() {
        records += probes.drain(usize::MAX, |_| ControlFlow::Continue(()));
        thread::sleep(INTERVAL);
    }
    println!("{records} records");
    Ok(())
}
