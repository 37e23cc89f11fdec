//! Collectable objects of a proven VM: type, strings, functions.
//!
//! LuaJIT's sources: [`GCHeader`].
//!
//! [`GCHeader`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L63

use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memory::{ReadMemory, Unreadable};

/// Why an object cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// Its memory cannot be read.
    #[error("the object's memory is not readable")]
    Unreadable,
    /// Something else lies there: the object was freed, or never existed.
    #[error("no object of the expected type lies there")]
    WrongType,
}

impl From<Unreadable> for ObjectError {
    fn from(_: Unreadable) -> Self {
        Self::Unreadable
    }
}

/// The address of the field at `offset` in `object`. The sum wraps, because the object's address comes from the target
/// and may be anything.
pub fn field(object: u64, offset: u16) -> u64 {
    object.wrapping_add(u64::from(offset))
}

/// Offset of `GCHeader.marked`; the type byte follows it (`lj_obj.h`, the same in every build).
pub const fn marked_offset(gc64: bool) -> u64 {
    if gc64 { 8 } else { 4 }
}

/// The type byte of the object at `address`: a constant of [`gct`] if there is an object.
///
/// # Errors
/// [`Unreadable`] if it cannot be read.
pub fn type_of<M: ReadMemory>(memory: &M, layout: &VmLayout, address: u64) -> Result<u8, Unreadable> {
    memory.read(address.wrapping_add(marked_offset(layout.is_gc64()) + 1))
}

/// Makes sure that an object of type `expected` lies at `address`.
///
/// # Errors
/// [`ObjectError`] if it does not.
pub fn expect_type<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    address: u64,
    expected: u8,
) -> Result<(), ObjectError> {
    if type_of(memory, layout, address)? == expected { Ok(()) } else { Err(ObjectError::WrongType) }
}

/// The text of the `GCstr` at `address`, cut off after `limit` bytes.
///
/// # Errors
/// [`ObjectError`] if there is no readable string.
pub fn read_string<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    address: u64,
    limit: usize,
) -> Result<Vec<u8>, ObjectError> {
    expect_type(memory, layout, address, gct::STR)?;
    let length: u32 = memory.read(field(address, layout.str_len))?;
    let length = usize::try_from(length).map_or(limit, |length| length.min(limit));
    Ok(read_bytes(memory, field(address, layout.sizeof_str), length)?)
}

/// The function that a `GCfunc` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// A Lua function.
    Lua {
        /// Address of its `GCproto`.
        prototype: u64,
    },
    /// A C function.
    C {
        /// Its machine code.
        address: u64,
    },
    /// A function of LuaJIT's own library ("fast function").
    Builtin {
        /// Its number, which differs between builds; see [`FunctionNames`](super::FunctionNames).
        ffid: u8,
        /// Its C function: all of it, or the fallback of its machine code.
        address: u64,
    },
}

/// Reads the function at `address`.
///
/// # Errors
/// [`ObjectError`] if there is no readable function.
pub fn read_function<M: ReadMemory>(memory: &M, layout: &VmLayout, address: u64) -> Result<Function, ObjectError> {
    expect_type(memory, layout, address, gct::FUNC)?;
    match memory.read::<u8>(field(address, layout.fn_ffid))? {
        0 => {
            let pc = memory.read_ref(layout.is_gc64(), field(address, layout.fn_pc))?;
            Ok(Function::Lua { prototype: pc.wrapping_sub(u64::from(layout.sizeof_pt)) })
        }
        1 => Ok(Function::C { address: memory.read(field(address, layout.fn_c))? }),
        ffid => Ok(Function::Builtin { ffid, address: memory.read(field(address, layout.fn_c))? }),
    }
}

/// Reads `length` bytes at `address`.
///
/// # Errors
/// [`Unreadable`] if any byte of them cannot be read.
pub fn read_bytes<M: ReadMemory>(memory: &M, address: u64, length: usize) -> Result<Vec<u8>, Unreadable> {
    let bytes = read_some(memory, address, length);
    if bytes.len() == length { Ok(bytes) } else { Err(Unreadable) }
}

/// Reads up to `length` bytes at `address`, fewer where the memory ends.
pub fn read_some<M: ReadMemory>(memory: &M, address: u64, length: usize) -> Vec<u8> {
    // Large steps first, then smaller ones. Each step is one system call, and there are at most as many as bits in a length.
    let mut bytes = Vec::with_capacity(length);
    append::<M, 4096>(memory, address, length, &mut bytes);
    append::<M, 2048>(memory, address, length, &mut bytes);
    append::<M, 1024>(memory, address, length, &mut bytes);
    append::<M, 512>(memory, address, length, &mut bytes);
    append::<M, 256>(memory, address, length, &mut bytes);
    append::<M, 128>(memory, address, length, &mut bytes);
    append::<M, 64>(memory, address, length, &mut bytes);
    append::<M, 32>(memory, address, length, &mut bytes);
    append::<M, 16>(memory, address, length, &mut bytes);
    append::<M, 8>(memory, address, length, &mut bytes);
    append::<M, 4>(memory, address, length, &mut bytes);
    append::<M, 2>(memory, address, length, &mut bytes);
    append::<M, 1>(memory, address, length, &mut bytes);
    bytes
}

fn append<M: ReadMemory, const STEP: usize>(memory: &M, address: u64, length: usize, bytes: &mut Vec<u8>) {
    while length - bytes.len() >= STEP {
        let Ok(step) = memory.read::<[u8; STEP]>(address.wrapping_add(bytes.len() as u64)) else { return };
        bytes.extend_from_slice(&step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Saved, x64_layout};

    #[test]
    fn reads_strings_up_to_the_limit() {
        let layout = x64_layout("Debian", "x64gc64");
        let mut bytes = vec![0; 24];
        bytes[9] = gct::STR;
        bytes[20] = 5;
        bytes.extend_from_slice(b"hello\0");
        let memory = Saved::new(0x4000, bytes);
        assert_eq!(read_string(&memory, &layout, 0x4000, 100), Ok(b"hello".to_vec()));
        assert_eq!(read_string(&memory, &layout, 0x4000, 2), Ok(b"he".to_vec()));
        assert_eq!(read_string(&memory, &layout, 0x4001, 2), Err(ObjectError::WrongType));
        assert_eq!(read_string(&memory, &layout, 0x5000, 2), Err(ObjectError::Unreadable));
    }

    #[test]
    fn reads_where_memory_ends() {
        let memory = Saved::new(0, (0..=255).cycle().take(5000).collect());
        assert_eq!(read_some(&memory, 100, 9000).len(), 4900);
        assert_eq!(read_bytes(&memory, 0, 4999).map(|bytes| bytes[4998]), Ok((4998 % 256) as u8));
        assert_eq!(read_bytes(&memory, 2, 4999), Err(Unreadable));
    }
}
