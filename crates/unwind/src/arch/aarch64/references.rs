//! What compiled functions refer to.

use crate::arch::a64::{is_call, word};
use crate::references::References;

/// The references in a function's code. There are no signatures of this processor's builds to compare them with, so it
/// finds none.
pub fn references(_code: &[u8], _start: u64) -> References {
    References::default()
}

/// The offsets of the instructions after the calls in `code`.
pub fn returns_of_calls(code: &[u8]) -> impl Iterator<Item = usize> + use<'_> {
    (0..code.len()).step_by(4).filter(|&offset| word(code, offset).is_some_and(is_call)).map(|offset| offset + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_return_to_the_next_instruction() {
        // ret; bl .+8; ret; blr x8
        let code = [0xd65f_03c0_u32, 0x9400_0002, 0xd65f_03c0, 0xd63f_0100].map(u32::to_le_bytes).concat();
        assert_eq!(returns_of_calls(&code).collect::<Vec<_>>(), [8, 16]);
        assert_eq!(returns_of_calls(&code[..15]).collect::<Vec<_>>(), [8], "the last instruction is not complete");
    }
}
