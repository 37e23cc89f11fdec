//! The references of an object, as LuaJIT's collector traverses them ([`gc_traverse_*`] and [`gc_mark`], `lj_gc.c`).
//!
//! LuaJIT's sources: [`MMDEF`], [`gc_traverse_frames`], [`FRAME_*`], [`REF_TRUE`].
//!
//! [`gc_mark`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L58-L90
//! [`gc_traverse_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L173-L321
//! [`MMDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L557-L564
//! [`gc_traverse_frames`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.c#L292-L306
//! [`FRAME_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L14-L30
//! [`REF_TRUE`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L465

use std::cell::RefCell;

use lj_trace_common::layout::{ABSENT, gct};
use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::overlay::plain_at;
use lj_trace_luajit::shape::{NODE, Shape, VALUE};
use lj_trace_luajit::value::{self, Value};
use lj_trace_streams::hash::AddrMap;

use super::blocks::{Blocks, ReadSome};
use super::object::{CDATA, Header};

/// How an object refers to another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// From an upvalue to its value: both are shown as one.
    Same,
    /// From a table or userdata to its metatable.
    Metatable,
    /// To the environment.
    Environment,
    /// From a function to its prototype.
    Prototype,
    /// From a prototype or a trace to a constant.
    Constant,
    /// From a prototype to its chunk's name.
    ChunkName,
    /// To a trace.
    Trace,
    /// From a table to a key.
    Key,
    /// From a table to the value of a string key.
    Field {
        /// The address of the key.
        key: u64,
        /// Whether the table has so many entries that they count as elements rather than fields.
        crowded: bool,
    },
    /// From a table to the value of another key.
    Element {
        /// The key.
        key: Key,
    },
    /// From a Lua function to an upvalue.
    Upvalue {
        /// The address of the function's prototype.
        prototype: u64,
        /// The index of the upvalue.
        index: u32,
    },
    /// From a C function to an upvalue.
    CUpvalue(u32),
    /// From a coroutine to a value on its stack.
    Slot {
        /// The address of the slot.
        address: u64,
    },
    /// From a string buffer to the string that it reads from, or to a table of its options.
    Buffer,
}

/// A key that is not a string.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key {
    /// A number.
    Number(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// Another object, or a light userdata.
    Other(u64),
}

/// A reference to an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edge {
    /// The address of the object.
    pub to: u64,
    /// The type byte that the object must have; 0 if any type is possible.
    pub gct: u8,
    /// How the other object refers to it.
    pub step: Step,
}

/// In tables with a larger hash part, string keys count as elements rather than fields.
const MAX_FIELDS: u32 = 1024;

/// `LUAI_MAXSTACK` (`luaconf.h`) is 65500 slots; some builds raise it.
const MAX_SLOTS: u64 = 1 << 20;

/// The most entries of a part: a table has no more than 2^27 elements (`LJ_MAX_ASIZE`, `LJ_MAX_HBITS`).
const MAX_ELEMENTS: u64 = 1 << 28;

/// The number of bytes of an array to read at a time.
const CHUNK: u64 = 24 << 10;

/// The references of a table that do not keep their objects alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weak {
    keys: bool,
    values: bool,
}

/// Finds the references of objects.
#[derive(Debug)]
pub struct ObjectEdges<'a, M> {
    blocks: &'a Blocks<M>,
    shape: Shape,
    /// The address of the string `__mode`.
    mode: u64,
    /// The address of the table of traces, and its length.
    traces: (u64, u64),
    weak: RefCell<AddrMap<u64, Weak>>,
}

impl<'a, M: ReadSome> ObjectEdges<'a, M> {
    /// Finds references of the objects of the VM whose `global_State` is at `global`.
    pub fn new(blocks: &'a Blocks<M>, shape: Shape, global: u64) -> Self {
        let l = &shape.layout;
        // MMDEF (`lj_obj.h`): index, newindex, gc, mode.
        let mode = blocks.read_ref(shape.gc64(), global.wrapping_add(u64::from(l.g_gcroot) + 3 * shape.reference));
        let traces = if l.g_to_j == ABSENT || l.j_trace == ABSENT {
            (0, 0)
        } else {
            let at = |field| global.wrapping_add(u64::from(l.g_to_j) + u64::from(field));
            let size: u32 = blocks.read(at(l.j_sizetrace)).unwrap_or(0);
            (blocks.read(at(l.j_trace)).unwrap_or(0), size.into())
        };
        Self { blocks, shape, mode: mode.unwrap_or(0), traces, weak: RefCell::default() }
    }

    /// Passes each reference that keeps another object alive to `found`. References that cannot be read are left out.
    pub fn of(&self, object: &Header, found: &mut impl FnMut(Edge)) {
        // An unreadable object was freed or is not complete yet. The walk counts such inconsistencies.
        let _ = match object.gct(&self.shape) {
            Some(gct::UPVAL) => self.upvalue(object, found),
            Some(gct::THREAD) => self.thread(object, found),
            Some(gct::PROTO) => self.prototype(object, found),
            Some(gct::FUNC) => self.function(object, found),
            Some(gct::TRACE) => self.trace(object, found),
            Some(gct::TAB) => self.table(object, found),
            Some(gct::UDATA) => self.userdata(object, found),
            _ => Some(()),
        };
    }

    fn reference(&self, object: &Header, at: u64, gct: u8, step: Step, found: &mut impl FnMut(Edge)) -> Option<u64> {
        let to = object.reference(&self.shape, at)?;
        if to != 0 {
            found(Edge { to, gct, step });
        }
        Some(to)
    }

    fn value(&self, bits: u64, step: Step, found: &mut impl FnMut(Edge)) {
        if let Value::Object { gct, address } = value::decode(self.shape.gc64(), bits) {
            found(Edge { to: address, gct, step });
        }
    }

    /// Passes `count` consecutive entries of `size` bytes each to `entry`.
    fn array(&self, start: u64, count: u64, size: u64, mut entry: impl FnMut(u64, &[u8])) {
        let mut bytes = vec![0; (CHUNK / size * size).min(count.saturating_mul(size)) as usize];
        let mut index = 0;
        while index < count {
            let wanted = ((count - index) * size).min(bytes.len() as u64) as usize;
            let Some(at) = start.checked_add(index * size) else { return };
            let read = self.blocks.copy(at, &mut bytes[..wanted]);
            for (offset, bytes) in bytes[..read].chunks_exact(size as usize).enumerate() {
                entry(index + offset as u64, bytes);
            }
            if read < wanted {
                return;
            }
            index += wanted as u64 / size;
        }
    }

    fn upvalue(&self, object: &Header, found: &mut impl FnMut(Edge)) -> Option<()> {
        let s = &self.shape;
        let place = object.reference(s, s.upvalue_pointer())?;
        let own = object.address.wrapping_add(s.upvalue_value());
        let bits = if place == own { object.u64(s.upvalue_value())? } else { self.blocks.read(place).ok()? };
        self.value(bits, Step::Same, found);
        Some(())
    }

    fn prototype(&self, object: &Header, found: &mut impl FnMut(Edge)) -> Option<()> {
        let s = &self.shape;
        let l = &s.layout;
        self.reference(object, l.pt_chunkname.into(), gct::STR, Step::ChunkName, found)?;
        // The constants lie below `k`.
        let (k, count) = (object.reference(s, l.pt_k.into())?, u64::from(object.u32(l.pt_sizekgc.into())?));
        let (size, code) = (u64::from(object.u32(l.pt_sizept.into())?), u64::from(object.u32(l.pt_sizebc.into())?));
        if count * s.reference > size || code * 4 > size {
            return None;
        }
        self.array(k.wrapping_sub(count * s.reference), count, s.reference, |_, bytes| {
            let to = if s.gc64() { plain_at(bytes, 0) } else { plain_at::<u32>(bytes, 0).map(u64::from) };
            if let Some(to) = to.filter(|&to| to != 0) {
                found(Edge { to, gct: 0, step: Step::Constant });
            }
        });
        self.trace_numbered(object.u16(l.pt_trace.into())?, found);
        Some(())
    }

    fn trace_numbered(&self, number: u16, found: &mut impl FnMut(Edge)) {
        let (array, size) = self.traces;
        if number == 0 || u64::from(number) >= size {
            return;
        }
        let at = array.wrapping_add(self.shape.reference * u64::from(number));
        if let Ok(to) = self.blocks.read_ref(self.shape.gc64(), at)
            && to != 0
        {
            found(Edge { to, gct: gct::TRACE, step: Step::Trace });
        }
    }

    fn function(&self, object: &Header, found: &mut impl FnMut(Edge)) -> Option<()> {
        let s = &self.shape;
        let l = &s.layout;
        let count = u64::from(object.u8(l.fn_nupvalues.into())?);
        if object.u8(l.fn_ffid.into())? == 0 {
            let prototype = object.reference(s, l.fn_pc.into())?.wrapping_sub(l.sizeof_pt.into());
            found(Edge { to: prototype, gct: gct::PROTO, step: Step::Prototype });
            let start = object.address.wrapping_add(s.upvalue_references());
            self.array(start, count, s.reference, |index, bytes| {
                let to = if s.gc64() { plain_at(bytes, 0) } else { plain_at::<u32>(bytes, 0).map(u64::from) };
                if let Some(to) = to.filter(|&to| to != 0) {
                    let step = Step::Upvalue { prototype, index: index as u32 };
                    found(Edge { to, gct: gct::UPVAL, step });
                }
            });
        } else {
            self.array(object.address.wrapping_add(s.c_upvalues()), count, VALUE, |index, bytes| {
                if let Some(bits) = plain_at(bytes, 0) {
                    self.value(bits, Step::CUpvalue(index as u32), found);
                }
            });
        }
        // Last, because nearly every function refers to the globals here.
        self.reference(object, s.env(), gct::TAB, Step::Environment, found)?;
        Some(())
    }

    fn userdata(&self, object: &Header, found: &mut impl FnMut(Edge)) -> Option<()> {
        /// `UDTYPE_BUFFER`, whose payload is a `SBufExt`: w, e, b, L, cowref, r, dict_str, dict_mt.
        const BUFFER: u8 = 3;
        let s = &self.shape;
        self.reference(object, s.layout.tab_metatable.into(), gct::TAB, Step::Metatable, found)?;
        self.reference(object, s.env(), gct::TAB, Step::Environment, found)?;
        if object.u8(s.first())? == BUFFER && object.u32(s.udata_len())? >= 48 {
            let borrowed = s.userdata + 24 + s.reference;
            let flags = object.reference(s, s.userdata + 24)?;
            // SBUF_FLAG_COW: the buffer reads from an object.
            if flags & 2 != 0 {
                self.reference(object, borrowed, 0, Step::Buffer, found)?;
            }
            let tables = (borrowed + s.reference).next_multiple_of(8) + 8;
            for at in [tables, tables + s.reference] {
                self.reference(object, at, gct::TAB, Step::Buffer, found)?;
            }
        }
        Some(())
    }

    fn thread(&self, object: &Header, found: &mut impl FnMut(Edge)) -> Option<()> {
        let s = &self.shape;
        let l = &s.layout;
        let stack = object.reference(s, l.l_stack.into())?;
        let slots = u64::from(object.u32(l.l_stacksize.into())?);
        if slots > MAX_SLOTS {
            return None;
        }
        let (base, top) = (object.u64(l.l_base.into())?, object.u64(l.l_top.into())?);
        let end = stack.wrapping_add(VALUE * slots);
        let used = self.frame_end(base).unwrap_or(top).max(top).min(end);
        let first = stack.wrapping_add(VALUE * (1 + s.fr2));
        let count = used.saturating_sub(first) / VALUE;
        self.array(first, count, VALUE, |index, bytes| {
            if let Some(bits) = plain_at(bytes, 0) {
                self.value(bits, Step::Slot { address: first + VALUE * index }, found);
            }
        });
        if s.fr2 == 0 {
            self.hidden_functions(stack, base, slots, found);
        }
        self.reference(object, s.thread_env(), gct::TAB, Step::Environment, found)?;
        Some(())
    }

    /// The end of the frame at `base`, if it belongs to a Lua function: LuaJIT does not update `L->top` while one runs.
    fn frame_end(&self, base: u64) -> Option<u64> {
        let s = &self.shape;
        let link = self.blocks.read::<u64>(base.wrapping_sub(VALUE * (1 + s.fr2))).ok()?;
        let function = if s.gc64() {
            match value::decode(true, link) {
                Value::Object { gct: gct::FUNC, address } => address,
                _ => return None,
            }
        } else {
            link & 0xffff_ffff
        };
        let function = Header::read(self.blocks, s, function).filter(|it| it.gct(s) == Some(gct::FUNC))?;
        if function.u8(s.layout.fn_ffid.into())? != 0 {
            return None;
        }
        let prototype = function.reference(s, s.layout.fn_pc.into())?.wrapping_sub(s.layout.sizeof_pt.into());
        let size: u8 = self.blocks.read(prototype.wrapping_add(s.layout.pt_framesize.into())).ok()?;
        base.checked_add(VALUE * u64::from(size))
    }

    /// The functions of frames with one slot. Such a function shares its slot with the frame's link, so that the slot is
    /// not a value (`gc_traverse_frames`).
    fn hidden_functions(&self, stack: u64, base: u64, slots: u64, found: &mut impl FnMut(Edge)) {
        /// Bits of a link (`lj_frame.h`): the type, and the type including the bit of protected calls.
        const TYPE: u64 = 3;
        const TYPE_AND_P: u64 = 7;
        let mut frame = base.wrapping_sub(VALUE);
        for _ in 0..slots {
            if frame <= stack {
                return;
            }
            let Ok(bits) = self.blocks.read::<u64>(frame) else { return };
            found(Edge { to: bits & 0xffff_ffff, gct: 0, step: Step::Slot { address: frame } });
            let link = bits >> 32;
            let size = if link & TYPE == 0 {
                // A Lua function made the call. Operand A of the instruction before `link` gives the distance to the
                // previous frame.
                let Ok(instruction) = self.blocks.read::<u32>(link.wrapping_sub(4)) else { return };
                VALUE * (1 + u64::from(instruction >> 8 & 0xff))
            } else {
                link & !TYPE_AND_P
            };
            if size == 0 {
                return;
            }
            frame = frame.wrapping_sub(size);
        }
    }

    fn trace(&self, object: &Header, found: &mut impl FnMut(Edge)) -> Option<()> {
        /// Constants lie below this reference (`REF_BIAS - 3`, `lj_ir.h`).
        const REF_TRUE: u64 = 0x7ffd;
        /// Types of 64 bits (`IRT_IS64`): the value of such a constant is in the next instruction.
        const KNULL_AFTER_KGC: u8 = 3;
        let s = &self.shape;
        let l = &s.layout;
        if [l.tr_ir, l.tr_nk, l.tr_startpt].contains(&ABSENT) || object.u16(l.tr_traceno.into())? == 0 {
            return None;
        }
        let (code, first) = (object.u64(l.tr_ir.into())?, u64::from(object.u32(l.tr_nk.into())?));
        let count = REF_TRUE.checked_sub(first)?;
        let (inline, kgc) = (kgc_is_new(s), s.kgc());
        let mut is_value = None;
        self.array(code.wrapping_add(8 * first), count, 8, |_, bytes| {
            let Some(word) = plain_at::<u64>(bytes, 0) else { return };
            if let Some(is_object) = is_value.take() {
                if is_object {
                    found(Edge { to: word, gct: 0, step: Step::Constant });
                }
                return;
            }
            let opcode = (word >> 40) as u8;
            // KPRI, KINT, KGC, KPTR, KKPTR, KNULL, KNUM, KINT64.
            if opcode == kgc && s.gc64() {
                is_value = Some(true);
            } else if opcode == kgc {
                found(Edge { to: word & 0xffff_ffff, gct: 0, step: Step::Constant });
            } else if inline && opcode > kgc + KNULL_AFTER_KGC && opcode <= kgc + KNULL_AFTER_KGC + 2
                || s.gc64() && (kgc + 1..kgc + KNULL_AFTER_KGC).contains(&opcode)
            {
                is_value = Some(false);
            }
        });
        // link, root, nextroot, nextside.
        for at in [l.tr_link, l.tr_nextside.wrapping_sub(2), l.tr_nextside] {
            self.trace_numbered(object.u16(at.into())?, found);
        }
        self.reference(object, l.tr_startpt.into(), gct::PROTO, Step::Prototype, found)?;
        Some(())
    }

    fn table(&self, object: &Header, found: &mut impl FnMut(Edge)) -> Option<()> {
        let s = &self.shape;
        let l = &s.layout;
        let metatable = self.reference(object, l.tab_metatable.into(), gct::TAB, Step::Metatable, found)?;
        let weak = if metatable == 0 { Weak::default() } else { self.weakness(metatable) };
        if !weak.values {
            let (array, size) = (object.reference(s, l.tab_array.into())?, u64::from(object.u32(l.tab_asize.into())?));
            if size < MAX_ELEMENTS {
                self.array(array, size, VALUE, |index, bytes| {
                    if let Some(bits) = plain_at(bytes, 0) {
                        self.value(bits, Step::Element { key: Key::Number(index as f64) }, found);
                    }
                });
            }
        }
        let mask = object.u32(l.tab_hmask.into())?;
        if mask > 0 && !(weak.keys && weak.values) && u64::from(mask) < MAX_ELEMENTS {
            self.nodes(object.reference(s, l.tab_node.into())?, mask, |key, value| {
                if !weak.keys {
                    self.value(key, Step::Key, found);
                }
                if !weak.values {
                    self.value(value, self.step_of(key, mask), found);
                }
            });
        }
        Some(())
    }

    /// Passes the keys and values of a hash part to `entry`, except for `nil` values.
    fn nodes(&self, start: u64, mask: u32, mut entry: impl FnMut(u64, u64)) {
        self.array(start, u64::from(mask) + 1, NODE, |_, bytes| {
            if let (Some(value), Some(key)) = (plain_at(bytes, 0), plain_at(bytes, VALUE))
                && value::decode(self.shape.gc64(), value) != Value::Nil
            {
                entry(key, value);
            }
        });
    }

    /// A hash of the field names of a small table, independent of their order; 0 if the object is no table, or if its keys
    /// are elements, which come and go.
    pub fn fields(&self, table: &Header) -> u64 {
        /// The most fields that count as fields.
        const MAX: u32 = 32;
        let s = &self.shape;
        let l = &s.layout;
        let (Some(mask), Some(start)) = (table.u32(l.tab_hmask.into()), table.reference(s, l.tab_node.into())) else {
            return 0;
        };
        let mut sum = 0_u64;
        if mask > 0 && mask < MAX {
            self.nodes(start, mask, |key, _| {
                if let Value::Object { gct: gct::STR, address } = value::decode(s.gc64(), key) {
                    sum = sum.wrapping_add(super::objects::mixed(0, address));
                }
            });
        }
        sum
    }

    fn step_of(&self, key: u64, mask: u32) -> Step {
        match value::decode(self.shape.gc64(), key) {
            Value::Object { gct: gct::STR, address } => Step::Field { key: address, crowded: mask >= MAX_FIELDS },
            Value::Object { address, .. } => Step::Element { key: Key::Other(address) },
            _ => Step::Element { key: plain_key(self.shape.gc64(), key) },
        }
    }

    /// The weak references according to the metatable.
    fn weakness(&self, metatable: u64) -> Weak {
        /// The most metatables to remember: more could not be metatables.
        const MAX_KNOWN: usize = 1 << 16;
        /// The most entries of a metatable that is searched for its mode.
        const MAX_ENTRIES: u32 = 1 << 12;
        if let Some(&weak) = self.weak.borrow().get(&metatable) {
            return weak;
        }
        let s = &self.shape;
        let mut weak = Weak::default();
        let header = Header::read(self.blocks, s, metatable).filter(|header| header.gct(s) == Some(gct::TAB));
        if let Some(header) = header
            && let Some(start) = header.reference(s, s.layout.tab_node.into())
            && let Some(mask) = header.u32(s.layout.tab_hmask.into()).filter(|&mask| mask < MAX_ENTRIES)
        {
            self.nodes(start, mask, |key, mode| {
                let gc64 = s.gc64();
                if value::decode(gc64, key) == (Value::Object { gct: gct::STR, address: self.mode })
                    && let Value::Object { gct: gct::STR, address } = value::decode(gc64, mode)
                    && let Ok(text) = lj_trace_luajit::object::read_string(self.blocks, &s.layout, address, 16)
                {
                    weak = Weak { keys: text.contains(&b'k'), values: text.contains(&b'v') };
                }
            });
        }
        let mut known = self.weak.borrow_mut();
        if known.len() < MAX_KNOWN {
            known.insert(metatable, weak);
        }
        weak
    }

    /// The address of a coroutine's list of open upvalues; 0 for other objects.
    pub fn own_list(&self, object: &Header) -> u64 {
        let s = &self.shape;
        if object.gct(s) == Some(gct::THREAD) { object.reference(s, s.open_upvalues()).unwrap_or(0) } else { 0 }
    }

    /// Whether objects of this type have no references.
    pub const fn is_leaf(kind: u8) -> bool {
        matches!(kind, gct::STR | CDATA)
    }
}

/// Whether 64-bit constants are in the intermediate code itself: they are in 2.1, except in its first two years.
fn kgc_is_new(shape: &Shape) -> bool {
    shape.kgc() == 24
}

/// A key that is not an object.
fn plain_key(gc64: bool, bits: u64) -> Key {
    let kind = if gc64 { !((bits as i64 >> 47) as u32) } else { !((bits >> 32) as u32) };
    match kind {
        1 | 2 => Key::Boolean(kind == 2),
        13 if gc64 => Key::Number(f64::from(bits as i32)),
        0x1_0000 if !gc64 => Key::Number(f64::from(bits as i32)),
        3 => Key::Other(bits & ((1 << 47) - 1)),
        0x8000..=0xffff if !gc64 => Key::Other(bits & ((1 << 47) - 1)),
        _ => Key::Number(f64::from_bits(bits)),
    }
}
