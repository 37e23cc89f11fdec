//! Instructions, and which of them the kernel simulates under a probe.

use crate::arch::effects::{Control, Effects};

/// An instruction. Nothing decodes instructions on this processor yet, so a probe can only be at the start of a
/// function.
#[derive(Clone, Copy, Debug)]
pub enum MachineInstruction {}

impl MachineInstruction {
    /// The instruction at the start of `bytes`, at this address: not known yet.
    pub fn decode(_bytes: &[u8], _address: u64) -> Option<Self> {
        None
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        match *self {}
    }

    /// Its mnemonic.
    pub fn name(&self) -> String {
        match *self {}
    }

    /// Where control goes after it.
    pub fn control(&self) -> Control {
        match *self {}
    }

    /// Its effects on registers.
    pub fn effects(&self) -> Effects {
        match *self {}
    }

    /// For a conditional branch: whether it is taken if the zero flag is set.
    pub fn taken_if_zero(&self) -> Option<bool> {
        match *self {}
    }
}

/// Whether every kernel that lj-trace supports simulates the instruction with these bytes, instead of single-stepping
/// it (`arch/arm64/kernel/probes/decode-insn.c`): branches, and instructions that compute an address relative to
/// themselves. Only kernels of 2025 and later simulate `nop`, and the kernel refuses probes on PC-relative loads.
pub fn is_emulated(instruction: &[u8]) -> bool {
    let Ok(bytes) = <[u8; 4]>::try_from(instruction) else { return false };
    let word = u32::from_le_bytes(bytes);
    let is = |mask: u32, value: u32| word & mask == value;
    // B and BL; B.cond; CBZ and CBNZ; TBZ and TBNZ; ADR and ADRP; BR, BLR and RET.
    is(0x7c00_0000, 0x1400_0000)
        || is(0xff00_0010, 0x5400_0000)
        || is(0x7e00_0000, 0x3400_0000)
        || is(0x7e00_0000, 0x3600_0000)
        || is(0x1f00_0000, 0x1000_0000)
        || is(0xff9f_fc1f, 0xd61f_0000)
        || is(0xffff_fc1f, 0xd65f_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_every_kernel_simulates() {
        // cbz x2, .+0x18; cbnz w0, .; tbz x0, #0, .; b .+8; bl .+8; b.eq .; adr x1, .; adrp x1, .; br x8; blr x8; ret
        let simulated = [
            0xb400_00c2_u32,
            0x3500_0000,
            0x3600_0000,
            0x1400_0002,
            0x9400_0002,
            0x5400_0000,
            0x1000_0001,
            0x9000_0001,
            0xd61f_0100,
            0xd63f_0100,
            0xd65f_03c0,
        ];
        assert!(simulated.iter().all(|word| is_emulated(&word.to_le_bytes())));
        // nop; bti c; paciasp; mov x2, x3; stp x29, x30, [sp, #-16]!; sub sp, sp, #16; cmp x3, #0; ldr x1, .; ldr x1, [sp]
        let stepped = [
            0xd503_201f_u32,
            0xd503_245f,
            0xd503_233f,
            0xaa03_03e2,
            0xa9bf_7bfd,
            0xd100_43ff,
            0xf100_007f,
            0x5800_0001,
            0xf940_03e1,
        ];
        assert!(!stepped.iter().any(|word| is_emulated(&word.to_le_bytes())));
        assert!(!is_emulated(&[]) && !is_emulated(&[0, 0, 0, 0x14, 0]));
    }
}
