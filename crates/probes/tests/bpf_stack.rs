//! The BPF programs keep to the stack limit of kernels before Linux 6.13, which holds for a program, the functions that
//! it calls, and the callbacks of its loops together. The kernel of the tests may have a separate limit for each.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use aya_obj::Object;
use aya_obj::generated::bpf_insn;
use lj_trace_probes::object::object;

use crate::{alone, skips};

/// `MAX_BPF_STACK` (linux/filter.h).
const LIMIT: u32 = 512;

/// The kernel rounds a function's stack up to multiples of 32 bytes up to Linux 6.6, of 16 since then
/// (`check_max_stack_depth` in `kernel/bpf/verifier.c`).
const STEP: u32 = 32;

/// The stack size of each function. `starts` are the functions' first instructions.
fn depths(code: &[bpf_insn], starts: &BTreeSet<usize>) -> BTreeMap<usize, u32> {
    /// `dst = src` and `dst += imm`, in 64 bits.
    const MOVE: u8 = 0xbf;
    const ADD: u8 = 0x07;
    const FRAME: u8 = 10;
    let mut depths = BTreeMap::new();
    let mut start = 0;
    // Registers that hold an address in the frame.
    let mut frames = HashSet::new();
    for (index, instruction) in code.iter().enumerate() {
        if starts.contains(&index) {
            start = index;
            frames.clear();
        }
        let (to, from) = (instruction.dst_reg(), instruction.src_reg());
        let below = match (instruction.code, instruction.code & 7) {
            (MOVE, _) if from == FRAME => {
                frames.insert(to);
                0
            }
            (ADD, _) if frames.remove(&to) => -instruction.imm,
            // A load, and the two kinds of stores.
            (_, 1) if from == FRAME => -i32::from(instruction.off),
            (_, 2 | 3) if to == FRAME => -i32::from(instruction.off),
            _ => 0,
        };
        let depth: &mut u32 = depths.entry(start).or_default();
        *depth = (*depth).max(u32::try_from(below).unwrap_or(0));
    }
    depths
}

/// The program whose callback runs later, separately, so that the callback's stack does not add to the program's.
const RUN_LATER: &str = "off_cpu_switch";

/// A call with `BPF_PSEUDO_CALL`, an address with `BPF_PSEUDO_FUNC`.
const CALL: (u8, u8) = (0x85, 1);
pub const ADDRESS: (u8, u8) = (0x18, 4);

/// The function that an instruction calls, or passes to a helper that calls it.
pub fn callee(code: &[bpf_insn], index: usize) -> Option<usize> {
    let instruction = &code[index];
    let is_one = [CALL, ADDRESS].contains(&(instruction.code, instruction.src_reg()));
    is_one.then(|| index.checked_add_signed(instruction.imm as isize + 1)).flatten()
}

/// The stack size of the function at `start`, including everything that it calls.
fn most(code: &[bpf_insn], depths: &BTreeMap<usize, u32>, start: usize) -> u32 {
    let callees = (start..end(code, depths, start)).filter_map(|index| callee(code, index));
    let of_callees = callees.map(|callee| most(code, depths, callee)).max().unwrap_or(0);
    depths[&start].max(1).next_multiple_of(STEP) + of_callees
}

/// The same for a program whose callbacks run later: the largest of its own size and of each callback's size.
fn most_apart(code: &[bpf_insn], depths: &BTreeMap<usize, u32>, start: usize) -> u32 {
    let callees = || (start..end(code, depths, start)).filter_map(|index| Some((index, callee(code, index)?)));
    let is_later = |index: usize| (code[index].code, code[index].src_reg()) == ADDRESS;
    let of = |later: bool| {
        let own = callees().filter(|(index, _)| is_later(*index) == later);
        own.map(|(_, callee)| most(code, depths, callee)).max().unwrap_or(0)
    };
    (depths[&start].max(1).next_multiple_of(STEP) + of(false)).max(of(true))
}

/// The end of the function that begins at `start`.
fn end(code: &[bpf_insn], depths: &BTreeMap<usize, u32>, start: usize) -> usize {
    depths.range(start + 1..).next().map_or(code.len(), |(end, _)| *end)
}

#[test]
fn programs_share_512_bytes_with_their_callbacks() {
    let _alone = alone();
    let Ok(bytes) = object() else {
        skips::skip("this build has no BPF programs");
        return;
    };
    let mut object = Object::parse(bytes).unwrap();
    let text = object.functions.keys().map(|&(section, _)| section).collect();
    object.relocate_calls(&text).unwrap();
    assert!(object.programs.len() > 5);
    for (name, program) in &object.programs {
        let code = &object.functions[&program.function_key()].instructions;
        let callees = (0..code.len()).filter_map(|index| callee(code, index));
        let starts: BTreeSet<usize> = std::iter::once(0).chain(callees).collect();
        let depths = depths(code, &starts);
        let most = if name == RUN_LATER { most_apart(code, &depths, 0) } else { most(code, &depths, 0) };
        println!("{name}: {most} bytes of {LIMIT}: {:?}", depths.values());
        assert!(most <= LIMIT, "{name} takes {most} bytes: {:?} by function", depths.values());
    }
}
