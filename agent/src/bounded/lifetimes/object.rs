//! Whether a block of memory is an object: parts of tables, stacks and buffers are blocks as well.

use lj_trace_common::layout::gct;

use crate::heap::object::{CDATA, Header};
use crate::heap::shape::{Shape, VALUE};
use crate::target::ProcessMemory;
use crate::vm::object::marked_offset;

/// An object that may be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Address of its `marked`.
    pub place: u64,
    /// Its type byte.
    pub gct: u8,
}

/// The object that fills the block of this size; [`None`] if it is none. What is no object has the header of one by chance
/// at most, and hardly ever one that says the same size.
pub fn object_in(memory: &ProcessMemory, shape: &Shape, address: u64, size: u64) -> Option<Object> {
    // An object of the FFI that is aligned more than usual, or of variable size, does not begin with its block: then it
    // is not found.
    let header = Header::read_directly(memory, address);
    let kind = header.gct(shape).filter(|kind| (gct::STR..=gct::UDATA).contains(kind))?;
    let fits = match own_size(&header, shape, kind) {
        Some(own) => own == size,
        None => kind == CDATA && size > shape.cdata || kind == gct::TRACE,
    };
    fits.then_some(Object { place: address.wrapping_add(marked_offset(shape.gc64())), gct: kind })
}

/// The size of an object's own block (`lj_gc.c`, `gc_freefunc`), where its header tells.
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
        // The array part of a small table may be in the same block.
        gct::TAB => s.table + VALUE * u64::from(header.u8(s.colo())? & 0x7f),
        gct::UDATA => s.userdata + u64::from(header.u32(s.udata_len())?),
        _ => return None,
    })
}
