//! The general registers of one frame, each either known or lost.

/// A general register of x86-64, in DWARF's numbering (System V psABI, figure 3.36).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the registers' own names")]
pub enum Register {
    Rax = 0,
    Rdx = 1,
    Rcx = 2,
    Rbx = 3,
    Rsi = 4,
    Rdi = 5,
    Rbp = 6,
    Rsp = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
    R11 = 11,
    R12 = 12,
    R13 = 13,
    R14 = 14,
    R15 = 15,
    Rip = 16,
}

impl Register {
    /// How many there are.
    pub const COUNT: usize = 17;

    /// All of them, in DWARF's order.
    pub const ALL: [Self; Self::COUNT] = {
        use Register::*;
        [Rax, Rdx, Rcx, Rbx, Rsi, Rdi, Rbp, Rsp, R8, R9, R10, R11, R12, R13, R14, R15, Rip]
    };

    /// The register with a DWARF number; none for vector and other registers.
    pub fn from_dwarf(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether a function must hand the register back as it found it (System V psABI, 3.2.1).
    pub fn is_callee_saved(self) -> bool {
        matches!(self, Self::Rbx | Self::Rbp | Self::R12 | Self::R13 | Self::R14 | Self::R15)
    }
}

/// The general registers at one frame. `rip` and `rsp` are always known; unwinding loses the volatile
/// registers, and a function may lose others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    values: [u64; Register::COUNT],
    known: u32,
}

impl Registers {
    /// All registers known, in DWARF's order (see [`Register`]).
    pub fn all(values: [u64; Register::COUNT]) -> Self {
        Self { values, known: (1 << Register::COUNT) - 1 }
    }

    /// Only the instruction and stack pointer known.
    pub fn only(rip: u64, rsp: u64) -> Self {
        let mut registers = Self { values: [0; Register::COUNT], known: 0 };
        registers.set(Register::Rip, Some(rip));
        registers.set(Register::Rsp, Some(rsp));
        registers
    }

    /// The instruction pointer: of the interrupted instruction, or the return address.
    pub fn rip(&self) -> u64 {
        self.values[Register::Rip as usize]
    }

    /// The stack pointer: what it is while the frame itself runs, that is, once its callee has returned.
    pub fn rsp(&self) -> u64 {
        self.values[Register::Rsp as usize]
    }

    /// A register's value, if it is known at this frame.
    pub fn get(&self, register: Register) -> Option<u64> {
        (self.known & (1 << register as u32) != 0).then(|| self.values[register as usize])
    }

    /// Sets a register, or marks it as lost. `rip` and `rsp` cannot be lost: [`None`] leaves them alone.
    pub fn set(&mut self, register: Register, value: Option<u64>) {
        match value {
            Some(value) => {
                self.values[register as usize] = value;
                self.known |= 1 << register as u32;
            }
            None if !matches!(register, Register::Rip | Register::Rsp) => self.known &= !(1 << register as u32),
            None => {}
        }
    }

    /// What of these registers a caller still knows after a call that kept the callee-saved ones.
    pub fn preserved_by_call(&self, rip: u64, rsp: u64) -> Self {
        let mut caller = Self::only(rip, rsp);
        for register in Register::ALL.into_iter().filter(|register| register.is_callee_saved()) {
            caller.set(register, self.get(register));
        }
        caller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_keeps_only_the_callee_saved_registers() {
        let registers = Registers::all(std::array::from_fn(|number| number as u64 + 100));
        let caller = registers.preserved_by_call(7, 8);
        assert_eq!((caller.rip(), caller.rsp()), (7, 8));
        let known: Vec<_> = Register::ALL.into_iter().filter(|&register| caller.get(register).is_some()).collect();
        use Register::*;
        assert_eq!(known, [Rbx, Rbp, Rsp, R12, R13, R14, R15, Rip]);
        assert_eq!(caller.get(Rbp), Some(106));
    }
}
