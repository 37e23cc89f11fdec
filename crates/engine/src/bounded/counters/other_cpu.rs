//! Keeps a thread off the CPU that the target runs on. A thread that watches from the target's CPU always sees the target
//! stopped, since it has preempted it; and a target that is preempted a thousand times per second loses its caches.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Finds the CPU of the target's main thread.
#[derive(Debug)]
pub struct OtherCpu {
    stat: Option<File>,
}

impl OtherCpu {
    /// For the process `pid`.
    pub fn from(pid: u32) -> Self {
        Self { stat: File::open(format!("/proc/{pid}/stat")).ok() }
    }

    /// Moves this thread to another CPU if it runs on the target's CPU. Returns false if there is no other CPU.
    pub fn go(&self) -> bool {
        let Some(theirs) = self.stat.as_ref().and_then(last_cpu) else { return true };
        theirs != own_cpu() || (avoid(theirs) && theirs != own_cpu())
    }
}

/// The CPU that a process ran on last, from its `/proc/PID/stat`.
fn last_cpu(stat: &File) -> Option<usize> {
    let mut bytes = [0; 1024];
    let length = stat.read_at(&mut bytes, 0).ok()?;
    processor(std::str::from_utf8(bytes.get(..length)?).ok()?)
}

/// `processor`, the 39th field (proc_pid_stat(5)). The second field has parentheses around it and may contain any
/// characters.
fn processor(stat: &str) -> Option<usize> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

fn own_cpu() -> usize {
    // SAFETY: it has no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

/// Lets this thread run on all CPUs that its process may use, except this one. Returns false if there is no other.
fn avoid(cpu: usize) -> bool {
    // SAFETY: plain data, of which all zeros is an empty set.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the calls read and write the set alone, whose size is passed; the macros' functions stay within it for any
    // number below its size.
    unsafe {
        if cpu >= size * 8 || libc::sched_getaffinity(std::process::id() as i32, size, &raw mut allowed) != 0 {
            return false;
        }
        libc::CPU_CLR(cpu, &mut allowed);
        libc::sched_setaffinity(0, size, &raw const allowed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_found_behind_any_name() {
        let fields = (3..60).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(processor(&format!("7 (a b) c) {fields}")), Some(39));
        assert_eq!(processor("7 (a) S 1"), None);
        let own = File::open("/proc/self/stat").unwrap();
        assert!(last_cpu(&own).is_some());
    }
}
