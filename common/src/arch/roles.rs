//! Registers by role.

use super::{REGISTERS, Register, reg};

impl Register {
    /// The program counter.
    pub const PC: Self = Self::ALL[reg::PC];
    /// The stack pointer.
    pub const SP: Self = Self::ALL[reg::SP];
    /// The frame pointer.
    pub const FP: Self = Self::ALL[reg::FP];
    /// The interpreter's BASE.
    pub const BASE: Self = Self::ALL[reg::BASE];
    /// The interpreter's PC, the address of the next bytecode.
    pub const BYTECODE_PC: Self = Self::ALL[reg::BYTECODE_PC];
    /// Where the interpreter keeps BASE during some calls of C functions.
    pub const KEPT_BASE: Self = Self::ALL[reg::KEPT_BASE];
    /// The register from which the address of the `global_State` follows.
    pub const GLOBAL_STATE: Self = Self::ALL[reg::GLOBAL_STATE];
    /// The register of the first argument of an exception's handler.
    pub const HANDLER_DATA: Self = Self::ALL[reg::HANDLER_DATA];

    /// Number of registers.
    pub const COUNT: usize = REGISTERS;

    /// The register with this DWARF number; none for vector and other registers.
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
