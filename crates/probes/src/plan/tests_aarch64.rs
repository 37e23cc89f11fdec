//! Plans for the allocators of real builds for arm64, from their actual code.
//!
//! LuaJIT's sources: [`lj_alloc_f`].
//!
//! [`lj_alloc_f`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L1473-L1483

use super::*;

/// `lj_alloc_f` as gcc 12 compiles it with -O2. Its first instruction overwrites `osize`.
const LJ_ALLOC_F: [u32; 7] = [
    0xaa03_03e2, // +0x0 mov x2, x3
    0xb400_00a2, // +0x4 cbz x2, +0x18
    0xb400_0041, // +0x8 cbz x1, +0x10
    0x17ff_fc3d, // +0xc b lj_alloc_realloc
    0xaa02_03e1, // +0x10 mov x1, x2
    0x17ff_fdf3, // +0x14 b lj_alloc_malloc
    0x17ff_fd0c, // +0x18 b lj_alloc_free
];

/// The allocator of most hosts: `if (nsize == 0) { free(ptr); return NULL; } return realloc(ptr, nsize);` compiled by gcc
/// 12 -O2 -mbranch-protection=standard.
const HOST: [u32; 13] = [
    0xd503_245f, // +0x0 bti c
    0xaa01_03e0, // +0x4 mov x0, x1
    0xb400_0063, // +0x8 cbz x3, +0x14
    0xaa03_03e1, // +0xc mov x1, x3
    0x17ff_fff0, // +0x10 b realloc
    0xd503_233f, // +0x14 paciasp
    0xa9bf_7bfd, // +0x18 stp x29, x30, [sp, #-16]!
    0x9100_03fd, // +0x1c mov x29, sp
    0x97ff_ffe0, // +0x20 bl free
    0xa8c1_7bfd, // +0x24 ldp x29, x30, [sp], #16
    0xd503_23bf, // +0x28 autiasp
    0xd280_0000, // +0x2c mov x0, #0
    0xd65f_03c0, // +0x30 ret
];

/// The same with -O0.
const HOST_O0: [u32; 18] = [
    0xa9bd_7bfd, // +0x0 stp x29, x30, [sp, #-48]!
    0x9100_03fd, // +0x4 mov x29, sp
    0xf900_17e0, // +0x8 str x0, [sp, #40]
    0xf900_13e1, // +0xc str x1, [sp, #32]
    0xf900_0fe2, // +0x10 str x2, [sp, #24]
    0xf900_0be3, // +0x14 str x3, [sp, #16]
    0xf940_0be0, // +0x18 ldr x0, [sp, #16]
    0xf100_001f, // +0x1c cmp x0, #0
    0x5400_00a1, // +0x20 b.ne +0x34
    0xf940_13e0, // +0x24 ldr x0, [sp, #32]
    0x97ff_ffe0, // +0x28 bl free
    0xd280_0000, // +0x2c mov x0, #0
    0x1400_0004, // +0x30 b +0x40
    0xf940_0be1, // +0x34 ldr x1, [sp, #16]
    0xf940_13e0, // +0x38 ldr x0, [sp, #32]
    0x97ff_ffe0, // +0x3c bl realloc
    0xa8c3_7bfd, // +0x40 ldp x29, x30, [sp], #48
    0xd65f_03c0, // +0x44 ret
];

fn planned(code: &[u32], need: Need) -> ProbePlan {
    let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    plan(&bytes, 0x40_0000, need)
}

fn places(plan: &ProbePlan) -> Vec<(u64, bool, EventKind)> {
    plan.points.iter().map(|point| (point.offset, point.emulated, point.kind)).collect()
}

#[test]
fn luajits_own_allocator_is_probed_at_its_entry() {
    for need in [Need::All, Need::AllButUserData] {
        let plan = planned(&LJ_ALLOC_F, need);
        assert_eq!(places(&plan), [(0, false, EventKind::Any)]);
        assert_eq!(plan.reason, Reason::NoPoints { for_want_of_user_data: false });
        assert!(plan.to_string().contains("+0x0 mov (single-stepped): all calls"), "{plan}");
    }
}

#[test]
fn a_host_allocator_is_probed_where_the_kernel_simulates() {
    let entry = planned(&HOST, Need::All);
    assert_eq!(places(&entry), [(0, false, EventKind::Any)]);
    assert_eq!(entry.reason, Reason::NoPoints { for_want_of_user_data: true });
    let plan = planned(&HOST, Need::AllButUserData);
    assert_eq!(plan.reason, Reason::Proven);
    assert!(plan.is_cheap() && plan.points.iter().all(|point| point.kind == EventKind::Any || !point.return_probe));
    assert_eq!(plan.points[0].offset, 0x8);
    let pointer = plan.points[0].arguments[Argument::Pointer as usize];
    assert_eq!(pointer, ArgumentLocation::Register(Register::X1));
}

#[test]
fn where_the_arguments_are_in_memory_the_entry_is_probed() {
    assert_eq!(places(&planned(&HOST_O0, Need::AllButUserData)), [(0, false, EventKind::Any)]);
}

#[test]
fn a_return_probe_is_only_where_the_link_register_has_the_return_address() {
    // paciasp; cbz x3, +0x10; mov x1, x3; ret; ret
    let signed = [0xd503_233f, 0xb400_0063, 0xaa03_03e1, 0xd65f_0bff, 0xd65f_0bff];
    assert_eq!(places(&planned(&signed, Need::All))[0].0, 0);
    // mov x30, x1; cbz x3, +0x10; mov x1, x3; ret; ret
    let moved = [0xaa01_03fe, 0xb400_0063, 0xaa03_03e1, 0xd65f_03c0, 0xd65f_03c0];
    assert_eq!(places(&planned(&moved, Need::All))[0].0, 0);
    // nop in its place
    let kept = [0xd503_201f, 0xb400_0063, 0xaa03_03e1, 0xd65f_03c0, 0xd65f_03c0];
    assert_eq!(places(&planned(&kept, Need::All))[0].0, 4);
}

#[test]
fn no_cut_or_changed_code_makes_a_plan_that_is_not_proven() {
    let mut random = numbers(7);
    for _ in 0..20_000 {
        let mut code = if random() % 2 == 0 { HOST.to_vec() } else { LJ_ALLOC_F.to_vec() };
        let changes = 1 + random() % 3;
        for _ in 0..changes {
            let place = random() as usize % code.len();
            code[place] ^= 1 << (random() % 32);
        }
        let plan = planned(&code, Need::AllButUserData);
        if plan.reason == Reason::Proven {
            assert!(plan.points.iter().all(|point| point.emulated && point.offset.is_multiple_of(4)), "{code:x?}");
        } else {
            assert_eq!(places(&plan)[0].0, 0);
        }
    }
}

/// A generator of numbers (xorshift).
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
