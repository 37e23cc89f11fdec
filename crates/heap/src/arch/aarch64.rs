//! AArch64 (arm64).

use lj_trace_common::event::{NO_REGISTERS, SampledRegisters};

/// The registers of a stopped thread, in DWARF's order: `x0` to `x30`, the stack pointer, the program counter.
pub fn sampled(user: &libc::user_regs_struct) -> SampledRegisters {
    let mut sampled = NO_REGISTERS;
    let values = user.regs.iter().chain([&user.sp, &user.pc]);
    sampled.iter_mut().zip(values).for_each(|(register, value)| *register = *value);
    sampled
}

#[cfg(test)]
mod tests {
    use lj_trace_common::event::reg;

    use super::*;

    #[test]
    fn each_register_has_its_place() {
        let regs = std::array::from_fn(|number| number as u64 + 100);
        let sampled = sampled(&libc::user_regs_struct { regs, sp: 1, pc: 2, pstate: 3 });
        assert_eq!((sampled[reg::SP], sampled[reg::PC], sampled[reg::FP]), (1, 2, 129));
        assert_eq!(reg::LINK.map(|link| sampled[link]), Some(130));
    }
}
