//! Tests with code as LuaJIT's parser generates it, written by hand.

use super::*;
use crate::bytecode::opcodes;
use crate::prototype::tests::prototype;

const SET: BytecodeSet = BytecodeSet::V21;

fn ad(op: Op, a: u32, d: u32) -> u32 {
    let number = opcodes(SET).position(|opcode| opcode.op == op).unwrap() as u32;
    number | a << 8 | d << 16
}

fn abc(op: Op, a: u32, b: u32, c: u32) -> u32 {
    ad(op, a, c | b << 8)
}

/// Constants 0 to 3 are the child prototypes; these are strings.
const NAMES: [(u16, &str); 6] =
    [(5, "global"), (6, "field"), (7, "a-key"), (8, "setmetatable"), (9, "M"), (10, "inner")];

/// The names of the created functions, by their numbers.
fn names(code: &[u32], varinfo: &[u8]) -> Vec<(u64, String)> {
    let code = [&[ad(Op::FUNCV, 9, 0)], code, &[ad(Op::RET0, 0, 1)]].concat();
    let made = prototype(code, varinfo, &["up", "other"], &NAMES);
    let name = |child: u64| Some((child, made.definition_of(0x9000 + child, SET, true)?.name(false)));
    (0..4).filter_map(name).collect()
}

fn is(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(child, name)| (*child, (*name).to_owned())).collect()
}

#[test]
fn variables_and_fields() {
    let code = [
        ad(Op::FNEW, 0, 0),
        ad(Op::FNEW, 1, 1),
        ad(Op::GSET, 1, 5),
        ad(Op::FNEW, 1, 2),
        abc(Op::TSETS, 1, 0, 6),
        ad(Op::FNEW, 1, 3),
        ad(Op::USETV, 1, 1),
    ];
    let expected = [(0, "helper"), (1, "global"), (2, "helper.field"), (3, "other")];
    assert_eq!(names(&code, b"helper\0\x02\x20\0"), is(&expected));
    // Without debug information there are no locals, and here also no tables of locals.
    assert_eq!(names(&code, b""), is(&[(1, "global"), (2, "field"), (3, "other")]));
}

#[test]
fn tables_are_called_by_where_they_come_from() {
    let code = [
        ad(Op::GGET, 0, 9),
        abc(Op::TGETS, 0, 0, 10),
        ad(Op::FNEW, 1, 0),
        abc(Op::TSETS, 1, 0, 6),
        ad(Op::UGET, 0, 0),
        ad(Op::FNEW, 1, 1),
        abc(Op::TSETB, 1, 0, 3),
        ad(Op::KSTR, 1, 7),
        ad(Op::FNEW, 2, 2),
        abc(Op::TSETV, 2, 0, 1),
        ad(Op::KSHORT, 1, 300),
        ad(Op::FNEW, 2, 3),
        abc(Op::TSETV, 2, 0, 1),
    ];
    assert_eq!(names(&code, b""), is(&[(0, "M.inner.field"), (1, "up[3]"), (2, "up[\"a-key\"]"), (3, "up[300]")]));
}

#[test]
fn a_table_is_called_by_what_it_is_stored_in_later() {
    // `local t = { field = function() end, inner = { field = function() end } }`
    let literal = [
        ad(Op::TNEW, 0, 0),
        ad(Op::FNEW, 1, 0),
        abc(Op::TSETS, 1, 0, 6),
        ad(Op::TDUP, 1, 0),
        ad(Op::FNEW, 2, 1),
        abc(Op::TSETS, 2, 1, 6),
        abc(Op::TSETS, 1, 0, 10),
    ];
    assert_eq!(names(&literal, b"t\0\x08\x05\0"), is(&[(0, "t.field"), (1, "t.inner.field")]));
    // `M = setmetatable({ field = function() end }, { field = function() end })`, if frames take two slots.
    let with_metatable = [
        ad(Op::GGET, 0, 8),
        ad(Op::TNEW, 2, 0),
        ad(Op::FNEW, 3, 0),
        abc(Op::TSETS, 3, 2, 6),
        ad(Op::TNEW, 3, 0),
        ad(Op::FNEW, 4, 1),
        abc(Op::TSETS, 4, 3, 6),
        abc(Op::CALL, 0, 2, 3),
        ad(Op::GSET, 0, 9),
    ];
    assert_eq!(names(&with_metatable, b""), is(&[(0, "M.field"), (1, "field")]));
}

#[test]
fn what_is_stored_nowhere_has_no_name() {
    let code = [
        // An argument, an overwritten function, a result.
        ad(Op::FNEW, 2, 0),
        abc(Op::CALL, 0, 1, 2),
        ad(Op::FNEW, 0, 1),
        ad(Op::KPRI, 0, 0),
        ad(Op::FNEW, 0, 2),
        ad(Op::RET1, 0, 2),
    ];
    assert_eq!(names(&code, b""), []);
}

#[test]
fn branches_lead_to_the_same_store() {
    // `global = condition and function() end or function() end`.
    let code = [ad(Op::FNEW, 0, 0), ad(Op::JMP, 1, 0x8001), ad(Op::FNEW, 0, 1), ad(Op::GSET, 0, 5)];
    assert_eq!(names(&code, b""), is(&[(0, "global"), (1, "global")]));
    // A loop leads nowhere new.
    assert_eq!(names(&[ad(Op::FNEW, 0, 0), ad(Op::JMP, 1, 0x7ffe)], b""), []);
}

#[test]
fn locals_that_begin_later_and_assignments() {
    // `local a, b = function() end, function() end`, then `a, b = function() end, function() end`.
    let code = [ad(Op::FNEW, 0, 0), ad(Op::FNEW, 1, 1), ad(Op::FNEW, 2, 2), ad(Op::FNEW, 1, 3), ad(Op::MOV, 0, 2)];
    assert_eq!(
        names(&code, b"first\0\x03\x05second\0\0\x05\0"),
        is(&[(0, "first"), (1, "second"), (2, "first"), (3, "second")])
    );
}

#[test]
fn methods_have_a_colon() {
    let code = vec![ad(Op::FUNCV, 9, 0), ad(Op::UGET, 0, 0), ad(Op::FNEW, 1, 0), abc(Op::TSETS, 1, 0, 6)];
    let made = prototype(code, b"", &["Router"], &NAMES);
    let definition = made.definition_of(0x9000, SET, true).unwrap();
    assert_eq!((definition.clone().name(true), definition.name(false)), ("Router:field".into(), "Router.field".into()));
    let mut method = prototype(vec![0; 2], b"self\0\x01\x05\0", &[], &[]);
    assert!(!method.takes_self(), "a local variable");
    method.numparams = 1;
    assert!(method.takes_self());
}

#[test]
fn garbage_ends() {
    let mut random = 7_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 32) as u32
    };
    for _ in 0..200 {
        let mut code: Vec<u32> = (0..300).map(|_| (next() % 100) | (next() << 8)).collect();
        code.extend((0..4).map(|child| ad(Op::FNEW, next() % 9, child)));
        code.extend(
            (0..50).map(|_| (next() % 100) | ((next() % 8) << 8) | ((next() % 12) << 16) | ((next() % 8) << 24)),
        );
        let varinfo: Vec<u8> = (0..40).map(|_| next() as u8).collect();
        assert!(names(&code, &varinfo).len() <= 4);
    }
    // A literal without an end, and endlessly nested literals.
    let endless: Vec<u32> =
        (0..100_000).map(|_| ad(Op::TNEW, 1, 0)).chain([ad(Op::FNEW, 2, 0), abc(Op::TSETS, 2, 0, 6)]).collect();
    assert_eq!(names(&endless, b""), is(&[(0, "field")]));
    let ring: Vec<u32> =
        [ad(Op::TNEW, 0, 0), ad(Op::FNEW, 1, 0), abc(Op::TSETS, 1, 0, 6), abc(Op::TSETS, 0, 0, 6)].into();
    assert_eq!(names(&ring, b"").len(), 1);
}
