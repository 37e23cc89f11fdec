//! Privileges of lj-trace: the capabilities that it has, the missing ones where the kernel refuses something, and how
//! it gives up those that it no longer needs.

mod drop;
pub mod limits;
pub mod priority;
mod refused;

use std::io;

pub use drop::{TO_ATTACH, drop_unneeded, give_up_all, keep_only};
pub use refused::{Operation, Refusal};

/// A part of root's powers (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// To use files whatever their permissions say.
    DacOverride,
    /// To read files whatever their permissions say.
    DacReadSearch,
    /// To send signals to other users' processes.
    Kill,
    /// To read other users' processes.
    SysPtrace,
    /// To do nearly everything; implies `CAP_BPF` and `CAP_PERFMON`.
    SysAdmin,
    /// To see the kernel's addresses.
    Syslog,
    /// To sample, and to read memory from BPF programs.
    Perfmon,
    /// To load BPF programs.
    Bpf,
    /// To open the files behind mappings that were deleted or replaced.
    CheckpointRestore,
}

/// How to give lj-trace the capabilities that it needs.
pub const HOW_TO_GET: &str = "run as root (`sudo lj-trace ...`), or as a job of systemd (`lj-trace unit --pid N | sudo \
                              sh`, which gives it `AmbientCapabilities=CAP_BPF CAP_PERFMON CAP_SYS_PTRACE` and little \
                              else); in a container `--cap-add` for each";

impl Capability {
    /// Its number in `linux/capability.h`.
    const fn number(self) -> u32 {
        match self {
            Self::DacOverride => 1,
            Self::DacReadSearch => 2,
            Self::Kill => 5,
            Self::SysPtrace => 19,
            Self::SysAdmin => 21,
            Self::Syslog => 34,
            Self::Perfmon => 38,
            Self::Bpf => 39,
            Self::CheckpointRestore => 40,
        }
    }

    /// Its usual name, such as `CAP_BPF`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::Kill => "CAP_KILL",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Syslog => "CAP_SYSLOG",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
            Self::CheckpointRestore => "CAP_CHECKPOINT_RESTORE",
        }
    }
}

/// A set of capabilities in the kernel's form: one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// The effective capabilities of this thread; none if the kernel does not tell.
    pub fn effective() -> Self {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let mask = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
    }

    /// The capabilities with these bits.
    pub const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits of the capabilities.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// A set of these capabilities.
    pub fn of(names: &[Capability]) -> Self {
        Self(names.iter().fold(0, |bits, name| bits | 1 << name.number()))
    }

    /// Whether a capability is in the set, by itself or because `CAP_SYS_ADMIN` implies it.
    pub fn has(self, capability: Capability) -> bool {
        let is_there = |capability: Capability| self.0 >> capability.number() & 1 != 0;
        let implied = matches!(capability, Capability::Bpf | Capability::Perfmon | Capability::CheckpointRestore);
        is_there(capability) || implied && is_there(Capability::SysAdmin)
    }
}

/// `struct __user_cap_header_struct` and `struct __user_cap_data_struct` of linux/capability.h.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`; process 0 is this thread.
const THIS_THREAD: Header = Header { version: 0x2008_0522, pid: 0 };

/// Sets the effective and the permitted capabilities of this thread.
fn set(effective: Capabilities, permitted: Capabilities) -> io::Result<()> {
    let half = |shift: u32| Sets {
        effective: (effective.0 >> shift) as u32,
        permitted: (permitted.0 >> shift) as u32,
        inheritable: 0,
    };
    let (mut header, sets) = (THIS_THREAD, [half(0), half(32)]);
    // SAFETY: capset(2) takes this header and two sets, and only writes the header.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The permitted capabilities of this thread.
fn permitted() -> io::Result<Capabilities> {
    let (mut header, mut sets) = (THIS_THREAD, [Sets::default(); 2]);
    // SAFETY: capget(2) writes the header and two sets.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Capabilities(u64::from(sets[0].permitted) | u64::from(sets[1].permitted) << 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_administrator_may_use_bpf_but_not_read_processes() {
        let admin = Capabilities::of(&[Capability::SysAdmin]);
        assert!(admin.has(Capability::Bpf) && admin.has(Capability::Perfmon));
        assert!(!admin.has(Capability::SysPtrace) && !admin.has(Capability::Syslog));
        assert!(!Capabilities::default().has(Capability::Bpf));
    }

    #[test]
    fn what_is_in_effect_is_permitted() {
        let (effective, permitted) = (Capabilities::effective(), permitted().unwrap());
        assert_eq!(effective.0 & !permitted.0, 0);
    }
}
