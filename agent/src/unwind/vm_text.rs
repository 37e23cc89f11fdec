//! What the machine code of LuaJIT's interpreter says about its stack frame.
//!
//! The unwind table gives the interpreter one row for its whole code: CFA = `rsp` + `CFRAME_SIZE`. That
//! holds in the bytecodes, but not while a frame is entered or left, in the math helpers (called without
//! unwind information), or in the trace exit handler. These functions decide by the instructions around
//! an address (`vm_x64.dasc` and `vm_x86.dasc`: macros `saveregs`, `restoreregs`, label `vm_exit_handler`,
//! LuaJIT 2.0 to August 2026, OpenResty, Tarantool).

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use super::registers::Register;

/// How the interpreter's frame is laid out: what `saveregs` pushes, and the space below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameShape {
    /// The registers in the order in which they are pushed, right below the return address.
    pub saved: Vec<Register>,
    /// Bytes below them (`CFRAME_SPACE`).
    pub space: u64,
}

impl FrameShape {
    /// The shape of a build whose code cannot be read: four registers (builds with unwind tables).
    pub fn usual(cframe_size: u64) -> Self {
        let saved = vec![Register::Rbp, Register::Rbx, Register::R15, Register::R14];
        Self { space: cframe_size.saturating_sub(8 + 8 * saved.len() as u64), saved }
    }

    /// Distance from the lowest address to the CFA: `CFRAME_SIZE`.
    pub fn size(&self) -> u64 {
        8 + 8 * self.saved.len() as u64 + self.space
    }

    /// Where the register pushed as number `index` is, counted from the CFA.
    pub fn slot(index: usize) -> i64 {
        -16 - 8 * index as i64
    }
}

/// Where the frame is at one instruction of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// In the prologue or epilogue: `pushed` registers of the frame are on the stack, right at `rsp`, and
    /// the others still (or again) in place. CFA = `rsp` + 8 + 8 * `pushed`.
    Partial {
        /// How many of [`FrameShape::saved`].
        pushed: usize,
    },
    /// `rsp` is exactly the frame's lowest address, though `L->cframe` may not name it (yet, or any more).
    FrameAtRsp,
    /// About to drop everything below the C frame that `rdi` points to (`vm_unwind_c`, `vm_unwind_ff`).
    FrameAtRdi,
    /// In the trace exit handler, which works below the frame of the trace it came from.
    TraceExit,
    /// In a helper without a frame of its own (`vm_floor`, `vm_mod`, ...), which the interpreter, traces and
    /// C functions call: its caller's `rsp` is `rsp` + `size`, the return address being the word below that.
    Helper {
        /// Bytes of the helper's own on the stack, its return address included.
        size: u64,
    },
    /// Anywhere else: `rsp` is the frame's lowest address.
    Body,
}

/// Where the interpreter keeps BASE while it calls a C function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseAfterCall {
    /// In a callee-saved register, from which it is taken back after the call.
    Register(Register),
    /// In `L->base`, from which it is loaded again.
    LuaState,
    /// The code after the call does not tell.
    Unknown,
}

/// A VM's machine code.
#[derive(Clone, Debug)]
pub struct VmText {
    start: u64,
    code: Vec<u8>,
    shape: FrameShape,
    exits: Vec<Range<u64>>,
}

/// Decoding never looks further than this; the longest run that matters is some 40 instructions.
const MAX_INSTRUCTIONS: usize = 64;

/// The longest distance from a prologue's end to the first jump (`vm_cpcall`: 92 bytes) is below this.
const MAX_AFTER_PROLOGUE: usize = 160;

/// How `vm_exit_handler` begins: `push r13; push r12; push r11; ... push rbp; lea rbp, [rsp+88]`.
const EXIT_HANDLER: &[u8] = &[
    0x41, 0x55, 0x41, 0x54, 0x41, 0x53, 0x41, 0x52, 0x41, 0x51, 0x41, 0x50, 0x57, 0x56, 0x55, 0x48, 0x8d, 0x6c, 0x24,
    0x58,
];

impl VmText {
    /// Takes in the code of an interpreter that begins at `start`.
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

    /// Where the frame is at `pc`: the instruction that was interrupted or, if `is_return`, the address a
    /// C function will return to.
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
            None => self.returns(pc).map_or(Position::Body, |size| Position::Helper { size }),
        }
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

    /// In the prologue: what follows are the rest of its pushes and `sub rsp, space`.
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

    /// In the epilogue: what follows are the rest of its pops and `ret`, or a jump to another function.
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

    /// Whether the pops that an epilogue has behind it are what stands before `pc`; a bare `ret` is also
    /// how the math helpers end.
    fn ends_epilogue(&self, pc: u64, left: usize) -> bool {
        let before: Vec<u8> =
            self.shape.saved[left.min(self.shape.saved.len())..].iter().rev().flat_map(pop_bytes).collect();
        let Some(offset) = pc.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok()) else {
            return false;
        };
        self.code.get(..offset).is_some_and(|code| code.ends_with(&before))
    }

    /// Whether straight-line code leads from the end of a prologue to `pc`: nothing on the way can have
    /// left the frame. A return address counts if its call is the end of that run.
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

    /// Whether the code at `pc` runs, past conditional jumps and calls, into a `ret` that is not the
    /// epilogue's, and what it takes from the stack on the way, that return address included. The
    /// interpreter proper never returns: it jumps from bytecode to bytecode.
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
                FlowControl::ConditionalBranch | FlowControl::Call => {}
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

    /// Whether straight-line code leads from `pc` into the epilogue, or to where `rsp` is set from `rdi`.
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

    /// Where the trace exit handler runs: from its start to where it sets `rsp` to the C frame.
    fn exit_handler(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let Some(offset) = self.code.windows(EXIT_HANDLER.len()).position(|bytes| bytes == EXIT_HANDLER) else {
            return ranges;
        };
        let mut from = self.start + offset as u64;
        let Some(mut decoder) = self.decoder(from) else { return ranges };
        // The SSE registers alone take 16 instructions, so this run is longer than others.
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

/// Where the interpreter keeps BASE (`rdx`) across the call that returns to `return_address`: the first
/// instruction after it that writes `rdx` tells. `code` begins at `start`; `l_base` is the offset of
/// `lua_State.base`.
pub fn base_after_call(code: &[u8], start: u64, return_address: u64, l_base: u64) -> BaseAfterCall {
    let Some(mut after) = decoder(code, start, return_address) else { return BaseAfterCall::Unknown };
    let mut factory = InstructionInfoFactory::new();
    let mut written = Vec::new();
    for _ in 0..MAX_INSTRUCTIONS {
        let instruction = after.decode();
        if instruction.is_invalid() {
            break;
        }
        let info = factory.info(&instruction);
        let writes = info.used_registers().iter().filter(|used| is_write(used.access()));
        let writes: Vec<_> = writes.map(|used| used.register().full_register()).collect();
        if writes.contains(&iced_x86::Register::RDX) {
            return base_source(&instruction, &written, l_base);
        }
        written.extend(writes);
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => {}
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

fn base_source(instruction: &Instruction, written: &[iced_x86::Register], l_base: u64) -> BaseAfterCall {
    if instruction.mnemonic() != Mnemonic::Mov || instruction.op0_register().full_register() != iced_x86::Register::RDX
    {
        return BaseAfterCall::Unknown;
    }
    match instruction.op1_kind() {
        OpKind::Register => {
            let source = instruction.op1_register().full_register();
            let kept = general(source).filter(|register| register.is_callee_saved() && !written.contains(&source));
            kept.map_or(BaseAfterCall::Unknown, BaseAfterCall::Register)
        }
        OpKind::Memory => {
            let base = instruction.memory_base().full_register();
            let is_l_base = instruction.memory_displacement64() == l_base
                && instruction.memory_index() == iced_x86::Register::None
                && general(base).is_some_and(|register| register != Register::Rsp);
            if is_l_base { BaseAfterCall::LuaState } else { BaseAfterCall::Unknown }
        }
        _ => BaseAfterCall::Unknown,
    }
}

/// Where the frame of `vm_ffi_call` is at its first and last instructions. Its unwind entry says CFA =
/// `rbp` + 16 and `rbx` saved throughout, which is true only between `push rbx` and `leave`. `offset` is
/// how far into the function `code` begins. Returns what is on the stack at `rsp`: only the return address
/// (0), or `rbp` as well (1); none where the entry is right.
pub fn ffi_call_edge(offset: u64, code: &[u8]) -> Option<usize> {
    /// `endbr64; push rbp; mov rbp, rsp; push rbx`: nothing later belongs to the prologue.
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

/// A 64-bit general register (its 32-bit name counts: writing it sets all of it).
fn general(register: iced_x86::Register) -> Option<Register> {
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

/// Whether execution goes on behind the instruction and with the same `rsp`.
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

/// `push` (opcode 0x50) or `pop` (0x58) of a register. The hardware's numbers differ from DWARF's in the
/// first eight.
fn stack_bytes(register: Register, opcode: u8) -> Vec<u8> {
    const HARDWARE: [u8; 8] = [0, 2, 1, 3, 6, 7, 5, 4];
    match HARDWARE.get(register as usize) {
        Some(number) => vec![opcode + number],
        None => vec![0x41, opcode + (register as u8 - 8)],
    }
}
