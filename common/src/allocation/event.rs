//! The records of the allocation probes: fixed width, `repr(C)`, no padding. The first byte of each tells what it is.
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
    /// Another size for memory that there is.
    Realloc = 1,
    /// Memory given back.
    Free = 2,
}

impl AllocationKind {
    /// What `allocf(ud, pointer, old_size, size)` means (`lua_Alloc`, `lua.h`).
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

    /// The kind with this number.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Alloc,
            1 => Self::Realloc,
            2 => Self::Free,
            _ => return None,
        })
    }
}

/// Who caused it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationSource {
    /// The VM itself.
    Internal = 0,
    /// A Lua function: `place` is its prototype.
    Lua = 1,
    /// A C function: `place` is its address.
    C = 2,
    /// A trace that a [`TraceSeen`] has told of: `place` is its number, with the address of its machine code above the lowest 16 bits if it is known
    /// where in that it is ([`super::on_trace::TracePlace`]).
    Trace = 3,
    /// A trace of which it could not be said which one it is: `place` is its number.
    LostTrace = 4,
}

impl AllocationSource {
    /// The source with this number.
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
    /// The lowest bits of the number of the window that it is in (see [`crate::config::GATE_CLOSED`]).
    pub window: u8,
    /// The line that is being executed; 0 if the prototype has no line numbers. Of a trace: the offset of the call's
    /// return address in its machine code, or 0. Of a C function: the line that called it, if there is a `caller`.
    pub line: u32,
    /// Who: see [`AllocationSource`].
    pub place: u64,
    /// The memory that was freed or given another size; 0 for a new allocation.
    pub pointer: u64,
    /// Where the memory lies now; 0 for a free.
    pub result: u64,
    /// The size that it had.
    pub old_size: u64,
    /// The size that it has now.
    pub size: u64,
    /// Of a C function: the prototype of the Lua function that called it; 0 if that is not known.
    pub caller: u64,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for AllocationEvent {}

impl AllocationEvent {
    /// Nothing yet.
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

/// The `place` of a Lua function that could not be named: the ring buffer had no room for its name.
pub const NAMELESS: u64 = 0;

/// How much of a chunkname comes along.
pub const NAME_SIZE: usize = 240;

/// A prototype that events will name from now on: it comes before the first of them. Whatever its address meant
/// before is no more.
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
    /// Bytes of the chunkname, of which the first [`NAME_SIZE`] are in `name`; [`u32::MAX`] if it cannot be read.
    pub name_length: u32,
    /// The chunkname.
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

    /// As much of the chunkname as came along, if it could be read.
    pub fn name(&self) -> Option<&[u8]> {
        if self.name_length == u32::MAX { None } else { Some(&self.name[..NAME_SIZE.min(self.name_length as usize)]) }
    }
}

/// A trace that events will name by its number from now on: it comes before the first of them, and after the prototype
/// that it starts in. Whichever trace had its number before is gone.
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
    /// Which one it is.
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
    /// What it has done, or will have done.
    pub event: AllocationEvent,
    /// Where that was found out.
    pub room: AttributionRoom,
    /// Where its return address lies on the stack: the kernel has put the address of a trampoline there.
    pub return_slot: u64,
    /// The address that was there.
    pub return_address: u64,
    /// The call's data (`ud`), if it may be for a new VM.
    pub user_data: u64,
    /// The VM that it would be a copy of.
    pub template: u64,
    /// Whether it has returned.
    pub returned: u32,
    /// A [`Creation`].
    pub creation: u32,
    /// The window in which it was made: only its own probes may see it return.
    pub window: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Whether a call makes a VM: its first block has a size of its own (`sizeof(GG_State)`, `lj_state.c`). Others may have
/// that size too, so the event waits until the next call on its thread tells what has become of the block.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// It does not.
    No = 0,
    /// It may, and has not returned. No VM that is known makes the call.
    ByNobody = 1,
    /// It may, and has not returned. If it does not, the event is of the VM that it says.
    ByVm = 2,
    /// It has returned; else as [`Self::ByNobody`].
    HeldByNobody = 3,
    /// It has returned; else as [`Self::ByVm`].
    HeldByVm = 4,
}

impl PendingAllocation {
    /// Nothing yet.
    pub const EMPTY: Self = Self {
        owner: 0,
        event: AllocationEvent::EMPTY,
        room: AttributionRoom::EMPTY,
        return_slot: 0,
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
    // An event has a byte for its VM.
    assert!(crate::config::MAX_VMS <= 1 << u8::BITS);
    assert!(size_of::<PrototypeSeen>() == 32 + NAME_SIZE);
    assert!(size_of::<TraceSeen>() == 8 + size_of::<TraceIdentity>());
    assert!(size_of::<PendingAllocation>() == 8 + 56 + size_of::<AttributionRoom>() + 4 * 8 + 4 * 4);
};
