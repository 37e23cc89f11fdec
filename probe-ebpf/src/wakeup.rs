//! Decides when a record in a ring buffer wakes user space. The agent reads each buffer at its own pace. A thread of
//! the agent moves records out of the way that it is late for (`crates/probes/src/ring.rs`); that thread sleeps until a
//! buffer is a quarter full.

use aya_ebpf::helpers::generated::bpf_ringbuf_query;
use aya_ebpf::maps::RingBuf;

/// Wakes nobody (`BPF_RB_NO_WAKEUP`).
pub const NO_WAKEUP: u64 = 1;
/// Wakes the waiting thread (`BPF_RB_FORCE_WAKEUP`).
const FORCE_WAKEUP: u64 = 2;

/// What to ask a ring buffer: how much is in it (`BPF_RB_AVAIL_DATA`), and how large it is (`BPF_RB_RING_SIZE`).
const AVAILABLE: u64 = 0;
const SIZE: u64 = 1;

/// The flags for a record that goes into a buffer now. `largest` is the size of the buffer's largest record, in bytes.
///
/// They wake the thread when the buffer becomes a quarter full, and for the few records after that, since two CPUs may
/// pass that point together. Later records do not wake it: that would slow the target down while the buffer stays full.
#[inline(always)]
pub fn flags(buffer: &'static RingBuf, largest: u64) -> u64 {
    let map = (&raw const *buffer).cast_mut().cast();
    // SAFETY: it is a ring buffer, which is there as long as the program.
    let [available, size] = [AVAILABLE, SIZE].map(|what| unsafe { bpf_ringbuf_query(map, what) });
    if available.wrapping_sub(size / 4) < 2 * largest { FORCE_WAKEUP } else { NO_WAKEUP }
}
