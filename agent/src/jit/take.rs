//! Takes it: watches for a while, and then reads all.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lj_trace_luajit::jit::{AbortWatch, JitReport};
use lj_trace_luajit::status::VmSummary;
use lj_trace_luajit::{Vm, VmStatus, prove_again};
use lj_trace_process::{Process, TargetError};

use super::{JitDump, VmJit};

/// Between two readings of the penalties, of which each takes some µs.
const BETWEEN_READINGS: Duration = Duration::from_millis(1);

/// So long a VM's heap is looked through for functions.
const HEAP_LIMIT: Duration = Duration::from_secs(2);

/// Looks at `vms` of `process`, after watching them for `duration`.
///
/// # Errors
/// [`TargetError`] if the process cannot be looked at, or is gone.
pub fn take(process: &Process, mut vms: Vec<Vm>, duration: Option<Duration>) -> Result<JitDump, TargetError> {
    let began = Instant::now();
    let watches = duration.map_or_else(Vec::new, |duration| watch(process, &vms, duration));
    let watched = began.elapsed();
    let (memory, maps) = (process.memory(), process.maps()?);
    let began = Instant::now();
    let mut shown = Vec::with_capacity(vms.len());
    for (index, vm) in vms.iter_mut().enumerate() {
        // What it has compiled since it was found may decide where the rest lies.
        if vm.leaves_traces_open()
            && let Ok(proven) = prove_again(process, &maps, vm)
        {
            *vm = proven;
        }
        let watch = watches.get(index).and_then(Option::as_ref);
        let jit_compiler = JitReport::read(&memory, &maps, vm, HEAP_LIMIT, watch);
        let status = VmStatus::read(&memory, vm).ok();
        let summary =
            VmSummary { traces: jit_compiler.traces.len(), ..VmSummary::read(&memory, &maps, vm, status.as_ref()) };
        shown.push(VmJit { summary, jit_compiler });
    }
    Ok(JitDump {
        pid: process.pid(),
        command: process.command(),
        vms: shown,
        watched_seconds: duration.map(|_| watched.as_secs_f64()),
        milliseconds: began.elapsed().as_secs_f64() * 1000.0,
    })
}

/// Watches all VMs that show their penalties, until the time is over or the process ends.
fn watch(process: &Process, vms: &[Vm], duration: Duration) -> Vec<Option<AbortWatch>> {
    let (memory, began) = (process.memory(), Instant::now());
    let mut watches: Vec<Option<AbortWatch>> = vms.iter().map(|vm| AbortWatch::start(&memory, vm).ok()).collect();
    while began.elapsed() < duration {
        sleep(BETWEEN_READINGS);
        let mut any = false;
        for (vm, watch) in vms.iter().zip(&mut watches) {
            let Some(watch) = watch else { continue };
            any |= watch.look(&memory, vm).is_ok();
        }
        if !any && !process.is_alive() {
            break;
        }
    }
    watches
}
