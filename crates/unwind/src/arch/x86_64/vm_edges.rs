//! Recognizes the interpreter in a C frame without a Lua frame: it has just entered, or is about to leave.
//!
//! `lj_vm_call` links its C frame first (`L->cframe = rsp`) and makes the Lua frame later. On the way back it leaves
//! the Lua frame first, and unlinks the C frame last. In between, the innermost Lua frame belongs to the next C frame.
//! The code itself shows which instructions these are: those between the stores to `L->cframe` and to a frame's link
//! (`vm_x64.dasc` and `vm_x86.dasc`: labels [`vm_call`] to `vm_call_dispatch_f`, [`vm_return`] to `vm_leave_cp`).
//!
//! LuaJIT's sources: [`vm_call` without GC64], [`vm_return` without GC64], [`lj_ccallback_enter`],
//! [`lj_ccallback_leave`], [`cont_dispatch`].
//!
//! [`vm_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L617-L654
//! [`vm_return`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L417-L457
//! [`vm_call` without GC64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x86.dasc#L751-L798
//! [`vm_return` without GC64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x86.dasc#L513-L560
//! [`lj_ccallback_enter`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2836-L2839
//! [`lj_ccallback_leave`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2849-L2862
//! [`cont_dispatch`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L690-L719

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use lj_trace_common::layout::VmLayout;

use super::vm_text::base_after_call;
use crate::vm_edges::Edges;
use crate::vm_frame::BaseAfterCall;

/// The most instructions around a call that are searched: some 10 load its arguments.
const MAX_AROUND_CALL: usize = 24;

/// The most instructions between restoring BASE and the jump to the continuation: some 10 in fact.
const MAX_CONTINUING: usize = 16;

/// The most instructions between linking a C frame and making its first Lua frame: some 25 in fact.
const MAX_ENTERING: usize = 64;

/// The edges in an interpreter's machine code, which begins at `start`.
pub fn edges(code: &[u8], start: u64, layout: &VmLayout) -> Edges {
    let text = Text::new(code, start, layout);
    let leaving = text.leads_to(|text, at| text.unlinks(at));
    let returning: BTreeSet<u64> = text.leads_to(|text, at| text.sets_base(at));
    let returning: BTreeSet<u64> = returning.intersection(&leaving).copied().collect();
    let results_stored = text.ranges(&text.results_stored(&returning));
    let [base_in_state, base_kept] = text.around_calls(code, start);
    Edges {
        entering: text.ranges(&text.entering()),
        leaving: text.ranges(&leaving.difference(&returning).copied().collect()),
        returning: text.ranges(&returning),
        callback_left: text.ranges(&text.callback_left().into_iter().flatten().collect()),
        continuing: text.continuing().into_iter().collect(),
        callback_calls: text.callback_enter().into_iter().chain(text.callback_leave()).collect(),
        callback_code: Vec::new(),
        links: text.instructions.values().filter(|found| text.stores_frame_link(found)).map(Instruction::ip).collect(),
        base_in_state,
        base_kept,
        results_stored,
        // BASE moves at once, when the results are in their places.
        frame_left: Vec::new(),
        // `pcall` and calls of metamethods make a link before they move BASE, and the type of the link shows that.
        pc_elsewhere: Vec::new(),
        beside_traces: Vec::new(),
        before_fetch: Vec::new(),
    }
}

pub(super) struct Text<'a> {
    /// Instructions by address.
    pub(super) instructions: BTreeMap<u64, Instruction>,
    /// The predecessors of each instruction in the control flow.
    predecessors: HashMap<u64, Vec<u64>>,
    pub(super) layout: &'a VmLayout,
}

impl<'a> Text<'a> {
    fn new(code: &[u8], start: u64, layout: &'a VmLayout) -> Self {
        // There is no data between the instructions.
        let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let instructions: BTreeMap<u64, Instruction> = decoder.into_iter().map(|found| (found.ip(), found)).collect();
        let mut predecessors: HashMap<u64, Vec<u64>> = HashMap::new();
        for found in instructions.values() {
            next(found).into_iter().for_each(|next| predecessors.entry(next).or_default().push(found.ip()));
        }
        Self { instructions, predecessors, layout }
    }
}

impl Text<'_> {
    /// The instructions from which every path leads to an instruction that `is_end`, with only C calls before it; the
    /// end is included.
    fn leads_to(&self, is_end: impl Fn(&Self, &Instruction) -> bool) -> BTreeSet<u64> {
        let ends: BTreeSet<u64> =
            self.instructions.values().filter(|found| is_end(self, found)).map(Instruction::ip).collect();
        // First all instructions that can get there; then remove those that can also get elsewhere.
        let mut reaching = BTreeSet::new();
        let mut open: Vec<u64> = ends.iter().copied().collect();
        while let Some(ip) = open.pop() {
            if reaching.insert(ip) {
                open.extend(self.before(ip));
            }
        }
        let mut open: Vec<u64> = reaching.iter().copied().collect();
        while let Some(ip) = open.pop() {
            let next = self.instructions.get(&ip).map(next).unwrap_or_default();
            let stays = ends.contains(&ip) || !next.is_empty() && next.iter().all(|next| reaching.contains(next));
            if !stays && reaching.remove(&ip) {
                open.extend(self.before(ip));
            }
        }
        reaching
    }

    fn before(&self, ip: u64) -> &[u64] {
        self.predecessors.get(&ip).map_or(&[], Vec::as_slice)
    }

    /// Ranges around calls of C functions where `rdx` is not BASE, and BASE is later restored: from `L->base`, or from `rbp`.
    fn around_calls(&self, code: &[u8], start: u64) -> [Vec<Range<u64>>; 2] {
        let mut ranges = [const { Vec::new() }; 2];
        let is_call =
            |found: &Instruction| matches!(found.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        for call in self.instructions.values().filter(|found| is_call(found)) {
            let place = match base_after_call(code, start, call.next_ip(), self.layout.l_base.into()) {
                BaseAfterCall::LuaState => 0,
                BaseAfterCall::Register(crate::Register::Rbp) => 1,
                _ => continue,
            };
            let begin = self.argument_in_rdx(call).unwrap_or(call.next_ip());
            let end = self.base_is_back(call).unwrap_or(call.next_ip());
            if begin < end {
                ranges[place].push(begin..end);
            }
        }
        ranges
    }

    /// Address from which on `rdx` is an argument of this call, if it is one.
    fn argument_in_rdx(&self, call: &Instruction) -> Option<u64> {
        let before = self.instructions.range(..call.ip()).rev().map(|(_, found)| found).take(MAX_AROUND_CALL);
        for found in before.take_while(|found| found.flow_control() == FlowControl::Next) {
            let stores_base = stores_to(found, self.layout.l_base.into());
            // BASE is in another register, or still in this one.
            if stores_base.is_some() || self.loads_base(found) {
                return None;
            }
            if writes_rdx(found) {
                return Some(found.next_ip());
            }
        }
        None
    }

    /// Address after the instruction that restores BASE after a call, if no branch comes before.
    fn base_is_back(&self, call: &Instruction) -> Option<u64> {
        let after = self.instructions.range(call.next_ip()..).map(|(_, found)| found).take(MAX_AROUND_CALL);
        let mut after = after.take_while(|found| found.flow_control() == FlowControl::Next);
        after.find(|found| writes_rdx(found)).map(Instruction::next_ip)
    }

    /// `mov rdx, [L+base]`
    fn loads_base(&self, found: &Instruction) -> bool {
        found.mnemonic() == Mnemonic::Mov
            && writes_rdx(found)
            && found.op1_kind() == OpKind::Memory
            && found.memory_displacement64() == u64::from(self.layout.l_base)
    }

    /// The instructions from linking a C frame to storing the link of its first Lua frame, on the usual path.
    fn entering(&self) -> BTreeSet<u64> {
        let links = self.instructions.values().filter(|found| self.links(found));
        let mut entering = BTreeSet::new();
        for link in links {
            let mut way = Vec::new();
            let mut at = link.next_ip();
            while let Some(found) = self.instructions.get(&at).filter(|_| way.len() < MAX_ENTERING) {
                way.push(at);
                if self.stores_frame_link(found) {
                    entering.extend(&way);
                    break;
                }
                at = match found.flow_control() {
                    FlowControl::UnconditionalBranch => found.near_branch_target(),
                    FlowControl::Next
                    | FlowControl::ConditionalBranch
                    | FlowControl::Call
                    | FlowControl::IndirectCall => found.next_ip(),
                    _ => break,
                };
            }
        }
        entering
    }

    /// Return address of the call of `lj_ccallback_enter`: it returns the coroutine, whose BASE is loaded next.
    fn callback_enter(&self) -> Option<u64> {
        let loads_base = |found: &Instruction| {
            found.mnemonic() == Mnemonic::Mov
                && found.op0_kind() == OpKind::Register
                && found.op0_register().full_register() == Register::RDX
                && found.op1_kind() == OpKind::Memory
                && found.memory_base().full_register() == Register::RAX
                && found.memory_displacement64() == u64::from(self.layout.l_base)
        };
        let is_call =
            |found: &&Instruction| matches!(found.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        let calls = self.instructions.values().filter(is_call).map(Instruction::next_ip);
        // The state of the VM is set between these two instructions.
        calls.into_iter().find(|&after| self.instructions.range(after..).take(2).any(|(_, found)| loads_base(found)))
    }

    /// Return address of the call of `lj_ccallback_leave`: after it, results for C are loaded, and the epilogue follows.
    fn callback_leave(&self) -> Option<u64> {
        let is_call =
            |found: &&Instruction| matches!(found.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        let mut calls = self.instructions.values().filter(is_call).map(Instruction::next_ip);
        calls.find(|&after| {
            let mut at = after;
            let mut loads_xmm = false;
            for _ in 0..6 {
                let Some(found) = self.instructions.get(&at) else { return false };
                loads_xmm |= found.op0_kind() == OpKind::Register && found.op0_register() == Register::XMM0;
                if found.mnemonic() == Mnemonic::Add && found.op0_register() == Register::RSP {
                    return loads_xmm;
                }
                at = match found.flow_control() {
                    FlowControl::Next => found.next_ip(),
                    FlowControl::UnconditionalBranch => found.near_branch_target(),
                    _ => return false,
                };
            }
            false
        })
    }

    /// The instructions that lead to that call, from after the jump before it.
    fn callback_left(&self) -> Option<BTreeSet<u64>> {
        let after = self.callback_leave()?;
        let before = self.instructions.range(..after).rev().map(|(_, found)| found);
        let is_part = |found: &&Instruction| found.next_ip() == after || found.flow_control() == FlowControl::Next;
        Some(before.take_while(is_part).map(Instruction::ip).collect())
    }

    /// The instructions after `sub BASE, PC` of `cont_dispatch` up to its jump to the continuation, and the jump for
    /// FFI callbacks, which may follow.
    fn continuing(&self) -> Option<Range<u64>> {
        let is = |register: Register, full| register.full_register() == full;
        let takes_back = |found: &Instruction| {
            found.mnemonic() == Mnemonic::Sub
                && is(found.op0_register(), Register::RDX)
                && is(found.op1_register(), Register::RBX)
        };
        let keeps = |found: &Instruction| {
            found.mnemonic() == Mnemonic::Mov
                && is(found.op0_register(), Register::RBP)
                && is(found.op1_register(), Register::RDX)
        };
        self.instructions.values().filter(|found| takes_back(found)).find_map(|found| {
            let start = found.next_ip();
            self.instructions.range(..found.ip()).next_back().filter(|(_, before)| keeps(before))?;
            let mut rest = self.instructions.range(start..).map(|(_, found)| found).take(MAX_CONTINUING);
            let jump = rest.find(|found| found.flow_control() == FlowControl::IndirectBranch)?;
            let other = self.instructions.get(&jump.next_ip()).filter(|found| found.mnemonic() == Mnemonic::Je);
            Some(start..other.unwrap_or(jump).next_ip())
        })
    }

    /// `mov [L+cframe], rsp`
    fn links(&self, found: &Instruction) -> bool {
        stores_to(found, u64::from(self.layout.l_cframe)) == Some(Register::RSP)
    }

    /// `mov reg, [rsp+CFRAME_PREV]; mov [L+cframe], reg`
    fn unlinks(&self, found: &Instruction) -> bool {
        let Some(source) = stores_to(found, u64::from(self.layout.l_cframe)) else { return false };
        let before = self.instructions.range(..found.ip()).next_back();
        before.is_some_and(|(_, before)| {
            before.mnemonic() == Mnemonic::Mov
                && before.op0_kind() == OpKind::Register
                && before.op0_register() == source
                && before.op1_kind() == OpKind::Memory
                && before.memory_base() == Register::RSP
                && before.memory_displacement64() == u64::from(self.layout.cframe_prev)
        })
    }

    /// `mov [L+base], rbx`
    fn sets_base(&self, found: &Instruction) -> bool {
        stores_to(found, u64::from(self.layout.l_base)).is_some_and(is_rbx)
    }

    /// `mov [rdx-8], rbx`
    fn stores_frame_link(&self, found: &Instruction) -> bool {
        let offset = if self.layout.is_gc64() { -8_i64 } else { -4 };
        found.memory_base().full_register() == Register::RDX && stores_to(found, offset as u64).is_some_and(is_rbx)
    }

    fn ranges(&self, addresses: &BTreeSet<u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for found in addresses.iter().filter_map(|address| self.instructions.get(address)) {
            match ranges.last_mut() {
                Some(last) if last.end == found.ip() => last.end = found.next_ip(),
                _ => ranges.push(found.ip()..found.next_ip()),
            }
        }
        ranges
    }
}

/// Possible successors of an instruction; none if they are outside of the code or unknown.
pub(super) fn next(found: &Instruction) -> Vec<u64> {
    match found.flow_control() {
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => vec![found.next_ip()],
        FlowControl::UnconditionalBranch => vec![found.near_branch_target()],
        FlowControl::ConditionalBranch => vec![found.next_ip(), found.near_branch_target()],
        _ => Vec::new(),
    }
}

/// The register that an instruction stores at `displacement` from another register.
fn stores_to(found: &Instruction, displacement: u64) -> Option<Register> {
    let is_store = found.mnemonic() == Mnemonic::Mov
        && found.op0_kind() == OpKind::Memory
        && found.op1_kind() == OpKind::Register
        && found.memory_index() == Register::None
        && !matches!(found.memory_base(), Register::RSP | Register::None)
        && found.memory_displacement64() == displacement;
    is_store.then(|| found.op1_register())
}

pub(super) fn writes_rdx(found: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(found);
    info.used_registers().iter().any(|used| {
        used.register().full_register() == Register::RDX
            && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
    })
}

fn is_rbx(register: Register) -> bool {
    register.full_register() == Register::RBX
}
