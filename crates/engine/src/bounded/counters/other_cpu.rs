//! Keeps a thread off the CPU that the target runs on. A thread that watches from the target's CPU always sees the target
//! stopped, since it has preempted it; and a target that is preempted a thousand times per second loses its caches. If there is a
//! choice, the thread keeps off the other threads of the target's core, too: what runs there slows down the target.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Finds the CPU of the target's main thread.
#[derive(Debug)]
pub struct OtherCpu {
    stat: Option<File>,
    /// The CPUs of the core of each CPU that was asked for.
    cores: HashMap<usize, Vec<usize>>,
}

/// How near a thread is to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nearness {
    /// It has a core of its own, or it is not known where the target is.
    Apart,
    /// It runs on another thread of the same core.
    OnCore,
    /// It has the target's CPU.
    OnCpu,
}

impl OtherCpu {
    /// For the process `pid`.
    pub fn from(pid: u32) -> Self {
        Self { stat: File::open(format!("/proc/{pid}/stat")).ok(), cores: HashMap::new() }
    }

    /// Moves this thread to another core if it runs on the target's, or at least to another CPU. Says where it is then.
    pub fn go(&mut self) -> Nearness {
        let Some(theirs) = self.stat.as_ref().and_then(last_cpu) else { return Nearness::Apart };
        let core = self.cores.entry(theirs).or_insert_with(|| core_of(theirs));
        if core.contains(&own_cpu()) && !avoid(core) && own_cpu() == theirs {
            avoid(&[theirs]);
        }
        match own_cpu() {
            own if own == theirs => Nearness::OnCpu,
            own if core.contains(&own) => Nearness::OnCore,
            _ => Nearness::Apart,
        }
    }
}

/// The CPUs that are threads of one core with this one, and itself.
fn core_of(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    let mut core = cpus_of(&list);
    if !core.contains(&cpu) {
        core.push(cpu);
    }
    core
}

/// The numbers of a list of CPUs, such as `0-1,64`.
fn cpus_of(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse().ok()?..=to.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
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

/// Lets this thread run on all CPUs that its process may use, except these. Returns false if there is no other.
fn avoid(cpus: &[usize]) -> bool {
    // SAFETY: plain data, of which all zeros is an empty set.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the calls read and write the set alone, whose size is passed; the macros' functions stay within it for any
    // number below its size.
    unsafe {
        if libc::sched_getaffinity(std::process::id() as i32, size, &raw mut allowed) != 0 {
            return false;
        }
        cpus.iter().filter(|cpu| **cpu < size * 8).for_each(|cpu| libc::CPU_CLR(*cpu, &mut allowed));
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

    #[test]
    fn lists_of_cpus_have_ranges() {
        assert_eq!(cpus_of("0-1,64\n"), [0, 1, 64]);
        assert_eq!(cpus_of("7"), [7]);
        assert_eq!(cpus_of("\n"), [0; 0]);
        assert!(core_of(own_cpu()).contains(&own_cpu()));
        assert_eq!(core_of(99_999), [99_999]);
    }
}
