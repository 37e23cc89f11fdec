//! Traces at the time of a sample: which trace runs, and a copy of it when it is seen for the first time.
//!
//! A program may flush its traces at any moment and compile others to the same addresses. So the sample itself records
//! what identifies its trace, and the probes copy the trace at the same time: its header, intermediate code and
//! snapshots are one block ([`lj_trace_alloc`], `lj_trace.c`, LuaJIT 2.1; [`trace_save_alloc`] in 2.0), its machine
//! code another.
//!
//! [`lj_trace_alloc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L123-L142
//! [`trace_save_alloc`]: https://github.com/LuaJIT/LuaJIT/blob/71797fa75ffa1ddbd9b41bbd55d6c2d4236164b0/src/lj_trace.c#L121-L129

use crate::arch::exit_stubs;
use crate::head::Head;
use crate::layout::{ABSENT, VmLayout};
use crate::memory::{Pod, ReadMemory, Unreadable};
use crate::vm::VmConfig;

/// Fields that together distinguish a trace from every other one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TraceIdentity {
    /// Address of its `GCtrace`; 0 for no trace.
    pub address: u64,
    /// Address of its machine code.
    pub mcode: u64,
    /// The prototype in which it starts.
    pub startpt: u64,
    /// Address of the bytecode instruction at which it starts.
    pub startpc: u64,
    /// Address of its snapshot map.
    pub snapmap: u64,
    /// Size of its machine code in bytes.
    pub szmcode: u32,
    /// IR reference after its last instruction.
    pub nins: u32,
    /// IR reference of its first constant.
    pub nk: u32,
    /// Its number.
    pub number: u32,
}

/// A trace of one of the recorded processes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceKey {
    /// The trace.
    pub identity: TraceIdentity,
    /// The number of its process.
    pub process: u32,
    /// Always 0: keeps the size a multiple of 8.
    pub reserved: u32,
}

/// The trace that runs at a sample, and the newest area of machine code at that moment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningTrace {
    /// The running trace; empty if the VM's state does not tell the trace, as in C code or the garbage collector.
    pub identity: TraceIdentity,
    /// Address of the newest area of machine code (`J->mcarea`).
    pub area: u64,
    /// Size of that area in bytes.
    pub area_size: u64,
}

/// A range of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Address of its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// The number of pieces that a trace is copied in. They come in order, so the last one completes the copy.
pub const PIECES: usize = 3;

/// The most bytes in one piece: a larger trace is read later.
pub const MAX_PIECE: u64 = 256 << 10;

/// Takes the place of a sample's time to mark a [`TraceCopy`] in the stream: no sample has this time.
pub const TRACE_COPY: u64 = u64::MAX;

/// One piece of a trace that was seen for the first time. The bytes of the piece follow this header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCopy {
    /// [`TRACE_COPY`].
    pub mark: u64,
    /// The trace.
    pub identity: TraceIdentity,
    /// The memory range whose bytes follow.
    pub piece: Piece,
    /// Index of the VM.
    pub vm: u32,
    /// Index of this piece among the trace's [`PIECES`].
    pub index: u32,
}

// SAFETY: the fields are integers laid out without padding, as the assertions below prove.
unsafe impl Pod for TraceIdentity {}
// SAFETY: as above.
unsafe impl Pod for RunningTrace {}
// SAFETY: as above.
unsafe impl Pod for TraceCopy {}

const _: () = {
    assert!(size_of::<TraceIdentity>() == 5 * 8 + 4 * 4);
    assert!(size_of::<TraceKey>() == size_of::<TraceIdentity>() + 2 * 4);
    assert!(size_of::<RunningTrace>() == size_of::<TraceIdentity>() + 2 * 8);
    assert!(size_of::<TraceCopy>() == 8 + size_of::<TraceIdentity>() + size_of::<Piece>() + 8);
};

/// Where a VM keeps its traces.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracesPlace {
    /// Address of its `jit_State`; 0 while the VM's layout is undecided.
    pub jit_state: u64,
    /// Address of the array of trace addresses, indexed by trace number (`J->trace`).
    pub array: u64,
    /// Length of that array (`J->sizetrace`).
    pub size: u64,
    /// [`RunningTrace::area`].
    pub area: u64,
    /// [`RunningTrace::area_size`].
    pub area_size: u64,
}

// SAFETY: integers without padding.
unsafe impl Pod for TracesPlace {}

impl TracesPlace {
    /// Finds the traces of a VM.
    ///
    /// # Errors
    /// [`Unreadable`] if the state of the JIT compiler cannot be read.
    #[inline(always)]
    pub fn read(&mut self, memory: &impl ReadMemory, vm: &VmConfig) -> Result<(), Unreadable> {
        let layout = &vm.layout;
        if layout.g_to_j == ABSENT || layout.j_trace == ABSENT || layout.j_mcarea == ABSENT {
            return Ok(());
        }
        let jit_state = vm.global.wrapping_add(u64::from(layout.g_to_j));
        self.area = memory.read(jit_state.wrapping_add(u64::from(layout.j_mcarea)))?;
        self.area_size = memory.read(jit_state.wrapping_add(u64::from(layout.j_szmcarea)))?;
        if layout.tr_nsnap == ABSENT || layout.tr_nsnapmap == ABSENT {
            return Ok(());
        }
        self.array = memory.read::<u64>(jit_state.wrapping_add(u64::from(layout.j_trace)))?;
        self.size = memory.read::<u32>(jit_state.wrapping_add(u64::from(layout.j_sizetrace)))?.into();
        self.jit_state = jit_state;
        Ok(())
    }

    /// Finds the trace that has `number` at this moment. `head` is working memory.
    ///
    /// # Errors
    /// [`Unreadable`] if the trace cannot be read.
    #[inline(always)]
    pub fn running(
        &self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        number: u32,
        (running, head): (&mut RunningTrace, &mut Head),
    ) -> Result<(), Unreadable> {
        running.area = self.area;
        running.area_size = self.area_size;
        if number == 0 || u64::from(number) >= self.size {
            return Ok(());
        }
        let gc64 = layout.is_gc64();
        let width = if gc64 { 8 } else { 4 };
        let address = memory.read_ref(gc64, self.array.wrapping_add(u64::from(number) * width))?;
        // A trace that is being recorded is still a part of `jit_State`.
        if address == 0 || address == self.jit_state {
            return Ok(());
        }
        // The intermediate code follows the header, so this many bytes can be read even where the header is shorter.
        head.read::<15, 12>(memory, gc64, address)?;
        let identity = &mut running.identity;
        identity.mcode = head.u64(layout.tr_mcode)?;
        identity.startpt = head.reference(gc64, layout.tr_startpt)?;
        identity.startpc = head.reference(gc64, layout.tr_startpc)?;
        identity.snapmap = head.u64(layout.tr_snapmap)?;
        identity.szmcode = head.u32(layout.tr_szmcode)?;
        identity.nins = head.u32(layout.tr_nins)?;
        identity.nk = head.u32(layout.tr_nk)?;
        identity.number = number;
        if u32::from(head.u16(layout.tr_traceno)?) == number {
            identity.address = address;
        }
        Ok(())
    }
}

/// The memory ranges that hold a trace. For a malformed trace they may be larger than [`MAX_PIECE`].
///
/// # Errors
/// [`Unreadable`] if its header cannot be read.
#[inline(always)]
pub fn pieces(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    running: &RunningTrace,
) -> Result<[Piece; PIECES], Unreadable> {
    let identity = &running.identity;
    let at = identity.address.wrapping_add(u64::from(layout.tr_nsnapmap));
    // Snapshots of 8 bytes have 16-bit offsets into the snapshot map.
    let entries = if layout.sizeof_snap == 8 { u32::from(memory.read::<u16>(at)?) } else { memory.read::<u32>(at)? };
    let end = identity.snapmap.wrapping_add(4 * u64::from(entries));
    let code = (identity.mcode, u64::from(identity.szmcode));
    let (stubs, stubs_size) = exit_stubs((running.area, running.area_size), code);
    Ok([
        Piece { address: stubs, size: stubs_size },
        Piece { address: identity.mcode, size: u64::from(identity.szmcode) },
        Piece { address: identity.address, size: end.wrapping_sub(identity.address) },
    ])
}
