//! Reads all keys and values of Lua tables (`GCtab`).
//!
//! LuaJIT's sources: [`Node`], [`metatable`].
//!
//! [`Node`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L488-L495
//! [`metatable`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L745-L747

use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memory::ReadMemory;

use super::object::{ObjectError, expect_type, field, read_bytes, read_string};
use super::overlay::plain_at;
use super::value::{self, Value};

/// Size of a hash `Node`: value, key and link (`lj_obj.h`), the same in both widths of references.
const NODE_SIZE: u64 = 24;

/// The most slots that are read of each part of a table: no table of functions is larger.
pub(crate) const MAX_SLOTS: u64 = 1 << 16;

/// The entries of the table at `address` whose key is an object, as `(key, value)`, without those whose value is `nil`.
///
/// # Errors
/// [`ObjectError`] if there is no readable table.
pub fn hash_entries<M: ReadMemory>(
    memory: &M,
    layout: &VmLayout,
    address: u64,
) -> Result<Vec<(Value, Value)>, ObjectError> {
    expect_type(memory, layout, address, gct::TAB)?;
    let gc64 = layout.is_gc64();
    let nodes = memory.read_ref(gc64, field(address, layout.tab_node))?;
    let mask: u32 = memory.read(field(address, layout.tab_hmask))?;
    let count = (u64::from(mask) + 1).min(MAX_SLOTS);
    let bytes = read_bytes(memory, nodes, (count * NODE_SIZE) as usize)?;
    let slot = |offset| plain_at(&bytes, offset).map_or(Value::Nil, |bits| value::decode(gc64, bits));
    let entries = (0..count).map(|index| (slot(index * NODE_SIZE + value::SIZE), slot(index * NODE_SIZE)));
    Ok(entries.filter(|(key, value)| matches!(key, Value::Object { .. }) && *value != Value::Nil).collect())
}

/// The values of the array part of the table at `address`, starting with the value of key 0.
///
/// # Errors
/// [`ObjectError`] if there is no readable table.
pub fn array_values<M: ReadMemory>(memory: &M, layout: &VmLayout, address: u64) -> Result<Vec<Value>, ObjectError> {
    expect_type(memory, layout, address, gct::TAB)?;
    let array = memory.read_ref(layout.is_gc64(), field(address, layout.tab_array))?;
    let size: u32 = memory.read(field(address, layout.tab_asize))?;
    let size = u64::from(size).min(MAX_SLOTS);
    let bytes = read_bytes(memory, array, (size * value::SIZE) as usize)?;
    let (slots, _) = bytes.as_chunks();
    Ok(slots.iter().map(|slot| value::decode(layout.is_gc64(), u64::from_le_bytes(*slot))).collect())
}

/// The metatable of the table or userdata at `address`.
///
/// # Errors
/// [`ObjectError`] if the field cannot be read.
pub fn metatable<M: ReadMemory>(memory: &M, layout: &VmLayout, address: u64) -> Result<Option<u64>, ObjectError> {
    // The field has the same offset in every object that has a metatable (`lj_obj.h`, LJ_STATIC_ASSERT).
    let metatable = memory.read_ref(layout.is_gc64(), field(address, layout.tab_metatable))?;
    Ok((metatable != 0).then_some(metatable))
}

/// The value with the string key `key` in a table.
pub fn entry<M: ReadMemory>(memory: &M, layout: &VmLayout, table: Value, key: &str) -> Option<Value> {
    let Value::Object { gct: gct::TAB, address } = table else { return None };
    let entries = hash_entries(memory, layout, address).ok()?;
    let is_it = |value: &Value| match *value {
        Value::Object { gct: gct::STR, address } => {
            read_string(memory, layout, address, key.len() + 1).is_ok_and(|text| text == key.as_bytes())
        }
        _ => false,
    };
    entries.into_iter().find(|(key, _)| is_it(key)).map(|(_, value)| value)
}
