//! Adapts the programs for time off the CPU to this kernel before they are loaded: inserts the offsets of fields in the
//! kernel's structs, and the number of a function. The programs have marks at these places
//! (`probe-ebpf/src/off_cpu.rs`).

use anyhow::Context as _;

use super::kernel_types::KernelTypes;

/// The marks in place of offsets, with the fields that they stand for. `on_cpu` is a number of 32 bits, and a byte since
/// Linux 7: its first byte is read.
const FIELDS: [(u16, &str); 5] =
    [(31_233, "tgid"), (31_234, "pid"), (31_235, "start_time"), (31_236, "__state"), (31_237, "on_cpu")];

/// The marks in place of the offsets on the way to the clock of a CPU's run queue: `task_struct.se.cfs_rq`, `cfs_rq.rq`,
/// `rq.clock`.
const CLOCK: [u16; 3] = [31_238, 31_239, 31_240];

/// The mark in place of whether this kernel has them.
const HAS_CLOCK: u32 = 2_000_000_002;

/// The mark in place of the function's number.
const FUNCTION: u32 = 2_000_000_001;

/// The names of the function, in the order to look for them. Linux 6.18 has the second one alone. Since Linux 7, programs
/// can only call the first one, and the kernel passes the argument that is the verifier's; the second one has a type, too.
const FUNCTION_NAMES: [&str; 2] = ["bpf_task_work_schedule_resume", "bpf_task_work_schedule_resume_impl"];

/// Opcodes: loads of 8, 32 and 64 bits, a call, and a constant; then the source register that marks the call of a kernel function
/// (`BPF_PSEUDO_KFUNC_CALL`).
const LOADS: [u8; 3] = [0x71, 0x61, 0x79];
const CALL: u8 = 0x85;
const MOVE: u8 = 0xb7;
const OF_KERNEL: u8 = 2 << 4;

/// Replaces the marks in an object file, whose instructions are at multiples of 8 bytes.
///
/// # Errors
/// This kernel lacks the function (it came with Linux 6.18), or does not expose its types.
pub fn fill_in(object: &mut [u8]) -> anyhow::Result<()> {
    let types = KernelTypes::read().context("the kernel's types")?;
    let function = FUNCTION_NAMES.iter().find_map(|name| types.function(name));
    let function = function.context("they need Linux 6.18 (bpf_task_work_schedule_resume)")?;
    fill(object, &types, Some(function))
}

/// Replaces the marks for fields alone: programs that need no more than these can be loaded then.
///
/// # Errors
/// This kernel does not expose its types.
pub fn fill_in_fields(object: &mut [u8]) -> anyhow::Result<()> {
    fill(object, &KernelTypes::read().context("the kernel's types")?, None)
}

fn fill(object: &mut [u8], types: &KernelTypes, function: Option<u32>) -> anyhow::Result<()> {
    let mut offsets = Vec::new();
    for (mark, field) in FIELDS {
        let offset = types.offset("task_struct", field).with_context(|| format!("no task_struct.{field}"))?;
        offsets.push((mark, u16::try_from(offset)?));
    }
    let clock = run_queue_clock(types);
    offsets.extend(clock.into_iter().flatten());
    for instruction in object.as_chunks_mut::<8>().0 {
        let (offset, number) = (halfword(instruction), immediate(instruction));
        if instruction[0] == CALL && instruction[1] == 0 && number == FUNCTION {
            let Some(function) = function else { continue };
            instruction[1] = OF_KERNEL;
            instruction[4..].copy_from_slice(&function.to_le_bytes());
        } else if instruction[0] == MOVE && number == HAS_CLOCK {
            instruction[4..].copy_from_slice(&u32::from(clock.is_some()).to_le_bytes());
        } else if LOADS.contains(&instruction[0])
            && number == 0
            && let Some((_, place)) = offsets.iter().find(|(mark, _)| *mark == offset)
        {
            instruction[2..4].copy_from_slice(&place.to_le_bytes());
        }
    }
    Ok(())
}

/// The marks and offsets on the way to the clock of a CPU's run queue; [`None`] on a kernel that is built without groups
/// of tasks.
fn run_queue_clock(types: &KernelTypes) -> Option<[(u16, u16); 3]> {
    let offset = |structure, field| types.offset(structure, field);
    let of_task = offset("task_struct", "se")? + offset("sched_entity", "cfs_rq")?;
    let offsets = [of_task, offset("cfs_rq", "rq")?, offset("rq", "clock")?];
    let mut marked = [(0, 0); 3];
    for ((marked, mark), offset) in marked.iter_mut().zip(CLOCK).zip(offsets) {
        *marked = (mark, u16::try_from(offset).ok().filter(|&offset| offset < CLOCK[0])?);
    }
    Some(marked)
}

/// Checks that this kernel has the function that stack walks need.
///
/// # Errors
/// It lacks the function, or does not expose its types.
pub fn try_it() -> anyhow::Result<()> {
    fill_in(&mut [])
}

fn halfword(instruction: &[u8; 8]) -> u16 {
    u16::from_le_bytes([instruction[2], instruction[3]])
}

fn immediate(instruction: &[u8; 8]) -> u32 {
    u32::from_le_bytes([instruction[4], instruction[5], instruction[6], instruction[7]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::object;

    #[test]
    fn all_marks_are_in_the_object_and_are_replaced() {
        let Ok(bytes) = object() else { return };
        let is_mark = |instruction: &[u8; 8]| {
            let marks = || FIELDS.iter().map(|(mark, _)| *mark).chain(CLOCK);
            let is_field = || marks().any(|mark| mark == halfword(instruction));
            let is_load = LOADS.contains(&instruction[0]) && immediate(instruction) == 0 && is_field();
            is_load || [(CALL, FUNCTION), (MOVE, HAS_CLOCK)].contains(&(instruction[0], immediate(instruction)))
        };
        let marks = |bytes: &[u8]| bytes.as_chunks::<8>().0.iter().filter(|chunk| is_mark(chunk)).count();
        assert!(marks(bytes) > FIELDS.len() + CLOCK.len() + 1, "{}", marks(bytes));
        let mut filled = bytes.to_vec();
        if fill_in(&mut filled).is_ok() {
            assert_eq!(marks(&filled), 0);
        }
    }
}
