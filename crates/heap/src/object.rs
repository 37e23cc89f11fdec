//! One object: its type, and the bytes that it accounts for in `gc.total`.
//!
//! LuaJIT's sources: [`gc_freefunc`], [`CTState`], [`lj_tab_free`], [`lj_udata_free`], [`lj_bufx_free`],
//! [`lj_cdata_free`], [`ctype_raw`], [`ctype_hassize`], [`lj_trace_free`].
//!
//! [`gc_freefunc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L381-L399
//! [`CTState`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ctype.h#L174-L183
//! [`lj_tab_free`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_tab.c#L216-L226
//! [`lj_udata_free`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_udata.c#L31-L34
//! [`lj_bufx_free`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_buf.h#L146-L152
//! [`lj_cdata_free`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_cdata.c#L62-L85
//! [`ctype_raw`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ctype.h#L439-L444
//! [`ctype_hassize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ctype.h#L214
//! [`lj_trace_free`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L172-L184

use lj_trace_common::layout::{ABSENT, gct};
use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::overlay::plain_at;
use lj_trace_luajit::shape::{NODE, Shape, VALUE};
use lj_trace_streams::hash::AddrMap;
use serde::{Deserialize, Serialize};

use super::blocks::{Blocks, ReadSome};

/// The type byte of `GCcdata`.
pub const CDATA: u8 = 10;

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A table, with its array and hash parts.
    Table,
    /// A string.
    String,
    /// A closure of a Lua function.
    LuaFunction,
    /// A C function, or a function of LuaJIT's own library.
    CFunction,
    /// A variable that closures share.
    Upvalue,
    /// The code of a Lua function.
    Prototype,
    /// A coroutine, with its stack.
    Thread,
    /// A userdata.
    Userdata,
    /// An object of the FFI.
    Cdata,
    /// A trace: intermediate code and snapshots. Its machine code is not part of the heap.
    Trace,
}

impl Kind {
    /// All types of objects, in their default order.
    pub const ALL: [Self; 10] = [
        Self::Table,
        Self::String,
        Self::LuaFunction,
        Self::CFunction,
        Self::Upvalue,
        Self::Prototype,
        Self::Thread,
        Self::Userdata,
        Self::Cdata,
        Self::Trace,
    ];

    /// The name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::String => "string",
            Self::LuaFunction => "Lua function",
            Self::CFunction => "C function",
            Self::Upvalue => "upvalue",
            Self::Prototype => "prototype",
            Self::Thread => "coroutine",
            Self::Userdata => "userdata",
            Self::Cdata => "cdata",
            Self::Trace => "trace",
        }
    }

    /// The type with this name, as on a command line: `table`, `lua-function`.
    pub fn of_name(name: &str) -> Option<Self> {
        let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_', ' '], "");
        let is_it = |kind: &Self| plain(kind.name()) == plain(name);
        Self::ALL.into_iter().find(is_it).or_else(|| (plain(name) == "thread").then_some(Self::Thread))
    }
}

/// The most bytes of an object's beginning that any code here needs.
const HEADER: usize = 128;

/// The beginning of an object, as it was read.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The address of the object.
    pub address: u64,
    bytes: [u8; HEADER],
    length: usize,
}

impl Header {
    /// Reads the beginning of the object at `address`; [`None`] if there is no collectable object.
    pub fn read<M: ReadSome>(blocks: &Blocks<M>, shape: &Shape, address: u64) -> Option<Self> {
        let mut header = Self { address, bytes: [0; HEADER], length: 0 };
        header.length = blocks.copy(address, &mut header.bytes);
        (gct::STR..=gct::UDATA).contains(&header.gct(shape)?).then_some(header)
    }

    /// Reads the beginning of whatever is at `address`, without the cache.
    pub fn read_directly(memory: &impl ReadSome, address: u64) -> Self {
        let mut header = Self { address, bytes: [0; HEADER], length: 0 };
        header.length = memory.read_some(address, &mut header.bytes);
        header
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The type byte. The width of references determines its offset.
    pub fn type_byte(&self, gc64: bool) -> Option<u8> {
        self.u8(lj_trace_luajit::object::marked_offset(gc64) + 1)
    }

    /// The type byte.
    pub fn gct(&self, shape: &Shape) -> Option<u8> {
        self.u8(shape.gct())
    }

    /// The byte at offset `at`.
    pub fn u8(&self, at: u64) -> Option<u8> {
        plain_at(self.bytes(), at)
    }

    /// The 16 bits at offset `at`.
    pub fn u16(&self, at: u64) -> Option<u16> {
        plain_at(self.bytes(), at)
    }

    /// The 32 bits at offset `at`.
    pub fn u32(&self, at: u64) -> Option<u32> {
        plain_at(self.bytes(), at)
    }

    /// The 64 bits at offset `at`.
    pub fn u64(&self, at: u64) -> Option<u64> {
        plain_at(self.bytes(), at)
    }

    /// The reference at offset `at`.
    pub fn reference(&self, shape: &Shape, at: u64) -> Option<u64> {
        if shape.gc64() { self.u64(at) } else { self.u32(at).map(u64::from) }
    }

    /// The next object in the object's list (`nextgc`).
    pub fn next(&self, shape: &Shape) -> u64 {
        self.reference(shape, 0).unwrap_or(0)
    }
}

/// An object's type and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The type.
    pub kind: Kind,
    /// The bytes that LuaJIT frees with the object.
    pub bytes: u64,
}

/// Measures objects as LuaJIT does when it frees them (`gc_freefunc` of `lj_gc.c`).
#[derive(Debug)]
pub struct Scales<'a, M> {
    blocks: &'a Blocks<M>,
    shape: Shape,
    /// The address of the table of C types, and its length.
    ctypes: (u64, u64),
    /// The size of the heap: no object is larger.
    limit: u64,
    /// The sizes of cdata payloads by C type, without variable parts.
    payloads: std::cell::RefCell<AddrMap<u32, Option<u64>>>,
}

impl<'a, M: ReadSome> Scales<'a, M> {
    /// Scales for the objects of the VM whose `global_State` is at `global`.
    pub fn new(blocks: &'a Blocks<M>, shape: Shape, global: u64) -> Self {
        // CTState: tab, top, sizetab (`lj_ctype.h`).
        let state = blocks.read_ref(shape.gc64(), global.wrapping_add(shape.ctype_state())).unwrap_or(0);
        let table = if state == 0 { 0 } else { blocks.read(state).unwrap_or(0) };
        let count: u32 = if state == 0 { 0 } else { blocks.read(state.wrapping_add(12)).unwrap_or(0) };
        let total = blocks.read_ref(shape.gc64(), global.wrapping_add(shape.layout.g_gc_total.into()));
        // A heap that is not stopped may have grown since its size was read.
        let limit = total.unwrap_or(0).saturating_mul(2).max(1 << 20);
        Self { blocks, shape, ctypes: (table, count.into()), limit, payloads: Default::default() }
    }

    /// The size that no object exceeds, in bytes.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The type and size of an object; [`None`] if its fields cannot belong to an object.
    pub fn measure(&self, object: &Header) -> Option<Measured> {
        let s = &self.shape;
        let l = &s.layout;
        let at = u64::from;
        let (kind, bytes) = match object.gct(s)? {
            gct::STR => {
                let length = u64::from(object.u32(at(l.str_len))?);
                // lj_str_size and sizestring: the text, its terminator, padding.
                let text = if s.padded_strings { (length + 4) & !3 } else { length + 1 };
                (Kind::String, at(l.sizeof_str) + text)
            }
            gct::UPVAL => (Kind::Upvalue, s.upvalue),
            gct::THREAD => (Kind::Thread, at(l.sizeof_l) + VALUE * u64::from(object.u32(at(l.l_stacksize))?)),
            gct::PROTO => (Kind::Prototype, object.u32(at(l.pt_sizept))?.into()),
            gct::FUNC => {
                let upvalues = u64::from(object.u8(at(l.fn_nupvalues))?);
                if object.u8(at(l.fn_ffid))? == 0 {
                    (Kind::LuaFunction, s.upvalue_references() + s.reference * upvalues)
                } else {
                    (Kind::CFunction, s.c_upvalues() + VALUE * upvalues)
                }
            }
            gct::TRACE => (Kind::Trace, self.trace(object)?),
            CDATA => (Kind::Cdata, self.cdata(object)?),
            gct::TAB => (Kind::Table, self.table(object)?),
            gct::UDATA => (Kind::Userdata, self.userdata(object)?),
            _ => return None,
        };
        (bytes <= self.limit).then_some(Measured { kind, bytes })
    }

    /// `lj_tab_free`: the hash part, the array part, and the table itself. The table and its array part may be one block.
    fn table(&self, object: &Header) -> Option<u64> {
        let s = &self.shape;
        let array = u64::from(object.u32(s.layout.tab_asize.into())?);
        let mask = u64::from(object.u32(s.layout.tab_hmask.into())?);
        let colocated = object.u8(s.colo())? as i8;
        if !(mask + 1).is_power_of_two() {
            return None;
        }
        let nodes = if mask > 0 { NODE * (mask + 1) } else { 0 };
        let separate = if colocated <= 0 { VALUE * array } else { 0 };
        let together = VALUE * u64::from(colocated as u8 & 0x7f);
        Some(s.table + nodes + separate + together)
    }

    /// `lj_udata_free`. A string buffer has a block of its own, unless it only borrows one (`lj_bufx_free`).
    fn userdata(&self, object: &Header) -> Option<u64> {
        let s = &self.shape;
        let length = u64::from(object.u32(s.udata_len())?);
        let buffer = self.buffer(object).map_or(0, |(start, end)| end.saturating_sub(start));
        Some((s.userdata + length).saturating_add(buffer))
    }

    /// The block of a string buffer.
    fn buffer(&self, object: &Header) -> Option<(u64, u64)> {
        /// `UDTYPE_BUFFER`, of builds since 2021-03 with the library `string.buffer`.
        const BUFFER: u8 = 3;
        /// `SBUF_FLAG_COW` or `SBUF_FLAG_BORROW`.
        const NOT_ITS_OWN: u64 = 6;
        let s = &self.shape;
        if object.u8(s.first())? != BUFFER || object.u32(s.udata_len())? < 48 {
            return None;
        }
        let (end, start) = (object.u64(s.userdata + 8)?, object.u64(s.userdata + 16)?);
        let flags = object.reference(s, s.userdata + 24)? & NOT_ITS_OWN;
        (flags == 0 && start != 0).then_some((start, end))
    }

    /// `lj_cdata_free`.
    fn cdata(&self, object: &Header) -> Option<u64> {
        /// Marks cdata of variable size or with more than the usual alignment: `GCcdataVar`, before the object, describes
        /// it.
        const VARIABLE: u8 = 0x80;
        let s = &self.shape;
        if object.u8(s.marked())? & VARIABLE != 0 {
            let [_, extra, low, high]: [u16; 4] = self.blocks.read(object.address.wrapping_sub(8)).ok()?;
            return Some(u64::from(extra) + (u64::from(high) << 16 | u64::from(low)));
        }
        let ctype = u32::from(object.u16(s.first())?);
        let known = self.payloads.borrow().get(&ctype).copied();
        let payload = known.unwrap_or_else(|| {
            let payload = self.payload(ctype);
            self.payloads.borrow_mut().insert(ctype, payload);
            payload
        });
        Some(s.cdata + payload?)
    }

    /// The size of the payload of cdata of a type (`ctype_raw`, `ctype_hassize`, `lj_ctype.h`).
    fn payload(&self, ctype: u32) -> Option<u64> {
        const ATTRIBUTE: u32 = 8;
        const LAST_WITH_SIZE: u32 = 5;
        let mut number = ctype;
        for _ in 0..64 {
            if u64::from(number) >= self.ctypes.1 {
                return None;
            }
            let entry = self.ctypes.0.wrapping_add(self.shape.ctype * u64::from(number));
            let [info, size]: [u32; 2] = [self.blocks.read(entry).ok()?, self.blocks.read(entry.wrapping_add(4)).ok()?];
            match info >> 28 {
                ATTRIBUTE => number = info & 0xffff,
                kind if kind <= LAST_WITH_SIZE => return Some(size.into()),
                _ => return Some(8),
            }
        }
        None
    }

    /// `lj_trace_free`: header, intermediate code, snapshots and their map are one block.
    fn trace(&self, object: &Header) -> Option<u64> {
        let l = &self.shape.layout;
        if [l.tr_nsnap, l.tr_nsnapmap, l.sizeof_snap].contains(&ABSENT) {
            return None;
        }
        let code = object.u64(l.tr_ir.into())?;
        let (first, end) = (object.u32(l.tr_nk.into())?, object.u32(l.tr_nins.into())?);
        let snapshots = u64::from(object.u16(l.tr_nsnap.into())?);
        // Snapshots of 8 bytes have 16-bit offsets into the map.
        let map = if l.sizeof_snap == 8 {
            object.u16(l.tr_nsnapmap.into())?.into()
        } else {
            u64::from(object.u32(l.tr_nsnapmap.into())?)
        };
        let header = code.wrapping_add(8 * u64::from(first)).wrapping_sub(object.address);
        let is_one_block = (96..=160).contains(&header) && end >= first && end < 1 << 17 && map < 1 << 24;
        is_one_block.then(|| header + 8 * u64::from(end - first) + snapshots * u64::from(l.sizeof_snap) + 4 * map)
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_luajit::testing::x64_layout;

    use super::*;
    use crate::blocks::tests::Ranges;

    fn measured(build: &str, mode: &str, fields: &[(u64, &[u8])]) -> Option<Measured> {
        let shape = Shape::new(x64_layout(build, mode));
        let mut bytes = vec![0; 0x2000];
        for (at, field) in fields {
            bytes[0x1000 + *at as usize..][..field.len()].copy_from_slice(field);
        }
        let memory = Ranges { ranges: vec![(0x1000, bytes)], ..Ranges::default() };
        let blocks = Blocks::new(&memory);
        let scales = Scales::new(&blocks, shape, 0x1000);
        Header::read(&blocks, &shape, 0x2000).and_then(|header| scales.measure(&header))
    }

    #[test]
    fn strings_are_padded_or_not() {
        let string = |build, length: u8| measured(build, "x64gc64", &[(9, &[gct::STR]), (20, &[length])]);
        for (length, bytes) in [(0, 28), (3, 28), (4, 32), (7, 32), (200, 24 + 204)] {
            assert_eq!(string("2022-03(Debian)", length), Some(Measured { kind: Kind::String, bytes }), "{length}");
        }
        let old = measured("tt2.6.0+smart", "x64", &[(5, &[gct::STR]), (12, &[5])]);
        assert_eq!(old, Some(Measured { kind: Kind::String, bytes: 16 + 6 }));
    }

    #[test]
    fn tables_have_their_parts_where_they_are() {
        let table = |colocated: i8, array: u8, mask: u8| {
            let fields: [(u64, &[u8]); 4] = [(9, &[gct::TAB]), (11, &[colocated as u8]), (48, &[array]), (52, &[mask])];
            measured("2022-03(Debian)", "x64gc64", &fields).map(|measured| measured.bytes)
        };
        assert_eq!(table(0, 0, 0), Some(64));
        assert_eq!(table(4, 4, 0), Some(64 + 32), "its array part lies with it");
        assert_eq!(table(-128 + 4, 9, 0), Some(64 + 32 + 72), "it has outgrown the one that lay with it");
        assert_eq!(table(0, 9, 3), Some(64 + 72 + 4 * 24));
    }

    #[test]
    fn functions_and_variable_cdata() {
        let function = |ffid: u8, upvalues: u8| {
            let fields: [(u64, &[u8]); 2] = [(9, &[gct::FUNC, ffid, upvalues]), (32, &[1])];
            measured("2022-03(Debian)", "x64gc64", &fields)
        };
        assert_eq!(function(0, 3), Some(Measured { kind: Kind::LuaFunction, bytes: 40 + 24 }));
        assert_eq!(function(1, 2), Some(Measured { kind: Kind::CFunction, bytes: 48 + 16 }));
        assert_eq!(measured("2022-03(Debian)", "x64gc64", &[(9, &[13])]), None);
        assert_eq!(measured("2022-03(Debian)", "x64gc64", &[(9, &[CDATA])]), None, "there are no C types");
        let shape = Shape::new(x64_layout("2022-03(Debian)", "x64gc64"));
        let variable = [24_u16, 24, 4, 1].map(u16::to_le_bytes).concat();
        let memory = Ranges {
            ranges: vec![(0x1ff8, [&variable[..], &[0; 8], &[0x80, CDATA], &[0; 30]].concat())],
            ..Ranges::default()
        };
        let blocks = Blocks::new(&memory);
        let header = Header::read(&blocks, &shape, 0x2000).unwrap();
        let measured = Scales::new(&blocks, shape, 0x1000).measure(&header);
        assert_eq!(measured, Some(Measured { kind: Kind::Cdata, bytes: 24 + 0x1_0004 }));
    }

    #[test]
    fn types_have_names() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::of_name("lua-function"), Some(Kind::LuaFunction));
        assert_eq!(Kind::of_name("THREAD"), Some(Kind::Thread));
        assert_eq!(Kind::of_name("0x1234"), None);
    }
}
