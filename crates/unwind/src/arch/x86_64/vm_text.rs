//! Reads the layout of the interpreter's stack frame from its machine code.
//!
//! The unwind table gives the interpreter one row for its whole code: CFA = `rsp` + `CFRAME_SIZE`. That is right in the
//! bytecodes, but not while a frame is entered or left, in the math helpers (called without unwind information), or in the
//! trace exit handler. These functions decide by the instructions around an address (`vm_x64.dasc` and `vm_x86.dasc`: macros
//! [`saveregs`], `restoreregs`, label [`vm_exit_handler`], LuaJIT 2.0 to August 2026, OpenResty, Tarantool).
//!
//! LuaJIT's sources: [`saveregs` without GC64], [`vm_exit_handler` without GC64], [`vm_unwind_c`], [`vm_floor`],
//! [`vm_cpcall`], [`vm_ffi_call`], [`vm_ffi_callback`].
//!
//! [`saveregs`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L143-L160
//! [`saveregs` without GC64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x86.dasc#L272-L289
//! [`vm_exit_handler`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2449-L2455
//! [`vm_exit_handler` without GC64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x86.dasc#L2852-L2858
//! [`vm_unwind_c`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L493-L518
//! [`vm_floor`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2589-L2639
//! [`vm_cpcall`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L656-L682
//! [`vm_ffi_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L4985-L4999
//! [`vm_ffi_callback`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L2804-L2841

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use crate::registers::Register;
use crate::vm_frame::{BaseAfterCall, CodeFrame};

/// The layout of the interpreter's frame: the registers that `saveregs` pushes, and the space below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameShape {
    /// The registers in the order in which they are pushed, right below the return address.
    pub saved: Vec<Register>,
    /// Bytes below them (`CFRAME_SPACE`).
    pub space: u64,
}

impl FrameShape {
    /// The usual shape, for a build whose code cannot be read: four registers (builds with unwind tables).
    pub fn usual(cframe_size: u64) -> Self {
        let saved = vec![Register::Rbp, Register::Rbx, Register::R15, Register::R14];
        Self { space: cframe_size.saturating_sub(8 + 8 * saved.len() as u64), saved }
    }

    /// Distance from the lowest address to the CFA: `CFRAME_SIZE`.
    pub fn size(&self) -> u64 {
        8 + 8 * self.saved.len() as u64 + self.space
    }

    /// Offset from the CFA of the register that is pushed as number `index`.
    pub fn slot(index: usize) -> i64 {
        -16 - 8 * index as i64
    }
}

/// The state of the frame at one instruction of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// In the prologue or epilogue: `pushed` registers of the frame are on the stack, right at `rsp`, and the others
    /// still (or again) hold the caller's values. CFA = `rsp` + 8 + 8 * `pushed`.
    Partial {
        /// How many registers of [`FrameShape::saved`] are pushed.
        pushed: usize,
    },
    /// `rsp` is exactly the frame's lowest address, though `L->cframe` may not point to it yet, or no longer.
    FrameAtRsp,
    /// About to drop everything below the C frame that `rdi` points to (`vm_unwind_c`, `vm_unwind_ff`).
    FrameAtRdi,
    /// In the trace exit handler, which works below the frame of the trace it came from.
    TraceExit,
    /// In a helper without a frame of its own (`vm_floor`, `vm_mod`, ...); the interpreter, traces and C functions call
    /// it. Its caller's `rsp` is `rsp` + `size`, and the return address is the word below that.
    Helper {
        /// Bytes of the helper on the stack, with its return address.
        size: u64,
    },
    /// Anywhere else: `rsp` is the frame's lowest address.
    Body,
}

/// A VM's machine code.
#[derive(Clone, Debug)]
pub struct VmText {
    start: u64,
    code: Vec<u8>,
    shape: FrameShape,
    exits: Vec<Range<u64>>,
}

/// The most instructions to decode at a time; the longest run that matters has some 40 instructions.
const MAX_INSTRUCTIONS: usize = 64;

/// The most bytes from a prologue's end to the first jump: the longest distance is 92 bytes (`vm_cpcall`).
const MAX_AFTER_PROLOGUE: usize = 160;

/// How `vm_exit_handler` begins: `push r13; push r12; push r11; ... push rbp; lea rbp, [rsp+88]`.
const EXIT_HANDLER: &[u8] = &[
    0x41, 0x55, 0x41, 0x54, 0x41, 0x53, 0x41, 0x52, 0x41, 0x51, 0x41, 0x50, 0x57, 0x56, 0x55, 0x48, 0x8d, 0x6c, 0x24,
    0x58,
];

impl VmText {
    /// Analyzes the code of an interpreter that begins at `start`.
    pub fn new(start: u64, code: Vec<u8>, cframe_size: u64) -> Self {
        let found = frame_shape(&code).filter(|shape| shape.size() == cframe_size);
        let mut text =
            Self { start, code, shape: found.unwrap_or_else(|| FrameShape::usual(cframe_size)), exits: Vec::new() };
        text.exits = text.exit_handler();
        text
    }

    /// The layout of the frame, as the epilogue shows it.
    pub fn shape(&self) -> &FrameShape {
        &self.shape
    }

    /// The state of the frame at `pc`: the instruction that was interrupted or, if `is_return`, the address that a C
    /// function will return to.
    pub fn position(&self, pc: u64, is_return: bool) -> Position {
        if !is_return && let Some(pushed) = self.entering(pc).or_else(|| self.leaving(pc)) {
            return Position::Partial { pushed };
        }
        if self.exits.iter().any(|range| range.contains(&pc)) {
            return Position::TraceExit;
        }
        if self.follows_prologue(pc, is_return) {
            return Position::FrameAtRsp;
        }
        match self.runs_into(pc) {
            Some(Position::FrameAtRdi) if is_return => Position::Body,
            Some(position) => position,
            // After a call that never returns, the next code may be a helper.
            None if is_return => Position::Body,
            None => self.returns(pc).map_or(Position::Body, |size| Position::Helper { size }),
        }
    }

    /// Whether the frame is being entered or left at `pc`, an interrupted instruction.
    pub fn is_at_edge(&self, pc: u64) -> bool {
        matches!(self.position(pc, false), Position::Partial { .. } | Position::FrameAtRsp)
    }

    /// Whether a call can return to `address`: a call instruction ends there, or that is not known.
    pub fn may_return_to(&self, address: u64) -> bool {
        /// The most bytes of an indirect call, with the largest displacement.
        const LONGEST: u64 = 8;
        let ends_there = |length: u64| {
            let decoded = self.decoder(address.checked_sub(length)?).map(|mut decoder| decoder.decode())?;
            Some(is_call(&decoded) && decoded.len() as u64 == length)
        };
        let offset = address.wrapping_sub(self.start);
        let is_known = (LONGEST..=self.code.len() as u64).contains(&offset);
        !is_known || (2..=LONGEST).any(|length| ends_there(length) == Some(true))
    }

    /// Where BASE is kept across the call that returns to `return_address`. `l_base` is the offset of
    /// `lua_State.base`.
    pub fn base_after_call(&self, return_address: u64, l_base: u64) -> BaseAfterCall {
        base_after_call(&self.code, self.start, return_address, l_base)
    }

    /// Decodes from `address` on.
    fn decoder(&self, address: u64) -> Option<Decoder<'_>> {
        decoder(&self.code, self.start, address)
    }

    /// In the prologue: the rest of its pushes and `sub rsp, space` follow.
    fn entering(&self, pc: u64) -> Option<usize> {
        let mut decoder = self.decoder(pc)?;
        let mut pushes = Vec::new();
        let mut at_start = false;
        for _ in 0..=self.shape.saved.len() + 1 {
            let instruction = decoder.decode();
            match instruction.mnemonic() {
                Mnemonic::Endbr64 if pushes.is_empty() => at_start = true,
                Mnemonic::Push => pushes.push(general(instruction.op0_register())?),
                Mnemonic::Sub if moves_rsp(&instruction) == Some(self.shape.space) => {
                    let pushed = self.shape.saved.len().checked_sub(pushes.len())?;
                    let is_rest = self.shape.saved.ends_with(&pushes) && (!at_start || pushed <= 1);
                    return is_rest.then_some(pushed);
                }
                _ => return None,
            }
        }
        None
    }

    /// In the epilogue: the rest of its pops and `ret`, or a jump to another function, follow.
    fn leaving(&self, pc: u64) -> Option<usize> {
        let mut decoder = self.decoder(pc)?;
        let mut pops = Vec::new();
        for _ in 0..=self.shape.saved.len() {
            let instruction = decoder.decode();
            match instruction.mnemonic() {
                Mnemonic::Pop => pops.push(general(instruction.op0_register())?),
                Mnemonic::Ret | Mnemonic::Jmp => {
                    let is_rest =
                        pops.iter().eq(self.shape.saved[..pops.len().min(self.shape.saved.len())].iter().rev());
                    return (is_rest && self.ends_epilogue(pc, pops.len())).then_some(pops.len());
                }
                _ => return None,
            }
        }
        None
    }

    /// Whether the pops that an epilogue has already executed come right before `pc`. Without them, a bare `ret` may
    /// also end a math helper.
    fn ends_epilogue(&self, pc: u64, left: usize) -> bool {
        let before: Vec<u8> =
            self.shape.saved[left.min(self.shape.saved.len())..].iter().rev().flat_map(pop_bytes).collect();
        let Some(offset) = pc.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok()) else {
            return false;
        };
        self.code.get(..offset).is_some_and(|code| code.ends_with(&before))
    }

    /// Whether straight-line code leads from the end of a prologue to `pc`: nothing on the way can have left the frame.
    /// A return address counts if its call ends that run.
    fn follows_prologue(&self, pc: u64, is_return: bool) -> bool {
        let Some(offset) = pc.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok()) else {
            return false;
        };
        // Without `rbp`, which is pushed before the jump to vm_ffi_callback.
        let mut prologue: Vec<u8> = self.shape.saved.iter().skip(1).flat_map(push_bytes).collect();
        prologue.extend([0x48, 0x83, 0xec, self.shape.space as u8]);
        let first = offset.saturating_sub(MAX_AFTER_PROLOGUE + prologue.len());
        let Some(before) = self.code.get(first..offset) else { return false };
        let ends = before.windows(prologue.len()).enumerate().filter(|(_, bytes)| *bytes == prologue);
        let ends = ends.map(|(index, _)| self.start + (first + index + prologue.len()) as u64);
        ends.into_iter().any(|end| self.runs_straight(end, pc, is_return))
    }

    /// Whether the code at `pc` runs, past conditional jumps and calls of other helpers, into a `ret` that does not end
    /// an epilogue. Returns how many bytes it takes from the stack on the way, with the return address. The interpreter
    /// proper never returns: it jumps from bytecode to bytecode.
    fn returns(&self, pc: u64) -> Option<u64> {
        let mut decoder = self.decoder(pc)?;
        let mut moved = 0_i64;
        for _ in 0..MAX_INSTRUCTIONS {
            let instruction = decoder.decode();
            match instruction.flow_control() {
                FlowControl::Return => return u64::try_from(moved + 8).ok().filter(|&size| size >= 8),
                FlowControl::UnconditionalBranch if is_direct_jump(&instruction) => {
                    decoder = self.decoder(instruction.near_branch_target())?;
                }
                FlowControl::ConditionalBranch => {}
                FlowControl::Call if self.decoder(instruction.near_branch_target()).is_some() => {}
                FlowControl::Next if is_straight(&instruction) => {}
                FlowControl::Next => match instruction.mnemonic() {
                    Mnemonic::Push | Mnemonic::Pop => moved += i64::from(instruction.stack_pointer_increment()),
                    _ => return None,
                },
                _ => return None,
            }
        }
        None
    }

    fn runs_straight(&self, from: u64, to: u64, is_return: bool) -> bool {
        let Some(mut decoder) = self.decoder(from) else { return false };
        while decoder.ip() < to {
            let instruction = decoder.decode();
            let is_last_call = is_return && decoder.ip() == to && is_call(&instruction);
            if instruction.is_invalid() || !(is_last_call || is_straight(&instruction)) {
                return false;
            }
        }
        decoder.ip() == to
    }

    /// Whether straight-line code leads from `pc` into the epilogue, or to the instruction that sets `rsp` from `rdi`.
    fn runs_into(&self, pc: u64) -> Option<Position> {
        let mut decoder = self.decoder(pc)?;
        for _ in 0..MAX_INSTRUCTIONS {
            let instruction = decoder.decode();
            if instruction.mnemonic() == Mnemonic::Add && moves_rsp(&instruction) == Some(self.shape.space) {
                let left = self.leaving(decoder.ip());
                return (left == Some(self.shape.saved.len())).then_some(Position::FrameAtRsp);
            }
            if let Some(source) = rsp_source(&instruction) {
                return (source == iced_x86::Register::RDI).then_some(Position::FrameAtRdi);
            }
            if is_direct_jump(&instruction) {
                decoder = self.decoder(instruction.near_branch_target())?;
            } else if !is_straight(&instruction) {
                return None;
            }
        }
        None
    }

    /// The code of the trace exit handler: from its start to the instruction that sets `rsp` to the C frame.
    fn exit_handler(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let Some(offset) = self.code.windows(EXIT_HANDLER.len()).position(|bytes| bytes == EXIT_HANDLER) else {
            return ranges;
        };
        let mut from = self.start + offset as u64;
        let Some(mut decoder) = self.decoder(from) else { return ranges };
        // Saving the SSE registers alone takes 16 instructions, so this run is longer than others.
        for _ in 0..4 * MAX_INSTRUCTIONS {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                break;
            }
            if rsp_source(&instruction).is_some() {
                ranges.push(from..decoder.ip());
                return ranges;
            }
            if is_direct_jump(&instruction) {
                ranges.push(from..decoder.ip());
                from = instruction.near_branch_target();
                match self.decoder(from) {
                    Some(next) => decoder = next,
                    None => break,
                }
            }
        }
        ranges
    }
}

/// The shape of the C frames: their size, from the interpreter's epilogue.
pub fn code_frame(code: &[u8]) -> Option<CodeFrame> {
    frame_shape(code).map(|shape| CodeFrame { size: shape.size(), l: None })
}

/// Finds the epilogue (`add rsp, space; pop ...; ret`) and reads the frame's layout from it.
pub fn frame_shape(code: &[u8]) -> Option<FrameShape> {
    let candidates = code.windows(3).enumerate().filter(|(_, bytes)| *bytes == [0x48, 0x83, 0xc4]);
    candidates.into_iter().find_map(|(offset, _)| {
        let mut decoder = decoder(code, 0, offset as u64)?;
        let space = moves_rsp(&decoder.decode())?;
        let mut saved = Vec::new();
        loop {
            let instruction = decoder.decode();
            match instruction.mnemonic() {
                Mnemonic::Pop => saved.push(general(instruction.op0_register())?),
                Mnemonic::Ret => break,
                _ => return None,
            }
        }
        saved.reverse();
        let is_whole = saved.len() >= 4 && saved.first() == Some(&Register::Rbp);
        is_whole.then_some(FrameShape { saved, space })
    })
}

/// Where the interpreter keeps BASE (`rdx`) across the call that returns to `return_address`. The code after the call
/// shows it, because it restores BASE. `code` begins at `start`; `l_base` is the offset of `lua_State.base`.
///
/// Until then, `rdx` may hold other values and more functions may be called, but nothing may store to `L->base`: so the
/// value that is loaded from there is the one during the call.
pub fn base_after_call(code: &[u8], start: u64, return_address: u64, l_base: u64) -> BaseAfterCall {
    let Some(mut after) = decoder(code, start, return_address) else { return BaseAfterCall::Unknown };
    let mut factory = InstructionInfoFactory::new();
    let mut written = Vec::new();
    for _ in 0..MAX_INSTRUCTIONS {
        let instruction = after.decode();
        let stores_base = instruction.op0_kind() == OpKind::Memory && is_l_base(&instruction, l_base);
        if instruction.is_invalid() || stores_base {
            break;
        }
        if let Some(source) = base_source(&instruction, &written, l_base) {
            return source;
        }
        let info = factory.info(&instruction);
        let writes = info.used_registers().iter().filter(|used| is_write(used.access()));
        written.extend(writes.map(|used| used.register().full_register()));
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call => {}
            FlowControl::UnconditionalBranch if is_direct_jump(&instruction) => {
                match decoder(code, start, instruction.near_branch_target()) {
                    Some(target) => after = target,
                    None => break,
                }
            }
            _ => break,
        }
    }
    BaseAfterCall::Unknown
}

/// Whether the instruction loads BASE, and from where.
fn base_source(instruction: &Instruction, written: &[iced_x86::Register], l_base: u64) -> Option<BaseAfterCall> {
    let loads_rdx = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().full_register() == iced_x86::Register::RDX;
    match instruction.op1_kind() {
        OpKind::Register if loads_rdx => {
            let source = instruction.op1_register().full_register();
            let kept = general(source).filter(|register| register.is_callee_saved() && !written.contains(&source));
            kept.map(BaseAfterCall::Register)
        }
        OpKind::Memory if loads_rdx => is_l_base(instruction, l_base).then_some(BaseAfterCall::LuaState),
        _ => None,
    }
}

/// Whether the memory operand is the field `base` of a `lua_State` whose address is in a register.
fn is_l_base(instruction: &Instruction, l_base: u64) -> bool {
    instruction.memory_displacement64() == l_base
        && instruction.memory_index() == iced_x86::Register::None
        && general(instruction.memory_base()).is_some_and(|register| register != Register::Rsp)
}

/// The state of the frame of `vm_ffi_call` at its first and last instructions. Its unwind entry says CFA = `rbp` + 16 and `rbx`
/// saved everywhere, which is true only between `push rbx` and `leave`. `code` begins `offset` bytes into the function. Returns
/// how many registers are on the stack besides the return address: none (0), or `rbp` (1); [`None`] where the entry is right.
pub fn ffi_call_edge(offset: u64, code: &[u8]) -> Option<usize> {
    /// `endbr64; push rbp; mov rbp, rsp; push rbx`: no later instruction belongs to the prologue.
    const PROLOGUE: u64 = 8;
    match code {
        // `endbr64`, `push rbp`
        [0xf3, 0x0f, 0x1e, 0xfa, ..] | [0x55, ..] if offset <= PROLOGUE => Some(0),
        // `mov rbp, rsp` in either encoding, `push rbx`
        [0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..] | [0x53, ..] if offset <= PROLOGUE => Some(1),
        // `ret`, after `leave`
        [0xc3, ..] => Some(0),
        _ => None,
    }
}

fn decoder(code: &[u8], start: u64, address: u64) -> Option<Decoder<'_>> {
    let offset = usize::try_from(address.checked_sub(start)?).ok()?;
    let code = code.get(offset..).filter(|code| !code.is_empty())?;
    Some(Decoder::with_ip(64, code, address, DecoderOptions::NONE))
}

/// A 64-bit general register. Its 32-bit name counts as well, because writing that sets the whole register.
pub fn general(register: iced_x86::Register) -> Option<Register> {
    use iced_x86::Register as R;
    Some(match register.full_register() {
        R::RAX => Register::Rax,
        R::RDX => Register::Rdx,
        R::RCX => Register::Rcx,
        R::RBX => Register::Rbx,
        R::RSI => Register::Rsi,
        R::RDI => Register::Rdi,
        R::RBP => Register::Rbp,
        R::RSP => Register::Rsp,
        R::R8 => Register::R8,
        R::R9 => Register::R9,
        R::R10 => Register::R10,
        R::R11 => Register::R11,
        R::R12 => Register::R12,
        R::R13 => Register::R13,
        R::R14 => Register::R14,
        R::R15 => Register::R15,
        _ => return None,
    })
}

/// The immediate of an `add rsp, imm` or `sub rsp, imm`.
fn moves_rsp(instruction: &Instruction) -> Option<u64> {
    let is_immediate = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    (instruction.op_count() == 2 && instruction.op0_register() == iced_x86::Register::RSP && is_immediate)
        .then(|| instruction.immediate(1))
}

/// The register that an instruction copies to `rsp`.
fn rsp_source(instruction: &Instruction) -> Option<iced_x86::Register> {
    let is_copy = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register() == iced_x86::Register::RSP
        && instruction.op1_kind() == OpKind::Register;
    is_copy.then(|| instruction.op1_register())
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

fn is_direct_jump(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::UnconditionalBranch
        && matches!(instruction.op0_kind(), OpKind::NearBranch64)
}

/// Whether execution continues after the instruction, with the same `rsp`.
fn is_straight(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Next
        && instruction.stack_pointer_increment() == 0
        && !(instruction.op0_kind() == OpKind::Register && instruction.op0_register() == iced_x86::Register::RSP)
}

fn is_write(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

fn push_bytes(register: &Register) -> Vec<u8> {
    stack_bytes(*register, 0x50)
}

fn pop_bytes(register: &Register) -> Vec<u8> {
    stack_bytes(*register, 0x58)
}

/// The bytes of a `push` (opcode 0x50) or `pop` (0x58) of a register. For the first eight registers, the hardware's
/// numbers differ from DWARF's.
fn stack_bytes(register: Register, opcode: u8) -> Vec<u8> {
    const HARDWARE: [u8; 8] = [0, 2, 1, 3, 6, 7, 5, 4];
    match HARDWARE.get(register as usize) {
        Some(number) => vec![opcode + number],
        None => vec![0x41, opcode + (register as u8 - 8)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `jmp aword [DISPATCH+OP*8]`: the end of each bytecode.
    const NEXT: &[u8] = &[0x41, 0xff, 0x24, 0xee];

    /// `vm_call` of Debian's luajit 2.1.0~beta3 (x86-64, GC64) up to `mov [rbp+0x50], rsp`.
    const VM_CALL: &[u8] = &[
        0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x48, 0x83, 0xec, 0x28, 0xbb, 0x01, 0x00, 0x00, 0x00, 0x89, 0x54, 0x24,
        0x08, 0x48, 0x89, 0xfd, 0x48, 0x89, 0x7c, 0x24, 0x10, 0x48, 0x89, 0xf1, 0x4c, 0x8b, 0x75, 0x10, 0x4c, 0x8b,
        0x7d, 0x50, 0x4c, 0x89, 0x7c, 0x24, 0x20, 0x48, 0x89, 0x6c, 0x24, 0x18, 0x49, 0x81, 0xc6, 0x80, 0x0f, 0x00,
        0x00, 0x48, 0x89, 0x65, 0x50,
    ];

    /// Its `vm_leave_cp` and `vm_leave_unw`: unlink the C frame, restore registers, return.
    const VM_LEAVE: &[u8] = &[
        0x48, 0x8b, 0x4c, 0x24, 0x20, 0x48, 0x89, 0x4d, 0x50, 0x31, 0xc0, 0x48, 0x83, 0xc4, 0x28, 0x41, 0x5e, 0x41,
        0x5f, 0x5b, 0x5d, 0xc3,
    ];

    /// Its `vm_unwind_ff`: `and rdi, -4; mov rsp, rdi; mov rbp, [rsp+16]`.
    const VM_UNWIND_FF: &[u8] = &[0x48, 0x83, 0xe7, 0xfc, 0x48, 0x89, 0xfc, 0x48, 0x8b, 0x6c, 0x24, 0x10];

    /// The end of its `vm_floor`: `jbe +4; subsd xmm1, xmm0; movaps xmm0, xmm1; ret`.
    const VM_FLOOR: &[u8] = &[0x76, 0x04, 0xf2, 0x0f, 0x5c, 0xc8, 0x0f, 0x28, 0xc1, 0xc3];

    /// The start of its `vm_ffi_callback`, after the callback's entry has pushed `rbp`, up to the return from
    /// lj_ccallback_enter (some instructions between are left out).
    const VM_FFI_CALLBACK: &[u8] = &[
        0x53, 0x41, 0x57, 0x41, 0x56, 0x48, 0x83, 0xec, 0x28, 0x4c, 0x8d, 0xb5, 0x80, 0x0f, 0x00, 0x00, 0x48, 0x89,
        0xe6, 0xe8, 0xba, 0x17, 0xff, 0xff, 0x41, 0xc7, 0x86, 0x38, 0xf1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ];

    const START: u64 = 0x5_0000;

    /// A text of these pieces, each after the end of a bytecode; returns their addresses.
    fn text<const N: usize>(pieces: [&[u8]; N]) -> (VmText, [u64; N]) {
        let mut code = Vec::new();
        let addresses = pieces.map(|piece| {
            code.extend(NEXT);
            let address = START + code.len() as u64;
            code.extend(piece);
            address
        });
        code.extend(NEXT);
        (VmText::new(START, code, 80), addresses)
    }

    #[test]
    fn reads_the_frames_layout_from_the_epilogue() {
        let usual = FrameShape::usual(80);
        assert_eq!(frame_shape(VM_LEAVE), Some(usual.clone()));
        assert_eq!((usual.size(), usual.space), (80, 40));
        // In Tarantool since 2.6.3, the frame has 16 bytes more.
        let mut tarantool = VM_LEAVE.to_vec();
        tarantool[14] = 0x38;
        assert_eq!(frame_shape(&tarantool), Some(FrameShape::usual(96)));
        // LUAJIT_NO_UNWIND also saves r12 and r13: add rsp, 40; pop r12; r13; r14; r15; rbx; rbp; ret
        let no_unwind = [0x48, 0x83, 0xc4, 0x28, 0x41, 0x5c, 0x41, 0x5d, 0x41, 0x5e, 0x41, 0x5f, 0x5b, 0x5d, 0xc3];
        use Register::*;
        let shape = frame_shape(&no_unwind).unwrap();
        assert_eq!((shape.size(), shape.saved), (96, vec![Rbp, Rbx, R15, R14, R13, R12]));
        assert_eq!(frame_shape(&VM_LEAVE[..20]), None);
    }

    #[test]
    fn returns_follow_calls_and_handlers_do_not() {
        // call rax; call [rbx+0x18]; call [r14+rax*8+0x1234]; call somewhere; mov eax, esi; mov rsp, rdi
        let calls: [&[u8]; 5] = [
            // For the first instructions, the code before them is not known.
            &[0xff, 0xd0, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0],
            &[0xff, 0xd0],
            &[0xff, 0x53, 0x18],
            &[0x41, 0xff, 0x94, 0xc6, 0x34, 0x12, 0, 0],
            &[0xe8, 0x10, 0x20, 0x30, 0x40],
        ];
        let (of_calls, addresses) = text(calls);
        for (address, call) in addresses.into_iter().zip(calls) {
            assert!(of_calls.may_return_to(address + call.len() as u64), "{call:x?}");
            assert_eq!(of_calls.may_return_to(address), address < START + 8, "{call:x?}");
        }
        let handler: [u8; 5] = [0x89, 0xf0, 0x48, 0x89, 0xfc];
        let (text, [_, handler]) = text([&[0x90; 8], &handler]);
        assert!(!text.may_return_to(handler + 5));
        assert!(text.may_return_to(START - 1) && text.may_return_to(START + 0x10_0000), "nothing is known there");
    }

    #[test]
    fn follows_the_prologue_push_by_push() {
        let (text, [leave, call]) = text([VM_LEAVE, VM_CALL]);
        let position = |offset: u64| text.position(call + offset, false);
        for (offset, pushed) in [(0, 0), (1, 1), (2, 2), (4, 3), (6, 4)] {
            assert_eq!(position(offset), Position::Partial { pushed }, "at {offset}");
        }
        // The frame is whole, but it is linked only by the last instruction.
        for offset in [10, 15, 19, 55, 59] {
            assert_eq!(position(offset), Position::FrameAtRsp, "at {offset}");
        }
        assert_eq!(text.position(leave - 4, false), Position::Body);
    }

    #[test]
    fn follows_the_epilogue_pop_by_pop() {
        let (text, [leave]) = text([VM_LEAVE]);
        let position = |offset: u64| text.position(leave + offset, false);
        for offset in [0, 5, 9, 11] {
            assert_eq!(position(offset), Position::FrameAtRsp, "at {offset}");
        }
        for (offset, pushed) in [(15, 4), (17, 3), (19, 2), (20, 1), (21, 0)] {
            assert_eq!(position(offset), Position::Partial { pushed }, "at {offset}");
        }
    }

    #[test]
    fn knows_an_ffi_callback_before_its_frame_is_linked() {
        let (text, [_, callback]) = text([VM_LEAVE, VM_FFI_CALLBACK]);
        assert_eq!(text.position(callback, false), Position::Partial { pushed: 1 });
        assert_eq!(text.position(callback + 5, false), Position::Partial { pushed: 4 });
        assert_eq!(text.position(callback + 24, true), Position::FrameAtRsp);
        assert_eq!(text.position(callback + 24, false), Position::Body);
    }

    #[test]
    fn knows_helpers_by_their_return() {
        let (text, [_, floor]) = text([VM_LEAVE, VM_FLOOR]);
        for offset in [0, 2, 6, 9] {
            assert_eq!(text.position(floor + offset, false), Position::Helper { size: 8 }, "at {offset}");
        }
        // This is not true for the return address of a function that never returns.
        assert_eq!(text.position(floor, true), Position::Body);
        let (text, [_, pushed]) = self::text([VM_LEAVE, &[0x90, 0x5b, 0xc3]]);
        assert_eq!(text.position(pushed, false), Position::Helper { size: 16 });
    }

    #[test]
    fn knows_where_the_stack_is_cut() {
        let (text, [_, unwind]) = text([VM_LEAVE, VM_UNWIND_FF]);
        assert_eq!(text.position(unwind, false), Position::FrameAtRdi);
        assert_eq!(text.position(unwind + 4, false), Position::FrameAtRdi);
        assert_eq!(text.position(unwind + 7, false), Position::Body);
    }

    #[test]
    fn knows_the_trace_exit_handler_up_to_where_it_leaves_the_traces_frame() {
        // push r13 ... lea rbp, [rsp+88]; sub rsp, 0x80; call; jmp +1; int3; mov rsp, rcx
        let mut code = EXIT_HANDLER.to_vec();
        code.extend([0x48, 0x81, 0xec, 0x80, 0, 0, 0, 0xe8, 0, 1, 0, 0, 0xeb, 0x01, 0xcc, 0x48, 0x89, 0xcc]);
        let (text, [_, exit]) = text([VM_LEAVE, &code]);
        let call = exit + EXIT_HANDLER.len() as u64 + 7;
        for (pc, is_return) in [(exit, false), (exit + 9, false), (call, false), (call + 5, true), (call + 8, false)] {
            assert_eq!(text.position(pc, is_return), Position::TraceExit, "at {:#x}", pc - exit);
        }
        assert_eq!(text.position(call + 7, false), Position::Body);
        assert_eq!(text.position(call + 11, false), Position::Body);
    }

    #[test]
    fn any_address_and_any_bytes_have_a_position() {
        let mut seed = 1_u64;
        let bytes: Vec<_> = (0..4096)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        let text = VmText::new(START, bytes, 80);
        for pc in (START - 8..START + 4104).chain([0, u64::MAX]) {
            for is_return in [false, true] {
                text.position(pc, is_return);
                text.base_after_call(pc, 0x20);
            }
        }
        assert_eq!(VmText::new(START, Vec::new(), 96).position(START, false), Position::Body);
    }

    #[test]
    fn base_is_where_the_code_after_the_call_takes_it_from() {
        let base = |code: &[u8], l_base| base_after_call(code, START, START, l_base);
        // Debian: lj_tab_get, `mov rdx, rbp`; lj_meta_tget, `mov rdx, [rbp+32]`.
        assert_eq!(base(&[0x48, 0x89, 0xea], 32), BaseAfterCall::Register(Register::Rbp));
        assert_eq!(base(&[0x48, 0x8b, 0x55, 0x20, 0x48, 0x85, 0xc0], 32), BaseAfterCall::LuaState);
        // Tarantool 2.6.0, not GC64: `mov edx, ebp` and `mov edx, [ebp+16]`.
        assert_eq!(base(&[0x89, 0xea], 16), BaseAfterCall::Register(Register::Rbp));
        assert_eq!(base(&[0x67, 0x8b, 0x55, 0x10], 16), BaseAfterCall::LuaState);
        // `mov rbp, [rsp+16]` comes first, so the old value of `rbp` is gone.
        assert_eq!(base(&[0x48, 0x8b, 0x6c, 0x24, 0x10, 0x48, 0x89, 0xea], 32), BaseAfterCall::Unknown);
        // Past a jump, a conditional one and a call; not past an indirect jump or a store to L->base.
        assert_eq!(
            base(&[0xeb, 0x01, 0xcc, 0x74, 0x05, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xea], 32),
            BaseAfterCall::Register(Register::Rbp)
        );
        assert_eq!(base(&[0x41, 0xff, 0x24, 0xee, 0x48, 0x89, 0xea], 32), BaseAfterCall::Unknown);
        assert_eq!(base(&[0x48, 0x89, 0x55, 0x20, 0x48, 0x8b, 0x55, 0x20], 32), BaseAfterCall::Unknown);
    }

    #[test]
    fn vm_ffi_call_is_special_only_at_its_edges() {
        assert_eq!(ffi_call_edge(0, &[0x55, 0x48, 0x89, 0xe5]), Some(0));
        assert_eq!(ffi_call_edge(1, &[0x48, 0x89, 0xe5, 0x53]), Some(1));
        assert_eq!(ffi_call_edge(4, &[0x53, 0x48, 0x89, 0xfb]), Some(1));
        assert_eq!(ffi_call_edge(5, &[0x48, 0x89, 0xfb, 0x8b]), None);
        assert_eq!(ffi_call_edge(0x9f, &[0xc3, 0, 0, 0]), Some(0));
    }
}
