//! Perf events on the threads of one process, each running a BPF program on every tick.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// What makes the sampler tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The CPU's cycle counter: its interrupt also reaches code that has interrupts disabled.
    Cycles,
    /// A kernel timer: for machines, mostly virtual ones, that have no cycle counter.
    CpuClock,
}

impl Clock {
    /// A few words for people.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Cycles => "CPU cycles",
            Self::CpuClock => "CPU clock",
        }
    }

    /// The better clock that this machine has.
    pub fn detect() -> Self {
        match open(&Attr::new(Self::Cycles, 1), 0) {
            Ok(_) => Self::Cycles,
            Err(_) => Self::CpuClock,
        }
    }
}

/// Opens an event on thread `tid` that runs `program` `rate` times a second of the thread's CPU time, on this
/// thread and on all threads that it starts later.
///
/// # Errors
/// Whatever `perf_event_open(2)` gives: `ESRCH` if the thread is gone, `EACCES` without privileges.
pub fn attach(clock: Clock, rate: u32, tid: u32, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let event = open(&Attr::new(clock, rate), tid as libc::pid_t)?;
    // _IOW('$', 8, __u32) and _IO('$', 0) of linux/perf_event.h.
    const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
    const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
    for (request, argument) in [(PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()), (PERF_EVENT_IOC_ENABLE, 0)] {
        // SAFETY: both requests take a plain integer, and the descriptor is a perf event that we own.
        if unsafe { libc::ioctl(event.as_raw_fd(), request, argument) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(event)
}

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER5` (linux/perf_event.h): the part that is used here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    rest: [u64; 8],
}

impl Attr {
    fn new(clock: Clock, rate: u32) -> Self {
        const PERF_TYPE_HARDWARE: u32 = 0;
        const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
        const PERF_TYPE_SOFTWARE: u32 = 1;
        const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
        const DISABLED: u64 = 1 << 0;
        const INHERIT: u64 = 1 << 1;
        const FREQ: u64 = 1 << 10;
        // Children that are processes of their own are not followed (since Linux 5.13).
        const INHERIT_THREAD: u64 = 1 << 35;
        let flags = DISABLED | INHERIT | INHERIT_THREAD;
        let rate = u64::from(rate.max(1));
        let attr = Self { size: size_of::<Self>() as u32, ..Self::default() };
        match clock {
            Clock::Cycles => Self {
                kind: PERF_TYPE_HARDWARE,
                config: PERF_COUNT_HW_CPU_CYCLES,
                sample_period: rate,
                flags: flags | FREQ,
                ..attr
            },
            // A fixed period of the clock in nanoseconds: no settling time as with a frequency.
            Clock::CpuClock => Self {
                kind: PERF_TYPE_SOFTWARE,
                config: PERF_COUNT_SW_CPU_CLOCK,
                sample_period: 1_000_000_000 / rate,
                flags,
                ..attr
            },
        }
    }
}

fn open(attr: &Attr, tid: libc::pid_t) -> io::Result<OwnedFd> {
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
    const ANY_CPU: libc::c_int = -1;
    const NO_GROUP: libc::c_int = -1;
    // SAFETY: `attr` has the size that it says, and the other arguments are plain integers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, std::ptr::from_ref(attr), tid, ANY_CPU, NO_GROUP, PERF_FLAG_FD_CLOEXEC)
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

const _: () = assert!(size_of::<Attr>() == 112);
