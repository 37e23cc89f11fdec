//! The processes whose switches and turns count: the table of them, and the filter before it.

use aya::Ebpf;
use aya::maps::{Array, HashMap};
use lj_trace_common::off_cpu::{OffCpuProcess, filter_bit};

use super::set::map_mut;

const PROCESSES: &str = "OFF_CPU_PROCESSES";
const FILTER: &str = "OFF_CPU_FILTER";

/// Has a process count from now on.
///
/// # Errors
/// The kernel does not take it.
pub(super) fn add(ebpf: &mut Ebpf, pid: u32, process: &OffCpuProcess) -> anyhow::Result<()> {
    HashMap::<_, u32, OffCpuProcess>::try_from(map_mut(ebpf, PROCESSES)?)?.insert(&pid, process, 0)?;
    write_filter(ebpf, pid)
}

/// Has a process count no more, if it did.
///
/// # Errors
/// The kernel does not take it.
pub(super) fn remove(ebpf: &mut Ebpf, pid: u32) -> anyhow::Result<()> {
    HashMap::<_, u32, OffCpuProcess>::try_from(map_mut(ebpf, PROCESSES)?)?.remove(&pid)?;
    write_filter(ebpf, pid)
}

/// Writes the word of the filter that has the bit of this process, as the table has it.
fn write_filter(ebpf: &mut Ebpf, pid: u32) -> anyhow::Result<()> {
    let word = filter_bit(pid).0;
    let processes = HashMap::<_, u32, OffCpuProcess>::try_from(map_mut(ebpf, PROCESSES)?)?;
    let of_word = processes.keys().filter_map(Result::ok).map(filter_bit).filter(|(of, _)| *of == word);
    let bits = of_word.fold(0, |bits, (_, bit)| bits | bit);
    Ok(Array::<_, u64>::try_from(map_mut(ebpf, FILTER)?)?.set(word, &bits, 0)?)
}
