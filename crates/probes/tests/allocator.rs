//! The allocator of a running LuaJIT: finds it, and plans its probes.
//!
//! The interpreter is `luajit`, or the one named by `$LUAJIT`.

use std::io::Read as _;
use std::process::{Command, Stdio};

use lj_trace_common::memory::ReadMemory as _;
use lj_trace_luajit::find_vms;
use lj_trace_probes::plan::function::MachineFunction;
use lj_trace_probes::plan::{Need, plan};
use lj_trace_process::Process;

use crate::{alone, skips};

#[test]
fn plans_cheap_probes_on_a_running_vm() {
    let _alone = alone();
    let luajit = std::env::var_os("LUAJIT").unwrap_or_else(|| "luajit".into());
    let script = "io.write('ready') io.flush() io.read()";
    let child = Command::new(&luajit).args(["-e", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            skips::skip_without("luajit", &format!("{} cannot be run ({error})", luajit.display()));
            return;
        }
    };
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();

    let process = Process::open(child.id()).unwrap();
    let maps = process.maps().unwrap();
    let vm = find_vms(&process, &maps).unwrap().remove(0);
    let field = vm.global + u64::from(vm.layout.g_allocf);
    // A function pointer has 64 bits in every build.
    let address = process.memory().read(field).unwrap();
    let function = MachineFunction::find(&process, &maps, address).unwrap();
    assert_eq!(process.memory().read_bytes(function.address, function.code.len()).unwrap(), function.code);
    let plan = plan(&function.code, function.address, Need::AllButUserData);
    eprintln!("{} +{:#x}, {} bytes\n{plan}", function.path, function.file_offset, function.code.len());
    assert!(plan.is_cheap(), "{plan}");

    child.kill().unwrap();
    child.wait().unwrap();
}
