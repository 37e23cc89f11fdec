//! Uprobes at many places at once (`uprobe_multi` links, Linux 6.6), through bpf(2) itself, for programs that aya can
//! neither load nor attach.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use super::perf_event::owned;

/// A BPF instruction (`struct bpf_insn`).
pub type BpfInstruction = [u8; 8];

/// When a probe calls its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UprobeKind {
    /// Before the instruction.
    Call,
    /// At the return of the function that begins with the instruction.
    Return,
    /// At both: at the call, the program decides whether it wants the return (Linux 6.13).
    Session,
}

impl UprobeKind {
    /// `BPF_TRACE_UPROBE_MULTI` and `BPF_TRACE_UPROBE_SESSION` of linux/bpf.h.
    const fn attach_type(self) -> u32 {
        match self {
            Self::Call | Self::Return => 48,
            Self::Session => 57,
        }
    }

    /// A number for each kind.
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// The kind with this number.
    pub const fn of_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Call),
            1 => Some(Self::Return),
            2 => Some(Self::Session),
            _ => None,
        }
    }
}

/// The part of `union bpf_attr` for `BPF_PROG_LOAD` that is used here (linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// Loads a program for probes of this kind, or for perf events if there is no kind.
///
/// # Errors
/// The kernel refuses: its error, with the last lines of the verifier.
pub fn load(
    name: &str,
    instructions: &[BpfInstruction],
    license: &CStr,
    kind: Option<UprobeKind>,
) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: libc::c_long = 5;
    const BPF_PROG_TYPE_KPROBE: u32 = 2;
    let mut attr = LoadAttr {
        kind: BPF_PROG_TYPE_KPROBE,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        attach_type: kind.map_or(0, UprobeKind::attach_type),
        ..LoadAttr::default()
    };
    // The kernel keeps 15 characters and a NUL after them.
    attr.name.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
    // SAFETY: `attr` has the size that is passed, and what it points to outlives the call.
    let try_to =
        |attr: &LoadAttr| owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, attr, size_of::<LoadAttr>()) });
    let error = match try_to(&attr) {
        Err(error) => error,
        loaded => return loaded,
    };
    // Loads it again to get the verifier's log.
    let mut log = vec![0_u8; 1 << 20];
    (attr.log_level, attr.log_size, attr.log) = (1, log.len() as u32, log.as_mut_ptr() as u64);
    let _ = try_to(&attr);
    let said = String::from_utf8_lossy(&log);
    let said = said.trim_end_matches('\0').trim_end().lines().rev().take(3).collect::<Vec<_>>();
    if said.is_empty() {
        Err(error)
    } else {
        Err(io::Error::new(error.kind(), format!("{error}: {}", said.join(" / "))))
    }
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE` of uprobes.
#[repr(C)]
struct LinkAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    reference_counters: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    reserved: u32,
}

/// Attaches a program to instructions of a file in one process. Each instruction is given by its offset in the file and
/// its cookie. Closing the returned descriptor detaches the program. This allocates nothing. Only
/// [`guardian`](super::guardian) should call it.
///
/// # Errors
/// What bpf(2) says.
pub fn attach(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
    cookies: &[u64],
    pid: u32,
    kind: UprobeKind,
) -> io::Result<OwnedFd> {
    const BPF_LINK_CREATE: libc::c_long = 28;
    let attr = LinkAttr {
        program: program.as_raw_fd() as u32,
        target: 0,
        attach_type: kind.attach_type(),
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        reference_counters: 0,
        cookies: cookies.as_ptr() as u64,
        count: offsets.len().min(cookies.len()) as u32,
        multi_flags: u32::from(kind == UprobeKind::Return),
        pid,
        reserved: 0,
    };
    // SAFETY: as in `load`; the lists have as many elements as it says.
    owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw const attr, size_of::<LinkAttr>()) })
}

const _: () = assert!(size_of::<LoadAttr>() == 72 && size_of::<LinkAttr>() == 64);
const _: () = assert!(size_of::<BpfInstruction>() == size_of::<aya_obj::generated::bpf_insn>());
