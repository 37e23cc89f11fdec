//! When user space is woken up for what is in a ring buffer: the agent looks at each at its own pace, and what it is late for
//! is moved out of the way by a thread of its (`crates/probes/src/ring.rs`), which sleeps until a buffer is a quarter full.

use aya_ebpf::helpers::generated::bpf_ringbuf_query;
use aya_ebpf::maps::RingBuf;

/// Nobody is woken up (`BPF_RB_NO_WAKEUP`).
pub const NO_WAKEUP: u64 = 1;
/// Whoever waits is woken up (`BPF_RB_FORCE_WAKEUP`).
const FORCE_WAKEUP: u64 = 2;

/// What may be asked of a ring buffer: how much is in it (`BPF_RB_AVAIL_DATA`), and how large it is (`BPF_RB_RING_SIZE`).
const AVAILABLE: u64 = 0;
const SIZE: u64 = 1;

/// The flags of a record that goes into a buffer now, whose records have no more than `largest` bytes.
///
/// The thread is woken up when the buffer becomes a quarter full, and for the few records after that, since those of two CPUs
/// may pass that point together; not for each record beyond, which would cost the target where the buffer stays full.
#[inline(always)]
pub fn flags(buffer: &'static RingBuf, largest: u64) -> u64 {
    let map = (&raw const *buffer).cast_mut().cast();
    // SAFETY: it is a ring buffer, which is there as long as the program.
    let [available, size] = [AVAILABLE, SIZE].map(|what| unsafe { bpf_ringbuf_query(map, what) });
    if available.wrapping_sub(size / 4) < 2 * largest { FORCE_WAKEUP } else { NO_WAKEUP }
}
