//! A kernel that refuses one thing more than this one: by a filter for system calls (seccomp(2)), as containers have it.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// An instruction of a classic BPF program: what it does, where it jumps, its operand.
const fn instruction(code: u32, jumps: [u8; 2], operand: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: jumps[0], jf: jumps[1], k: operand }
}

/// Where `struct seccomp_data` has the call's number, and the lower half of its second argument.
const NUMBER: u32 = 0;
const SECOND: u32 = 24;

/// Has what a command runs be refused perf events for all processes on a CPU, while those on its threads are allowed.
pub fn events_on_cpus(command: &mut Command) {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUALS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let filter = [
        instruction(LOAD, [0, 0], NUMBER),
        instruction(EQUALS, [0, 3], libc::SYS_perf_event_open as u32),
        instruction(LOAD, [0, 0], SECOND),
        // The process -1: all of them.
        instruction(EQUALS, [0, 1], u32::MAX),
        instruction(RETURN, [0, 0], libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        instruction(RETURN, [0, 0], libc::SECCOMP_RET_ALLOW),
    ];
    // SAFETY: prctl(2) is async-signal-safe, and the filter is in the closure, which lives until the program is executed.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            let done = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            done(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))
        });
    }
}
