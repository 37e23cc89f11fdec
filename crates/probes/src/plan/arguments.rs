//! Where the arguments of the allocator are while it runs, and what its branches have told about them.

use iced_x86::{Code, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use lj_trace_unwind::Register;

/// An argument of `lua_Alloc`, in the order of System V: `rdi`, `rsi`, `rdx`, `rcx` at the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// `ud`: what the VM was created with (`g->allocd`).
    UserData = 0,
    /// `ptr`: the old block, or NULL.
    Pointer = 1,
    /// `osize`: bytes in the old block.
    OldSize = 2,
    /// `nsize`: bytes wanted; 0 frees.
    NewSize = 3,
}

impl Argument {
    /// How many there are.
    pub const COUNT: usize = 4;

    /// All of them, in order.
    pub const ALL: [Self; Self::COUNT] = [Self::UserData, Self::Pointer, Self::OldSize, Self::NewSize];

    /// Its name in the declaration of `lua_Alloc`.
    pub fn name(self) -> &'static str {
        ["ud", "ptr", "osize", "nsize"][self as usize]
    }

    /// The register that passes it.
    pub fn register(self) -> Register {
        [Register::Rdi, Register::Rsi, Register::Rdx, Register::Rcx][self as usize]
    }
}

/// Where an argument can be read at a probe point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentLocation {
    /// In a register, all 64 bits of it.
    Register(Register),
    /// In no register any more, but a branch has shown it to be 0.
    Zero,
    /// Not in any register that the plan could name.
    Lost,
}

/// What is known of an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Any,
    Zero,
    NonZero,
}

/// Everything that is known right before an instruction, whichever way led there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentState {
    /// The registers that hold each argument, as bits in DWARF's order.
    holders: [u32; Argument::COUNT],
    values: [Value; Argument::COUNT],
    /// The zero flag says whether this argument is 0.
    zero_flag: Option<Argument>,
    /// How far `rsp` is from where it was at the entry, in bytes.
    rsp: Option<i64>,
    /// Another function may have been called: the event may be over.
    called: bool,
}

/// `rax`, `rcx`, `rdx`, `rsi`, `rdi`, `r8`..`r11`: lost in a call (System V psABI, 3.2.1).
fn lost_in_call() -> u32 {
    Register::ALL.into_iter().filter(|r| !r.is_callee_saved() && *r != Register::Rsp).fold(0, |bits, r| bits | bit(r))
}

fn bit(register: Register) -> u32 {
    1 << register as u32
}

impl ArgumentState {
    /// At the function's first instruction.
    pub fn entry() -> Self {
        Self {
            holders: Argument::ALL.map(|argument| bit(argument.register())),
            values: [Value::Any; Argument::COUNT],
            zero_flag: None,
            rsp: Some(0),
            called: false,
        }
    }

    /// Where an argument is. The register that passed it comes first, then the others in DWARF's order.
    pub fn location(&self, argument: Argument) -> ArgumentLocation {
        let holders = self.holders[argument as usize];
        let mut registers = std::iter::once(argument.register()).chain(Register::ALL);
        match registers.find(|&register| holders & bit(register) != 0) {
            Some(register) => ArgumentLocation::Register(register),
            None if self.is_zero(argument) => ArgumentLocation::Zero,
            None => ArgumentLocation::Lost,
        }
    }

    /// Whether an argument is known to be 0.
    pub fn is_zero(&self, argument: Argument) -> bool {
        self.values[argument as usize] == Value::Zero
    }

    /// Whether an argument is known not to be 0.
    pub fn is_nonzero(&self, argument: Argument) -> bool {
        self.values[argument as usize] == Value::NonZero
    }

    /// Whether `[rsp]` is the return address, as at the entry.
    pub fn return_address_on_top(&self) -> bool {
        self.rsp == Some(0)
    }

    /// Whether no other function has been called yet, so that the event is still to come.
    pub fn before_any_call(&self) -> bool {
        !self.called
    }

    /// What is known where two ways meet.
    pub fn join(&self, other: &Self) -> Self {
        Self {
            holders: std::array::from_fn(|i| self.holders[i] & other.holders[i]),
            values: std::array::from_fn(
                |i| if self.values[i] == other.values[i] { self.values[i] } else { Value::Any },
            ),
            zero_flag: self.zero_flag.filter(|_| self.zero_flag == other.zero_flag),
            rsp: self.rsp.filter(|_| self.rsp == other.rsp),
            called: self.called || other.called,
        }
    }

    /// After `instruction`, before its branch (if it is one) is decided.
    pub fn after(&self, instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Self {
        let mut next = self.clone();
        let copied = copied_register(instruction).map(|source| self.holders.map(|holders| holders & bit(source) != 0));
        let info = factory.info(instruction);
        let written = info.used_registers().iter().filter(|used| writes(used.access()));
        let mut lost = written.filter_map(|used| general(used.register())).fold(0, |bits, r| bits | bit(r));
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            lost |= lost_in_call();
            next.called = true;
        }
        for (argument, holders) in next.holders.iter_mut().enumerate() {
            *holders &= !lost;
            if copied.is_some_and(|copied| copied[argument]) {
                *holders |= general(instruction.op0_register()).map_or(0, bit);
            }
        }
        if lost & bit(Register::Rsp) != 0 {
            next.rsp = self.rsp.zip(moves_rsp(instruction)).and_then(|(rsp, change)| rsp.checked_add(change));
        }
        if instruction.rflags_modified() != 0 || next.called {
            next.zero_flag = compares_with_zero(instruction).and_then(|register| {
                Argument::ALL.into_iter().find(|&a| self.holders[a as usize] & bit(register) != 0)
            });
        }
        next
    }

    /// On one side of a conditional branch; `None` if that side is never taken.
    pub fn branch(&self, branch: &Instruction, taken: bool) -> Option<Self> {
        let zero = match branch.condition_code() {
            ConditionCode::e => taken,
            ConditionCode::ne => !taken,
            _ => return Some(self.clone()),
        };
        let Some(argument) = self.zero_flag else { return Some(self.clone()) };
        let (value, opposite) = if zero { (Value::Zero, Value::NonZero) } else { (Value::NonZero, Value::Zero) };
        let known = self.values[argument as usize];
        (known != opposite).then(|| {
            let mut next = self.clone();
            next.values[argument as usize] = value;
            next
        })
    }
}

/// The source of a `mov` between two 64-bit registers.
fn copied_register(instruction: &Instruction) -> Option<Register> {
    let is_copy = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register;
    is_copy.then(|| general(instruction.op1_register())).flatten()
}

/// The 64-bit register whose being 0 the zero flag tells afterwards.
fn compares_with_zero(instruction: &Instruction) -> Option<Register> {
    let operand = instruction.op0_register();
    let zero = match instruction.mnemonic() {
        Mnemonic::Test => instruction.op1_kind() == OpKind::Register && instruction.op1_register() == operand,
        Mnemonic::Cmp => is_immediate(instruction) && instruction.immediate(1) == 0,
        _ => false,
    };
    (zero && instruction.op0_kind() == OpKind::Register && operand.is_gpr64()).then(|| general(operand)).flatten()
}

/// By how many bytes the instruction moves `rsp`, if it says so itself.
fn moves_rsp(instruction: &Instruction) -> Option<i64> {
    use iced_x86::Register::RSP;
    let on_rsp =
        instruction.op_count() == 2 && instruction.op0_kind() == OpKind::Register && instruction.op0_register() == RSP;
    match instruction.mnemonic() {
        // A call's return address is gone again when the next instruction runs.
        Mnemonic::Call => Some(0),
        Mnemonic::Push => Some(i64::from(instruction.stack_pointer_increment())),
        Mnemonic::Pop if instruction.op0_kind() == OpKind::Register && instruction.op0_register() != RSP => {
            Some(i64::from(instruction.stack_pointer_increment()))
        }
        Mnemonic::Add if on_rsp && is_immediate(instruction) => Some(instruction.immediate(1) as i64),
        Mnemonic::Sub if on_rsp && is_immediate(instruction) => (instruction.immediate(1) as i64).checked_neg(),
        _ => None,
    }
}

fn is_immediate(instruction: &Instruction) -> bool {
    matches!(
        instruction.op1_kind(),
        OpKind::Immediate8 | OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate8to32
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// The general register that a register is part of.
fn general(register: iced_x86::Register) -> Option<Register> {
    /// DWARF's order of the registers that iced-x86 numbers in the order of their encoding.
    const ENCODED: [Register; 8] = {
        use Register::*;
        [Rax, Rcx, Rdx, Rbx, Rsp, Rbp, Rsi, Rdi]
    };
    let full = register.full_register();
    if !full.is_gpr64() {
        return None;
    }
    let number = full.number();
    ENCODED.get(number).copied().or_else(|| u16::try_from(number).ok().and_then(Register::from_dwarf))
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    /// What is known after straight code.
    fn run(code: &[u8]) -> ArgumentState {
        let mut factory = InstructionInfoFactory::new();
        Decoder::new(64, code, DecoderOptions::NONE)
            .iter()
            .fold(ArgumentState::entry(), |s, i| s.after(&i, &mut factory))
    }

    #[test]
    fn follows_copies_and_notices_what_is_overwritten() {
        use ArgumentLocation::{Lost, Register as In};
        let state = run(&[
            0x49, 0x89, 0xf4, // mov r12, rsi
            0x48, 0x89, 0xf7, // mov rdi, rsi
            0x31, 0xf6, // xor esi, esi
            0x89, 0xca, // mov edx, ecx
        ]);
        let locations = Argument::ALL.map(|argument| state.location(argument));
        assert_eq!(locations, [Lost, In(Register::Rdi), Lost, In(Register::Rcx)]);
        // A call leaves only the callee-saved copy.
        let state = run(&[0x49, 0x89, 0xf4, 0xe8, 0, 0, 0, 0]);
        assert_eq!(state.location(Argument::Pointer), In(Register::R12));
        assert_eq!(state.location(Argument::NewSize), Lost);
        assert!(!state.before_any_call());
    }

    #[test]
    fn follows_the_stack_pointer() {
        assert!(run(&[0x48, 0x83, 0xec, 0x18, 0x53, 0x5b, 0x48, 0x83, 0xc4, 0x18]).return_address_on_top());
        assert!(!run(&[0x53]).return_address_on_top());
        assert!(!run(&[0x48, 0x83, 0xe4, 0xf0]).return_address_on_top()); // and rsp, -16
        assert!(!run(&[0x5c]).return_address_on_top()); // pop rsp
    }

    #[test]
    fn learns_from_tests_of_whole_arguments_only() {
        let je = Decoder::new(64, &[0x74, 0], DecoderOptions::NONE).decode();
        let whole = run(&[0x48, 0x85, 0xc9]); // test rcx, rcx
        assert!(whole.branch(&je, true).unwrap().is_zero(Argument::NewSize));
        assert!(whole.branch(&je, false).unwrap().is_nonzero(Argument::NewSize));
        for code in [
            &[0x85, 0xc9][..],                     // test ecx, ecx
            &[0x48, 0x85, 0xce],                   // test rsi, rcx
            &[0x48, 0x83, 0xf9, 0x01],             // cmp rcx, 1
            &[0x48, 0x85, 0xc9, 0x48, 0xff, 0xc0], // test rcx, rcx; inc rax
            &[0x31, 0xc9, 0x48, 0x85, 0xc9],       // xor ecx, ecx; test rcx, rcx
        ] {
            let state = run(code);
            assert!(!state.branch(&je, true).unwrap().is_zero(Argument::NewSize), "{code:02x?}");
        }
        // What is known already rules the other side out.
        let zero = whole.branch(&je, true).unwrap();
        assert_eq!(zero.branch(&je, false), None);
    }
}
