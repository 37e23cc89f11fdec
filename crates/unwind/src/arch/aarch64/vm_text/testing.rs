//! Interpreters made for tests: code that makes and drops frames in the three layouts.

use super::{DROP, DROP_OLD, Era, MAKE, MAKE_OLD, POINTER_AT_RECORD, POINTER_AT_SP, RET, SAVE_RECORD};

/// `nop`.
const NOP: u32 = 0xd503_201f;

/// `stp` or `ldp` of `x{first}` and `x{second}` at `[sp, #offset]`.
fn pair(is_load: bool, first: u32, second: u32, offset: u32) -> u32 {
    (if is_load { 0xa940_0000 } else { 0xa900_0000 }) | offset / 8 << 15 | second << 10 | 31 << 5 | first
}

/// The instructions that save or restore the registers from `x19` on, in pairs (`saveregs`), with vector registers in between.
fn saves(era: Era, is_load: bool) -> Vec<u32> {
    let vectors = if is_load { 0x6d46_23e9 } else { 0x6d06_23e9 };
    let one = |low: u32| match era {
        Era::RecordFirst => pair(is_load, low, low + 1, 16 + 8 * (low - 19)),
        _ => pair(is_load, low + 1, low, 112 + 8 * (27 - low)),
    };
    let mut words = vec![one(19)];
    words.extend([21, 23, 25, 27].into_iter().flat_map(|low| [vectors, one(low)]));
    words
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The instructions that make a frame.
fn made(era: Era) -> Vec<u32> {
    let mut words = match era {
        Era::RecordFirst => vec![MAKE_OLD, POINTER_AT_SP],
        Era::PointerElsewhere => vec![MAKE, SAVE_RECORD, POINTER_AT_SP],
        Era::RecordLast => vec![MAKE, SAVE_RECORD, POINTER_AT_RECORD],
    };
    words.extend(saves(era, false));
    words
}

/// Code that makes a frame, and continues.
pub fn prologue(era: Era) -> Vec<u8> {
    bytes(&[made(era), vec![NOP, 0xd61f_0100]].concat())
}

/// The state of a frame before an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Offset of the instruction.
    pub offset: u64,
    /// Whether the stack pointer is at the frame's beginning.
    pub made: bool,
    /// Whether the frame record is stored, and the frame pointer belongs to this frame.
    pub record: bool,
    /// How many registers from `x19` on are saved; while they are restored, all count as saved.
    pub saved: usize,
}

/// Code that makes a frame and leaves it, with the state before each instruction.
pub fn life(era: Era) -> (Vec<u8>, Vec<Step>) {
    let (mut words, mut steps) = (Vec::new(), Vec::new());
    let mut state = Step { offset: 0, made: false, record: false, saved: 0 };
    let end: &[u32] = match era {
        Era::RecordFirst => &[DROP_OLD, RET],
        // `ldp x29, x30, [sp, #192]`
        _ => &[0xa94c_7bfd, DROP, RET],
    };
    let code = [vec![0xd503_245f], made(era), vec![NOP], saves(era, true), end.to_vec()].concat();
    for word in code {
        steps.push(Step { offset: 4 * words.len() as u64, ..state });
        words.push(word);
        match word {
            MAKE => state.made = true,
            MAKE_OLD => (state.made, state.record) = (true, true),
            SAVE_RECORD => state.record = true,
            _ if word & 0xffc0_0000 == 0xa900_0000 => state.saved += 2,
            0xa94c_7bfd => (state.record, state.saved) = (false, 0),
            DROP_OLD | DROP => state = Step { offset: 0, made: false, record: false, saved: 0 },
            _ => {}
        }
    }
    // Between saving the record and setting the frame pointer, the frame pointer is still the caller's, and saved as well.
    (bytes(&words), steps)
}
