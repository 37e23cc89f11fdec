//! AArch64 (arm64).

mod accessor;
mod flags;
mod harmless;

use lj_trace_common::memory::ReadMemory;

use crate::arch::FiberSelf;

pub use accessor::{read_accessor, read_reference};
pub use harmless::only_reads_on;

/// The function's code cannot be read yet, so fibers have no labels: there is no package of Tarantool for this processor.
pub fn read_fiber_self(_memory: &impl ReadMemory, _code: &[u8], _address: u64) -> Option<FiberSelf> {
    None
}

/// How often this code, which is at `address`, calls `function` by its address (`bl`).
pub fn count_calls(code: &[u8], address: u64, function: u64) -> usize {
    /// The instruction without its distance, and the bits of the distance.
    const BL: u32 = 0x9400_0000;
    const DISTANCE: u32 = 0x03ff_ffff;
    let is_call = |(index, bytes): (usize, &[u8; 4])| {
        let word = u32::from_le_bytes(*bytes);
        // The distance has a sign, and counts instructions.
        let distance = i64::from(((word & DISTANCE) << 6).cast_signed() >> 6) * 4;
        let own = address.wrapping_add(index as u64 * 4);
        word & !DISTANCE == BL && own.wrapping_add_signed(distance) == function
    };
    code.as_chunks::<4>().0.iter().enumerate().filter(|&word| is_call(word)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_whichever_way_they_go() {
        // bl +8, b +8, bl -8, nop
        let code: Vec<u8> =
            [0x9400_0002_u32, 0x1400_0002, 0x97ff_fffe, 0xd503_201f].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(count_calls(&code, 0x1000, 0x1008), 1);
        assert_eq!(count_calls(&code, 0x1000, 0x1000), 1);
        assert_eq!(count_calls(&code, 0x1000, 0x100c), 0);
    }
}
