//! Confines a reader before it reads: limits on memory and time, no identity, no capabilities, almost no system calls.

use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule as Rule,
};

use crate::page_map::page_size;
use crate::privileges;

/// How much address space a reader may take in addition to the program itself, in bytes: together with lj-trace's own
/// memory this is less than 256 MB.
pub const MEMORY: u64 = 160 << 20;

/// The CPU time that a reader may take before the kernel ends it, in seconds. lj-trace waits less long for an answer,
/// and replaces a reader before its work comes near this limit.
pub const CPU: u64 = 10;

/// `nobody`, on all distributions.
const NOBODY: u32 = 65534;

/// Gives up everything that reading does not need, for good. The process must have no other threads.
///
/// # Errors
/// If the kernel refuses a step. Then the process must read nothing.
pub fn confine() -> io::Result<()> {
    // SAFETY: system calls with plain integers, and a name that ends with a NUL.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"lj-trace-reader".as_ptr());
        // Only the socket and the standard streams stay: everything else that was inherited is closed.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        // A stack overflow must look like a crash, unlike missing memory (SIGABRT).
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        // A service manager signals all processes of a service; this one ends when lj-trace closes the socket.
        for asked in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            libc::signal(asked, libc::SIG_IGN);
        }
    }
    limit(libc::RLIMIT_AS, own_size()?.saturating_add(MEMORY), 0)?;
    // SIGXCPU shows that this limit was reached; SIGKILL comes a second later.
    limit(libc::RLIMIT_CPU, CPU, 1)?;
    for nothing in [libc::RLIMIT_CORE, libc::RLIMIT_FSIZE, libc::RLIMIT_NPROC] {
        limit(nothing, 0, 0)?;
    }
    limit(libc::RLIMIT_NOFILE, 16, 0)?;
    // SAFETY: system calls with plain integers; the list of groups is empty.
    unsafe {
        // A process that may not change its identity keeps it, but can do nothing with it: see the filter. The real user id
        // stays, so that lj-trace may end the reader without a capability, and other processes of nobody may not.
        if libc::setgroups(0, std::ptr::null()) == 0 && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0 {
            libc::setresuid(u32::MAX, NOBODY, u32::MAX);
        }
        // Processes of the same identity can neither read its memory nor trace it.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    privileges::give_up_all()?;
    filter()
}

/// Sets a soft limit, and `more` above it as the hard limit; never more than it was.
fn limit(resource: libc::__rlimit_resource_t, most: u64, more: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it writes the limit.
    if unsafe { libc::getrlimit(resource, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_max = limit.rlim_max.min(most.saturating_add(more));
    limit.rlim_cur = limit.rlim_max.min(most);
    // SAFETY: the pointer is to a limit of ours.
    if unsafe { libc::setrlimit(resource, &raw const limit) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The size of this process's address space.
fn own_size() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.ok_or(io::ErrorKind::InvalidData)?.saturating_mul(page_size()))
}

/// Makes the kernel end this process at any system call that reading does not need.
fn filter() -> io::Result<()> {
    let program = program().map_err(|error| io::Error::other(error.to_string()))?;
    let filters = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // By prctl(2), not seccomp(2), which a service manager's own filter may forbid.
    // SAFETY: the filter is an array of as many instructions as it says, of the kernel's layout (`struct sock_filter`: 16
    // bits, twice 8, 32), and is only read.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filters) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The filter: it allows the calls that reading needs, and ends the process at any other.
fn program() -> Result<BpfProgram, seccompiler::Error> {
    let argument = |index, operation, value| Condition::new(index, Width::Dword, operation, value);
    let not_executable = || argument(2, Op::MaskedEq(libc::PROT_EXEC as u64), 0);
    let anonymous = libc::MAP_ANONYMOUS as u64;
    let mut rules = std::collections::BTreeMap::new();
    for always in [
        // The files that come over the socket, and no others: the filter lets none be opened.
        libc::SYS_recvmsg,
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_lseek,
        libc::SYS_fstat,
        libc::SYS_close,
        // Memory.
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        // The runtime: seeds of tables, locks, time, signals, the end.
        libc::SYS_getrandom,
        libc::SYS_futex,
        libc::SYS_clock_gettime,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigaction,
        libc::SYS_sigaltstack,
        libc::SYS_restart_syscall,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ] {
        rules.insert(always, Vec::new());
    }
    rules.insert(libc::SYS_write, vec![Rule::new(vec![argument(0, Op::Le, 2)?])?]);
    // Builds with debug assertions check that a descriptor is open before they take it.
    let is_open = argument(1, Op::Eq, libc::F_GETFD as u64)?;
    rules.insert(libc::SYS_fcntl, vec![Rule::new(vec![is_open])?]);
    let map = vec![argument(3, Op::MaskedEq(anonymous), anonymous)?, not_executable()?];
    rules.insert(libc::SYS_mmap, vec![Rule::new(map)?]);
    rules.insert(libc::SYS_mprotect, vec![Rule::new(vec![not_executable()?])?]);
    // abort(3) of this process, where memory runs out.
    let own = u64::from(std::process::id());
    let abort = vec![argument(0, Op::Eq, own)?, argument(2, Op::Eq, libc::SIGABRT as u64)?];
    rules.insert(libc::SYS_tgkill, vec![Rule::new(abort)?]);
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `action` in a confined child of this test. Returns the child's wait status.
    fn confined(action: impl FnOnce()) -> i32 {
        // SAFETY: the child runs what a reader runs, with the allocator of a C library that survives fork(2).
        match unsafe { libc::fork() } {
            0 => {
                let code = match confine() {
                    Ok(()) => {
                        action();
                        7
                    }
                    Err(_) => 8,
                };
                // SAFETY: it ends the process.
                unsafe { libc::_exit(code) }
            }
            child => {
                let mut status = 0;
                // SAFETY: it writes the status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                status
            }
        }
    }

    #[test]
    fn what_reading_takes_is_allowed_and_nothing_else() {
        let fine = confined(|| {
            drop(std::hint::black_box(vec![1_u8; 32 << 20]));
            let _ = std::hint::black_box(std::collections::HashMap::from([(1, 2)]));
        });
        assert!(libc::WIFEXITED(fine) && libc::WEXITSTATUS(fine) == 7, "{fine:x}");
        let forbidden: [fn(); 6] = [
            || drop(std::fs::File::open("/etc/passwd")),
            || drop(std::fs::metadata("/etc/passwd")),
            || drop(std::net::TcpListener::bind("127.0.0.1:0")),
            || {
                // SAFETY: it sends no signal.
                let _ = unsafe { libc::kill(libc::getppid(), 0) };
            },
            || {
                let flags = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
                // SAFETY: nothing is there yet.
                let _ = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_EXEC, flags, -1, 0) };
            },
            || {
                // SAFETY: it does not come back.
                let _ = unsafe { libc::fork() };
            },
        ];
        for (index, action) in forbidden.into_iter().enumerate() {
            let status = confined(action);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS, "{index}: {status:x}");
        }
    }

    #[test]
    fn memory_ends() {
        // SAFETY: plain integers; nothing is done with the memory.
        let status = confined(|| unsafe {
            let flags = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
            let length = MEMORY as usize + (1 << 20);
            let map = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, -1, 0);
            libc::_exit(if map == libc::MAP_FAILED { 5 } else { 6 })
        });
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 5, "{status:x}");
    }
}
