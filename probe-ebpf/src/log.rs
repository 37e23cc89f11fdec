//! Log messages of the programs, through aya-log, in a build for finding mistakes in them (`cargo xtask build
//! --bpf-log`). `lj-trace record -vv` shows the messages.

use aya_ebpf::programs::PerfEventContext;
use aya_log_ebpf::debug;

use crate::maps::SCRATCH;

/// A sample that was just sent.
pub fn sample(context: &PerfEventContext, area: u32) {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else { return };
    // SAFETY: the area is this run's own until it ends.
    let header = unsafe { &(*scratch).header };
    debug!(
        context,
        "thread {}: VM {}, {} frames of Lua, the walk ended with {}",
        header.tid,
        header.vm,
        header.frame_count,
        header.walk_end
    );
}
