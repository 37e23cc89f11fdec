//! The names of steps from object to object.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use lj_trace_common::event::{FrameRecord, NO_POSITION, RecordKind};
use lj_trace_common::frame::{CFRAME_FLAGS, Coroutine, Walk};
use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memo::Memo;
use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::object::{field, read_string};
use lj_trace_luajit::{Prototype, PrototypeKey, Prototypes};
use lj_trace_streams::hash::AddrMap;

use super::blocks::{Blocks, ReadSome};
use super::edges::{Key, Step};
use super::object::Header;
use super::paths::{ELEMENT, PathId, Paths};

/// The longest name in bytes; longer ones are cut off.
const MAX_NAME: usize = 60;

/// The most frames of a Lua stack to look at.
const MAX_FRAMES: usize = 1000;

/// The most steps to remember.
const MAX_KNOWN: usize = 1 << 18;

/// Names of slots of one coroutine's stack.
pub type Locals = HashMap<u64, String>;

/// Makes the names of steps.
#[derive(Debug)]
pub struct StepLabels<'a, M> {
    blocks: &'a Blocks<M>,
    layout: VmLayout,
    prototypes: RefCell<Prototypes>,
    /// The node that follows each step from a node.
    known: RefCell<AddrMap<(u32, u64, u32), PathId>>,
}

impl<'a, M: ReadSome> StepLabels<'a, M> {
    /// Names for the objects of a VM with this layout.
    pub fn new(blocks: &'a Blocks<M>, layout: VmLayout) -> Self {
        Self { blocks, layout, prototypes: RefCell::default(), known: RefCell::default() }
    }

    /// The node after a step. All elements of a list share one node.
    pub fn follow(&self, paths: &mut Paths, from: PathId, step: &Step, locals: &Locals) -> PathId {
        let (number, more) = match *step {
            Step::Same => return from,
            Step::Field { crowded: true, .. } | Step::Element { .. } => (1, 0),
            Step::Field { key, .. } => (key, 0),
            Step::Upvalue { prototype, index } => (prototype, index + 1),
            Step::CUpvalue(index) => (2, index),
            Step::Slot { address } if locals.contains_key(&address) => {
                return paths.step(from, &self.text(step, locals));
            }
            Step::Slot { .. } => (3, 0),
            Step::Metatable => (4, 0),
            Step::Environment => (5, 0),
            Step::Prototype => (6, 0),
            Step::Constant => (7, 0),
            Step::ChunkName => (0, 0),
            Step::Trace => (0, 1),
            Step::Key => (0, 2),
            Step::Buffer => (0, 3),
        };
        let key = (from.0, number, more);
        if let Some(&known) = self.known.borrow().get(&key) {
            return known;
        }
        let general = match step {
            Step::Field { crowded: true, .. } | Step::Element { .. } => paths.step(from, ELEMENT),
            Step::Slot { .. } => paths.step(from, " (stack)"),
            step => paths.step(from, &self.text(step, locals)),
        };
        let mut known = self.known.borrow_mut();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, general);
        general
    }

    /// The step as text, to be appended to the text of the previous object: `.name`, `[3]`, ` (metatable)`.
    pub fn text(&self, step: &Step, locals: &Locals) -> String {
        match *step {
            Step::Same => String::new(),
            Step::Metatable => " (metatable)".to_owned(),
            Step::Environment => " (environment)".to_owned(),
            Step::Prototype => " (prototype)".to_owned(),
            Step::Constant => " (constant)".to_owned(),
            Step::ChunkName => " (chunk name)".to_owned(),
            Step::Trace => " (trace)".to_owned(),
            Step::Key => " (key)".to_owned(),
            Step::Buffer => " (buffer)".to_owned(),
            Step::Field { key, .. } => self.field(key),
            Step::Element { key: Key::Number(number) } => format!("[{number}]"),
            Step::Element { key: Key::Boolean(value) } => format!("[{value}]"),
            Step::Element { key: Key::Other(address) } => format!("[{address:#x}]"),
            Step::Upvalue { prototype, index } => match self.upvalue(prototype, index) {
                Some(name) => format!(" (upvalue {name})"),
                None => format!(" (upvalue {})", index + 1),
            },
            Step::CUpvalue(index) => format!(" (upvalue {})", index + 1),
            Step::Slot { address } => match locals.get(&address) {
                Some(name) => format!(" (local {name})"),
                None => " (stack)".to_owned(),
            },
        }
    }

    fn field(&self, key: u64) -> String {
        let Ok(name) = read_string(self.blocks, &self.layout, key, MAX_NAME + 1) else { return ELEMENT.to_owned() };
        let is_name = |(index, byte): (usize, &u8)| {
            *byte == b'_' || byte.is_ascii_alphabetic() || index > 0 && byte.is_ascii_digit()
        };
        if !name.is_empty() && name.len() <= MAX_NAME && name.iter().enumerate().all(is_name) {
            return format!(".{}", String::from_utf8_lossy(&name));
        }
        let cut = if name.len() > MAX_NAME { "..." } else { "" };
        let text = String::from_utf8_lossy(&name[..name.len().min(MAX_NAME)]).into_owned();
        format!("[\"{}{cut}\"]", text.escape_debug())
    }

    fn upvalue(&self, prototype: u64, index: u32) -> Option<String> {
        let prototype = self.prototype(prototype)?;
        prototype.upvalues.get(index as usize).filter(|name| !name.is_empty()).cloned()
    }

    /// The prototype at an address of the target.
    pub fn prototype(&self, address: u64) -> Option<Arc<Prototype>> {
        let key = Prototype::key_at(self.blocks, &self.layout, address).ok()?;
        self.prototypes.borrow_mut().get_held(self.blocks, &self.layout, key).ok()
    }

    /// The names of the variables on a coroutine's stack, by the addresses of their slots.
    pub fn locals(&self, thread: &Header) -> Locals {
        let l = &self.layout;
        let mut locals = Locals::new();
        let head = (thread.u64(l.l_base.into()), thread.u64(l.l_cframe.into()));
        let ((Some(base), Some(cframe)), Ok(coroutine)) = (head, Coroutine::read(self.blocks, l, thread.address))
        else {
            return locals;
        };
        let cframe = cframe & !CFRAME_FLAGS;
        // The value that the C frame has saved is right if the innermost frame is a Lua function that has called the VM.
        let saved = || self.blocks.read_ref(l.is_gc64(), field(cframe, l.cframe_pc)).unwrap_or(0);
        let pc = if cframe == 0 { 0 } else { saved() };
        let (mut walk, mut memo) = (Walk::default(), Memo::default());
        if walk.start(self.blocks, l, &coroutine, cframe, (base, pc), &mut memo).is_err() {
            return locals;
        }
        for _ in 0..MAX_FRAMES {
            let mut record = FrameRecord::EMPTY;
            if walk.step(self.blocks, l, (&mut record, &mut memo)).is_err() {
                break;
            }
            if record.kind == RecordKind::Lua as u8 && record.position != NO_POSITION {
                let key = PrototypeKey::of(&record);
                if let Ok(prototype) = self.prototypes.borrow_mut().get_held(self.blocks, l, key) {
                    for (slot, name) in prototype.locals_at(record.position) {
                        locals.insert(record.base.wrapping_add(8 * u64::from(slot)), name);
                    }
                }
            }
        }
        locals
    }

    /// Whether an object is a coroutine.
    pub fn is_thread(&self, object: &Header) -> bool {
        object.type_byte(self.layout.is_gc64()) == Some(gct::THREAD)
    }

    /// A short description of an object: the beginning of a string, or the location of a function.
    pub fn preview(&self, object: &Header) -> String {
        let l = &self.layout;
        let gc64 = l.is_gc64();
        match object.type_byte(gc64) {
            Some(gct::STR) => {
                let text = read_string(self.blocks, l, object.address, MAX_NAME).unwrap_or_default();
                let more = if object.u32(l.str_len.into()).is_some_and(|length| length as usize > MAX_NAME) {
                    "..."
                } else {
                    ""
                };
                format!("\"{}{more}\"", String::from_utf8_lossy(&text).escape_debug())
            }
            Some(gct::TAB) => {
                let array = object.u32(l.tab_asize.into()).unwrap_or(0).saturating_sub(1);
                let mask = object.u32(l.tab_hmask.into()).unwrap_or(0);
                format!("array {array}, hash {}", if mask == 0 { 0 } else { u64::from(mask) + 1 })
            }
            Some(gct::FUNC) if object.u8(l.fn_ffid.into()) == Some(0) => {
                let pc = if gc64 { object.u64(l.fn_pc.into()) } else { object.u32(l.fn_pc.into()).map(u64::from) };
                let prototype = pc.and_then(|pc| self.prototype(pc.wrapping_sub(l.sizeof_pt.into())));
                prototype.map_or_else(String::new, |prototype| place(&prototype))
            }
            Some(gct::PROTO) => self.prototype(object.address).map_or_else(String::new, |prototype| place(&prototype)),
            _ => String::new(),
        }
    }
}

fn place(prototype: &Prototype) -> String {
    let chunk = lj_trace_text::chunk_name(prototype.chunkname.as_bytes());
    format!("{chunk}:{}", prototype.key.firstline)
}
