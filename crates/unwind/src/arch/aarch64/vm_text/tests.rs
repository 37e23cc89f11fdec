//! Tests of the interpreter's code.

use super::*;

const ERAS: [Era; 3] = [Era::RecordFirst, Era::PointerElsewhere, Era::RecordLast];

#[test]
fn the_code_tells_the_layout_of_its_frames() {
    for era in ERAS {
        let code = testing::prologue(era);
        assert_eq!(VmText::new(0, code.clone(), FRAME_SIZE).era(), Some(era));
        assert_eq!(code_frame(&code), Some(CodeFrame { size: 208, l: Some(era.offset_of_l()) }));
        assert_eq!(VmText::new(0, code.clone(), 80).era(), None, "the layout says something else");
        for other in ERAS.into_iter().filter(|other| *other != era) {
            let both = [code.clone(), testing::prologue(other)].concat();
            assert_eq!(code_frame(&both), None, "{era:?} and {other:?}");
        }
    }
    assert_eq!(code_frame(&[]), None);
}

#[test]
fn every_change_of_a_bit_leaves_the_layout_alone_or_unknown() {
    for era in ERAS {
        let code = testing::prologue(era);
        for bit in 0..8 * 12 {
            let mut changed = code.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let found = VmText::new(0, changed, FRAME_SIZE).era();
            assert!(found.is_none_or(|found| found == era), "{era:?}, bit {bit}: {found:?}");
        }
    }
}

#[test]
fn calls_are_what_returns() {
    // bl; blr x8; b; nop
    let code: Vec<u8> =
        [0x9400_0010_u32, 0xd63f_0100, 0x1400_0001, 0xd503_201f].iter().flat_map(|w| w.to_le_bytes()).collect();
    let text = VmText::new(0x1000, code, FRAME_SIZE);
    assert_eq!([4, 8, 12, 16].map(|at| text.may_return_to(0x1000 + at)), [true, true, false, false]);
    assert!(text.may_return_to(0x2000), "what is not known may be a call");
}

#[test]
fn base_is_in_its_register_or_in_the_state() {
    let after = |words: &[u32]| {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        VmText::new(0, code, FRAME_SIZE).base_after_call(0, 32)
    };
    // ldr x19, [x23, #32]; ldr x8, [x19, #8]; str x19, [x23, #32]; mov x19, x0; nop; b .+8; cbz x0, .; ret
    let (from_state, used, stored, written) = (0xf940_12f3, 0xf940_0668, 0xf900_12f3, 0xaa00_03f3);
    let (nop, over, branch, ret) = (0xd503_201f, 0x1400_0002, 0xb400_0000, 0xd65f_03c0);
    assert_eq!(after(&[nop, branch, from_state]), BaseAfterCall::LuaState);
    assert_eq!(after(&[nop, used]), BaseAfterCall::Register(Register::X19));
    assert_eq!(after(&[over, written, from_state]), BaseAfterCall::LuaState);
    for words in [&[stored, from_state][..], &[written, used], &[ret, used], &[nop; 4], &[]] {
        assert_eq!(after(words), BaseAfterCall::Unknown, "{words:x?}");
    }
}
