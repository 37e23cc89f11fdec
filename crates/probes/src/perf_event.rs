//! Perf events on the threads of a process, or on CPUs. Each event runs a BPF program at every tick.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::online::online;

/// What makes the sampler tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The CPU's cycle counter: its interrupt also reaches code that has interrupts disabled.
    Cycles,
    /// A kernel timer: for machines, mostly virtual ones, that have no cycle counter.
    CpuClock,
}

impl Clock {
    /// The clock's name in messages.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Cycles => "CPU cycles",
            Self::CpuClock => "CPU clock",
        }
    }

    /// The better clock that this machine has.
    pub fn detect() -> Self {
        match try_open(Self::Cycles) {
            Ok(()) => Self::Cycles,
            Err(_) => Self::CpuClock,
        }
    }
}

/// Opens an event of a clock on this thread and closes it again, to find out whether this machine allows it.
///
/// # Errors
/// Whatever `perf_event_open(2)` gives.
pub fn try_open(clock: Clock) -> io::Result<()> {
    open(&Attr::new(clock, 1), 0).map(drop)
}

/// Does the same for an event on a CPU, which counts whatever runs there. One CPU that allows it is enough.
///
/// # Errors
/// As [`try_open`].
pub fn try_open_on_cpus() -> io::Result<()> {
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for cpu in online()? {
        match open_on(&cpu_attr(1), EVERYBODY, cpu as libc::c_int) {
            Ok(_) => return Ok(()),
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

/// An event that ticks and does nothing else.
#[derive(Debug)]
pub struct Ticking {
    event: OwnedFd,
    period: f64,
}

impl Ticking {
    /// Prepares an event on this thread that ticks `rate` times a second of its clock, as if the clock counted
    /// nanoseconds.
    ///
    /// # Errors
    /// Whatever `perf_event_open(2)` gives.
    pub fn new(clock: Clock, rate: u32) -> io::Result<Self> {
        Self::on(clock, rate, 0)
    }

    /// Does the same on the thread `tid`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on(clock: Clock, rate: u32, tid: u32) -> io::Result<Self> {
        let period = 1_000_000_000 / rate.max(1);
        let attr = Attr { sample_period: period.into(), flags: DISABLED, ..Attr::new(clock, rate) };
        Ok(Self { event: open(&attr, tid as libc::pid_t)?, period: period.into() })
    }

    /// Starts or stops the event.
    ///
    /// # Errors
    /// Whatever `ioctl(2)` gives.
    pub fn enable(&self, on: bool) -> io::Result<()> {
        enable(&self.event, on)
    }

    /// How many times the event has ticked so far.
    ///
    /// # Errors
    /// Whatever `read(2)` gives.
    pub fn ticks(&self) -> io::Result<f64> {
        let mut count = [0; 8];
        // SAFETY: `count` is writable for the length that is passed.
        let read = unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        if read != 8 {
            return Err(io::Error::last_os_error());
        }
        Ok(u64::from_ne_bytes(count) as f64 / self.period)
    }
}

/// A watchpoint on this thread's own memory, without a program.
pub struct Watching(OwnedFd);

impl Watching {
    /// Opens a watchpoint on the byte at `address`. It is off until [`Self::enable`] starts it.
    ///
    /// # Errors
    /// As [`watch`].
    pub fn new(address: u64) -> io::Result<Self> {
        open(&Attr::watchpoint(address), 0).map(Self)
    }

    /// Starts or stops the watchpoint.
    ///
    /// # Errors
    /// Whatever `ioctl(2)` gives.
    pub fn enable(&self, on: bool) -> io::Result<()> {
        enable(&self.0, on)
    }
}

/// Starts or stops a perf event, together with the copies of it that threads have inherited.
///
/// # Errors
/// Whatever `ioctl(2)` gives.
pub fn enable(event: &OwnedFd, on: bool) -> io::Result<()> {
    /// `_IO('$', 0)` and `_IO('$', 1)` of linux/perf_event.h.
    const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
    const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
    let request = if on { PERF_EVENT_IOC_ENABLE } else { PERF_EVENT_IOC_DISABLE };
    // SAFETY: the requests take a plain integer, and the descriptor is open.
    if unsafe { libc::ioctl(event.as_raw_fd(), request, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A perf event, and the link that makes the event run a program. Closing either of them stops the program.
#[derive(Debug)]
pub struct Attached {
    event: OwnedFd,
    _link: OwnedFd,
}

impl Attached {
    /// Starts the event.
    ///
    /// # Errors
    /// Whatever `ioctl(2)` gives.
    pub fn begin(&self) -> io::Result<()> {
        enable(&self.event, true)
    }

    /// Makes an event on a CPU tick less often from now on: each tick then stands for `weight` ticks at `rate`.
    ///
    /// # Errors
    /// Whatever `ioctl(2)` gives.
    pub fn set_weight(&self, rate: u32, weight: u32) -> io::Result<()> {
        /// `_IOW('$', 4, __u64)` of linux/perf_event.h.
        const PERF_EVENT_IOC_PERIOD: libc::c_ulong = 0x4008_2404;
        let period = cpu_period(rate, weight);
        // SAFETY: the kernel reads the period, and the descriptor is open.
        if unsafe { libc::ioctl(self.event.as_raw_fd(), PERF_EVENT_IOC_PERIOD, &raw const period) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Duplicates the event's descriptor.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn event(&self) -> io::Result<OwnedFd> {
        self.event.try_clone()
    }
}

/// Opens an event on a CPU that runs `program` `rate` times a second, for whatever thread runs there. An idle CPU does
/// not tick.
///
/// The event uses the kernel's CPU clock, not the cycle counter. A cycle counter stands still while a CPU is idle. To
/// reach the rate all the same, the kernel would shorten the period, and the next thread on that CPU would be sampled
/// too often.
///
/// # Errors
/// Whatever `perf_event_open(2)` gives: `ENODEV` if there is no such CPU or it is switched off, `EACCES` without privileges.
pub fn attach_to_cpu(rate: u32, cpu: u32, program: BorrowedFd<'_>) -> io::Result<Attached> {
    let event = open_on(&cpu_attr(rate), EVERYBODY, cpu as libc::c_int)?;
    let link = link(program, &event, 0)?;
    enable(&event, true)?;
    Ok(Attached { event, _link: link })
}

/// The thread ID that stands for all threads.
const EVERYBODY: libc::pid_t = -1;

fn cpu_attr(rate: u32) -> Attr {
    const EXCLUDE_IDLE: u64 = 1 << 7;
    let sample_period = cpu_period(rate, 1);
    Attr { flags: DISABLED | EXCLUDE_IDLE, sample_period, ..Attr::new(Clock::CpuClock, rate) }
}

/// Nanoseconds from one tick on a CPU to the next, where each tick stands for `weight` ticks at `rate`.
///
/// The period is a thousandth longer than the rate asks for. At exactly 250 or 1000 Hz the ticks would keep step with
/// the kernel's scheduler timer, and always hit the same point between two scheduler ticks.
pub(super) fn cpu_period(rate: u32, weight: u32) -> u64 {
    1_001_000_000 * u64::from(weight) / u64::from(rate.max(1))
}

/// Opens an event on a CPU that counts nothing, and whose ring gets a record for each task that is forked there or exits. Whoever
/// polls it is woken up for each record.
///
/// # Errors
/// Whatever `perf_event_open(2)` gives: `EACCES` without privileges.
pub(super) fn open_for_tasks(cpu: u32) -> io::Result<OwnedFd> {
    const PERF_TYPE_SOFTWARE: u32 = 1;
    const PERF_COUNT_SW_DUMMY: u64 = 9;
    const TASK: u64 = 1 << 13;
    const WATERMARK: u64 = 1 << 14;
    const WAKEUP_WATERMARK: u64 = 1;
    // `wakeup_events` counts samples alone: without a watermark, other records wake nobody before the ring is half full (`rb_init` in
    // Linux's `kernel/events/ring_buffer.c`).
    let mut rest = [0; 8];
    // The first half of the first word: `wakeup_watermark`, in bytes.
    rest[0] = WAKEUP_WATERMARK;
    let (kind, size) = (PERF_TYPE_SOFTWARE, size_of::<Attr>() as u32);
    let attr = Attr { kind, size, config: PERF_COUNT_SW_DUMMY, flags: TASK | WATERMARK, rest, ..Attr::default() };
    open_on(&attr, EVERYBODY, cpu as libc::c_int)
}

/// Runs `program` whenever a thread passes the tracepoint with this number, on any CPU: the event's own CPU only tells
/// the kernel where to count.
///
/// # Errors
/// Whatever `perf_event_open(2)` gives: `EACCES` without privileges.
pub(super) fn attach_to_tracepoint(number: u64, program: BorrowedFd<'_>) -> io::Result<Attached> {
    const PERF_TYPE_TRACEPOINT: u32 = 2;
    let (kind, size) = (PERF_TYPE_TRACEPOINT, size_of::<Attr>() as u32);
    let attr = Attr { kind, size, config: number, flags: DISABLED, ..Attr::default() };
    let cpu = online()?.first().copied().unwrap_or(0);
    let event = open_on(&attr, EVERYBODY, cpu as libc::c_int)?;
    let link = link(program, &event, 0)?;
    enable(&event, true)?;
    Ok(Attached { event, _link: link })
}

/// Opens an event on thread `tid` that runs `program` `rate` times a second of CPU time, on this thread and on all
/// threads that it starts later. [`Attached::begin`] starts the event. The program sees `cookie` on this thread, and 0
/// on threads that inherit the event (`perf_event_alloc` in Linux's `kernel/events/core.c` copies the program but not
/// the cookie).
///
/// # Errors
/// Whatever `perf_event_open(2)` gives: `ESRCH` if the thread is gone, `EACCES` without privileges.
pub fn attach(clock: Clock, rate: u32, tid: u32, program: BorrowedFd<'_>, cookie: u64) -> io::Result<Attached> {
    let event = open(&Attr::new(clock, rate), tid as libc::pid_t)?;
    let link = link(program, &event, cookie)?;
    Ok(Attached { event, _link: link })
}

/// Opens a hardware watchpoint on thread `tid`, and on all threads that it starts later: `program` runs after each
/// instruction that writes the byte at `address`.
///
/// # Errors
/// Whatever `perf_event_open(2)` gives: `ENOSPC` if the thread's debug registers are all in use, `ENODEV` or
/// `EOPNOTSUPP` where there are none.
pub fn watch(address: u64, tid: u32, program: BorrowedFd<'_>) -> io::Result<Attached> {
    let event = open(&Attr::watchpoint(address), tid as libc::pid_t)?;
    let link = link(program, &event, 0)?;
    enable(&event, true)?;
    Ok(Attached { event, _link: link })
}

/// `union bpf_attr` for `BPF_LINK_CREATE` on a perf event (linux/bpf.h, since Linux 5.15).
#[repr(C)]
struct LinkAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}

/// Makes a program run whenever the event occurs; the program sees `cookie`. Closing the returned descriptor ends this.
///
/// # Errors
/// What bpf(2) says.
pub(super) fn link(program: BorrowedFd<'_>, event: &OwnedFd, cookie: u64) -> io::Result<OwnedFd> {
    const BPF_LINK_CREATE: libc::c_long = 28;
    const BPF_PERF_EVENT: u32 = 41;
    let attr = LinkAttr {
        program: program.as_raw_fd() as u32,
        target: event.as_raw_fd() as u32,
        attach_type: BPF_PERF_EVENT,
        flags: 0,
        cookie,
    };
    // SAFETY: `attr` has the size that is passed, and both descriptors are open.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw const attr, size_of::<LinkAttr>()) };
    owned(fd)
}

/// The part of `struct perf_event_attr` that is used here: up to `PERF_ATTR_SIZE_VER5` (linux/perf_event.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    rest: [u64; 8],
}

/// The event stays off until it is enabled.
const DISABLED: u64 = 1 << 0;

/// Threads that are started later inherit the event. Child processes do not, and the event ends when the process
/// executes another program (both since Linux 5.13).
const INHERITED: u64 = INHERIT | INHERIT_THREAD | REMOVE_ON_EXEC;
const INHERIT: u64 = 1 << 1;
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;

impl Attr {
    fn watchpoint(address: u64) -> Self {
        const PERF_TYPE_BREAKPOINT: u32 = 5;
        const HW_BREAKPOINT_W: u64 = 2;
        const LENGTH: u64 = 1;
        // Behind the flags: `wakeup_events` and `bp_type`, `bp_addr`, `bp_len`.
        let mut rest = [0; 8];
        rest[..3].copy_from_slice(&[HW_BREAKPOINT_W << 32, address, LENGTH]);
        Self {
            kind: PERF_TYPE_BREAKPOINT,
            size: size_of::<Self>() as u32,
            sample_period: 1,
            flags: DISABLED | INHERITED,
            rest,
            ..Self::default()
        }
    }

    fn new(clock: Clock, rate: u32) -> Self {
        const PERF_TYPE_HARDWARE: u32 = 0;
        const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
        const PERF_TYPE_SOFTWARE: u32 = 1;
        const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
        const FREQ: u64 = 1 << 10;
        let flags = DISABLED | INHERITED;
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
            // A fixed period in nanoseconds: unlike a frequency, it needs no time to settle.
            Clock::CpuClock => Self {
                kind: PERF_TYPE_SOFTWARE,
                config: PERF_COUNT_SW_CPU_CLOCK,
                sample_period: 1_000_000_000 / rate,
                flags,
                ..attr
            },
        }
    }

    /// A probe on the instruction at an offset of a file. `kind` is the number that perf has for uprobes.
    pub(super) fn probe(kind: u32, path: &CStr, offset: u64, on_return: bool) -> Self {
        let mut rest = [0; 8];
        // `config1` and `config2`, which come after `wakeup_events` and `bp_type` in `rest`.
        (rest[1], rest[2]) = (path.as_ptr() as u64, offset);
        // Bit 0 makes it a return probe (`format/retprobe`).
        Self { kind, size: size_of::<Self>() as u32, config: u64::from(on_return), rest, ..Self::default() }
    }
}

/// Opens an event on a thread; a probe is opened on the whole process that the thread belongs to.
///
/// # Errors
/// Whatever `perf_event_open(2)` gives.
pub(super) fn open(attr: &Attr, tid: libc::pid_t) -> io::Result<OwnedFd> {
    const ANY_CPU: libc::c_int = -1;
    open_on(attr, tid, ANY_CPU)
}

fn open_on(attr: &Attr, tid: libc::pid_t, cpu: libc::c_int) -> io::Result<OwnedFd> {
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
    const NO_GROUP: libc::c_int = -1;
    // SAFETY: `attr` has the size that it says, and the other arguments are plain integers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, std::ptr::from_ref(attr), tid, cpu, NO_GROUP, PERF_FLAG_FD_CLOEXEC)
    };
    owned(fd)
}

/// Takes ownership of the descriptor that a system call has just returned.
///
/// # Errors
/// The system call failed: its `errno`.
pub(super) fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

const _: () = assert!(size_of::<Attr>() == 112);
