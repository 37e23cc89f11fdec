//! Recognizes where a frame's results lie over its function already: a result may be a function as well, and would be
//! taken for the one that runs.
//!
//! [`BC_RET`] copies its results there, and a fast function stores its first result there ([`fff_res`]). Both then move
//! BASE to the caller's frame, whose link is in PC's register. A tail call stores a function there as well, which runs in
//! that frame from then on ([`BC_CALLT`]).
//!
//! [`BC_RET`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L4242-L4314
//! [`fff_res`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L1672-L1707
//! [`BC_CALLT`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L3944-L4018

use std::collections::BTreeSet;

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::vm_edges::{Text, next, writes_rdx};

/// The most instructions from a result to the caller's BASE: some 40 in fact.
const MOST: usize = 128;

impl Text<'_> {
    /// The instructions after results are stored, until BASE is the caller's. At those in `returning`, the Lua frame is left
    /// already.
    pub(super) fn results_stored(&self, returning: &BTreeSet<u64>) -> BTreeSet<u64> {
        let stores = self.instructions.values().filter(|found| self.stores_function(found));
        stores.filter_map(|store| self.until_base_moves(store.next_ip(), returning)).flatten().collect()
    }

    /// `mov [rdx-16], reg`: over the function of the frame at BASE, or at a copy of BASE that moves along.
    fn stores_function(&self, found: &Instruction) -> bool {
        let offset = if self.layout.is_gc64() { -16_i64 } else { -8 };
        let base = found.memory_base().full_register();
        matches!(found.mnemonic(), Mnemonic::Mov | Mnemonic::Movsd)
            && found.op0_kind() == OpKind::Memory
            && found.memory_index() == Register::None
            && found.memory_displacement64() == offset as u64
            && (base == Register::RDX || self.copies_base(found.ip(), base))
    }

    /// Whether one of the instructions right before `ip`, without a jump in between, copies BASE to this register. It moves
    /// along afterwards.
    fn copies_base(&self, ip: u64, register: Register) -> bool {
        const NEAR: usize = 12;
        let before = self.instructions.range(..ip).rev().map(|(_, found)| found).take(NEAR);
        let mut near = before
            .take_while(|found| matches!(found.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch));
        near.any(|found| {
            found.mnemonic() == Mnemonic::Mov
                && found.op0_kind() == OpKind::Register
                && found.op1_kind() == OpKind::Register
                && found.op0_register().full_register() == register
                && found.op1_register().full_register() == Register::RDX
        })
    }

    /// All instructions from `start` on, through those that write BASE. [`None`] if another function is run in the frame.
    fn until_base_moves(&self, start: u64, returning: &BTreeSet<u64>) -> Option<BTreeSet<u64>> {
        let (mut way, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(ip) = open.pop() {
            if returning.contains(&ip) || way.contains(&ip) {
                continue;
            }
            let found = self.instructions.get(&ip)?;
            let is_left = way.len() >= MOST
                || loads_pc(found)
                || !matches!(
                    found.flow_control(),
                    FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
                );
            if is_left {
                return None;
            }
            way.insert(ip);
            if !writes_rdx(found) {
                open.extend(next(found));
            }
        }
        Some(way)
    }
}

/// `mov rbx, [...]`
fn loads_pc(found: &Instruction) -> bool {
    found.mnemonic() == Mnemonic::Mov
        && found.op0_kind() == OpKind::Register
        && found.op0_register().full_register() == Register::RBX
        && found.op1_kind() == OpKind::Memory
}

#[cfg(test)]
mod tests {
    use lj_trace_common::layout::VmLayout;

    use super::super::vm_edges::edges;

    const START: u64 = 0x5555_0000_1000;

    /// The offsets of the ranges in which a frame is left.
    fn results_stored(gc64: bool, instructions: &[&[u8]]) -> Vec<(u64, u64)> {
        let layout = VmLayout { gc64: gc64.into(), l_base: 32, l_cframe: 80, ..VmLayout::default() };
        let edges = edges(&instructions.concat(), START, &layout);
        edges.results_stored.iter().map(|range| (range.start - START, range.end - START)).collect()
    }

    /// `mov [rdx-16], rax`, and `mov [rdx-8], eax`
    const STORE: &[u8] = &[0x48, 0x89, 0x42, 0xf0];
    const STORE_SHORT: &[u8] = &[0x89, 0x42, 0xf8];
    /// `mov eax, 2`
    const COUNT: &[u8] = &[0xb8, 2, 0, 0, 0];
    /// `lea rdx, [rdx+rcx*8-16]`
    const TO_CALLER: &[u8] = &[0x48, 0x8d, 0x54, 0xca, 0xf0];
    /// `mov rbx, [rbp+32]`
    const LOAD_PC: &[u8] = &[0x48, 0x8b, 0x5d, 0x20];
    /// `jmp [r14+rbp*8]`
    const NEXT_BYTECODE: &[u8] = &[0x41, 0xff, 0x24, 0xee];

    #[test]
    fn a_result_lies_over_the_function_until_base_moves() {
        assert_eq!(results_stored(true, &[STORE, COUNT, TO_CALLER, NEXT_BYTECODE]), [(4, 14)]);
        assert_eq!(results_stored(false, &[STORE_SHORT, COUNT, TO_CALLER, NEXT_BYTECODE]), [(3, 13)]);
        // The place of the link, with GC64.
        assert_eq!(results_stored(true, &[STORE_SHORT, COUNT, TO_CALLER, NEXT_BYTECODE]), []);
    }

    #[test]
    fn results_are_copied_by_a_register_that_moves_along() {
        // mov r15, rdx; mov [r15-16], rbp; add r15, 8; jne to the store
        let copy: [&[u8]; 4] = [&[0x49, 0x89, 0xd7], &[0x49, 0x89, 0x6f, 0xf0], &[0x49, 0x83, 0xc7, 8], &[0x75, 0xf6]];
        // The loop comes back to its store.
        assert_eq!(results_stored(true, &[&copy[..], &[TO_CALLER, NEXT_BYTECODE]].concat()), [(3, 18)]);
        // r15 holds something else.
        assert_eq!(results_stored(true, &[&copy[1..], &[TO_CALLER, NEXT_BYTECODE]].concat()), []);
    }

    #[test]
    fn a_tail_call_runs_in_the_frame() {
        assert_eq!(results_stored(true, &[STORE, COUNT, LOAD_PC, NEXT_BYTECODE]), []);
        // Another function may be run without PC being loaded here.
        assert_eq!(results_stored(true, &[STORE, COUNT, NEXT_BYTECODE]), []);
    }
}
