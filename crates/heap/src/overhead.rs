//! The VM's own blocks, which `gc.total` counts besides objects.
//!
//! LuaJIT's sources: [`close_state`], [`lj_str_freetab`], [`lj_str_resize`], [`lj_ctype_freestate`], [`ct_hashtype`],
//! [`hashrot`], [`lj_trace_freestate`], [`jit_State`], [`J->k64`], [`lj_lightud_intern`].
//!
//! [`close_state`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L214-L244
//! [`lj_str_freetab`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.h#L24-L25
//! [`lj_str_resize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.c#L129-L215
//! [`lj_ctype_freestate`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ctype.c#L662-L671
//! [`ct_hashtype`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ctype.c#L150
//! [`hashrot`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_tab.h#L18-L32
//! [`lj_trace_freestate`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L359-L375
//! [`jit_State`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L457-L475
//! [`J->k64`]: https://github.com/LuaJIT/LuaJIT/blob/71797fa75ffa1ddbd9b41bbd55d6c2d4236164b0/src/lj_ir.c#L186-L241
//! [`lj_lightud_intern`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_udata.c#L37-L60

use lj_trace_common::layout::{ABSENT, BytecodeSet};
use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::Vm;
use lj_trace_luajit::object::field;
use lj_trace_luajit::shape::{Buffer, Shape};
use serde::{Deserialize, Serialize};

use super::blocks::{Blocks, ReadSome};

/// A block of the VM that is not an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overhead {
    /// What the block is.
    pub name: String,
    /// The size of the block in bytes.
    pub bytes: u64,
}

/// The blocks of `vm` that are not objects, as `lj_state.c`, `lj_str.c`, `lj_ctype.c` and `lj_trace.c` free them.
pub fn read<M: ReadSome>(blocks: &Blocks<M>, vm: &Vm, shape: &Shape) -> Vec<Overhead> {
    let parts = [
        ("global state", global_state(vm)),
        ("string table", string_table(blocks, vm, shape)),
        ("string buffer", temporary_buffer(blocks, vm, shape)),
        ("C types", c_types(blocks, vm, shape)),
        ("JIT compiler", jit_compiler(blocks, vm, shape)),
        ("light userdata", light_userdata(blocks, vm, shape)),
    ];
    let there = parts.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
    there.filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| Overhead { name: name.to_owned(), bytes }).collect()
}

/// The size of `GG_State` without the main thread in it, which is an object.
fn global_state(vm: &Vm) -> Option<u64> {
    vm.first_block_size()?.checked_sub(vm.layout.sizeof_l.into())
}

fn string_table<M: ReadSome>(blocks: &Blocks<M>, vm: &Vm, shape: &Shape) -> Option<u64> {
    let mask: u32 = blocks.read(field(vm.global, vm.layout.g_str_mask)).ok()?;
    Some((u64::from(mask) + 1) * shape.reference)
}

fn temporary_buffer<M: ReadSome>(blocks: &Blocks<M>, vm: &Vm, shape: &Shape) -> Option<u64> {
    match shape.temporary_buffer() {
        Buffer::Sized { size } => blocks.read::<u32>(vm.global.wrapping_add(size)).ok().map(u64::from),
        Buffer::Ends { start, pointer } => {
            let read = |index: u64| blocks.read_ref(pointer == 8, vm.global.wrapping_add(start + index * pointer)).ok();
            // The write position lies between begin and end.
            let (at, end, begin) = (read(0)?, read(1)?, read(2)?);
            (begin..=end).contains(&at).then(|| end - begin)
        }
    }
}

/// `CTState`, its table of types, and that of callbacks (`lj_ctype_freestate`).
fn c_types<M: ReadSome>(blocks: &Blocks<M>, vm: &Vm, shape: &Shape) -> Option<u64> {
    let state = blocks.read_ref(shape.gc64(), vm.global.wrapping_add(shape.ctype_state())).ok()?;
    if state == 0 {
        return Some(0);
    }
    let types: u32 = blocks.read(state.wrapping_add(12)).ok()?;
    let hash = c_type_hash(blocks, shape, state)?;
    // The state of callbacks ends before the hash table: cbid, sizeid, topid, slot, padding.
    let callbacks: u32 = blocks.read(state.wrapping_add(hash - 16)).ok()?;
    Some(hash + C_TYPE_HASH + shape.ctype * u64::from(types) + 2 * u64::from(callbacks))
}

/// The size of `CTState.hash`, its last field: `CTypeID1 hash[CTHASH_SIZE]`.
const C_TYPE_HASH: u64 = 2 * 128;

/// The offset of the hash table of types in the `CTState` at `state`. The offset varies: the argument registers of
/// callbacks come before it, and their number depends on the fork; a reference there was moved elsewhere in 2023. The right
/// offset is the one where the hash of a type leads to that type.
fn c_type_hash<M: ReadSome>(blocks: &Blocks<M>, shape: &Shape, state: u64) -> Option<u64> {
    /// The first types are numbers, which every build has.
    const TYPES: u32 = 24;
    const ENOUGH: usize = 12;
    let table: u64 = blocks.read(state).ok()?;
    let types: Vec<(u32, u32, u16)> = (0..u64::from(TYPES))
        .map_while(|number| {
            // CType: info, size, sib, next.
            let at = table.wrapping_add(shape.ctype * number);
            let [info, size]: [u32; 2] = [blocks.read(at).ok()?, blocks.read(at.wrapping_add(4)).ok()?];
            Some((info, size, blocks.read::<u16>(at.wrapping_add(10)).ok()?))
        })
        .collect();
    let leads_to = |hash: u64, number: u32| {
        let (info, size, _) = types[number as usize];
        let slot = hash.wrapping_add(2 * u64::from(hash_of_type(info, size) & 127));
        let mut at = blocks.read::<u16>(state.wrapping_add(slot)).unwrap_or(0);
        // Later types come first in a chain.
        for _ in 0..64 {
            if u32::from(at) == number {
                return true;
            }
            let next = table.wrapping_add(shape.ctype * u64::from(at) + 10);
            at = blocks.read(next).unwrap_or(0);
            if at == 0 {
                break;
            }
        }
        false
    };
    let hits = |hash: u64| (1..types.len() as u32).filter(|&number| leads_to(hash, number)).count();
    let places = (64..=1024).step_by(8).map(|hash| (hits(hash), hash));
    places.max().filter(|(hits, _)| *hits >= ENOUGH).map(|(_, hash)| hash)
}

/// `ct_hashtype` (`lj_ctype.c`), `hashrot` (`lj_tab.h`).
const fn hash_of_type(info: u32, size: u32) -> u32 {
    let (mut low, mut high) = (info ^ size, size.rotate_left(14));
    low = low.wrapping_sub(high);
    high = high.rotate_left(5) ^ low;
    high.wrapping_sub(low.rotate_left(13))
}

/// The buffers that traces are recorded into, and the table of traces (`lj_trace_freestate`).
fn jit_compiler<M: ReadSome>(blocks: &Blocks<M>, vm: &Vm, shape: &Shape) -> Option<u64> {
    let l = &vm.layout;
    if l.j_trace == ABSENT {
        return None;
    }
    let jit_state = vm.jit_state()?;
    let traces: u32 = blocks.read(field(jit_state, l.j_sizetrace)).ok()?;
    let table = field(jit_state, l.j_trace);
    let buffers = [8, 0].into_iter().find_map(|gap| JitBuffers::read(blocks, table.wrapping_sub(gap)))?;
    let JitBuffers { code, snapshots, map } = buffers;
    // If the size of snapshots is not known, nothing was recorded yet.
    let snapshots = if l.sizeof_snap == ABSENT { 0 } else { snapshots * u64::from(l.sizeof_snap) };
    let constants = if l.bytecode_set == BytecodeSet::V20 as u16 { old_constants(blocks, table) } else { 0 };
    Some(8 * code + snapshots + 4 * map + constants + shape.reference * u64::from(traces))
}

/// The lengths of the buffers that traces are recorded into.
struct JitBuffers {
    code: u64,
    snapshots: u64,
    map: u64,
}

impl JitBuffers {
    /// Reads the lengths from `jit_State`: irbuf, irtoplim, irbotlim, loopref, sizesnap, snapbuf, snapmapbuf, sizesnapmap,
    /// postproc (`lj_jit.h`) end at `end`. In 2.1, `retryrec` lies between these fields and the table of traces.
    fn read<M: ReadSome>(blocks: &Blocks<M>, end: u64) -> Option<Self> {
        let number = |distance: u64| blocks.read::<u32>(end.wrapping_sub(distance)).ok().map(u64::from);
        let (top, bottom) = (number(40)?, number(36)?);
        let found = Self { code: top.checked_sub(bottom)?, snapshots: number(28)?, map: number(8)? };
        // References to intermediate code have 16 bits. Traces have at most 500 snapshots by default.
        (top <= 1 << 17 && found.snapshots < 1 << 17 && found.map < 1 << 24).then_some(found)
    }
}

/// 64-bit constants of traces. LuaJIT 2.0 keeps them in a list of blocks (`J->k64`, `lj_ir.c`).
fn old_constants<M: ReadSome>(blocks: &Blocks<M>, table: u64) -> u64 {
    /// `K64Array`: next, number, 16 constants.
    const BLOCK: u64 = 8 + 16 * 8;
    /// The distance from the head of the list to the table of traces: the head itself, `ksimd`, and the buffers.
    const DISTANCE: u64 = 4 + 5 * 8 + 48;
    let mut at = blocks.read::<u32>(table.wrapping_sub(DISTANCE)).unwrap_or(0);
    let mut count = 0;
    while at != 0 && count < 1 << 16 {
        count += 1;
        at = blocks.read(at.into()).unwrap_or(0);
    }
    count * BLOCK
}

/// The table of upper halves of light userdata (`lj_lightud_intern`).
fn light_userdata<M: ReadSome>(blocks: &Blocks<M>, vm: &Vm, shape: &Shape) -> Option<u64> {
    let segments = blocks.read_ref(shape.gc64(), vm.global.wrapping_add(shape.light_userdata_segments()?)).ok()?;
    let last: u8 = blocks.read(field(vm.global, vm.layout.g_gc_state).wrapping_add(2)).ok()?;
    let room = if last == 0 { 2 } else { 2 << last.ilog2() };
    Some(if segments == 0 { 0 } else { 4 * room })
}
