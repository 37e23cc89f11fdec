//! The mechanism by which the kernel inserts probes into one process.

use std::sync::OnceLock;

use aya::sys::{UProbeMultiFeature, is_uprobe_multi_supported};

use lj_trace_process::privileges::{Capabilities, Capability};

/// The kernel's mechanism for probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// One link for all instructions of a file (`uprobe_multi`).
    Multi,
    /// One perf event for each instruction: the older mechanism. Patched kernels require `CAP_SYS_ADMIN` for it
    /// (CVE-2025-38466).
    Classic,
}

impl Mechanism {
    /// The mechanism to use on this kernel, found out by trying.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Mechanism> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            // Other errors will occur again, with their reason, when the probes are attached.
            let lacks = |feature| is_uprobe_multi_supported(feature).is_ok_and(|there| !there);
            let cannot = lacks(UProbeMultiFeature::LinkCreation);
            // Such links would miss all threads but one, so they are only better than nothing.
            let misses_threads = || {
                lacks(UProbeMultiFeature::ProcessScopedPidFilter) && Capabilities::effective().has(Capability::SysAdmin)
            };
            if cannot || misses_threads() { Self::Classic } else { Self::Multi }
        })
    }
}
