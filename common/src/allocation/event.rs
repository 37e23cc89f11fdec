//! The records of the allocation probes: fixed width, `repr(C)`, no padding. The first byte of each record is its kind.
//!
//! LuaJIT's sources: [`lua_Alloc`], [`GG_State`].
//!
//! [`lua_Alloc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lua.h#L67
//! [`GG_State`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_state.c#L269

use super::attribute::AttributionRoom;
use super::known::KnownPrototype;
use crate::memory::Pod;
use crate::trace::TraceIdentity;

/// What the allocator was asked to do.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// New memory.
    Alloc = 0,
    /// An existing block gets another size.
    Realloc = 1,
    /// A block is freed.
    Free = 2,
}

impl AllocationKind {
    /// The kind of the call `allocf(ud, pointer, old_size, size)` (`lua_Alloc`, `lua.h`).
    #[inline(always)]
    pub const fn of_call(pointer: u64, size: u64) -> Self {
        if size == 0 {
            Self::Free
        } else if pointer == 0 {
            Self::Alloc
        } else {
            Self::Realloc
        }
    }

    /// The kind with this number, if there is one.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Alloc,
            1 => Self::Realloc,
            2 => Self::Free,
            _ => return None,
        })
    }
}

/// Who caused an allocation.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationSource {
    /// The VM itself.
    Internal = 0,
    /// A Lua function: `place` is its prototype.
    Lua = 1,
    /// A C function: `place` is its address.
    C = 2,
    /// A trace that an earlier [`TraceSeen`] described: `place` is its number. If the position in the trace is known, the bits
    /// of `place` above the lowest 16 are the address of the trace's machine code ([`super::on_trace::TracePlace`]).
    Trace = 3,
    /// A trace that could not be identified: `place` is its number.
    LostTrace = 4,
}

impl AllocationSource {
    /// The source with this number, if there is one.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Internal,
            1 => Self::Lua,
            2 => Self::C,
            3 => Self::Trace,
            4 => Self::LostTrace,
            _ => return None,
        })
    }
}

/// The first byte of a [`PrototypeSeen`].
pub const PROTOTYPE_SEEN: u8 = 3;

/// The first byte of a [`TraceSeen`].
pub const TRACE_SEEN: u8 = 4;

/// One call of a VM's allocator. Sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationEvent {
    /// An [`AllocationKind`].
    pub kind: u8,
    /// An [`AllocationSource`].
    pub source: u8,
    /// Index of the VM.
    pub vm: u8,
    /// The lowest bits of the number of its window (see [`crate::config::GATE_CLOSED`]).
    pub window: u8,
    /// The current line; 0 if the prototype has no line numbers. For a trace, the offset of the call's return address
    /// in its machine code, or 0. For a C function, the line that called it, if there is a `caller`.
    pub line: u32,
    /// Who caused it: see [`AllocationSource`].
    pub place: u64,
    /// Address of the block that was freed or given another size; 0 for a new allocation.
    pub pointer: u64,
    /// Address of the resulting block; 0 for a free.
    pub result: u64,
    /// Size of the block before the call.
    pub old_size: u64,
    /// Size of the block after the call.
    pub size: u64,
    /// For a C function, the prototype of the Lua function that called it; 0 if that is not known.
    pub caller: u64,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for AllocationEvent {}

impl AllocationEvent {
    /// An event with all fields empty.
    pub const EMPTY: Self = Self {
        kind: 0,
        source: 0,
        vm: 0,
        window: 0,
        line: 0,
        place: 0,
        pointer: 0,
        result: 0,
        old_size: 0,
        size: 0,
        caller: 0,
    };
}

/// The `place` of a Lua function without a known name: the ring buffer had no room for its [`PrototypeSeen`].
pub const NAMELESS: u64 = 0;

/// The most bytes of a chunkname in a [`PrototypeSeen`].
pub const NAME_SIZE: usize = 240;

/// Announces a prototype that later events refer to by its address: it comes before the first of them. If the address
/// belonged to another prototype before, that one is gone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PrototypeSeen {
    /// [`PROTOTYPE_SEEN`].
    pub kind: u8,
    /// Always 0.
    pub reserved: u8,
    /// Index of the VM.
    pub vm: u16,
    /// Line where it is defined.
    pub first_line: u32,
    /// Its address.
    pub prototype: u64,
    /// Address of its chunkname (a `GCstr`).
    pub chunkname: u64,
    /// Number of its bytecodes.
    pub size_bc: u32,
    /// Length of the chunkname in bytes, of which `name` has the first [`NAME_SIZE`]; [`u32::MAX`] if it cannot be read.
    pub name_length: u32,
    /// The first bytes of the chunkname.
    pub name: [u8; NAME_SIZE],
}

// SAFETY: as above.
unsafe impl Pod for PrototypeSeen {}

impl PrototypeSeen {
    /// Fills in all but the name.
    #[inline(always)]
    pub fn fill(&mut self, vm: u32, prototype: &KnownPrototype, chunkname: u64) {
        self.kind = PROTOTYPE_SEEN;
        self.reserved = 0;
        self.vm = vm as u16;
        self.first_line = prototype.first_line;
        self.prototype = prototype.prototype;
        self.chunkname = chunkname;
        self.size_bc = prototype.size_bc;
    }

    /// The part of the chunkname that is in this record; [`None`] if the chunkname could not be read.
    pub fn name(&self) -> Option<&[u8]> {
        if self.name_length == u32::MAX { None } else { Some(&self.name[..NAME_SIZE.min(self.name_length as usize)]) }
    }
}

/// Announces a trace that later events refer to by its number: it comes before the first of them, and after the record
/// of the prototype in which the trace starts. If another trace had this number before, that trace is gone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TraceSeen {
    /// [`TRACE_SEEN`].
    pub kind: u8,
    /// Always 0.
    pub reserved: u8,
    /// Index of the VM.
    pub vm: u16,
    /// Line at which it starts, or [`NO_LINE`](super::on_trace::NO_LINE).
    pub line: u32,
    /// The trace.
    pub identity: TraceIdentity,
}

// SAFETY: as above.
unsafe impl Pod for TraceSeen {}

/// The last call of the allocator on a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingAllocation {
    /// The thread: `bpf_get_current_pid_tgid`.
    pub owner: u64,
    /// The event of the call; some of its fields are known only when the call returns.
    pub event: AllocationEvent,
    /// Working memory that was used to find out who made the call.
    pub room: AttributionRoom,
    /// The stack pointer at the beginning of the call.
    pub stack_pointer: u64,
    /// The original return address, which the kernel has replaced by that of its trampoline.
    pub return_address: u64,
    /// The data pointer of the call (`ud`), if the call may be for a new VM.
    pub user_data: u64,
    /// Index of the VM whose configuration a new VM would copy.
    pub template: u64,
    /// Whether the call has returned.
    pub returned: u32,
    /// A [`Creation`].
    pub creation: u32,
    /// Number of the window in which the call was made: only the probes of this window may see it return.
    pub window: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Whether a call creates a VM. The first block of a VM has a special size (`sizeof(GG_State)`, `lj_state.c`). Other blocks may
/// have that size too, so the probes hold the event back until the next call on the same thread shows what the block became.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The call creates no VM.
    No = 0,
    /// The call may create a VM, and has not returned. It is not a call of a known VM.
    ByNobody = 1,
    /// The call may create a VM, and has not returned. If it creates none, the event belongs to the VM named in it.
    ByVm = 2,
    /// Like [`Self::ByNobody`], but the call has returned.
    HeldByNobody = 3,
    /// Like [`Self::ByVm`], but the call has returned.
    HeldByVm = 4,
}

impl PendingAllocation {
    /// An entry with all fields empty.
    pub const EMPTY: Self = Self {
        owner: 0,
        event: AllocationEvent::EMPTY,
        room: AttributionRoom::EMPTY,
        stack_pointer: 0,
        return_address: 0,
        user_data: 0,
        template: 0,
        returned: 1,
        creation: Creation::No as u32,
        window: 0,
        reserved: 0,
    };
}

// SAFETY: as above.
unsafe impl Pod for PendingAllocation {}

const _: () = {
    assert!(size_of::<AllocationEvent>() == 56);
    // An event has one byte for the index of its VM.
    assert!(crate::config::MAX_VMS <= 1 << u8::BITS);
    assert!(size_of::<PrototypeSeen>() == 32 + NAME_SIZE);
    assert!(size_of::<TraceSeen>() == 8 + size_of::<TraceIdentity>());
    assert!(size_of::<PendingAllocation>() == 8 + 56 + size_of::<AttributionRoom>() + 4 * 8 + 4 * 4);
};
