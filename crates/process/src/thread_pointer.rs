//! Where a thread keeps its own variables, without stopping it.
//!
//! On x86-64, thread-local variables lie at fixed offsets from the thread's control block, and the block begins with its own
//! address. The kernel knows the head of the thread's list of robust mutexes, which glibc keeps in the same structure.

use lj_trace_common::memory::ReadMemory as _;

use super::Process;

/// The most words from the beginning of the control block to the list: glibc has 92 (`struct pthread`, `nptl/descr.h`).
const MOST_WORDS: u64 = 256;

/// The index of the second word that has the block's own address: `self` after `tcb` and `dtv` (`tcbhead_t`,
/// `sysdeps/x86_64/nptl/tls.h`).
const SELF: u64 = 2;

impl Process {
    /// The address that the main thread's variables have fixed offsets from; [`None`] if it cannot be told (another C
    /// library than glibc, another processor than x86-64).
    pub fn main_thread_pointer(&self) -> Option<u64> {
        let list = robust_list(self.pid())?;
        let memory = self.memory();
        let word = |address: u64| memory.read::<u64>(address).ok();
        (1..=MOST_WORDS)
            .map(|words| list.wrapping_sub(words * 8))
            .find(|block| word(*block) == Some(*block) && word(block.wrapping_add(SELF * 8)) == Some(*block))
    }
}

/// The head of a thread's list of robust mutexes; [`None`] if it has none.
fn robust_list(thread: u32) -> Option<u64> {
    let (mut head, mut length) = (0_u64, 0_usize);
    // SAFETY: the kernel writes a pointer and a size to two places of these sizes.
    let outcome = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut length) };
    (outcome == 0 && head != 0 && head.is_multiple_of(8)).then_some(head)
}

#[cfg(all(test, target_arch = "x86_64", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_of_a_program_has_one() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let began = std::time::Instant::now();
        // Until it has executed its program, it has none.
        while Process::open(child.id()).ok().and_then(|process| process.main_thread_pointer()).is_none() {
            assert!(began.elapsed().as_secs() < 10, "there is none");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_list_is_in_the_control_block() {
        // SAFETY: both only return a number of this thread; the first one is the address of its block.
        let (block, thread) = unsafe { (libc::pthread_self(), libc::gettid()) };
        let list = robust_list(u32::try_from(thread).unwrap()).unwrap();
        assert!(list > block && list - block < MOST_WORDS * 8, "{block:#x} {list:#x}");
    }
}
