//! SampledRegisters by role.

use super::{REGISTERS, Register, reg};

impl Register {
    /// The program counter.
    pub const PC: Self = Self::ALL[reg::PC];
    /// The stack pointer.
    pub const SP: Self = Self::ALL[reg::SP];
    /// The frame pointer.
    pub const FP: Self = Self::ALL[reg::FP];
    /// Where the interpreter has BASE.
    pub const BASE: Self = Self::ALL[reg::BASE];
    /// Where it has PC, the address of the next bytecode.
    pub const BYTECODE_PC: Self = Self::ALL[reg::BYTECODE_PC];
    /// Where it keeps BASE during some calls of C functions.
    pub const KEPT_BASE: Self = Self::ALL[reg::KEPT_BASE];
    /// What leads to the `global_State`.
    pub const GLOBAL_STATE: Self = Self::ALL[reg::GLOBAL_STATE];
    /// Where an exception's handler gets its first argument.
    pub const HANDLER_DATA: Self = Self::ALL[reg::HANDLER_DATA];

    /// How many there are.
    pub const COUNT: usize = REGISTERS;

    /// The register with a DWARF number; none for vector and other registers.
    pub fn from_dwarf(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_numbers_that_they_stand_at() {
        assert!(Register::ALL.iter().enumerate().all(|(number, register)| *register as usize == number));
        assert_eq!(Register::from_dwarf(reg::PC as u16), Some(Register::PC));
        assert_eq!(Register::from_dwarf(REGISTERS as u16), None);
        assert!(!Register::PC.is_callee_saved() && !Register::SP.is_callee_saved());
    }
}
