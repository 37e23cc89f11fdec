//! Programs that run with some of root's powers and without others.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// A user without any rights.
pub const NOBODY: u32 = 65534;

/// A number of linux/capability.h.
pub type Capability = u32;

/// To use files whatever their permissions say.
pub const DAC_OVERRIDE: Capability = 1;
/// To read other users' processes.
pub const SYS_PTRACE: Capability = 19;
/// To do nearly everything.
pub const SYS_ADMIN: Capability = 21;
/// To sample, and to read memory from BPF programs.
pub const PERFMON: Capability = 38;
/// To load BPF programs.
pub const BPF: Capability = 39;

/// Some of root's powers that nothing takes once it is attached.
pub const OF_NO_USE: [Capability; 9] = [0, 5, 6, 7, 12, 16, 17, 23, 25];

/// Has a command run as a user, with these capabilities and no others.
pub fn run_as(command: &mut Command, user: u32, capabilities: &[Capability]) {
    let mask = capabilities.iter().fold(0_u64, |mask, capability| mask | 1 << capability);
    let ambient = capabilities.to_vec();
    // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            let done = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
            // The system calls, not the C library's functions, which act on all threads of a process.
            done(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0).into())?;
            done(libc::syscall(libc::SYS_setgroups, 0, 0))?;
            done(libc::syscall(libc::SYS_setresgid, user, user, user))?;
            done(libc::syscall(libc::SYS_setresuid, user, user, user))?;
            // `_LINUX_CAPABILITY_VERSION_3`, this process; effective, permitted and inheritable, in two halves.
            let header = [0x2008_0522_u32, 0];
            let (low, high) = (mask as u32, (mask >> 32) as u32);
            let sets = [low, low, low, high, high, high];
            done(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()))?;
            ambient.iter().try_for_each(|capability| {
                done(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, *capability, 0, 0).into())
            })
        });
    }
}

/// What each thread of a process may do: in effect, and permitted.
///
/// # Errors
/// If there is no such process.
pub fn of_threads(pid: u32) -> Result<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // It may have ended meanwhile.
        let Ok(status) = std::fs::read_to_string(thread?.path().join("status")) else { continue };
        let set = |name: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
            Ok::<_, anyhow::Error>(u64::from_str_radix(mask.trim(), 16)?)
        };
        all.push((set("CapEff:")?, set("CapPrm:")?));
    }
    Ok(all)
}

/// Whether a thread with these has a capability, in effect or permitted.
pub fn has((effective, permitted): (u64, u64), capability: Capability) -> bool {
    (effective | permitted) >> capability & 1 == 1
}

/// Waits until no thread of a process has a capability: what measures beside the others ends by itself.
///
/// # Errors
/// If there is no such process, or it keeps the capability.
pub fn without(pid: u32, capability: Capability) -> Result<()> {
    let asked = Instant::now();
    loop {
        let threads = of_threads(pid)?;
        if !threads.iter().any(|thread| has(*thread, capability)) {
            return Ok(());
        }
        ensure!(asked.elapsed() < crate::patience(10), "{capability} is in {threads:x?}");
        sleep(Duration::from_millis(20));
    }
}
