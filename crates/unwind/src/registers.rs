//! The general registers of one frame, each either known or lost.

use lj_trace_common::arch::REGISTERS;
pub use lj_trace_common::arch::Register;

/// The general registers at one frame. Program counter and stack pointer are always known; unwinding loses the volatile
/// registers, and a function may lose others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    values: [u64; REGISTERS],
    known: u64,
}

impl Registers {
    /// All registers known, in DWARF's order (see [`Register`]).
    pub fn all(values: [u64; REGISTERS]) -> Self {
        Self { values, known: (1 << REGISTERS) - 1 }
    }

    /// Only the program counter and the stack pointer known.
    pub fn only(pc: u64, sp: u64) -> Self {
        let mut registers = Self { values: [0; REGISTERS], known: 0 };
        registers.set(Register::PC, Some(pc));
        registers.set(Register::SP, Some(sp));
        registers
    }

    /// The program counter: of the interrupted instruction, or the return address.
    pub fn pc(&self) -> u64 {
        self.values[Register::PC as usize]
    }

    /// The stack pointer while the frame itself runs, that is, after its callee has returned.
    pub fn sp(&self) -> u64 {
        self.values[Register::SP as usize]
    }

    /// A register's value, if it is known at this frame.
    pub fn get(&self, register: Register) -> Option<u64> {
        (self.known & (1 << register as u32) != 0).then(|| self.values[register as usize])
    }

    /// Sets a register, or marks it as lost. [`None`] leaves program counter and stack pointer alone: they cannot be lost.
    pub fn set(&mut self, register: Register, value: Option<u64>) {
        match value {
            Some(value) => {
                self.values[register as usize] = value;
                self.known |= 1 << register as u32;
            }
            None if !matches!(register, Register::PC | Register::SP) => self.known &= !(1 << register as u32),
            None => {}
        }
    }

    /// The registers that the caller still knows after a call that preserved the callee-saved ones.
    pub fn preserved_by_call(&self, pc: u64, sp: u64) -> Self {
        let mut caller = Self::only(pc, sp);
        for register in Register::ALL.into_iter().filter(|register| register.is_callee_saved()) {
            caller.set(register, self.get(register));
        }
        caller
    }
}

// They name registers.
#[cfg(target_arch = "x86_64")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_keeps_only_the_callee_saved_registers() {
        let registers = Registers::all(std::array::from_fn(|number| number as u64 + 100));
        let caller = registers.preserved_by_call(7, 8);
        assert_eq!((caller.pc(), caller.sp()), (7, 8));
        let known: Vec<_> = Register::ALL.into_iter().filter(|&register| caller.get(register).is_some()).collect();
        use Register::*;
        assert_eq!(known, [Rbx, Rbp, Rsp, R12, R13, R14, R15, Rip]);
        assert_eq!(caller.get(Rbp), Some(106));
    }
}
