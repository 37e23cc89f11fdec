//! Prints the VMs of a process: `cargo run -p lj-trace-luajit --example vms -- PID`.

use std::error::Error;

use lj_trace_luajit::{VmStatus, find_vms};
use lj_trace_process::Process;

fn main() -> Result<(), Box<dyn Error>> {
    let pid = std::env::args().nth(1).ok_or("which process? `vms PID`")?.parse()?;
    let process = Process::open(pid)?;
    for vm in find_vms(&process, &process.maps()?)? {
        let status = VmStatus::read(&process.memory(), &vm)?;
        println!("VM at {:#x}, built like {}: {status:?}", vm.global, vm.builds.join("; "));
    }
    Ok(())
}
