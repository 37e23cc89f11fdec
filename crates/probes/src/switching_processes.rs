//! The processes whose context switches and turns are recorded: their table, and the filter in front of it.

use aya::Ebpf;
use aya::maps::{Array, HashMap};
use lj_trace_common::off_cpu::{OffCpuProcess, filter_bit};

use super::set::map_mut;

const PROCESSES: &str = "OFF_CPU_PROCESSES";
const FILTER: &str = "OFF_CPU_FILTER";

/// Starts recording a process.
///
/// # Errors
/// The kernel refuses.
pub(super) fn add(ebpf: &mut Ebpf, pid: u32, process: &OffCpuProcess) -> anyhow::Result<()> {
    HashMap::<_, u32, OffCpuProcess>::try_from(map_mut(ebpf, PROCESSES)?)?.insert(&pid, process, 0)?;
    write_filter(ebpf, pid)
}

/// Stops recording a process, if it was recorded.
///
/// # Errors
/// The kernel refuses.
pub(super) fn remove(ebpf: &mut Ebpf, pid: u32) -> anyhow::Result<()> {
    HashMap::<_, u32, OffCpuProcess>::try_from(map_mut(ebpf, PROCESSES)?)?.remove(&pid)?;
    write_filter(ebpf, pid)
}

/// Writes the filter word that contains this process's bit, according to the table.
fn write_filter(ebpf: &mut Ebpf, pid: u32) -> anyhow::Result<()> {
    let word = filter_bit(pid).0;
    let processes = HashMap::<_, u32, OffCpuProcess>::try_from(map_mut(ebpf, PROCESSES)?)?;
    let of_word = processes.keys().filter_map(Result::ok).map(filter_bit).filter(|(of, _)| *of == word);
    let bits = of_word.fold(0, |bits, (_, bit)| bits | bit);
    Ok(Array::<_, u64>::try_from(map_mut(ebpf, FILTER)?)?.set(word, &bits, 0)?)
}
