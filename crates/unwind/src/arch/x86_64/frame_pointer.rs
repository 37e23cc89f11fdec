//! Recovers the frame pointer of a function that uses one, where only `rip` and `rsp` are known: in a waiting thread,
//! whose other registers the kernel does not show, and after a C frame.
//!
//! It returns a frame pointer only if that follows from the code: either every path through the function has moved
//! `rsp` by the same distance ([`depth_at`]), or the function is LuaJIT's [`lj_vm_ffi_call`], which has only one caller
//! ([`called_at`]). A stack has many words that look like the end of a frame, so these are not used to guess.
//!
//! LuaJIT's sources: [`vm_ffi_call`], [`lj_ccall_func`].
//!
//! [`lj_vm_ffi_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L4985-L4999
//! [`vm_ffi_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2864-L2874
//! [`lj_ccall_func`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ccall.c#L1225-L1261

use std::collections::BTreeMap;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register as Iced,
};

use crate::modules::CodePlace;
use crate::registers::{Register, Registers};
use crate::row::{CfaRule, UnwindRow};
use crate::{CFrame, StackCopy, Unwinder, VmCode};

/// The longest function that is analyzed, in bytes.
const MAX_FUNCTION: u64 = 64 << 10;

/// `lj_vm_ffi_call` is shorter than this, in bytes.
const FFI_CALL: u64 = 512;

/// `call rel32`.
const CALL: u8 = 0xe8;
const CALL_LENGTH: u64 = 5;

impl Unwinder {
    /// The value of `rbp` in a frame with these registers, whose unwind `row` needs it; [`None`] if it is not certain.
    pub(crate) fn find_frame_pointer(
        &mut self,
        registers: &Registers,
        is_return: bool,
        row: &UnwindRow,
        stack: &StackCopy<'_>,
        (vms, cframes): (&[VmCode], &[CFrame]),
    ) -> Option<u64> {
        let CfaRule::Offset(Register::Rbp, frame_pointer) = row.cfa else { return None };
        let (pc, rsp) = (registers.pc(), registers.sp());
        let lookup = pc.wrapping_sub(u64::from(is_return));
        let (CodePlace::Module(located), _) = self.modules.find(lookup) else { return None };
        let table = located.module.table()?;
        let function = table.function(lookup.wrapping_sub(located.bias))?;
        let start = function.start.wrapping_add(located.bias);
        let first = table.row(function.start, &mut self.context)?;
        let memory = self.modules.process().memory();
        // The function is the interpreter's last one, which may count as the first one after the interpreter.
        let ends_here = |vm: &VmCode| vm.text.end.abs_diff(start) <= FFI_CALL;
        if first.cfa == row.cfa && vms.iter().any(ends_here) {
            // In the interpreter's code, only `lj_vm_ffi_call` (`vm_x64.dasc`) has an entry like this. It has moved
            // `rsp` by the size of the call's arguments; its only caller is `lj_ccall_func` (`lj_ccall.c`).
            let until = cframes.iter().find(|cframe| cframe.address > rsp)?.address;
            let is_call_of_it = |word: u64| {
                let mut code = [0; CALL_LENGTH as usize];
                let is_read = memory.read_some(word.wrapping_sub(CALL_LENGTH), &mut code) == Ok(code.len());
                is_read && call_target(&code, word) == Some(start)
            };
            let slot = called_at(stack, rsp..until, is_call_of_it)?;
            return Some((slot + 8).wrapping_add_signed(-frame_pointer));
        }
        if first.cfa != CfaRule::Offset(Register::Rsp, 8) {
            return None;
        }
        let length = function.end.checked_sub(function.start).filter(|length| *length <= MAX_FUNCTION)?;
        let code = memory.read_bytes(start, usize::try_from(length).ok()?).ok()?;
        let depth = depth_at(&code, start, pc, is_return, frame_pointer)?;
        Some(rsp.wrapping_add_signed(depth - frame_pointer))
    }
}

/// Target of the `call rel32` that returns to `after`.
fn call_target(code: &[u8; CALL_LENGTH as usize], after: u64) -> Option<u64> {
    let [CALL, distance @ ..] = *code else { return None };
    Some(after.wrapping_add_signed(i64::from(i32::from_le_bytes(distance))))
}

/// The only slot within `range` of a stack that can hold the return address of a call that `is_call` accepts; [`None`]
/// if there are several: some of them may be leftovers of earlier calls.
fn called_at(stack: &StackCopy<'_>, range: std::ops::Range<u64>, is_call: impl Fn(u64) -> bool) -> Option<u64> {
    // A call leaves `rsp` 8 bytes below a multiple of 16 (System V psABI, 3.2.2).
    let first = (range.start + 8).next_multiple_of(16) - 8;
    let slots = (first..range.end).step_by(16);
    let mut found = slots.filter(|&slot| stack.read(slot).is_ok_and(&is_call));
    found.next().filter(|_| found.next().is_none())
}

/// Positions of `rsp` and `rbp`, as distances below the CFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Depth {
    rsp: i64,
    /// [`None`] while `rbp` is the caller's, or something else.
    rbp: Option<i64>,
}

/// How far `rsp` is below the CFA at `pc`, in the function whose `code` lies at `start`; `is_return` if a call returns
/// to `pc`. `rbp` must then be `frame_pointer` bytes below the CFA. [`None`] if that does not follow from the code.
fn depth_at(code: &[u8], start: u64, pc: u64, is_return: bool, frame_pointer: i64) -> Option<i64> {
    let flow = Flow::follow(code, start)?;
    let wanted = |(at, instruction): &(&u64, &Instruction)| {
        if is_return { is_call(instruction) && instruction.next_ip() == pc } else { **at == pc }
    };
    let (at, _) = flow.code.iter().find(wanted)?;
    let depth = flow.depths.get(at)?;
    (depth.rbp == Some(frame_pointer)).then_some(depth.rsp)
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// A function's instructions, and the depth before each.
struct Flow {
    code: BTreeMap<u64, Instruction>,
    depths: BTreeMap<u64, Depth>,
}

impl Flow {
    /// Follows all paths from the function's start; [`None`] if two of them differ at an instruction.
    fn follow(code: &[u8], start: u64) -> Option<Self> {
        let decoded = Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter();
        let code: BTreeMap<u64, Instruction> = decoded.map(|instruction| (instruction.ip(), instruction)).collect();
        let mut flow = Self { code, depths: BTreeMap::new() };
        // The call has pushed the return address.
        flow.visit(start, Depth { rsp: 8, rbp: None })?;
        // A block without a direct path to it is an exception handler, or the target of a jump through a table.
        // Handlers start with the depth of a call, jump targets with the depth of the jump. If these depths are all the
        // same, it is also the depth of the block.
        let leaves = |at: &&u64| {
            let instruction = &flow.code[at];
            is_call(instruction) || instruction.flow_control() == FlowControl::IndirectBranch
        };
        let mut outside = flow.depths.keys().filter(leaves).map(|at| flow.depths[at]);
        let common = outside.next().filter(|first| outside.all(|other| other == *first));
        let addresses: Vec<u64> = flow.code.keys().copied().collect();
        for at in addresses {
            // Between blocks there is padding.
            if !flow.depths.contains_key(&at) && flow.code[&at].mnemonic() != Mnemonic::Nop {
                flow.visit(at, common?)?;
            }
        }
        Some(flow)
    }

    fn visit(&mut self, from: u64, depth: Depth) -> Option<()> {
        let mut open = vec![(from, depth)];
        while let Some((at, depth)) = open.pop() {
            match self.depths.get(&at) {
                Some(known) if *known == depth => continue,
                Some(_) => return None,
                None => {}
            }
            // No instruction begins here, at the function's end or in the middle of an instruction: the path is a jump to
            // the function's cold part, or comes from a call that does not return.
            let Some(instruction) = self.code.get(&at) else { continue };
            self.depths.insert(at, depth);
            let after = step(instruction, depth)?;
            let target = instruction.near_branch_target();
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {
                    open.push((instruction.next_ip(), after));
                }
                FlowControl::ConditionalBranch => open.extend([(instruction.next_ip(), after), (target, after)]),
                FlowControl::UnconditionalBranch => open.push((target, after)),
                FlowControl::Return | FlowControl::IndirectBranch | FlowControl::Exception => {}
                FlowControl::Interrupt | FlowControl::XbeginXabortXend => return None,
            }
        }
        Some(())
    }
}

/// The depth after an instruction; [`None`] if it is no longer known.
fn step(instruction: &Instruction, depth: Depth) -> Option<Depth> {
    let Depth { rsp, rbp } = depth;
    let to = |rsp| Some(Depth { rsp, rbp });
    let (first, second) = (instruction.op0_register(), instruction.op1_register());
    let is_constant = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    match instruction.mnemonic() {
        Mnemonic::Pop if first == Iced::RSP => None,
        Mnemonic::Pop if first == Iced::RBP => Some(Depth { rsp: rsp - 8, rbp: None }),
        Mnemonic::Push | Mnemonic::Pop => to(rsp - i64::from(instruction.stack_pointer_increment())),
        Mnemonic::Sub if first == Iced::RSP && is_constant => to(rsp + instruction.immediate(1) as i64),
        Mnemonic::Add if first == Iced::RSP && is_constant => to(rsp - instruction.immediate(1) as i64),
        Mnemonic::Mov if first == Iced::RBP && second == Iced::RSP => Some(Depth { rsp, rbp: Some(rsp) }),
        Mnemonic::Mov if first == Iced::RSP && second == Iced::RBP => to(rbp?),
        Mnemonic::Lea if first == Iced::RSP && instruction.memory_index() == Iced::None => {
            let displacement = instruction.memory_displacement64() as i64;
            match instruction.memory_base() {
                Iced::RSP => to(rsp - displacement),
                Iced::RBP => to(rbp? - displacement),
                _ => None,
            }
        }
        Mnemonic::Leave => Some(Depth { rsp: rbp? - 8, rbp: None }),
        _ if is_call(instruction) || instruction.flow_control() == FlowControl::Return => Some(depth),
        // Any other change of `rsp`, such as an alignment or an `alloca`.
        _ if writes(instruction, Iced::RSP) => None,
        _ if writes(instruction, Iced::RBP) => Some(Depth { rsp, rbp: None }),
        _ => Some(depth),
    }
}

fn writes(instruction: &Instruction, register: Iced) -> bool {
    let is_write =
        |access| !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess);
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    info.used_registers().iter().any(|used| used.register().full_register() == register && is_write(used.access()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of `epoll_poll` of Tarantool 2.6.0: a loop between a prologue and two epilogues.
    const FUNCTION: &[u8] = &[
        0x55, // 0: push rbp
        0x48, 0x89, 0xe5, // 1: mov rbp, rsp
        0x41, 0x57, // 4: push r15
        0x53, // 6: push rbx
        0x48, 0x83, 0xec, 0x18, // 7: sub rsp, 24
        0xe8, 0, 0, 0, 0, // b: call
        0x85, 0xc0, // 10: test eax, eax
        0x75, 0xf7, // 12: jne b
        0x48, 0x83, 0xc4, 0x18, // 14: add rsp, 24
        0x5b, // 18: pop rbx
        0x41, 0x5f, // 19: pop r15
        0x5d, // 1b: pop rbp
        0xc3, // 1c: ret
    ];

    fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut code = FUNCTION.to_vec();
        code.splice(at..at + bytes.len(), bytes.iter().copied());
        code
    }

    #[test]
    fn the_depth_follows_from_the_code() {
        let depth = |code: &[u8]| depth_at(code, 0x1000, 0x1010, true, 16);
        // rbp, r15, rbx, 24 bytes, and the return address.
        assert_eq!(depth(FUNCTION), Some(8 + 3 * 8 + 24));
        assert_eq!(depth_at(FUNCTION, 0x1000, 0x1012, false, 16), Some(56));
        assert_eq!(depth_at(FUNCTION, 0x1000, 0x1001, false, 16), None, "rbp is the caller's here");
        assert_eq!(depth_at(FUNCTION, 0x1000, 0x1010, true, 24), None, "the table says something else");
        assert_eq!(depth_at(FUNCTION, 0x1000, 0x1012, true, 16), None, "no call returns there");
    }

    #[test]
    fn what_does_not_follow_is_not_said() {
        let depth = |code: &[u8]| depth_at(code, 0x1000, 0x1010, true, 16);
        // sub rsp, rax; nop: an `alloca`.
        assert_eq!(depth(&with(7, &[0x48, 0x29, 0xc4, 0x90])), None);
        // and rsp, -32: an alignment.
        assert_eq!(depth(&with(7, &[0x48, 0x83, 0xe4, 0xe0])), None);
        // jne 7, into the prologue: two paths lead to the call.
        assert_eq!(depth(&with(0x12, &[0x75, 0xf3])), None);
        // pop rsp, in the epilogue.
        assert_eq!(depth(&with(0x18, &[0x5c])), None);
        assert_eq!(depth(&[]), None);
    }

    #[test]
    fn handlers_have_the_depth_of_the_calls() {
        // After the `ret`, a block without a jump to it: call; jmp b.
        let mut code = FUNCTION.to_vec();
        code.extend([0xe8, 0, 0, 0, 0, 0xeb, 0xe7]);
        assert_eq!(depth_at(&code, 0x1000, 0x1022, true, 16), Some(56));
        // The block now jumps to a place with another depth than that of calls: nothing is certain any more.
        let last = code.len() - 1;
        code[last] = 0xdd;
        assert_eq!(depth_at(&code, 0x1000, 0x1022, true, 16), None);
    }

    #[test]
    fn a_return_address_is_taken_if_there_is_only_one() {
        let words: Vec<u8> = [0, 7, 9, 7, 0, 9, 0, 0].into_iter().flat_map(u64::to_le_bytes).collect();
        let stack = StackCopy { start: 0x1000, bytes: &words };
        assert_eq!(called_at(&stack, 0x1000..0x1040, |word| word == 9), Some(0x1028), "that at 0x1010 is not aligned");
        assert_eq!(called_at(&stack, 0x1000..0x1040, |word| word == 7), None, "two");
        assert_eq!(called_at(&stack, 0x1010..0x1040, |word| word == 7), Some(0x1018));
        assert_eq!(called_at(&stack, 0x1000..0x1028, |word| word == 9), None, "beyond the C frame");
        assert_eq!(call_target(&[0xe8, 0xfb, 0xff, 0xff, 0xff], 0x2005), Some(0x2000));
        assert_eq!(call_target(&[0xff, 0xfb, 0xff, 0xff, 0xff], 0x2005), None);
    }
}
