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
    // bl; str x8, [x23, #32]; str x19, [sp, #32]
    let (call, stored, elsewhere) = (0x9400_0100, 0xf900_12e8, 0xf900_13f3);
    let after = |before: &[u32], words: &[u32]| {
        let all = [before, &[call], words].concat();
        let code: Vec<u8> = all.iter().flat_map(|word| word.to_le_bytes()).collect();
        VmText::new(0, code, FRAME_SIZE).base_after_call(4 * before.len() as u64 + 4, 32)
    };
    // ldr x19, [x23, #32]; ldp x19, x28, [x23, #32]
    let from_state = [0xf940_12f3, 0xa942_72f3];
    // ldr x8, [x19, #8]; ldur x2, [x19, #-16]; str x8, [x19, x27, lsl #3]; stp x8, x9, [x19, #16]; sub x9, x0, x19;
    // add x1, x19, #8; ldr d0, [x19]
    let used = [0xf940_0668, 0xf85f_0262, 0xf83b_7a68, 0xa901_2668, 0xcb13_0009, 0x9100_2261, 0xfd40_0260];
    // str x19, [x23, #32]; stp x19, x28, [x23, #32]; mov x19, x1; ldr x19, [x23, #40]; ldp x28, x19, [x23, #40];
    // ldr x8, [x19], #8; add x19, x19, x27, lsl #3
    let ends = [0xf900_12f3, 0xa902_72f3, 0xaa01_03f3, 0xf940_16f3, 0xa942_cefc, 0xf840_8668];
    let (nop, over, branch, ret) = (0xd503_201f, 0x1400_0002, 0xb400_0000, RET);
    for from_state in from_state {
        assert_eq!(after(&[], &[nop, branch, from_state]), BaseAfterCall::LuaState, "{from_state:x}");
        assert_eq!(after(&[], &[over, 0xaa00_03f3, from_state]), BaseAfterCall::LuaState);
    }
    // `vm_cpcall`: mov x19, x0. Anywhere else that only begins the frame of a call.
    assert_eq!(after(&[], &[0xaa00_03f3, used[0]]), BaseAfterCall::LuaState);
    assert_eq!(after(&[], &[nop, 0xaa00_03f3, used[0]]), BaseAfterCall::Unknown);
    for used in used {
        assert_eq!(after(&[], &[nop, used]), BaseAfterCall::Register(Register::X19), "{used:x}");
        for end in ends {
            assert_eq!(after(&[], &[end, used]), BaseAfterCall::Unknown, "{end:x}");
        }
        // The called function has been told its BASE, whatever the register has.
        assert_eq!(after(&[nop, stored, nop], &[used]), BaseAfterCall::LuaState);
        // Not so if another way leads around the store, or it is to another place.
        assert_eq!(after(&[over, stored, nop], &[used]), BaseAfterCall::Register(Register::X19));
        assert_eq!(after(&[elsewhere], &[used]), BaseAfterCall::Register(Register::X19));
    }
    // The next bytecode is fetched: ldr w16, [x21], #4; br x8
    assert_eq!(after(&[], &[FETCH, nop, 0xd61f_0100]), BaseAfterCall::Register(Register::X19));
    for words in [&[nop, 0xd61f_0100][..], &[ret, used[0]], &[nop; 4], &[]] {
        assert_eq!(after(&[], words), BaseAfterCall::Unknown, "{words:x?}");
    }
    let code: Vec<u8> = [nop, used[0]].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(
        VmText::new(0, code, FRAME_SIZE).base_after_call(4, 32),
        BaseAfterCall::Unknown,
        "nothing returns there"
    );
}

#[test]
fn a_frame_that_is_not_linked_yet_is_at_its_edge() {
    for era in ERAS {
        let mut code = testing::prologue(era);
        // str x23, [sp, #16]; cbz x9, .+8; nop
        let end = code.len() as u64 - 4;
        code.truncate(end as usize);
        code.extend([0xf900_0bf7_u32, 0xb400_0049, 0xd503_201f].iter().flat_map(|word| word.to_le_bytes()));
        let text = VmText::new(0x1000, code, FRAME_SIZE);
        let edges = (0..end + 12).step_by(4).map(|offset| text.is_at_edge(0x1000 + offset));
        assert!(edges.clone().take((end + 8) as usize / 4).all(|edge| edge), "{era:?}");
        assert!(!edges.last().unwrap(), "{era:?}");
    }
}

#[test]
fn a_coroutine_that_is_resumed_is_at_its_edge_until_it_is_the_running_one() {
    // str x8, [x23, #80]; cbz x9, end; str x23, [x22, #368]; nop
    let resumes = [0xf900_2ae8_u32, 0xb400_0089, 0xf900_bad7, 0xd503_201f];
    // The same, but something jumps to the store: cbnz x0, .-8
    let others = [0xf900_2ae8_u32, 0xb400_0089, 0xf900_bad7, 0xd503_201f, 0xb5ff_ffc0];
    for (more, is_edge) in [(&resumes[..], true), (&others[..], false)] {
        let mut code = testing::prologue(Era::RecordLast);
        let end = code.len() as u64 - 4;
        code.truncate(end as usize);
        code.extend(more.iter().flat_map(|word| word.to_le_bytes()));
        let text = VmText::new(0x1000, code, FRAME_SIZE);
        let edges = [0, 4, 8, 12].map(|offset| text.is_at_edge(0x1000 + end + offset));
        assert_eq!(edges, [true, true, is_edge, false]);
    }
}
