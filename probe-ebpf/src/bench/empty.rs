//! Probes that do nothing: they show what it costs the kernel to run any program at these instructions.

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};

/// In place of [`crate::allocation::allocator_called`].
#[uprobe(multi)]
pub fn empty_called(_context: ProbeContext) -> u32 {
    0
}

/// In place of [`crate::allocation::allocator_returned`].
#[uretprobe(multi)]
pub fn empty_returned(_context: RetProbeContext) -> u32 {
    0
}
