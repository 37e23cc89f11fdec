//! What the program for thread switches adds to a switch, without the rest of lj-trace: CPU time of a workload that switches
//! all the time, in short stretches with the program and without it, in turns.

use anyhow::{Context as _, Result};
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf, EbpfLoader};
use lj_trace_common::off_cpu::{DEFAULT_THRESHOLD, OffCpuProcess};
use lj_trace_probes::{kernel_places, object, switching_processes};

use super::off_cpu::{empty_program, for_seconds};
use super::slowdown::Losses;
use super::work::{Spent, Work};
use crate::workload::Workload;

/// How long each stretch is, in seconds.
const STRETCH: f64 = 0.04;

/// What a program adds to a switch, in nanoseconds of CPU time, and by how much that may be off.
pub struct Added {
    /// Which program.
    pub name: &'static str,
    /// What it adds.
    pub added: f64,
    /// The error of that, in 19 of 20 cases.
    pub error: f64,
    /// The share of the workload's CPU time, and its error.
    pub share: (f64, f64),
}

/// Who is recorded.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Empty,
    Another,
    Own,
}

/// Measures it in so many rounds.
///
/// # Errors
/// If the kernel refuses the program, or the workload fails.
pub fn added(workload: &mut Workload, rounds: u32) -> Result<Vec<Added>> {
    let types = Btf::from_sys_fs()?;
    let mut ebpf = load(&types)?;
    let pid = workload.pid();
    let kinds = [
        (Kind::Empty, "an empty program"),
        (Kind::Another, "a switch of another process"),
        (Kind::Own, "a switch of the recorded process"),
    ];
    let mut losses = [const { Vec::new() }; 3];
    let mut bare = for_seconds(workload, STRETCH)?;
    let (mut time, mut count) = (0.0, 0.0);
    for round in 0..rounds as usize {
        for index in 0..kinds.len() {
            let index = (index + round) % kinds.len();
            let kind = kinds[index].0;
            let during = if kind == Kind::Empty {
                let _held = empty_program()?;
                for_seconds(workload, STRETCH)?
            } else {
                record(&mut ebpf, pid, kind == Kind::Own)?;
                let program: &mut BtfTracePoint =
                    ebpf.program_mut("off_cpu_switch").context("no program")?.try_into()?;
                let link = program.attach()?;
                let during = for_seconds(workload, STRETCH);
                program.detach(link)?;
                during?
            };
            let after = for_seconds(workload, STRETCH)?;
            let spent = after.kinds.get("switch").context("no switches")?;
            (time, count) = (time + spent.cpu, count + spent.turns);
            losses[index].push([bare, during, after.clone()]);
            bare = after;
        }
    }
    let switch = time / count * 1e9;
    let of = |(index, (_, name)): (usize, &(Kind, &'static str))| {
        let mut own = Losses::default();
        losses[index].iter().for_each(|three: &[Work; 3]| own.add(three, |spent: &Spent| spent.cpu));
        let (mean, error) = own.trimmed();
        // A share of the time with the program.
        let (added, slope) = (mean / (1.0 - mean), 1.0 / (1.0 - mean).powi(2));
        Added { name, added: added * switch, error: error * slope * switch, share: (mean, error) }
    };
    Ok(kinds.iter().enumerate().map(of).collect())
}

fn load(types: &Btf) -> Result<Ebpf> {
    let mut bytes = object::object()?.to_vec();
    kernel_places::fill_in(&mut bytes)?;
    let mut ebpf = EbpfLoader::new().load(&bytes)?;
    let program: &mut BtfTracePoint = ebpf.program_mut("off_cpu_switch").context("no program")?.try_into()?;
    program.load("sched_switch", types)?;
    Ok(ebpf)
}

/// Has a process recorded, or not.
fn record(ebpf: &mut Ebpf, pid: u32, is_wanted: bool) -> Result<()> {
    // An error means that it was not recorded.
    let _ = switching_processes::remove(ebpf, pid);
    if is_wanted {
        let process = OffCpuProcess { threshold: DEFAULT_THRESHOLD, pid, ..OffCpuProcess::default() };
        switching_processes::add(ebpf, &process)?;
    }
    Ok(())
}
