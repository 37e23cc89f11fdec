//! Tells whether a block of memory is an object: parts of tables, stacks and buffers are blocks as well.
//!
//! LuaJIT's sources: [`lj_cdata_new`], [`lj_mem_newgco`], [`trace_save`], [`gc_freefunc`].
//!
//! [`lj_cdata_new`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_cdata.h#L38-L50
//! [`lj_mem_newgco`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L884-L897
//! [`trace_save`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L145-L170
//! [`gc_freefunc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L381-L399

use lj_trace_common::layout::gct;
use lj_trace_luajit::object::marked_offset;
use lj_trace_luajit::shape::{Shape, VALUE};
use lj_trace_process::ProcessMemory;

use lj_trace_heap::object::{CDATA, Header};

/// An object that may be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedObject {
    /// The address of its `marked`.
    pub place: u64,
    /// Its type byte.
    pub gct: u8,
}

/// The object that fills the block of this size; [`None`] if the block is no object. Other blocks have the header of an
/// object only by chance, and hardly ever one with the same size, or, for types without a size, one that is in the chain of
/// all objects.
pub fn object_in(memory: &ProcessMemory, shape: &Shape, address: u64, size: u64) -> Option<FollowedObject> {
    // An FFI object that has variable size or more than the usual alignment does not begin with its block, so it is not
    // found.
    let header = Header::read_directly(memory, address);
    let kind = header.gct(shape).filter(|kind| (gct::STR..=gct::UDATA).contains(kind))?;
    let fits = match own_size(&header, shape, kind) {
        Some(own) => own == size,
        None => (kind == CDATA && size > shape.cdata || kind == gct::TRACE) && is_in_chain(memory, shape, &header),
    };
    fits.then_some(FollowedObject { place: address.wrapping_add(marked_offset(shape.gc64())), gct: kind })
}

/// Whether another object follows in `gc.root`'s chain. A new object is put at the front of the chain, so there is one
/// (`lj_cdata_new`, `lj_cdata.h`; `trace_save`, `lj_trace.c`). In a hash part, the key of the first node lies where the
/// type byte would be: if the key is a string, one address in 256 has a given type there.
fn is_in_chain(memory: &ProcessMemory, shape: &Shape, header: &Header) -> bool {
    let next = header.next(shape);
    let kind = Header::read_directly(memory, next).gct(shape);
    next != 0 && kind.is_some_and(|kind| (gct::STR..=gct::UDATA).contains(&kind))
}

/// The size of the object's own block (`lj_gc.c`, `gc_freefunc`), if its header tells.
fn own_size(header: &Header, s: &Shape, kind: u8) -> Option<u64> {
    let l = &s.layout;
    let at = u64::from;
    Some(match kind {
        gct::STR => {
            let length = u64::from(header.u32(at(l.str_len))?);
            at(l.sizeof_str) + if s.padded_strings { (length + 4) & !3 } else { length + 1 }
        }
        gct::UPVAL => s.upvalue,
        gct::THREAD => at(l.sizeof_l),
        gct::PROTO => u64::from(header.u32(at(l.pt_sizept))?),
        gct::FUNC => {
            let upvalues = u64::from(header.u8(at(l.fn_nupvalues))?);
            if header.u8(at(l.fn_ffid))? == 0 {
                s.upvalue_references() + s.reference * upvalues
            } else {
                s.c_upvalues() + VALUE * upvalues
            }
        }
        // The array part of a small table may lie in the same block.
        gct::TAB => s.table + VALUE * u64::from(header.u8(s.colo())? & 0x7f),
        gct::UDATA => s.userdata + u64::from(header.u32(s.udata_len())?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use lj_trace_luajit::testing::x64_layout;

    use super::*;

    /// The type that is seen in a block of these words.
    fn seen(words: &[u64]) -> Option<u8> {
        let shape = Shape::new(x64_layout("2022-03(Debian)", "x64gc64"));
        let memory = ProcessMemory::new(std::process::id());
        object_in(&memory, &shape, words.as_ptr() as u64, 8 * words.len() as u64).map(|object| object.gct)
    }

    #[test]
    fn a_hash_part_is_no_object_wherever_its_key_lies() {
        for kind in [CDATA, gct::TRACE] {
            // A node: a number, and a string whose address has the type's number in its second byte.
            let key = 0xfffd_8000_4100_0020 | u64::from(kind) << 8;
            for number in [0.0, 1.0, 100.0, 1e300] {
                assert_eq!(seen(&[f64::to_bits(number), key, 0]), None, "{kind} {number}");
            }
        }
    }

    #[test]
    fn objects_without_a_size_are_in_a_chain() {
        let [table, string] = [gct::TAB, gct::STR].map(|kind| [0, 1 | u64::from(kind) << 8, 0, 0, 0, 0, 0, 0]);
        for next in [table, string] {
            for kind in [CDATA, gct::TRACE] {
                assert_eq!(seen(&[next.as_ptr() as u64, 1 | u64::from(kind) << 8, 0]), Some(kind));
            }
        }
        assert_eq!(seen(&table), Some(gct::TAB), "its size is enough");
    }
}
