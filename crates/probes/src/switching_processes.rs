//! The processes whose context switches and turns are recorded: their tables, and the filter in front of these.

use aya::Ebpf;
use aya::maps::{Array, HashMap};
use lj_trace_common::off_cpu::{OffCpuProcess, filter_bit};

use super::set::map_mut;

const PROCESSES: &str = "OFF_CPU_PROCESSES";
const NUMBERS: &str = "OFF_CPU_NUMBERS";
const FILTER: &str = "OFF_CPU_FILTER";

/// Starts recording a process.
///
/// # Errors
/// The kernel refuses.
pub fn add(ebpf: &mut Ebpf, process: &OffCpuProcess) -> anyhow::Result<()> {
    let OffCpuProcess { pid, number, .. } = *process;
    Array::<_, OffCpuProcess>::try_from(map_mut(ebpf, PROCESSES)?)?.set(number, process, 0)?;
    HashMap::<_, u32, u32>::try_from(map_mut(ebpf, NUMBERS)?)?.insert(&pid, &number, 0)?;
    write_filter(ebpf, pid)
}

/// Stops recording a process, if it was recorded.
///
/// # Errors
/// The kernel refuses, or it was not recorded.
pub fn remove(ebpf: &mut Ebpf, pid: u32) -> anyhow::Result<()> {
    let mut numbers = HashMap::<_, u32, u32>::try_from(map_mut(ebpf, NUMBERS)?)?;
    let number = numbers.get(&pid, 0)?;
    numbers.remove(&pid)?;
    Array::<_, OffCpuProcess>::try_from(map_mut(ebpf, PROCESSES)?)?.set(number, &OffCpuProcess::default(), 0)?;
    write_filter(ebpf, pid)
}

/// Writes the filter word that contains this process's bit, according to the table.
fn write_filter(ebpf: &mut Ebpf, pid: u32) -> anyhow::Result<()> {
    let word = filter_bit(pid).0;
    let numbers = HashMap::<_, u32, u32>::try_from(map_mut(ebpf, NUMBERS)?)?;
    let of_word = numbers.keys().filter_map(Result::ok).map(filter_bit).filter(|(of, _)| *of == word);
    let bits = of_word.fold(0, |bits, (_, bit)| bits | bit);
    Ok(Array::<_, u64>::try_from(map_mut(ebpf, FILTER)?)?.set(word, &bits, 0)?)
}
