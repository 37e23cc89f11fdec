//! Where the allocator's arguments are while it runs, and what its branches have revealed about them.

use lj_trace_common::arch::{Register, reg};

use crate::arch::MachineInstruction;

/// An argument of `lua_Alloc`, in the order of its declaration.
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
    /// How many arguments there are.
    pub const COUNT: usize = 4;

    /// All of them, in order.
    pub const ALL: [Self; Self::COUNT] = [Self::UserData, Self::Pointer, Self::OldSize, Self::NewSize];

    /// Its name in the declaration of `lua_Alloc`.
    pub fn name(self) -> &'static str {
        ["ud", "ptr", "osize", "nsize"][self as usize]
    }

    /// The register that passes the argument.
    pub fn register(self) -> Register {
        Register::ALL[reg::ARGUMENTS[self as usize]]
    }
}

/// Where an argument can be read at a probe point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentLocation {
    /// In a register, all 64 bits of it.
    Register(Register),
    /// In no register any more, but a branch has shown that it is 0.
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

/// Everything that is known right before an instruction, on whatever path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentState {
    /// The registers that hold each argument, as bits in DWARF's order.
    holders: [u64; Argument::COUNT],
    values: [Value; Argument::COUNT],
    /// The argument whose being 0 the zero flag shows.
    zero_flag: Option<Argument>,
    /// The distance of the stack pointer from where it was at the entry, in bytes.
    sp: Option<i64>,
    /// Whether the return address is still in its register, where calls leave it in one.
    in_link: bool,
    /// Another function may have been called, so the event may be over.
    called: bool,
}

/// The registers that a call may overwrite.
fn lost_in_call() -> u64 {
    Register::ALL.into_iter().filter(|r| !r.is_callee_saved() && *r != Register::SP).fold(0, |bits, r| bits | bit(r))
}

fn bit(register: Register) -> u64 {
    1 << register as u32
}

impl ArgumentState {
    /// The state at the function's first instruction.
    pub fn entry() -> Self {
        Self {
            holders: Argument::ALL.map(|argument| bit(argument.register())),
            values: [Value::Any; Argument::COUNT],
            zero_flag: None,
            sp: Some(0),
            in_link: true,
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

    /// Whether the stack pointer is where it was at the entry.
    pub fn stack_is_as_at_entry(&self) -> bool {
        self.sp == Some(0)
    }

    /// Whether the return address is where it was at the entry: on top of the stack, or in its register.
    pub fn return_address_in_place(&self) -> bool {
        self.stack_is_as_at_entry() && self.in_link
    }

    /// Whether no other function has been called yet, so that the event is still to come.
    pub fn before_any_call(&self) -> bool {
        !self.called
    }

    /// What is known where two paths meet.
    pub fn join(&self, other: &Self) -> Self {
        Self {
            holders: std::array::from_fn(|i| self.holders[i] & other.holders[i]),
            values: std::array::from_fn(
                |i| if self.values[i] == other.values[i] { self.values[i] } else { Value::Any },
            ),
            zero_flag: self.zero_flag.filter(|_| self.zero_flag == other.zero_flag),
            sp: self.sp.filter(|_| self.sp == other.sp),
            in_link: self.in_link && other.in_link,
            called: self.called || other.called,
        }
    }

    /// The state after `instruction`; for a branch, before it is decided.
    pub fn after(&self, instruction: &MachineInstruction) -> Self {
        let mut next = self.clone();
        let effects = instruction.effects();
        let mut lost = effects.written;
        if effects.is_call {
            lost |= lost_in_call();
            next.called = true;
        }
        for (own, holders) in next.holders.iter_mut().zip(self.holders) {
            *own &= !lost;
            if let Some((to, from)) = effects.copies
                && holders & bit(from) != 0
            {
                *own |= bit(to);
            }
        }
        next.in_link &= reg::LINK.is_none_or(|link| lost & bit(Register::ALL[link]) == 0);
        if lost & bit(Register::SP) != 0 {
            next.sp = self.sp.zip(effects.moves_stack).and_then(|(sp, change)| sp.checked_add(change));
        }
        if effects.changes_flags || next.called {
            next.zero_flag = effects.tests.and_then(|register| {
                Argument::ALL.into_iter().find(|&a| self.holders[a as usize] & bit(register) != 0)
            });
        }
        next
    }

    /// The state on one side of a conditional branch; `None` if that side is never taken.
    pub fn branch(&self, branch: &MachineInstruction, taken: bool) -> Option<Self> {
        let (Some(if_zero), Some(argument)) = (branch.taken_if_zero(), self.zero_flag) else {
            return Some(self.clone());
        };
        let zero = if_zero == taken;
        let (value, opposite) = if zero { (Value::Zero, Value::NonZero) } else { (Value::NonZero, Value::Zero) };
        let known = self.values[argument as usize];
        (known != opposite).then(|| {
            let mut next = self.clone();
            next.values[argument as usize] = value;
            next
        })
    }
}

// They have its code.
#[cfg(target_arch = "x86_64")]
#[cfg(test)]
mod tests {
    use super::*;

    /// What is known after straight-line code.
    fn run(code: &[u8]) -> ArgumentState {
        let (mut state, mut rest) = (ArgumentState::entry(), code);
        while let Some(instruction) = MachineInstruction::decode(rest, 0) {
            state = state.after(&instruction);
            rest = &rest[instruction.size()..];
        }
        state
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
        assert!(run(&[0x48, 0x83, 0xec, 0x18, 0x53, 0x5b, 0x48, 0x83, 0xc4, 0x18]).return_address_in_place());
        assert!(!run(&[0x53]).return_address_in_place());
        assert!(!run(&[0x48, 0x83, 0xe4, 0xf0]).return_address_in_place()); // and rsp, -16
        assert!(!run(&[0x5c]).return_address_in_place()); // pop rsp
    }

    #[test]
    fn learns_from_tests_of_whole_arguments_only() {
        let je = MachineInstruction::decode(&[0x74, 0], 0).unwrap();
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
        // Earlier knowledge rules the other side out.
        let zero = whole.branch(&je, true).unwrap();
        assert_eq!(zero.branch(&je, false), None);
    }
}
