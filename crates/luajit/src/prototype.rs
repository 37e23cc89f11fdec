//! Function prototypes (`GCproto`): what is needed to symbolize a Lua function, read once and kept.
//!
//! LuaJIT's sources: [`LJ_MAX_BCINS`], [`firstline`], [`fs_finish`], [`lj_debug_line`], [`debug_varname`].
//!
//! [`LJ_MAX_BCINS`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_def.h#L66
//! [`firstline`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_lib.c#L68
//! [`fs_finish`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_parse.c#L1699-L1745
//! [`lj_debug_line`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L120-L135
//! [`debug_varname`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L152-L182

use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_common::event::FrameRecord;
use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memory::{ReadMemory, Unreadable};
use lj_trace_common::string;

use super::bytecode::{Instruction, Op};
use super::interned::has_string;
use super::machine::Vm;
use super::object::{ObjectError, field, marked_offset, read_bytes, read_string};
use super::overlay::plain_at;
use super::page_cache::PageCache;
use super::prove::bytecode_set;

/// Identifies the prototype that a sample saw: its address, and fields that differ if another prototype has taken its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrototypeKey {
    /// Address of the `GCproto`.
    pub address: u64,
    /// The [identity](lj_trace_common::string::identity) of its chunkname, since another string may take that string's place.
    pub chunkname: u64,
    /// The line where it is defined.
    pub firstline: u32,
    /// Its number of bytecode instructions.
    pub sizebc: u32,
}

impl PrototypeKey {
    /// The prototype of the Lua function in a frame.
    pub fn of(record: &FrameRecord) -> Self {
        Self { address: record.code, chunkname: record.chunkname, firstline: record.first_line, sizebc: record.size_bc }
    }
}

/// Why a prototype cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrototypeError {
    /// It was collected: something else lies at its address now.
    #[error("the function was collected before it could be read")]
    Gone,
    /// Its memory is no longer mapped.
    #[error("the function's memory is not readable any more")]
    Unreadable,
    /// Its fields contradict each other.
    #[error("the function's prototype is malformed")]
    Malformed,
}

impl From<ObjectError> for PrototypeError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Unreadable => Self::Unreadable,
            ObjectError::WrongType => Self::Gone,
        }
    }
}

/// Larger prototypes do not exist: bytecode positions are 26 bits wide (`LJ_MAX_BCINS`, `lj_def.h`).
const MAX_SIZE: u32 = 256 << 20;

/// The most bytes of a chunkname: it may be the whole source text.
const MAX_CHUNKNAME: usize = 4096;

/// The most bytes of a constant string, and of the name of a variable.
pub(super) const MAX_NAME: usize = 256;

/// `firstline` of library functions that are written in Lua (`lj_lib.c`).
const BUILTIN_LINE: u32 = u32::MAX;

/// A Lua function's prototype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// Identifies the prototype.
    pub key: PrototypeKey,
    /// The chunkname as LuaJIT stores it: `@file`, `=name`, or the source text itself.
    pub chunkname: String,
    /// Number of lines of the definition.
    pub numline: u32,
    /// Number of parameters.
    pub numparams: u8,
    /// Number of slots of a frame.
    pub framesize: u8,
    /// `PROTO_*` flags.
    pub flags: u8,
    /// The instructions when they were read. The JIT compiler patches some of them: loops and function headers.
    pub bytecode: Vec<u32>,
    /// Names of the upvalues; empty if the bytecode is stripped.
    pub upvalues: Vec<String>,
    lineinfo: Vec<u32>,
    varinfo: Vec<u8>,
    names: HashMap<u16, String>,
    children: HashMap<u16, u64>,
}

impl Prototype {
    /// Reads the prototype that `key` describes, if it is alive.
    ///
    /// # Errors
    /// [`PrototypeError::Gone`] if another prototype was there before or after the read, or if it was collected.
    pub fn read_alive<M: ReadMemory>(memory: &M, vm: &Vm, key: PrototypeKey) -> Result<Self, PrototypeError> {
        let prototype = Self::read_of(&PageCache::new(memory), &vm.layout, key)?;
        // Its key is compared last: the string that the table has may be another one, which has taken the place of the name.
        if is_alive(memory, vm, key.address) && Self::key_at(memory, &vm.layout, key.address)? == key {
            Ok(prototype)
        } else {
            Err(PrototypeError::Gone)
        }
    }

    /// Reads the prototype that `key` describes, if something else holds it alive.
    ///
    /// # Errors
    /// [`PrototypeError::Gone`] if another prototype was there before or after the read.
    pub fn read<M: ReadMemory>(memory: &M, layout: &VmLayout, key: PrototypeKey) -> Result<Self, PrototypeError> {
        let prototype = Self::read_of(&PageCache::new(memory), layout, key)?;
        // If it was collected meanwhile, the data belong to something else. Only uncached memory can show that.
        if Self::key_at(memory, layout, key.address)? != key {
            return Err(PrototypeError::Gone);
        }
        Ok(prototype)
    }

    /// Reads the prototype in many pieces, from a `memory` that does not change.
    pub(super) fn read_of<M: ReadMemory>(
        memory: &M,
        layout: &VmLayout,
        key: PrototypeKey,
    ) -> Result<Self, PrototypeError> {
        let bytes = Self::block(memory, layout, key)?;
        let block = PrototypeBlock { layout, bytes: &bytes, start: key.address };
        let bytecode = block.words(u64::from(layout.sizeof_pt), key.sizebc)?;
        Ok(Self {
            key,
            chunkname: text(read_string(memory, layout, block.chunkname()?, MAX_CHUNKNAME)?),
            numline: block.field(layout.pt_numline)?,
            numparams: block.field(layout.pt_numparams)?,
            framesize: block.field(layout.pt_framesize)?,
            flags: block.field(layout.pt_flags)?,
            upvalues: block.upvalues()?,
            lineinfo: block.lineinfo(key.sizebc)?,
            varinfo: block.tail(layout.pt_varinfo)?.to_vec(),
            names: block.names(memory, &bytecode)?,
            children: block.children(&bytecode)?,
            bytecode,
        })
    }

    /// Reads only the addresses of its child prototypes, from a `memory` that does not change.
    pub(super) fn read_children<M: ReadMemory>(
        memory: &M,
        layout: &VmLayout,
        key: PrototypeKey,
    ) -> Result<Vec<u64>, PrototypeError> {
        let bytes = Self::block(memory, layout, key)?;
        let block = PrototypeBlock { layout, bytes: &bytes, start: key.address };
        let set = bytecode_set(layout);
        let mut children = Vec::new();
        for instruction in block.words(u64::from(layout.sizeof_pt), key.sizebc)?.into_iter().map(Instruction) {
            if instruction.opcode(set).is_some_and(|opcode| opcode.op == Op::FNEW) {
                children.push(block.constant(instruction.d())?);
            }
        }
        Ok(children)
    }

    /// Reads only its chunkname, as LuaJIT stores it, from a `memory` that does not change.
    pub(super) fn read_chunkname<M: ReadMemory>(
        memory: &M,
        layout: &VmLayout,
        key: PrototypeKey,
    ) -> Result<Vec<u8>, PrototypeError> {
        let gone = |_| PrototypeError::Unreadable;
        let name = memory.read_ref(layout.is_gc64(), field(key.address, layout.pt_chunkname)).map_err(gone)?;
        Ok(read_string(memory, layout, name, MAX_CHUNKNAME)?)
    }

    /// The memory block of the prototype that `key` describes.
    fn block<M: ReadMemory>(memory: &M, layout: &VmLayout, key: PrototypeKey) -> Result<Vec<u8>, PrototypeError> {
        if Self::key_at(memory, layout, key.address)? != key {
            return Err(PrototypeError::Gone);
        }
        let size: u32 = memory.read(field(key.address, layout.pt_sizept)).map_err(|_| PrototypeError::Unreadable)?;
        let least = u64::from(layout.sizeof_pt) + 4 * u64::from(key.sizebc);
        if size > MAX_SIZE || u64::from(size) < least {
            return Err(PrototypeError::Gone);
        }
        // A prototype is one block, with its bytecode, constants and debug information (`lj_parse.c`, `fs_finish`).
        let bytes = read_bytes(memory, key.address, size as usize).map_err(|_| PrototypeError::Unreadable)?;
        let block = PrototypeBlock { layout, bytes: &bytes, start: key.address };
        if block.key(memory)? == key { Ok(bytes) } else { Err(PrototypeError::Gone) }
    }

    /// Reads the key of the prototype that lies at `address` now.
    ///
    /// # Errors
    /// [`PrototypeError::Gone`] if no prototype lies there.
    pub fn key_at<M: ReadMemory>(memory: &M, layout: &VmLayout, address: u64) -> Result<PrototypeKey, PrototypeError> {
        let bytes = read_bytes(memory, address, usize::from(layout.sizeof_pt));
        PrototypeBlock { layout, bytes: &bytes.map_err(|_| PrototypeError::Unreadable)?, start: address }.key(memory)
    }

    /// The source line of the instruction at `position`, as `lj_debug_line` finds it; `None` if the
    /// function is stripped or has no such position.
    pub fn line_at(&self, position: u32) -> Option<u32> {
        if self.lineinfo.is_empty() || position > self.key.sizebc {
            return None;
        }
        let first = self.key.firstline;
        match position {
            0 => Some(first),
            _ if position == self.key.sizebc => Some(first.wrapping_add(self.numline)),
            _ => self.lineinfo.get(position as usize - 1).map(|line| first.wrapping_add(*line)),
        }
    }

    /// Whether the function has no debug information.
    pub fn is_stripped(&self) -> bool {
        self.lineinfo.is_empty()
    }

    /// Whether this is one of LuaJIT's library functions that are written in Lua.
    pub fn is_builtin(&self) -> bool {
        self.key.firstline == BUILTIN_LINE
    }

    /// The instruction at `position`.
    pub fn instruction(&self, position: u32) -> Option<Instruction> {
        self.bytecode.get(position as usize).copied().map(Instruction)
    }

    /// The string constant with index `index` that an instruction uses as a name.
    pub fn name_constant(&self, index: u16) -> Option<&str> {
        self.names.get(&index).map(String::as_str)
    }

    /// The address of the child prototype with constant index `index`, from which an instruction creates a function.
    pub fn child(&self, index: u16) -> Option<u64> {
        self.children.get(&index).copied()
    }

    /// Whether it has child prototypes.
    pub fn has_children(&self) -> bool {
        !self.children.is_empty()
    }

    /// The addresses of its child prototypes.
    pub fn children(&self) -> impl Iterator<Item = u64> {
        self.children.values().copied()
    }

    /// Approximate memory use in bytes.
    pub fn size(&self) -> usize {
        /// Memory of an entry in the small tables: a key, a string, its heap block, and unused space.
        const ENTRY: usize = 64;
        let texts = self.upvalues.iter().chain(self.names.values());
        size_of::<Self>()
            + self.chunkname.len()
            + 4 * (self.bytecode.len() + self.lineinfo.len())
            + self.varinfo.len()
            + texts.map(|text| ENTRY + text.len()).sum::<usize>()
            + ENTRY / 2 * self.children.len()
    }

    /// Names and extents of its local variables, packed (`lj_debug.c`, `debug_varname`).
    pub(super) fn varinfo(&self) -> &[u8] {
        &self.varinfo
    }
}

/// Whether the prototype at this address is not known to be dead. The memory of one that was freed has most of it for a while: see
/// [`has_string`].
fn is_alive<M: ReadMemory>(memory: &M, vm: &Vm, prototype: u64) -> bool {
    /// Both colours of white ([`LJ_GC_WHITES`]).
    ///
    /// [`LJ_GC_WHITES`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.h#L27
    const WHITES: u8 = 3;
    /// How often to look: while the table of strings becomes larger, a string may be missed; and the colours change.
    const ATTEMPTS: u32 = 3;
    let layout = &vm.layout;
    // What the collector has not reached has the colour that is not the current one: it will be freed, or was.
    let is_left = || {
        let marked: u8 = memory.read(prototype.wrapping_add(marked_offset(layout.is_gc64())))?;
        let current: u8 = memory.read(field(vm.global, layout.g_gc_currentwhite))?;
        Ok::<_, Unreadable>(marked & WHITES == !current & WHITES)
    };
    let name = || memory.read_ref(layout.is_gc64(), field(prototype, layout.pt_chunkname));
    // What cannot be read speaks against nothing.
    let may_be = || is_left() != Ok(true) && name().and_then(|name| has_string(memory, vm, name)) != Ok(false);
    (0..ATTEMPTS).any(|_| may_be())
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A copy of a prototype's memory block.
struct PrototypeBlock<'a> {
    layout: &'a VmLayout,
    bytes: &'a [u8],
    start: u64,
}

impl PrototypeBlock<'_> {
    fn field<T: lj_trace_common::memory::Pod>(&self, offset: u16) -> Result<T, PrototypeError> {
        plain_at(self.bytes, u64::from(offset)).ok_or(PrototypeError::Malformed)
    }

    fn reference(&self, offset: u64) -> Result<u64, PrototypeError> {
        let value = if self.layout.is_gc64() {
            plain_at(self.bytes, offset)
        } else {
            plain_at::<u32>(self.bytes, offset).map(u64::from)
        };
        value.ok_or(PrototypeError::Malformed)
    }

    /// Address of its chunkname, a `GCstr`.
    fn chunkname(&self) -> Result<u64, PrototypeError> {
        self.reference(u64::from(self.layout.pt_chunkname))
    }

    fn key<M: ReadMemory>(&self, memory: &M) -> Result<PrototypeKey, PrototypeError> {
        let gct: u8 = self.field(marked_offset(self.layout.is_gc64()) as u16 + 1)?;
        if gct != gct::PROTO {
            return Err(PrototypeError::Gone);
        }
        Ok(PrototypeKey {
            address: self.start,
            chunkname: string::identity(memory, self.layout, self.chunkname()?).map_err(|_| PrototypeError::Gone)?,
            firstline: self.field(self.layout.pt_firstline)?,
            sizebc: self.field(self.layout.pt_sizebc)?,
        })
    }

    fn words(&self, offset: u64, count: u32) -> Result<Vec<u32>, PrototypeError> {
        (0..u64::from(count))
            .map(|index| plain_at(self.bytes, offset + 4 * index).ok_or(PrototypeError::Malformed))
            .collect()
    }

    /// The part of the block from the target of the pointer at `offset` on; empty if the pointer is null (stripped).
    fn tail(&self, offset: u16) -> Result<&[u8], PrototypeError> {
        let pointer = self.reference(u64::from(offset))?;
        if pointer == 0 {
            return Ok(&[]);
        }
        let start = pointer.checked_sub(self.start).and_then(|start| usize::try_from(start).ok());
        start.and_then(|start| self.bytes.get(start..)).ok_or(PrototypeError::Malformed)
    }

    /// For each instruction but the first, its line minus the first line (`lj_debug.c`, `lj_debug_line`).
    fn lineinfo(&self, sizebc: u32) -> Result<Vec<u32>, PrototypeError> {
        let lines = self.tail(self.layout.pt_lineinfo)?;
        if lines.is_empty() {
            return Ok(Vec::new());
        }
        let numline: u32 = self.field(self.layout.pt_numline)?;
        let line = |index: u64| match numline {
            0..256 => plain_at::<u8>(lines, index).map(u32::from),
            256..65536 => plain_at::<u16>(lines, 2 * index).map(u32::from),
            _ => plain_at::<u32>(lines, 4 * index),
        };
        let count = u64::from(sizebc.saturating_sub(1));
        (0..count).map(|index| line(index).ok_or(PrototypeError::Malformed)).collect()
    }

    fn upvalues(&self) -> Result<Vec<String>, PrototypeError> {
        let names = self.tail(self.layout.pt_uvinfo)?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let count: u8 = self.field(self.layout.pt_sizeuv)?;
        let names = names.split(|byte| *byte == 0).take(usize::from(count));
        Ok(names.map(|name| text(name[..name.len().min(MAX_NAME)].to_vec())).collect())
    }

    /// The child prototypes from which instructions create functions, by constant index.
    fn children(&self, bytecode: &[u32]) -> Result<HashMap<u16, u64>, PrototypeError> {
        let set = bytecode_set(self.layout);
        let mut children = HashMap::new();
        for instruction in bytecode.iter().map(|word| Instruction(*word)) {
            if instruction.opcode(set).is_some_and(|opcode| opcode.op == Op::FNEW) {
                children.insert(instruction.d(), self.constant(instruction.d())?);
            }
        }
        Ok(children)
    }

    /// The address of a collectable constant.
    fn constant(&self, index: u16) -> Result<u64, PrototypeError> {
        let count: u32 = self.field(self.layout.pt_sizekgc)?;
        if u32::from(index) >= count {
            return Err(PrototypeError::Malformed);
        }
        let constants = self.reference(u64::from(self.layout.pt_k))?.wrapping_sub(self.start);
        let width = if self.layout.is_gc64() { 8 } else { 4 };
        // Collectable constants lie below `k`, in reverse order.
        self.reference(constants.wrapping_sub(width * (u64::from(index) + 1)))
    }

    /// The string constants that instructions use as names of globals and fields, by index; in a prototype that creates
    /// functions, all string constants that are loaded.
    fn names<M: ReadMemory>(&self, memory: &M, bytecode: &[u32]) -> Result<HashMap<u16, String>, PrototypeError> {
        let set = bytecode_set(self.layout);
        // If functions are stored under constant keys of tables, the keys are loaded into registers first.
        let is_new = |word: &u32| Instruction(*word).opcode(set).is_some_and(|opcode| opcode.op == Op::FNEW);
        let defines = bytecode.iter().any(is_new);
        let mut names = HashMap::new();
        for word in bytecode {
            let instruction = Instruction(*word);
            let op = instruction.opcode(set).map(|opcode| opcode.op);
            let is_text = op == Some(Op::KSTR);
            let index = match op {
                Some(Op::GGET | Op::GSET) => instruction.d(),
                Some(Op::KSTR) if defines => instruction.d(),
                Some(Op::TGETS | Op::TSETS) => u16::from(instruction.c()),
                _ => continue,
            };
            let string = self.constant(index)?;
            if let std::collections::hash_map::Entry::Vacant(entry) = names.entry(index) {
                match read_string(memory, self.layout, string, MAX_NAME) {
                    Ok(name) => drop(entry.insert(text(name))),
                    // Most of these strings are no keys.
                    Err(_) if is_text => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(names)
    }
}

/// The most bytes of memory for prototypes: enough for those of some ten thousand functions. If a program has more, or
/// creates functions all the time, prototypes are read again.
const MAX_BYTES: usize = 8 << 20;

/// Size of a table entry in bytes.
const ENTRY_SIZE: usize = 2 * size_of::<PrototypeKey>();

/// The prototypes that were read so far, of one VM or of several in one process.
#[derive(Debug, Default)]
pub struct Prototypes {
    known: HashMap<PrototypeKey, Arc<Prototype>>,
    /// Total size of all prototypes in bytes.
    bytes: usize,
}

impl Prototypes {
    /// The prototype that `key` describes, read from `memory` the first time.
    ///
    /// # Errors
    /// As [`Prototype::read_alive`].
    pub fn get<M: ReadMemory>(
        &mut self,
        memory: &M,
        vm: &Vm,
        key: PrototypeKey,
    ) -> Result<Arc<Prototype>, PrototypeError> {
        self.get_or(key, || Prototype::read_alive(memory, vm, key))
    }

    /// The same, of a prototype that another object holds alive.
    ///
    /// # Errors
    /// As [`Prototype::read`].
    pub fn get_held<M: ReadMemory>(
        &mut self,
        memory: &M,
        layout: &VmLayout,
        key: PrototypeKey,
    ) -> Result<Arc<Prototype>, PrototypeError> {
        self.get_or(key, || Prototype::read(memory, layout, key))
    }

    fn get_or(
        &mut self,
        key: PrototypeKey,
        read: impl FnOnce() -> Result<Prototype, PrototypeError>,
    ) -> Result<Arc<Prototype>, PrototypeError> {
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let prototype = Arc::new(read()?);
        self.keep(prototype.clone());
        Ok(prototype)
    }

    /// Keeps a prototype, and forgets all others if they have become too large together.
    fn keep(&mut self, prototype: Arc<Prototype>) {
        let size = ENTRY_SIZE + prototype.size();
        if self.bytes + size > MAX_BYTES {
            self.clear();
        }
        self.bytes += size;
        self.known.insert(prototype.key, prototype);
    }

    /// Forgets all prototypes.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets a prototype that was freed: another one may be created at its address with an equal key, such as the
    /// next version of the same chunk.
    pub fn forget(&mut self, key: &PrototypeKey) {
        if let Some(known) = self.known.remove(key) {
            self.bytes -= ENTRY_SIZE + known.size();
        }
    }

    /// Whether a prototype was read.
    pub fn knows(&self, key: &PrototypeKey) -> bool {
        self.known.contains_key(key)
    }

    /// How many prototypes are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no prototype is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A hand-made prototype, for tests of the data in it.
    pub fn prototype(bytecode: Vec<u32>, varinfo: &[u8], upvalues: &[&str], names: &[(u16, &str)]) -> Prototype {
        let key = PrototypeKey { address: 0x1000, chunkname: 0x2000, firstline: 10, sizebc: bytecode.len() as u32 };
        Prototype {
            key,
            chunkname: "@test.lua".into(),
            numline: 5,
            numparams: 0,
            framesize: 8,
            flags: 0,
            lineinfo: (0..bytecode.len() as u32 - 1).collect(),
            bytecode,
            upvalues: upvalues.iter().map(|name| (*name).to_owned()).collect(),
            varinfo: varinfo.to_vec(),
            names: names.iter().map(|(index, name)| (*index, (*name).to_owned())).collect(),
            children: (0..4).map(|index| (index, 0x9000 + u64::from(index))).collect(),
        }
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let mut prototypes = Prototypes::default();
        for address in 0..20 {
            let mut one = prototype(vec![0; 1 << 18], &[], &[], &[]);
            one.key.address = address;
            prototypes.keep(Arc::new(one));
            let kept: usize = prototypes.known.values().map(|known| ENTRY_SIZE + known.size()).sum();
            assert_eq!(prototypes.bytes, kept);
            assert!((1..=MAX_BYTES).contains(&kept), "{kept}");
        }
        let last = prototypes.known.keys().map(|key| key.address).max();
        assert_eq!(last, Some(19));
        for key in prototypes.known.keys().copied().collect::<Vec<_>>() {
            prototypes.forget(&key);
        }
        assert_eq!((prototypes.bytes, prototypes.len()), (0, 0));
    }

    #[test]
    fn lines_as_lj_debug_line_tells_them() {
        let prototype = prototype(vec![0; 4], &[], &[], &[]);
        let lines: Vec<_> = (0..6).map(|position| prototype.line_at(position)).collect();
        assert_eq!(lines, [Some(10), Some(10), Some(11), Some(12), Some(15), None]);
    }

    #[test]
    fn lines_have_the_width_that_their_number_needs() {
        let layout = crate::testing::x64_layout("Debian", "x64gc64");
        for (numline, lines, expected) in [
            (255, vec![1, 2, 3, 4, 5, 6, 7, 8], [1, 2]),
            (256, vec![1, 2, 3, 4, 5, 6, 7, 8], [0x201, 0x403]),
            (65536, vec![1, 2, 3, 0, 5, 6, 7, 0], [0x3_0201, 0x7_0605]),
        ] {
            let mut bytes = vec![0; usize::from(layout.sizeof_pt)];
            bytes[usize::from(layout.pt_numline)..][..4].copy_from_slice(&u32::to_le_bytes(numline));
            bytes[usize::from(layout.pt_lineinfo)..][..8]
                .copy_from_slice(&(0x1000 + u64::from(layout.sizeof_pt)).to_le_bytes());
            bytes.extend(lines);
            let block = PrototypeBlock { layout: &layout, bytes: &bytes, start: 0x1000 };
            assert_eq!(block.lineinfo(3).unwrap(), expected);
            assert_eq!(block.lineinfo(300), Err(PrototypeError::Malformed));
        }
    }
}
