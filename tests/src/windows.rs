//! Whether the kernel has what memory profiles of bounded cost are made of.

use lj_trace_probes::mechanism::Mechanism;

/// Whether windows can be opened on this kernel; if not, that is said.
pub fn are_possible() -> bool {
    let possible = Mechanism::detect() == Mechanism::Multi;
    if !possible {
        crate::skips::skip("this kernel has no uprobe_multi links, which windows are made of");
    }
    possible
}
