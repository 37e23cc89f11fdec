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
    /// The instructions after results are stored, until BASE is the caller's. `returning` are those after which no Lua
    /// frame is left.
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

    /// Whether the last instruction before `ip` that writes this register copies BASE there.
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
